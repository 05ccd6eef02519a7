//! A tokenizer as key-values: byte-level BPE with merges, or SentencePiece's BPE with scores.
//!
//! A folder has merges in both cases. SentencePiece merges where the result has the best score, so
//! pieces get scores in the order in which merges make them.

use std::collections::HashMap;

use serde_json::Value;

use super::keys::KeyValues;
use crate::gguf::Pre;
use crate::text::clip;
use crate::tokenizer::{BpeParts, Specials, Tokenizer};

/// Numbers of kinds of tokens.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

const SPACE: &str = "▁";

/// The vocabulary by id.
struct Vocabulary {
    tokens: Vec<String>,
    kinds: Vec<i32>,
}

/// Writes the keys of a tokenizer for `n_tokens` embeddings; returns what is lost of it.
///
/// # Errors
/// Says what the format has no place for.
pub(super) fn write(
    keys: &mut KeyValues,
    tokenizer: &Tokenizer,
    arch: &str,
    n_tokens: usize,
) -> Result<Vec<String>, String> {
    let parts = tokenizer.bpe_parts()?;
    let vocabulary = Vocabulary::of(&parts, n_tokens);
    let mut notes = notes_of_added(&parts);
    if parts.byte_fallback {
        notes.extend(sentence_piece(keys, &parts, &vocabulary)?);
    } else {
        byte_level(keys, &parts, arch)?;
    }
    keys.texts("tokenizer.ggml.tokens", vocabulary.tokens.iter().map(String::as_str));
    keys.i32s("tokenizer.ggml.token_type", &vocabulary.kinds);
    let special = &parts.special;
    for (name, token) in
        [("bos", &special.bos), ("unknown", &special.unk), ("padding", &special.pad)]
    {
        let id = token.as_deref().and_then(|token| tokenizer.token_id(token));
        if let Some(id) = id.filter(|id| (*id as usize) < n_tokens) {
            keys.u32(&format!("tokenizer.ggml.{name}_token_id"), id);
        }
    }
    keys.truth("tokenizer.ggml.add_bos_token", adds_bos(tokenizer)?);
    keys.truth("tokenizer.ggml.add_eos_token", false);
    Ok(notes)
}

/// Whether a text begins with the bos token; nothing else may stand around it.
fn adds_bos(tokenizer: &Tokenizer) -> Result<bool, String> {
    let encode = |specials| tokenizer.encode("a", specials).map_err(|error| error.to_string());
    let (whole, bare) = (encode(Specials::Add)?, encode(Specials::AsWritten)?);
    let begins = whole.first().copied() == tokenizer.bos_id() && tokenizer.bos_id().is_some();
    match whole.strip_suffix(&bare[..]) {
        Some([]) => Ok(false),
        Some([_]) if begins => Ok(true),
        _ => Err("it puts tokens around a text that are not the bos token before it".to_owned()),
    }
}

impl Vocabulary {
    /// Ids without a token get one that no text has. Tokens beyond the embedding go: no text may
    /// contain them anyway.
    fn of(parts: &BpeParts, n_tokens: usize) -> Self {
        let tokens = (0..n_tokens).map(|id| format!("[PAD{id}]")).collect();
        let mut all = Self { tokens, kinds: vec![UNUSED; n_tokens] };
        for (text, id) in &parts.vocab {
            let is_byte = parts.byte_fallback && is_byte(text);
            let is_unknown = parts.byte_fallback && parts.unknown.as_ref() == Some(text);
            all.set(*id, text, if is_byte { BYTE } else { NORMAL });
            if is_unknown {
                all.set(*id, text, UNKNOWN);
            }
        }
        for (id, token) in &parts.added {
            let is_unknown = all.kinds.get(*id as usize) == Some(&UNKNOWN);
            let kind = if token.special { CONTROL } else { USER_DEFINED };
            all.set(*id, &token.content, if is_unknown { UNKNOWN } else { kind });
        }
        all
    }

    fn set(&mut self, id: u32, text: &str, kind: i32) {
        if let Some(token) = self.tokens.get_mut(id as usize) {
            text.clone_into(token);
            self.kinds[id as usize] = kind;
        }
    }
}

/// `<0x0A>`.
fn is_byte(text: &str) -> bool {
    let hex = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    hex.is_some_and(|hex| hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok())
}

fn notes_of_added(parts: &BpeParts) -> Vec<String> {
    let takes_more = |token: &&(u32, tokenizers::AddedToken)| {
        token.1.lstrip || token.1.rstrip || token.1.single_word
    };
    let n = parts.added.iter().filter(takes_more).count();
    let example = parts.added.iter().find(takes_more);
    let note = |(_, token): &(u32, tokenizers::AddedToken)| {
        format!(
            "{n} tokens (such as {}) take the spaces beside them in this folder's tokenizer; a \
             GGUF file cannot say so",
            clip(&token.content)
        )
    };
    example.map(note).into_iter().collect()
}

fn byte_level(keys: &mut KeyValues, parts: &BpeParts, arch: &str) -> Result<(), String> {
    let is_nfc = parts.normalizer.get("type").is_some_and(|ty| ty == "NFC");
    if !parts.normalizer.is_null() && !is_nfc {
        return Err(format!("its normalizer is {}", clip(&parts.normalizer.to_string())));
    }
    let prefers = if arch == "glm4" { ["glm4"] } else { ["dbrx"] };
    let pre = Pre::name_of(&parts.pre_tokenizer, parts.ignore_merges, &prefers);
    let pre = pre.ok_or_else(|| {
        format!(
            "its way to cut a text into words has no name (tokenizer.ggml.pre): {}",
            clip(&parts.pre_tokenizer.to_string())
        )
    })?;
    keys.text("tokenizer.ggml.model", "gpt2");
    keys.text("tokenizer.ggml.pre", pre);
    let merges: Vec<String> = parts.merges.iter().map(|(l, r)| format!("{l} {r}")).collect();
    keys.texts("tokenizer.ggml.merges", merges.iter().map(String::as_str));
    Ok(())
}

fn sentence_piece(
    keys: &mut KeyValues,
    parts: &BpeParts,
    vocabulary: &Vocabulary,
) -> Result<Option<String>, String> {
    let prefix = prefix(parts)?;
    keys.text("tokenizer.ggml.model", "llama");
    keys.text("tokenizer.ggml.pre", "default");
    keys.f32s("tokenizer.ggml.scores", &scores(parts, vocabulary));
    keys.truth("tokenizer.ggml.add_space_prefix", prefix != Prefix::Never);
    Ok((prefix == Prefix::WhereNone).then(|| {
        "this folder's tokenizer puts a space before a text that begins with none; readers of GGUF \
         files put one before every text, and behind special tokens"
            .to_owned()
    }))
}

/// Where a space is put before a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefix {
    Never,
    /// Before a text that begins with none.
    WhereNone,
    /// Before every text, and behind special tokens.
    Always,
}

/// What normalizer and pre-tokenizer do with spaces, if it is what SentencePiece does.
fn prefix(parts: &BpeParts) -> Result<Prefix, String> {
    let refuse =
        |what: &str, part: &Value| Err(format!("its {what} is {}", clip(&part.to_string())));
    let mut prefix = Prefix::Never;
    let mut replaces = false;
    let normalizers = match parts.normalizer.get("normalizers") {
        Some(Value::Array(list)) => &list[..],
        _ => std::slice::from_ref(&parts.normalizer),
    };
    for part in normalizers {
        let ty = part.get("type").and_then(Value::as_str);
        match ty {
            None => {}
            Some("Prepend") if part["prepend"] == SPACE => prefix = Prefix::Always,
            Some("Replace") if part["pattern"]["String"] == " " && part["content"] == SPACE => {
                replaces = true;
            }
            Some(_) => return refuse("normalizer", part),
        }
    }
    let cutter = &parts.pre_tokenizer;
    match cutter.get("type").and_then(Value::as_str) {
        None => {}
        // Spaces are gone when it looks for them.
        Some("Split") if cutter["pattern"]["String"] == " " && replaces => {}
        Some("Metaspace") if cutter["replacement"] == SPACE && cutter["split"] == false => {
            replaces = true;
            prefix = match cutter["prepend_scheme"].as_str() {
                Some("always" | "first") => Prefix::WhereNone,
                _ => prefix,
            };
        }
        Some(_) => return refuse("pre-tokenizer", cutter),
    }
    if replaces { Ok(prefix) } else { refuse("normalizer", &parts.normalizer) }
}

/// The best score for what the first merge makes, and so on. What no merge makes comes last.
fn scores(parts: &BpeParts, vocabulary: &Vocabulary) -> Vec<f32> {
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for (left, right) in &parts.merges {
        let next = ranks.len();
        ranks.entry(format!("{left}{right}")).or_insert(next);
    }
    let last = ranks.len();
    let score = |(text, kind): (&String, &i32)| match *kind {
        NORMAL | USER_DEFINED => -(ranks.get(text).copied().unwrap_or(last) as f32),
        _ => 0.0,
    };
    vocabulary.tokens.iter().zip(&vocabulary.kinds).map(score).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_told_from_texts() {
        assert!(is_byte("<0x0A>") && is_byte("<0xff>"));
        assert!(!is_byte("<0x>") && !is_byte("<0xAG>") && !is_byte("<0xABC>") && !is_byte("a"));
    }
}
