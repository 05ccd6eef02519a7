//! From a document and a question to tokens, so that all questions share the document's.
//!
//! A model with a chat template gets both as the user's turn, any other the question behind the
//! document, as `longview run -f` has it. What is prefilled is the longest run of tokens that two
//! different questions have in common: where a tokenizer would join the document's end and the
//! question's begin, the joint belongs to the question.

use std::ops::Range;

use longview_engine::Engine;
use longview_model::chat::{ChatMessage, RenderOptions};
use longview_model::tokenizer::{Specials, Tokenizer, TokenizerError};
use longview_ops::Backend;

use crate::error::ReaderError;

/// Questions that share no character.
const PROBES: [&str; 2] = ["A", "1"];

/// The tokens of the document, before any question.
pub(crate) fn document_ids<B: Backend>(
    engine: &Engine<B>,
    document: &str,
) -> Result<Vec<u32>, ReaderError> {
    let [mut ids, other] =
        [with_question(engine, document, PROBES[0])?, with_question(engine, document, PROBES[1])?];
    ids.truncate(common(&ids, &other));
    Ok(ids)
}

/// The tokens of the document, the question and whatever begins an answer.
pub(crate) fn with_question<B: Backend>(
    engine: &Engine<B>,
    document: &str,
    question: &str,
) -> Result<Vec<u32>, ReaderError> {
    let (text, specials) = text(engine, document, question)?;
    Ok(tokenizer(engine)?.encode(&text, specials)?)
}

/// Tokens that both begin with.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// For each of the first `n` tokens of a document and a question, the bytes of the document that it
/// stands for; nothing for tokens of the template.
pub(crate) fn places<B: Backend>(
    engine: &Engine<B>,
    document: &str,
    n: usize,
) -> Result<Vec<Range<usize>>, ReaderError> {
    let (text, specials) = text(engine, document, PROBES[0])?;
    let tokenizer = tokenizer(engine)?;
    let n_tokens = tokenizer.encode(&text, specials)?.len();
    let mut places = places_in(tokenizer, &text, n_tokens, document)?;
    places.truncate(n);
    Ok(places)
}

/// For each of the `n_tokens` tokens of a prompt the bytes of the document that it stands for;
/// nothing for tokens of anything else. The prompt has the document in it, with the spaces at its
/// ends or without them.
///
/// # Errors
/// If the prompt cannot be encoded.
pub fn places_in(
    tokenizer: &Tokenizer,
    prompt: &str,
    n_tokens: usize,
    document: &str,
) -> Result<Vec<Range<usize>>, TokenizerError> {
    let offsets = tokenizer.offsets(prompt)?;
    // Tokens that a sequence begins with stand for nothing.
    let n_first = n_tokens.saturating_sub(offsets.len());
    // A template may trim what it is given.
    let trimmed = document.trim();
    let start = prompt.find(trimmed).unwrap_or(prompt.len());
    let end = start + trimmed.len();
    let shift = document.len() - document.trim_start().len();
    let place = |o: Range<usize>| {
        let (from, to) = (o.start.clamp(start, end), o.end.clamp(start, end));
        if to > from { from - start + shift..to - start + shift } else { 0..0 }
    };
    let first = std::iter::repeat_n(0..0, n_first);
    Ok(first.chain(offsets.into_iter().map(place)).collect())
}

pub(crate) fn tokenizer<B: Backend>(engine: &Engine<B>) -> Result<&Tokenizer, ReaderError> {
    engine.tokenizer().ok_or(ReaderError::NoTokenizer)
}

fn text<B: Backend>(
    engine: &Engine<B>,
    document: &str,
    question: &str,
) -> Result<(String, Specials), ReaderError> {
    let Some(chat) = engine.chat() else {
        return Ok((format!("{document}{question}"), Specials::Add));
    };
    let turn = ChatMessage::new("user", format!("{document}\n\n{question}"));
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let text = chat.render(&[turn], &options).map_err(longview_engine::EngineError::from)?;
    Ok((text, Specials::AsWritten))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_common_ends_at_the_first_difference() {
        assert_eq!(common(&[1, 2, 3], &[1, 2, 4, 5]), 2);
        assert_eq!(common(&[], &[1]), 0);
        assert_eq!(common(&[7], &[7]), 1);
    }
}
