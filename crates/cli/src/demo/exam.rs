//! The questions under one policy, all from the same prefill.
//!
//! A question is not prefilled (that attends to everything) but decoded token by token through
//! the policy, as the answer is: what the policy does not recall, the model cannot know. After
//! each question the session is cut back to the document.

use std::ops::ControlFlow;

use anyhow::Result;
use longview_engine::{Engine, EngineError, FinishReason, GenerationParams, Session};
use longview_ops::Backend;
use longview_scheduler::Preset;

use super::document::{Document, Question};
use super::view::View;
use crate::failure::Interrupted;

/// What one policy achieved; everything is measured.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The policy that was in force.
    pub policy: Preset,
    /// B; `None` for all tokens.
    pub budget: Option<usize>,
    /// Right answers.
    pub correct: usize,
    /// Tokens of questions and answers per second of decode.
    pub decode_tokens_per_s: Option<f64>,
    /// Share of recalled rows that were on the device; `None` if nothing is recalled.
    pub hit_rate: Option<f64>,
    /// Mean tokens that a KV head of a layer attended.
    pub mean_attended: Option<f64>,
    /// Keys, values and index on the device.
    pub device_kv_bytes: u64,
    /// Keys and values in host memory.
    pub host_kv_bytes: u64,
}

/// Asks every question under the policy that `session` has. The session holds the document.
pub async fn sit<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    document: &Document,
    view: &mut View,
) -> Result<Outcome> {
    session.reset_stats();
    let host_kv_bytes = session.sequence().host_kv_bytes();
    let mut correct = 0;
    for (i, question) in document.questions.iter().enumerate() {
        let Some(answer) = ask(engine, session, question, view).await? else {
            let (policy, n) = (session.policy().preset, document.questions.len());
            let text = format!("{i} of {n} questions under {policy} were answered; the document");
            return Err(Interrupted(text + " was kept until now, nothing is left on disk").into());
        };
        let is_right = answer == question.answer;
        correct += usize::from(is_right);
        view.end(question, &answer, is_right)?;
        session.truncate(document.ids.len()).await?;
    }
    Ok(Outcome {
        policy: session.policy().preset,
        budget: session.policy().budget.tokens,
        correct,
        decode_tokens_per_s: session.timings().decode_tokens_per_s(),
        hit_rate: session.stats().hit_rate(),
        mean_attended: session.stats().mean_attended(),
        device_kv_bytes: session.sequence().device_kv_bytes(),
        host_kv_bytes,
    })
}

/// The model's answer, or `None` if the user broke off.
async fn ask<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    question: &Question,
    view: &mut View,
) -> Result<Option<String>> {
    view.begin(question)?;
    match engine.feed(session, &question.ids).await {
        Err(EngineError::Cancelled) => return Ok(None),
        result => result?,
    }
    // Greedy: exactly as many tokens as the answer has.
    let params =
        GenerationParams { max_tokens: Some(question.n_answer), ..GenerationParams::default() };
    let mut written = Ok(());
    let mut show = |text: &str| {
        written = view.piece(text);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let generation = engine.generate(session, &params, &mut show).await?;
    written?;
    match generation.finish_reason {
        FinishReason::Cancelled => Ok(None),
        _ => Ok(Some(generation.text)),
    }
}
