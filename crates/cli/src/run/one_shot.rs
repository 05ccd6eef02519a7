//! One prompt, one answer.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::Result;
use longview_engine::{Engine, FinishReason, Generation, Session};
use longview_ops::Backend;
use pollster::block_on;

use super::args::{RunArgs, params};
use super::prompt::{self, PromptText};
use super::report::{Answered, Report};
use crate::failure::Interrupted;
use crate::interrupt::Interrupt;
use crate::progress::PrefillBar;
use crate::{out, units};

/// Prefills what the session does not have of `text`, generates, and prints text or JSON.
pub fn run<B: Backend>(
    args: &RunArgs,
    mut engine: Engine<B>,
    mut session: Session<B>,
    text: &PromptText,
    interrupt: &Interrupt,
    load: Duration,
) -> Result<()> {
    let (ids, has_template) = prompt::encode(args, &engine, text)?;
    let known = prompt::known(&session, &ids, !text.talk().turns.is_empty())?;
    if known < session.n_tokens() {
        block_on(session.cut(known))?;
    }
    prefill(&mut engine, &mut session, &ids[known..], interrupt)?;
    let _guard = interrupt.cancel_with(session.cancel_token());
    let generation = generate(args, &mut engine, &mut session)?;
    let answered = Answered { load, prompt_ids: ids, has_template, generation };
    let report = Report::new(args, &**engine.backend(), &session, answered);
    if args.json {
        report.print_json()?;
    } else {
        out::piece("\n")?;
    }
    if args.stats {
        report.print_stats();
    }
    match report.finish_reason() {
        FinishReason::Cancelled => {
            let n = units::count(report.n_generated());
            Err(Interrupted(format!("the answer ends after {n} tokens")).into())
        }
        _ => Ok(()),
    }
}

/// Computes `ids` behind what the session has, with a bar. Ctrl-C ends the program.
fn prefill<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    ids: &[u32],
    interrupt: &Interrupt,
) -> Result<()> {
    let mut bar = PrefillBar::new(ids.len());
    let fate = "they are not kept, because nothing is written to disk".to_owned();
    let guard = interrupt.end_with(bar.last_words("prompt", fate));
    let mut update = |progress| bar.update(progress, &guard);
    block_on(engine.prefill(session, ids, &mut update))?;
    Ok(())
}

fn generate<B: Backend>(
    args: &RunArgs,
    engine: &mut Engine<B>,
    session: &mut Session<B>,
) -> Result<Generation> {
    let params = params(args, engine);
    let mut written = Ok(());
    let mut show = |text: &str| {
        if !args.json {
            written = out::piece(text);
        }
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let generation = block_on(engine.generate(session, &params, &mut show))?;
    written?;
    Ok(generation)
}
