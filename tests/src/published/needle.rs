//! A number hidden in a book, under full attention and under recall.

use std::ops::ControlFlow;

use longview_engine::GenerationParams;
use longview_model::tokenizer::Specials;
use longview_scheduler::{PolicyOptions, Preset};
use pollster::block_on;

use super::checkpoint::{Checked, Checkpoint, Way};

const FACT: &str = "\n\nThe special magic number for amber-candle is: 7284951.\n\n";
const QUESTION: &str = "\n\nQuestion: What is the special magic number for amber-candle?\n\
                        Answer: The special magic number for amber-candle is:";
const ANSWER: &str = "7284951";

/// Tokens that an answer may take: digits are tokens.
const N_ANSWER: usize = 12;

/// The number is found in `n_tokens` tokens of the book. Question and answer go through the policy.
/// Activations have 8 bits: with 16 this model leaves out the last digit under `clusterkv` in 3,000
/// tokens (`bench/record/2026-11-23-activations.md`). One number is too few to say which is better.
pub(super) fn found(checkpoint: &Checkpoint<'_>, n_tokens: usize) -> Checked {
    let book = checkpoint.book_ids()?;
    let mut engine = checkpoint.engine(Way::Eight, n_tokens + 256, 1)?;
    let encode = |text: &str| {
        let tokenizer = engine.tokenizer().ok_or("no tokenizer")?;
        tokenizer.encode(text, Specials::AsWritten).map_err(|e| e.to_string())
    };
    let (fact, question) = (encode(FACT)?, encode(QUESTION)?);
    let text = checkpoint.reference.passage(&book, 0, n_tokens);
    let (before, after) = text.split_at(n_tokens / 3);
    let document = [before, &fact, after].concat();
    let full = PolicyOptions::new(Preset::Full);
    let mut session = engine.session(&full).map_err(|e| e.to_string())?;
    let mut go_on = |_| ControlFlow::Continue(());
    block_on(engine.prefill(&mut session, &document, &mut go_on)).map_err(|e| e.to_string())?;
    let mut told = Vec::new();
    for preset in [Preset::Full, Preset::Clusterkv] {
        let policy = PolicyOptions::new(preset);
        block_on(engine.set_policy(&mut session, &policy)).map_err(|e| e.to_string())?;
        block_on(engine.feed(&mut session, &question)).map_err(|e| e.to_string())?;
        let params = GenerationParams { max_tokens: Some(N_ANSWER), ..Default::default() };
        let answer =
            block_on(engine.generate(&mut session, &params, &mut |_| ControlFlow::Continue(())));
        let text = answer.map_err(|e| e.to_string())?.text;
        if text.trim_start().strip_prefix(ANSWER).is_none() {
            return Err(format!("under {preset:?} the answer is {text:?}"));
        }
        told.push(format!("{preset:?}"));
        block_on(session.truncate(document.len())).map_err(|e| e.to_string())?;
    }
    Ok(format!("found under {}", told.join(" and ")))
}
