//! A tokenizer in parts, for those who write it in another format.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokenizers::AddedToken;
use tokenizers::models::ModelWrapper;

use super::config::SpecialTokens;
use super::encode::Tokenizer;

/// What a tokenizer of the kind byte-pair encoding is made of.
pub(crate) struct BpeParts {
    /// Ids by text, without added tokens.
    pub vocab: HashMap<String, u32>,
    /// Best first.
    pub merges: Vec<(String, String)>,
    /// A word that is a token as a whole is that token.
    pub ignore_merges: bool,
    /// What is not known becomes its bytes.
    pub byte_fallback: bool,
    /// Stands for what is not known.
    pub unknown: Option<String>,
    /// As `tokenizer.json` has it.
    pub normalizer: Value,
    /// As `tokenizer.json` has it.
    pub pre_tokenizer: Value,
    /// Added tokens by id.
    pub added: Vec<(u32, AddedToken)>,
    /// Special tokens by their text.
    pub special: SpecialTokens,
}

/// The model of a `tokenizer.json`.
#[derive(Deserialize)]
struct Model {
    vocab: HashMap<String, u32>,
    merges: Vec<(String, String)>,
    ignore_merges: bool,
    byte_fallback: bool,
    unk_token: Option<String>,
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

impl Tokenizer {
    /// What it is made of, or what it is in place of byte-pair encoding.
    pub(crate) fn bpe_parts(&self) -> Result<BpeParts, String> {
        let model = match self.inner.get_model() {
            ModelWrapper::BPE(model) => json(model)?,
            ModelWrapper::WordPiece(_) => return Err("its model is WordPiece".to_owned()),
            ModelWrapper::WordLevel(_) => return Err("its model is WordLevel".to_owned()),
            ModelWrapper::Unigram(_) => return Err("its model is Unigram".to_owned()),
        };
        let model: Model = serde_json::from_value(model).map_err(|error| error.to_string())?;
        let affix = [model.continuing_subword_prefix, model.end_of_word_suffix];
        if let Some(affix) = affix.into_iter().flatten().find(|affix| !affix.is_empty()) {
            return Err(format!("its pieces carry {affix:?}"));
        }
        if model.dropout.is_some_and(|dropout| dropout > 0.0) {
            return Err("its merges are dropped at random".to_owned());
        }
        let mut added: Vec<_> = self.inner.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        Ok(BpeParts {
            vocab: model.vocab,
            merges: model.merges,
            ignore_merges: model.ignore_merges,
            byte_fallback: model.byte_fallback,
            unknown: model.unk_token,
            normalizer: json(&self.inner.get_normalizer())?,
            pre_tokenizer: json(&self.inner.get_pre_tokenizer())?,
            added,
            special: self.special.clone(),
        })
    }
}

fn json(part: &impl Serialize) -> Result<Value, String> {
    serde_json::to_value(part).map_err(|error| error.to_string())
}
