//! Texts become the tokens of the reference.

use longview_model::chat::{ChatMessage, RenderOptions};
use longview_model::tokenizer::Specials;

use super::checkpoint::{Checked, Checkpoint};

/// What the short prompt of a chat model is rendered from.
const QUESTION: &str = "Why is the sky blue? Answer in three sentences.";

/// The short prompt and the book become the tokens of the reference.
pub(super) fn same_tokens(checkpoint: &Checkpoint<'_>) -> Checked {
    let (model, reference) = (checkpoint.model()?, &checkpoint.reference);
    let tokenizer = model.tokenizer().map_err(|e| e.to_string())?;
    let specials = match &model.chat {
        Some(chat) => {
            let messages = [ChatMessage::new("user", QUESTION)];
            let options = RenderOptions { add_generation_prompt: true, ..Default::default() };
            let text = chat.render(&messages, &options).map_err(|e| e.to_string())?;
            if text != reference.text {
                return Err(format!("the template gives {text:?}, not {:?}", reference.text));
            }
            Specials::AsWritten
        }
        None => Specials::Add,
    };
    let short = tokenizer.encode(&reference.text, specials).map_err(|e| e.to_string())?;
    same(&short, &reference.short).map_err(|what| format!("the short prompt: {what}"))?;
    let book = checkpoint.book_ids()?;
    let wanted = &reference.book;
    same(&book[..wanted.len().min(book.len())], wanted).map_err(|what| format!("book: {what}"))?;
    Ok(format!("{} of a prompt, {} of the book", short.len(), wanted.len()))
}

fn same(found: &[u32], wanted: &[u32]) -> Result<(), String> {
    match found.iter().zip(wanted).position(|(a, b)| a != b) {
        Some(at) => Err(format!("token {at} is {}, not {}", found[at], wanted[at])),
        None if found.len() != wanted.len() => {
            Err(format!("{} tokens, not {}", found.len(), wanted.len()))
        }
        None => Ok(()),
    }
}
