//! Numbers hidden in a book, under full attention and under recall.

use std::ops::ControlFlow;

use longview_cpu::CpuBackend;
use longview_engine::{Engine, GenerationParams, Session};
use longview_model::tokenizer::Specials;
use longview_scheduler::{PolicyOptions, Preset};
use pollster::block_on;

use super::checkpoint::{Checked, Checkpoint, Way};

/// Names and their numbers, at a quarter, half and three quarters of the text.
const FACTS: [(&str, &str); 3] =
    [("amber-candle", "7284951"), ("silver-harbor", "3906175"), ("quiet-meadow", "5518302")];

/// Tokens that an answer may take: digits are tokens.
const N_ANSWER: usize = 12;

/// Numbers are found in `n_tokens` tokens of the book: all under full attention, and all but one
/// under recall. Question and answer go through the policy, with its default budget.
pub(super) fn found(checkpoint: &Checkpoint<'_>, n_tokens: usize) -> Checked {
    let book = checkpoint.book_ids()?;
    let mut engine = checkpoint.engine(Way::Fast, n_tokens + 512, 1)?;
    let text = checkpoint.reference.passage(&book, 0, n_tokens);
    let mut document = Vec::new();
    for (piece, (name, number)) in text.chunks(n_tokens.div_ceil(4)).zip(FACTS) {
        document.extend(piece);
        let fact = format!("\n\nThe special magic number for {name} is: {number}.\n\n");
        document.extend(encode(&engine, &fact)?);
    }
    document.extend(&text[n_tokens.div_ceil(4) * FACTS.len()..]);
    let full = PolicyOptions::new(Preset::Full);
    let mut session = engine.session(&full).map_err(|e| e.to_string())?;
    let mut go_on = |_| ControlFlow::Continue(());
    block_on(engine.prefill(&mut session, &document, &mut go_on)).map_err(|e| e.to_string())?;
    let mut told = Vec::new();
    for (preset, least) in [(Preset::Full, FACTS.len()), (Preset::Clusterkv, FACTS.len() - 1)] {
        let policy = PolicyOptions::new(preset);
        block_on(engine.set_policy(&mut session, &policy)).map_err(|e| e.to_string())?;
        let mut wrong = Vec::new();
        for (name, number) in FACTS {
            let answer = ask(&mut engine, &mut session, name)?;
            if answer.trim_start().strip_prefix(number).is_none() {
                wrong.push(format!("{number}: {answer:?}"));
            }
            block_on(session.truncate(document.len())).map_err(|e| e.to_string())?;
        }
        let n = FACTS.len() - wrong.len();
        let text = format!("{n} of {} under {preset:?}", FACTS.len());
        told.push(if wrong.is_empty() { text } else { format!("{text} ({})", wrong.join(", ")) });
        if n < least {
            return Err(told.join(", "));
        }
    }
    Ok(told.join(", "))
}

fn encode(engine: &Engine<CpuBackend>, text: &str) -> Result<Vec<u32>, String> {
    let tokenizer = engine.tokenizer().ok_or("no tokenizer")?;
    tokenizer.encode(text, Specials::AsWritten).map_err(|e| e.to_string())
}

fn ask(
    engine: &mut Engine<CpuBackend>,
    session: &mut Session<CpuBackend>,
    name: &str,
) -> Result<String, String> {
    let question = format!(
        "\n\nQuestion: What is the special magic number for {name}?\n\
         Answer: The special magic number for {name} is:"
    );
    let question = encode(engine, &question)?;
    block_on(engine.feed(session, &question)).map_err(|e| e.to_string())?;
    let params = GenerationParams { max_tokens: Some(N_ANSWER), ..Default::default() };
    let answer = block_on(engine.generate(session, &params, &mut |_| ControlFlow::Continue(())));
    answer.map(|answer| answer.text).map_err(|e| e.to_string())
}
