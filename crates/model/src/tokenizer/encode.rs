//! Text to token ids, and ids to text.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::config::{SpecialTokens, TokenizerConfig};
use super::error::TokenizerError;

mod bounded;

pub use self::bounded::Within;

/// What surrounds the encoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// The tokens that begin (and end) a sequence of this model, for plain text.
    Add,
    /// None: a chat template has written them into the text already.
    AsWritten,
}

/// A model's tokenizer.
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    special: SpecialTokens,
    /// `add_bos_token` was true; the post-processor may do it already.
    add_bos: bool,
    /// Rows of the embedding, once known.
    vocab_size: Option<usize>,
    digest: [u8; 32],
}

impl Tokenizer {
    /// Reads `tokenizer.json` at `path`; `config` is the parsed `tokenizer_config.json`.
    pub fn open(path: &Path, config: &TokenizerConfig) -> Result<Self, TokenizerError> {
        let bytes = std::fs::read(path)
            .map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
        Self::parse(&bytes, path, config)
    }

    /// As [`Tokenizer::open`] of the bytes of the file `path`.
    pub fn parse(
        bytes: &[u8],
        path: &Path,
        config: &TokenizerConfig,
    ) -> Result<Self, TokenizerError> {
        let broken = |reason| TokenizerError::Broken { path: path.to_owned(), reason };
        let mut inner = guarded(|| tokenizers::Tokenizer::from_bytes(bytes)).map_err(broken)?;
        inner.with_padding(None);
        guarded(|| inner.with_truncation(None).map(|_| ())).map_err(broken)?;
        let tokenizer = Self {
            path: path.to_owned(),
            inner,
            special: config.special.clone(),
            add_bos: config.add_bos_token.unwrap_or(false),
            vocab_size: None,
            digest: digest(bytes, config),
        };
        if tokenizer.add_bos && tokenizer.bos_id().is_none() {
            let token = tokenizer.special.bos.clone();
            return Err(TokenizerError::NoBos { path: path.to_owned(), token });
        }
        Ok(tokenizer)
    }

    /// Ties the tokenizer to a model with `vocab_size` embeddings.
    ///
    /// Added tokens beyond it are common (a padding token that training never used) and only
    /// refused when a text contains them; a larger base vocabulary is another model's.
    pub fn with_vocab_size(mut self, vocab_size: usize) -> Result<Self, TokenizerError> {
        let found = self.inner.get_vocab_size(false);
        if found > vocab_size {
            return Err(TokenizerError::Vocabulary { path: self.path, found, vocab_size });
        }
        self.vocab_size = Some(vocab_size);
        Ok(self)
    }

    /// The token ids of `text`.
    ///
    /// Special tokens spelled out in the text become their ids, as chat templates need.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TokenizerError> {
        let add = specials == Specials::Add;
        let encoded = guarded(|| self.inner.encode_fast(text, add));
        let mut ids = encoded.map_err(|reason| self.failed("encoding", reason))?.get_ids().to_vec();
        if add {
            self.settle_bos(&mut ids);
        }
        self.check_ids(&ids)?;
        Ok(ids)
    }

    /// The bytes of `text` that each of its tokens stands for; special tokens as they are written.
    pub fn offsets(&self, text: &str) -> Result<Vec<Range<usize>>, TokenizerError> {
        let encoded = guarded(|| self.inner.encode(text, false));
        let encoded = encoded.map_err(|reason| self.failed("encoding", reason))?;
        Ok(encoded.get_offsets().iter().map(|(start, end)| *start..*end).collect())
    }

    /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        guarded(|| self.inner.decode(ids, skip_special))
            .map_err(|reason| self.failed("decoding", reason))
    }

    /// The id of a token by its exact name.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token that begins a sequence.
    pub fn bos_id(&self) -> Option<u32> {
        self.special.bos.as_deref().and_then(|token| self.token_id(token))
    }

    /// The token that ends a sequence.
    pub fn eos_id(&self) -> Option<u32> {
        self.special.eos.as_deref().and_then(|token| self.token_id(token))
    }

    /// Tokens, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Tells it from other tokenizers: a digest of the text of `tokenizer.json` and of what
    /// `tokenizer_config.json` says of the tokens around a text.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One beginning token where one is due, never two: the post-processor, `add_bos_token` and a
    /// text that spells it out may each provide it.
    fn settle_bos(&self, ids: &mut Vec<u32>) {
        let Some(bos) = self.bos_id() else { return };
        if ids.starts_with(&[bos, bos]) {
            ids.remove(0);
        } else if self.add_bos && ids.first() != Some(&bos) {
            ids.insert(0, bos);
        }
    }

    fn check_ids(&self, ids: &[u32]) -> Result<(), TokenizerError> {
        let Some(vocab_size) = self.vocab_size else { return Ok(()) };
        match ids.iter().find(|id| **id as usize >= vocab_size) {
            None => Ok(()),
            Some(&id) => Err(TokenizerError::TokenBeyondModel {
                path: self.path.clone(),
                token: self.inner.id_to_token(id).unwrap_or_default(),
                id,
                vocab_size,
            }),
        }
    }

    fn failed(&self, action: &'static str, reason: String) -> TokenizerError {
        TokenizerError::Failed { path: self.path.clone(), action, reason }
    }
}

/// BLAKE3 of what decides how text becomes tokens. Line ends are those of the file.
fn digest(json: &[u8], config: &TokenizerConfig) -> [u8; 32] {
    let SpecialTokens { bos, eos, unk, pad } = &config.special;
    let add_bos = config.add_bos_token.unwrap_or(false);
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(json.len() as u64).to_le_bytes()).update(json);
    for token in [bos, eos, unk, pad] {
        // A byte that no text has stands for none.
        let text = token.as_deref().map_or(&[0xff][..], str::as_bytes);
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text);
    }
    *hasher.update(&[add_bos.into()]).finalize().as_bytes()
}

/// Runs `call`, turning a panic of the crate into an error like any other: the file that provokes
/// it came from a stranger, and a server must survive it.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("panic: {}", text.unwrap_or("no message")))
        }
    }
}

#[cfg(test)]
mod tests;
