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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::tokenizer::TokenizerConfig;

    fn parts(model: &Value) -> Result<BpeParts, String> {
        let added = json!([{"id": 3, "content": "<s>", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}]);
        let file = json!({"version": "1.0", "added_tokens": added, "normalizer": {"type": "NFC"},
            "pre_tokenizer": null, "post_processor": null, "decoder": null, "model": model});
        let bytes = file.to_string().into_bytes();
        let tokenizer = Tokenizer::parse(&bytes, Path::new("t"), &TokenizerConfig::default());
        tokenizer.map_err(|error| error.to_string())?.bpe_parts()
    }

    fn bpe(merges: &Value, key: &str, value: &Value) -> Value {
        let vocab = json!({"a": 0, "b": 1, "ab": 2});
        let mut model = json!({"type": "BPE", "vocab": vocab, "merges": merges});
        model[key] = value.clone();
        model
    }

    #[test]
    fn byte_pair_encoding_is_told_in_parts() {
        let parts = parts(&bpe(&json!([["a", "b"]]), "byte_fallback", &json!(true))).unwrap();
        assert_eq!(parts.vocab.len(), 3);
        assert_eq!(parts.merges, [("a".to_owned(), "b".to_owned())]);
        assert!(parts.byte_fallback && !parts.ignore_merges && parts.unknown.is_none());
        assert_eq!(
            (&parts.normalizer["type"], &parts.pre_tokenizer),
            (&json!("NFC"), &Value::Null)
        );
        let added =
            parts.added.iter().map(|(id, token)| (*id, token.content.as_str(), token.special));
        assert_eq!(added.collect::<Vec<_>>(), [(3, "<s>", true)]);
    }

    #[test]
    fn what_no_other_format_has_is_named() {
        let refused = |model: &Value| parts(model).err().unwrap();
        let bpe = |key: &str, value: Value| bpe(&json!([]), key, &value);
        let prefix = bpe("continuing_subword_prefix", json!("##"));
        assert_eq!(refused(&prefix), "its pieces carry \"##\"");
        let suffix = bpe("end_of_word_suffix", json!("</w>"));
        assert_eq!(refused(&suffix), "its pieces carry \"</w>\"");
        assert!(parts(&bpe("end_of_word_suffix", json!(""))).is_ok());
        assert_eq!(refused(&bpe("dropout", json!(0.5))), "its merges are dropped at random");
        let words = json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"});
        assert_eq!(refused(&words), "its model is WordLevel");
        let pieces = json!({"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a",
            "continuing_subword_prefix": "##", "max_input_chars_per_word": 9});
        assert_eq!(refused(&pieces), "its model is WordPiece");
        let unigram = json!({"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0});
        assert_eq!(refused(&unigram), "its model is Unigram");
    }
}
