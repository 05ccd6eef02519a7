//! Text to token ids, and ids to text.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokenizers::{NormalizedString, Normalizer};

use super::config::{SpecialTokens, TokenizerConfig};
use super::error::TokenizerError;
use super::quiet::guarded;
use super::validate::{self, Growth};
use crate::source::{MAX_TOKENIZER_BYTES, read_bytes};

/// Growth of a text up to which it is encoded without a look: what Unicode's own tables do to it.
const HARMLESS_GROWTH: f64 = 4.0;
/// What a text may become where the file could do worse, in bytes for each byte and beyond that.
const MAX_TRUE_GROWTH: usize = 8;
const PIECE_BYTES: usize = 64 << 10;

/// What surrounds the encoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// The tokens that begin (and end) a sequence of this model, for plain text.
    Add,
    /// None: a chat template has written them into the text already.
    AsWritten,
}

impl Specials {
    /// Those around a text of which somebody says whether it begins a sequence: `add_special`.
    pub fn of_text(add_special: bool) -> Self {
        if add_special { Self::Add } else { Self::AsWritten }
    }
}

/// A model's tokenizer. Clones share the vocabulary, which is large.
#[derive(Clone)]
pub struct Tokenizer {
    path: PathBuf,
    pub(super) inner: Arc<tokenizers::Tokenizer>,
    pub(super) special: SpecialTokens,
    /// `add_bos_token` was true; the post-processor may do it already.
    add_bos: bool,
    /// Rows of the embedding, once known.
    vocab_size: Option<usize>,
    growth: Growth,
    digest: [u8; 32],
}

impl Tokenizer {
    /// Reads `tokenizer.json` at `path`; `config` is the parsed `tokenizer_config.json`.
    pub fn open(path: &Path, config: &TokenizerConfig) -> Result<Self, TokenizerError> {
        let bytes = read_bytes(path, MAX_TOKENIZER_BYTES)
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
        let growth = validate::check(bytes).map_err(broken)?;
        let mut inner = guarded(|| tokenizers::Tokenizer::from_bytes(bytes)).map_err(broken)?;
        inner.with_padding(None);
        guarded(|| inner.with_truncation(None).map(|_| ())).map_err(broken)?;
        let tokenizer = Self {
            path: path.to_owned(),
            inner: Arc::new(inner),
            special: config.special.clone(),
            add_bos: config.add_bos_token.unwrap_or(false),
            vocab_size: None,
            growth,
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

    /// Gives the tokenizer a digest of what it was made from.
    pub(crate) fn with_digest(mut self, digest: [u8; 32]) -> Self {
        self.digest = digest;
        self
    }

    /// The token ids of `text`.
    ///
    /// Special tokens spelled out in the text become their ids, as chat templates need.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TokenizerError> {
        self.check_growth(text)?;
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
        self.check_growth(text)?;
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

    /// Tells texts of token ids from others: a digest of the text of every token. A
    /// `tokenizer.json` and a GGUF file of one model have the same.
    pub fn vocabulary_digest(&self) -> [u8; 32] {
        let texts = self.inner.get_vocab(true);
        let mut by_id: Vec<(u32, &str)> = texts.iter().map(|(text, id)| (*id, &**text)).collect();
        by_id.sort_unstable();
        let mut hasher = blake3::Hasher::new();
        for (id, text) in by_id {
            hasher.update(&id.to_le_bytes()).update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// What of a `tokenizer.json` says the bytes of every token: its decoder, its added tokens and
    /// its vocabulary, as text by id. Merges are left out: they are most of such a file.
    pub fn vocabulary_json(&self) -> Result<Value, TokenizerError> {
        let decoder = serde_json::to_value(self.inner.get_decoder());
        let decoder = decoder.map_err(|error| self.failed("describing", error.to_string()))?;
        let added = self.inner.get_added_tokens_decoder();
        let added: Vec<Value> = added
            .iter()
            .map(|(id, token)| {
                json!({ "id": id, "content": token.content, "special": token.special })
            })
            .collect();
        let vocab = self.inner.get_vocab(false);
        let vocab: Map<String, Value> =
            vocab.into_iter().map(|(text, id)| (text, json!(id))).collect();
        Ok(json!({ "decoder": decoder, "added_tokens": added, "model": { "vocab": vocab } }))
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

    /// Where the file could make a text many times longer, finds out piece by piece whether it
    /// does, before all of it is in memory.
    fn check_growth(&self, text: &str) -> Result<(), TokenizerError> {
        let Some(normalizer) = self.inner.get_normalizer() else { return Ok(()) };
        if self.growth.normalizer <= HARMLESS_GROWTH {
            return Ok(());
        }
        let limit = text.len().saturating_mul(MAX_TRUE_GROWTH).saturating_add(PIECE_BYTES);
        let (mut rest, mut n_bytes) = (text, 0);
        while !rest.is_empty() && n_bytes <= limit {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            let mut normalized = NormalizedString::from(piece);
            guarded(|| normalizer.normalize(&mut normalized))
                .map_err(|reason| self.failed("encoding", reason))?;
            n_bytes += normalized.get().len();
            rest = after;
        }
        if n_bytes > limit {
            let (path, bytes) = (self.path.clone(), text.len());
            return Err(TokenizerError::Grows { path, bytes, limit });
        }
        Ok(())
    }

    pub(super) fn failed(&self, action: &'static str, reason: String) -> TokenizerError {
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

#[cfg(test)]
mod tests;
