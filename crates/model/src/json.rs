//! Fields of a JSON object by name, with messages that name them.
//!
//! serde's own messages name types of Rust and a column of the file, not the field.

use serde_json::{Map, Value};

use crate::text::clip;

/// A field that holds something else than it must.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {found}; it must be {expected}")]
pub struct FieldError {
    /// Its name in the file.
    pub field: &'static str,
    /// What the file holds.
    pub found: String,
    /// What it must hold.
    pub expected: &'static str,
}

impl FieldError {
    /// `found` as a short text.
    pub(crate) fn new(field: &'static str, found: &Value, expected: &'static str) -> Self {
        Self { field, found: describe(found), expected }
    }
}

/// `value` as a short text.
fn describe(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
        other => clip(&other.to_string()),
    }
}

/// A JSON object whose fields are read one by one.
pub(crate) struct Fields<'a>(pub(crate) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// The field, unless it is absent or `null`.
    pub(crate) fn given(&self, field: &str) -> Option<&'a Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn read<T>(
        &self,
        field: &'static str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, FieldError> {
        let Some(value) = self.given(field) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| FieldError::new(field, value, expected))
    }

    pub(crate) fn whole(&self, field: &'static str) -> Result<Option<u64>, FieldError> {
        self.read(field, "a whole number of at least 0", Value::as_u64)
    }

    pub(crate) fn number(&self, field: &'static str) -> Result<Option<f64>, FieldError> {
        self.read(field, "a number", Value::as_f64)
    }

    pub(crate) fn truth(&self, field: &'static str) -> Result<Option<bool>, FieldError> {
        self.read(field, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&self, field: &'static str) -> Result<Option<String>, FieldError> {
        self.read(field, "a text", |value| value.as_str().map(str::to_owned))
    }

    pub(crate) fn object(
        &self,
        field: &'static str,
    ) -> Result<Option<Map<String, Value>>, FieldError> {
        self.read(field, "an object", |value| value.as_object().cloned())
    }

    pub(crate) fn texts(&self, field: &'static str) -> Result<Option<Vec<String>>, FieldError> {
        self.read(field, "a list of texts", |value| {
            value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
        })
    }

    /// Nothing, one token id, or a list of them.
    pub(crate) fn token_ids(&self, field: &'static str) -> Result<Vec<u32>, FieldError> {
        let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let read = |value: &Value| match value {
            Value::Array(items) => items.iter().map(id).collect(),
            one => Some(vec![id(one)?]),
        };
        let expected = "a token id from 0 to 4294967295, or a list of them";
        Ok(self.read(field, expected, read)?.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_wrong_is_named_with_its_value() {
        let object = json!({"a": -1, "b": "x\u{1b}", "c": [1, "y"], "d": null, "e": 5});
        let fields = Fields(object.as_object().unwrap());
        assert_eq!(fields.whole("e"), Ok(Some(5)));
        assert_eq!(fields.whole("d"), Ok(None));
        assert_eq!(fields.token_ids("e"), Ok(vec![5]));
        assert_eq!(
            fields.whole("a").unwrap_err().to_string(),
            "a is -1; it must be a whole number of at least 0"
        );
        assert_eq!(
            fields.number("b").unwrap_err().to_string(),
            "b is \"x\\u001b\"; it must be a number"
        );
        assert_eq!(
            fields.token_ids("c").unwrap_err().to_string(),
            "c is a list of 2; it must be a token id from 0 to 4294967295, or a list of them"
        );
    }
}
