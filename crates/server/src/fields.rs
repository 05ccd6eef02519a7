//! Fields of a request: a known one of a wrong type or range is refused by name, an unknown one is
//! ignored and told to the log once.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::ApiError;

/// The fields of one JSON object. `null` is as good as absent, as OpenAI's clients send it.
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    known: BTreeSet<&'static str>,
}

impl<'a> Fields<'a> {
    /// Those of a request's body.
    pub(crate) fn of(body: &'a Value) -> Result<Self, ApiError> {
        let map = body
            .as_object()
            .ok_or_else(|| ApiError::bad("invalid_json", "the body must be a JSON object"))?;
        Ok(Self { map, known: BTreeSet::new() })
    }

    /// A field of any type.
    pub(crate) fn any(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.insert(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&mut self, name: &'static str) -> Result<Option<&'a str>, ApiError> {
        self.any(name).map(|value| value.as_str().ok_or_else(|| wrong(name, "a text"))).transpose()
    }

    pub(crate) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        let flag = |value: &Value| value.as_bool().ok_or_else(|| wrong(name, "true or false"));
        self.any(name).map(flag).transpose()
    }

    pub(crate) fn whole(
        &mut self,
        name: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.any(name) else { return Ok(None) };
        match value.as_u64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None if *range.end() == u64::MAX => {
                Err(wrong(name, &format!("a whole number, {} or more", range.start())))
            }
            None => {
                let (from, to) = (range.start(), range.end());
                Err(wrong(name, &format!("a whole number from {from} to {to}")))
            }
        }
    }

    /// A count of which -1 says that there is no limit, as in llama.cpp.
    pub(crate) fn count(&mut self, name: &'static str) -> Result<Option<usize>, ApiError> {
        let Some(value) = self.any(name) else { return Ok(None) };
        if value.as_i64() == Some(-1) {
            return Ok(Some(usize::MAX));
        }
        let count = value.as_u64().map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        count.map(Some).ok_or_else(|| wrong(name, "a whole number, 0 or more, or -1 for no limit"))
    }

    pub(crate) fn number(
        &mut self,
        name: &'static str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.any(name) else { return Ok(None) };
        match value.as_f64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number as f32)),
            None => {
                let (from, to) = (range.start(), range.end());
                Err(wrong(name, &format!("a number from {from} to {to}")))
            }
        }
    }

    /// Refuses fields that mean something that this server does not do.
    pub(crate) fn refuse(&mut self, names: &[&'static str]) -> Result<(), ApiError> {
        for name in names {
            let asks = |value: &Value| match value {
                Value::Bool(flag) => *flag,
                Value::Array(list) => !list.is_empty(),
                Value::Object(map) => !map.is_empty(),
                Value::String(text) => text != "none" && text != "auto" && !text.is_empty(),
                // One answer of which the best is taken is that answer.
                Value::Number(number) if *name == "best_of" => number.as_f64() != Some(1.0),
                Value::Number(number) => number.as_f64() != Some(0.0),
                Value::Null => false,
            };
            if self.any(name).is_some_and(asks) {
                return Err(ApiError::unsupported(name));
            }
        }
        Ok(())
    }

    /// Fields that nobody asked for.
    pub(crate) fn unknown(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str).filter(|name| !self.known.contains(name))
    }
}

/// A field that must be something else.
pub(crate) fn wrong(name: &str, wanted: &str) -> ApiError {
    ApiError::field(name, format!("{name}: must be {wanted}"))
}
