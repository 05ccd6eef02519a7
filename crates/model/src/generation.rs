//! `generation_config.json`: how the model's authors would sample, and where it stops.

use std::path::{Path, PathBuf};

use crate::json::{FieldError, Fields};
use crate::source::{MAX_CONFIG_BYTES, read_text};

/// Sampling defaults of a model. `None` where its authors said nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<u32>,
    /// Sample at all; greedy otherwise.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Keeps the k most likely tokens.
    pub top_k: Option<u32>,
    /// Keeps the most likely tokens up to this mass.
    pub top_p: Option<f32>,
    /// Keeps tokens at least this likely relative to the first.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that occurred.
    pub repetition_penalty: Option<f32>,
}

/// A generation config that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerationError {
    /// The system refused.
    #[error("{}: cannot be read ({source})", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not JSON of the expected form.
    #[error("{}: is not a generation config ({source}); remove it or download it again",
        path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Line and column are in it.
        source: serde_json::Error,
    },
    /// The file is JSON of another form.
    #[error("{}: is not a generation config: it must be a JSON object; remove it or download it \
        again", path.display())]
    NoObject {
        /// The file.
        path: PathBuf,
    },
    /// A field has the wrong type.
    #[error("{}: {source}; correct it, or remove the file", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// Which, and what it holds.
        source: FieldError,
    },
    /// A value that no sampler accepts.
    #[error("{}: {field} is {value}; it must be {requirement}", path.display())]
    Range {
        /// The file.
        path: PathBuf,
        /// Its name in generation_config.json.
        field: &'static str,
        /// What the file says.
        value: f32,
        /// What it must be.
        requirement: &'static str,
    },
}

impl GenerationDefaults {
    /// Reads the file at `path`.
    pub fn open(path: &Path) -> Result<Self, GenerationError> {
        let text = read_text(path, MAX_CONFIG_BYTES)
            .map_err(|source| GenerationError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Reads the text of the file `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Self, GenerationError> {
        let json: serde_json::Value = serde_json::from_str(text)
            .map_err(|source| GenerationError::Json { path: path.to_owned(), source })?;
        let object = json.as_object();
        let object = object.ok_or_else(|| GenerationError::NoObject { path: path.to_owned() })?;
        let defaults = Self::read(&Fields(object))
            .map_err(|source| GenerationError::Field { path: path.to_owned(), source })?;
        defaults.check(path)?;
        Ok(defaults)
    }

    fn read(fields: &Fields<'_>) -> Result<Self, FieldError> {
        let number = |field| fields.number(field).map(|value| value.map(|value| value as f32));
        let top_k = fields.whole("top_k")?;
        // What no vocabulary has keeps every token, as a large number does.
        let top_k = top_k.map(|top_k| u32::try_from(top_k).unwrap_or(u32::MAX));
        Ok(Self {
            eos_token_ids: fields.token_ids("eos_token_id")?,
            do_sample: fields.truth("do_sample")?,
            temperature: number("temperature")?,
            top_k,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repetition_penalty: number("repetition_penalty")?,
        })
    }

    fn check(&self, path: &Path) -> Result<(), GenerationError> {
        let unit = 0.0..=1.0;
        let checks = [
            ("temperature", self.temperature, 0.0..=f32::MAX, "at least 0"),
            ("top_p", self.top_p, unit.clone(), "from 0 to 1"),
            ("min_p", self.min_p, unit, "from 0 to 1"),
            ("repetition_penalty", self.repetition_penalty, 1e-3..=1e3, "from 0.001 to 1000"),
        ];
        for (field, value, range, requirement) in checks {
            if let Some(value) = value.filter(|value| !range.contains(value)) {
                let path = path.to_owned();
                return Err(GenerationError::Range { path, field, value, requirement });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempFolder;

    fn open(text: &str) -> Result<GenerationDefaults, String> {
        let folder = TempFolder::new();
        let path = folder.path().join("generation_config.json");
        std::fs::write(&path, text).unwrap();
        GenerationDefaults::open(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_read_and_absence_is_kept() {
        let defaults = open(
            r#"{"eos_token_id": [7, 9], "do_sample": true, "temperature": 0.6, "top_k": 20,
                     "transformers_version": "4"}"#,
        )
        .unwrap();
        assert_eq!(defaults.eos_token_ids, [7, 9]);
        assert_eq!((defaults.temperature, defaults.top_k), (Some(0.6), Some(20)));
        assert_eq!((defaults.top_p, defaults.do_sample), (None, Some(true)));
        assert_eq!(open("{\"eos_token_id\": 3}").unwrap().eos_token_ids, [3]);
        assert_eq!(open("{}").unwrap(), GenerationDefaults::default());
    }

    #[test]
    fn nonsense_is_named() {
        let text = open("{\"top_p\": 1.5}").unwrap_err();
        assert!(text.ends_with("generation_config.json: top_p is 1.5; it must be from 0 to 1"));
        let text = open("{\"temperature\": -1.0}").unwrap_err();
        assert!(text.ends_with("temperature is -1; it must be at least 0"), "{text}");
        let text = open("{").unwrap_err();
        assert!(text.contains("generation_config.json: is not a generation config ("), "{text}");
    }
}
