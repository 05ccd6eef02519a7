//! `tokenizer_config.json`: special tokens by name, whether a sequence begins with one, templates.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::TokenizerError;
use crate::json::{FieldError, Fields};
use crate::source::{MAX_TOKENIZER_CONFIG_BYTES, read_text};

/// Special tokens by their text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug)]
pub(crate) enum RawTemplates {
    One(String),
    Named(Vec<NamedTemplate>),
}

/// A template with its name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NamedTemplate {
    pub name: String,
    pub template: String,
}

/// A token is written as its text, or as an object with `content`.
fn token(fields: &Fields<'_>, field: &'static str) -> Result<Option<String>, FieldError> {
    let Some(value) = fields.given(field) else { return Ok(None) };
    let text = value.as_str().or_else(|| value.get("content")?.as_str());
    let expected = "a token, as a text or as an object with content";
    text.map(|text| Some(text.to_owned())).ok_or_else(|| FieldError::new(field, value, expected))
}

fn templates(fields: &Fields<'_>) -> Result<Option<RawTemplates>, FieldError> {
    const FIELD: &str = "chat_template";
    let Some(value) = fields.given(FIELD) else { return Ok(None) };
    let named = |value: &Value| {
        let text = |field: &str| Some(value.get(field)?.as_str()?.to_owned());
        Some(NamedTemplate { name: text("name")?, template: text("template")? })
    };
    let found = match value {
        Value::String(text) => Some(RawTemplates::One(text.clone())),
        Value::Array(list) => {
            list.iter().map(named).collect::<Option<Vec<_>>>().map(RawTemplates::Named)
        }
        _ => None,
    };
    let expected = "a template, or a list of objects with name and template";
    found.map(Some).ok_or_else(|| FieldError::new(FIELD, value, expected))
}

impl TokenizerConfig {
    /// Reads the file at `path`.
    pub fn open(path: &Path) -> Result<Self, TokenizerError> {
        let text = read_text(path, MAX_TOKENIZER_CONFIG_BYTES)
            .map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Reads the text of the file `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Self, TokenizerError> {
        let path = || path.to_owned();
        let json: serde_json::Map<String, Value> = serde_json::from_str(text)
            .map_err(|source| TokenizerError::Config { path: path(), source })?;
        Self::read(&Fields(&json)).map_err(|source| TokenizerError::Field { path: path(), source })
    }

    fn read(fields: &Fields<'_>) -> Result<Self, FieldError> {
        Ok(Self {
            special: SpecialTokens {
                bos: token(fields, "bos_token")?,
                eos: token(fields, "eos_token")?,
                unk: token(fields, "unk_token")?,
                pad: token(fields, "pad_token")?,
            },
            add_bos_token: fields.truth("add_bos_token")?,
            templates: templates(fields)?,
        })
    }
}
