//! `tokenizer_config.json`: special tokens by name, whether a sequence begins with one, templates.

use std::path::Path;

use serde::{Deserialize, Deserializer};

use super::error::TokenizerError;

/// Special tokens by their text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a sequence.
    pub bos: Option<String>,
    /// Ends a sequence.
    pub eos: Option<String>,
    /// Stands for the unknown.
    pub unk: Option<String>,
    /// Fills batches in training.
    pub pad: Option<String>,
}

/// What Longview reads of `tokenizer_config.json`.
#[derive(Clone, Debug, Default)]
pub struct TokenizerConfig {
    /// Special tokens by their text.
    pub special: SpecialTokens,
    /// Plain text begins with the bos token.
    pub add_bos_token: Option<bool>,
    /// Chat templates, if they are kept here.
    pub(crate) templates: Option<RawTemplates>,
}

/// One template, or several with names.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum RawTemplates {
    One(String),
    Named(Vec<NamedTemplate>),
}

/// A template with its name.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct NamedTemplate {
    pub name: String,
    pub template: String,
}

/// The file's fields.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RawTokenizerConfig {
    #[serde(deserialize_with = "token")]
    bos_token: Option<String>,
    #[serde(deserialize_with = "token")]
    eos_token: Option<String>,
    #[serde(deserialize_with = "token")]
    unk_token: Option<String>,
    #[serde(deserialize_with = "token")]
    pad_token: Option<String>,
    add_bos_token: Option<bool>,
    chat_template: Option<RawTemplates>,
}

/// A token is written as its text, or as an object with `content`.
fn token<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Token {
        Text(String),
        Object { content: String },
    }
    Ok(Option::<Token>::deserialize(deserializer)?.map(|token| match token {
        Token::Text(text) | Token::Object { content: text } => text,
    }))
}

impl TokenizerConfig {
    /// Reads the file at `path`.
    pub fn open(path: &Path) -> Result<Self, TokenizerError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Reads the text of the file `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Self, TokenizerError> {
        Self::from_json(text)
            .map_err(|source| TokenizerError::Config { path: path.to_owned(), source })
    }

    /// Reads the text of the file.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        let raw: RawTokenizerConfig = serde_json::from_str(text)?;
        Ok(Self {
            special: SpecialTokens {
                bos: raw.bos_token,
                eos: raw.eos_token,
                unk: raw.unk_token,
                pad: raw.pad_token,
            },
            add_bos_token: raw.add_bos_token,
            templates: raw.chat_template,
        })
    }
}
