//! `tokenizer.json` checked before the `tokenizers` crate reads it.
//!
//! The file comes from a stranger, and the crate trusts it: it panics on a charsmap that is too
//! short and on a special token that is not there, names its own types in messages, and follows
//! four replacements of one character by a hundred. What is checked here is the form of every part,
//! and how much longer a text can become.

mod charsmap;
mod parts;
mod vocabulary;

use serde::Deserialize;
use serde_json::Value;

use self::parts::{Parts, check_processor};
use self::vocabulary::{Model, check_token};
use crate::text::clip;

/// Bytes of a text to which one byte may grow. Published files reach 100 by this estimate, and 3 in
/// truth.
const MAX_GROWTH: f64 = 256.0;

/// How much longer a text can become, at worst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Growth {
    /// Bytes for each byte of a text that is encoded.
    pub normalizer: f64,
}

/// The file's parts. What is not named here bears on nothing.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: Option<Model>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u64,
    content: String,
}

/// Checks the bytes of a `tokenizer.json`. The error is a reason without the file's name.
pub(super) fn check(bytes: &[u8]) -> Result<Growth, String> {
    let file: File = serde_json::from_slice(bytes).map_err(|error| clip(&error.to_string()))?;
    let model = file.model.ok_or("it has no model")?;
    model.check()?;
    for token in &file.added_tokens {
        check_token(&token.content, token.id)
            .map_err(|reason| format!("added_tokens: {reason}"))?;
    }
    let mut normalizer = Parts::new("normalizer", "normalizers", parts::NORMALIZERS);
    normalizer.check(&file.normalizer)?;
    Parts::new("pre_tokenizer", "pretokenizers", parts::PRE_TOKENIZERS)
        .check(&file.pre_tokenizer)?;
    let mut decoder = Parts::new("decoder", "decoders", parts::DECODERS);
    decoder.check(&file.decoder)?;
    check_processor(&file.post_processor)?;
    for part in [&normalizer, &decoder] {
        if part.growth > MAX_GROWTH {
            return Err(format!(
                "{}: a text could become {:.0} times as long, above the limit of {MAX_GROWTH}",
                part.name, part.growth
            ));
        }
    }
    Ok(Growth { normalizer: normalizer.growth })
}

#[cfg(test)]
mod tests;
