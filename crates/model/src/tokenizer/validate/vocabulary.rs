//! The model of a tokenizer: its vocabulary, read entry by entry without being kept.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::config::MAX_VOCAB;
use crate::text::clip;

/// The longest token, in bytes. Published ones have up to 500.
const MAX_TOKEN_BYTES: usize = 10_000;
const TYPES: [&str; 4] = ["BPE", "Unigram", "WordLevel", "WordPiece"];

/// The part of the file that turns pieces of text into tokens.
#[derive(Deserialize)]
pub(super) struct Model {
    /// Files of before 2021 have none.
    r#type: Option<Value>,
    vocab: Option<Vocabulary>,
    unk_id: Option<u64>,
}

impl Model {
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(found) = &self.r#type
            && !found.as_str().is_some_and(|name| TYPES.contains(&name))
        {
            let found = clip(&found.to_string());
            return Err(format!("model: type {found} is not one of {}", TYPES.join(", ")));
        }
        let vocabulary = self.vocab.as_ref().ok_or("model: it has no vocab")?;
        if let Some(reason) = &vocabulary.problem {
            return Err(format!("model: {reason}"));
        }
        if vocabulary.n == 0 {
            return Err("model: the vocabulary is empty".to_owned());
        }
        match self.unk_id {
            Some(id) if id >= vocabulary.n as u64 => {
                let n = vocabulary.n;
                Err(format!("model: unk_id is {id}; it must be below the {n} entries of vocab"))
            }
            _ => Ok(()),
        }
    }
}

/// What there is to say about a vocabulary.
#[derive(Default)]
struct Vocabulary {
    n: usize,
    /// The first entry that cannot be.
    problem: Option<String>,
    /// Ids that were seen.
    seen: Vec<bool>,
}

impl Vocabulary {
    /// An entry of a vocabulary that gives ids.
    fn entry(&mut self, token: &str, id: u64) -> Result<(), String> {
        check_token(token, id)?;
        let at = id as usize;
        if at >= self.seen.len() {
            self.seen.resize(at + 1, false);
        }
        if std::mem::replace(&mut self.seen[at], true) {
            return Err(format!("two tokens of vocab have id {id}; one is {:?}", clip(token)));
        }
        Ok(())
    }

    /// Keeps the first problem.
    fn note(&mut self, found: Result<(), String>) {
        self.n += 1;
        if let (None, Err(problem)) = (&self.problem, found) {
            self.problem = Some(problem);
        }
    }
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Vocabulary;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("vocab: an object of tokens with their ids, or a list of pieces with scores")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Vocabulary, M::Error> {
        let mut vocabulary = Vocabulary::default();
        while let Some(token) = map.next_key::<String>()? {
            let id = map.next_value::<Value>()?;
            let found = match id.as_u64() {
                Some(id) => vocabulary.entry(&token, id),
                None => {
                    let (token, id) = (clip(&token), clip(&id.to_string()));
                    Err(format!("token {token:?} has id {id}; it must be a whole number"))
                }
            };
            vocabulary.note(found);
        }
        Ok(vocabulary)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Vocabulary, S::Error> {
        let mut vocabulary = Vocabulary::default();
        while let Some((piece, score)) = list.next_element::<(String, Value)>()? {
            let id = vocabulary.n;
            let found = match (id, piece.is_empty(), score.as_f64()) {
                (MAX_VOCAB.., _, _) => {
                    // The rest is only passed over.
                    while list.next_element::<IgnoredAny>()?.is_some() {}
                    Err(format!("vocab has more than {MAX_VOCAB} entries"))
                }
                (_, true, _) => Err(format!("piece {id} of vocab is empty")),
                (_, _, None) => Err(format!("the score of piece {id} of vocab is no number")),
                _ => check_token(&piece, id as u64),
            };
            vocabulary.note(found);
        }
        Ok(vocabulary)
    }
}

/// A token that a vocabulary can hold.
pub(super) fn check_token(token: &str, id: u64) -> Result<(), String> {
    if id >= MAX_VOCAB as u64 {
        return Err(format!("token {:?} has id {id}; ids must be below {MAX_VOCAB}", clip(token)));
    }
    if token.len() > MAX_TOKEN_BYTES {
        let n = token.len();
        return Err(format!("token {id} has {n} bytes, above the limit of {MAX_TOKEN_BYTES}"));
    }
    Ok(())
}
