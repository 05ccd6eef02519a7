//! From a document and a question to tokens, so that all questions share the document's.
//!
//! A model with a chat template gets both as the user's turn, any other the question behind the
//! document, as `longview run -f` has it. What is prefilled is what unlike questions have in common
//! ([`longview_model::document`]).

use std::ops::Range;

use longview_engine::Engine;
use longview_model::chat::{ChatMessage, RenderOptions};
use longview_model::document::{QUESTIONS, first_turn, shared_prefix};
use longview_model::tokenizer::{Specials, Tokenizer, TokenizerError};
use longview_ops::Backend;

use crate::error::ReaderError;

/// The tokens of the document, before any question.
pub(crate) fn document_ids<B: Backend>(
    engine: &Engine<B>,
    text: &str,
) -> Result<Vec<u32>, ReaderError> {
    shared_prefix(|question| with_question(engine, text, question))
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

/// For each of the first `n` tokens of a document and a question, the bytes of the document that it
/// stands for; nothing for tokens of the template.
pub(crate) fn places<B: Backend>(
    engine: &Engine<B>,
    document: &str,
    n: usize,
) -> Result<Vec<Range<usize>>, ReaderError> {
    let (text, specials) = text(engine, document, QUESTIONS[0])?;
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
    let said = first_turn(document, question, engine.chat().is_some());
    let Some(chat) = engine.chat() else { return Ok((said, Specials::Add)) };
    let turn = ChatMessage::new("user", said);
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let text = chat.render(&[turn], &options).map_err(longview_engine::EngineError::from)?;
    Ok((text, Specials::AsWritten))
}
