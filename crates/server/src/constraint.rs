//! Answers that follow a JSON schema or a grammar: of each token it is known beforehand whether the
//! answer may go on with it.
//!
//! llguidance decides that. A grammar comes from a stranger, so its size, its depth and the work
//! for a step are bounded; what goes beyond is refused, or ends the request, and no other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use crate::gbnf;
use crate::texts::ModelFacts;

/// Bytes of a schema or a grammar, and levels of a schema.
const MAX_BYTES: usize = 64 << 10;
const MAX_DEPTH: usize = 32;
/// Patterns for names of properties, of which each is compared with each.
const MAX_PATTERNS: usize = 16;
/// Time to read a form, and forms that are read at the same time.
const READ_TIME: Duration = Duration::from_secs(5);
const MAX_READING: usize = 4;
/// Space between the parts of JSON: one, or a new line and an indent. Without a bound a model may
/// write spaces for ever, and the answer is never complete.
const SPACE: &str = r" |\n {0,16}";

/// Bytes for what follows rules. A grammar within its bounds has some thousands of them, and each
/// takes a few KiB; memory that is not needed is not taken.
pub(crate) const DEEP_STACK: usize = 256 << 20;

/// Makes constraints for the tokens of one model.
#[derive(Default)]
pub(crate) struct Grammars {
    factory: OnceLock<Result<Arc<ParserFactory>, String>>,
    /// Whether they are converted alone.
    are_unread: bool,
}

/// Where an answer is in its grammar.
pub(crate) struct Constraint(Matcher);

impl std::fmt::Debug for Constraint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Constraint")
    }
}

impl Clone for Constraint {
    /// Nothing of it is shared: answers do not wait for each other.
    fn clone(&self) -> Self {
        Self(self.0.deep_clone())
    }
}

impl Grammars {
    /// Grammars that are converted, and refused then.
    pub(crate) fn unread() -> Self {
        Self { are_unread: true, ..Self::default() }
    }

    /// What the fields `response_format`, `json_schema` and `grammar` ask for.
    pub(crate) fn read(
        &self,
        fields: &mut Fields<'_>,
        model: &ModelFacts,
    ) -> Result<Option<Constraint>, ApiError> {
        let format = fields.any("response_format");
        let format = format.map(|format| schema_of_format(format, "response_format"));
        let mut found: Vec<(&'static str, TopLevelGrammar)> = Vec::new();
        if let Some(schema) = format.transpose()?.flatten() {
            found.push(("response_format", of_schema(schema, "response_format")?));
        }
        if let Some(schema) = fields.any("json_schema") {
            found.push(("json_schema", of_schema(schema.clone(), "json_schema")?));
        }
        if let Some(text) = fields.text("grammar")?.filter(|text| !text.is_empty()) {
            found.push(("grammar", of_grammar(text)?));
        }
        if let [_, (second, _), ..] = &found[..] {
            let message = format!("{second}: a request has one form of the answer, not two");
            return Err(ApiError::field(second, message));
        }
        let one = found.pop().map(|(name, grammar)| self.constraint(grammar, name, model));
        one.transpose()
    }

    /// An answer in the form that OpenAI's `format` objects describe; none: any text.
    pub(crate) fn of_format(
        &self,
        format: &Value,
        name: &'static str,
        model: &ModelFacts,
    ) -> Result<Option<Constraint>, ApiError> {
        let Some(schema) = schema_of_format(format, name)? else { return Ok(None) };
        self.constraint(of_schema(schema, name)?, name, model).map(Some)
    }

    /// An answer that follows a grammar in Lark's form, made from the field `name`.
    pub(crate) fn of_lark(
        &self,
        lark: String,
        name: &'static str,
        model: &ModelFacts,
    ) -> Result<Constraint, ApiError> {
        check_bytes(lark.len(), name)?;
        self.constraint(TopLevelGrammar::from_lark(lark), name, model)
    }

    /// How a grammar writes `text` where that is one special token: by its number.
    pub(crate) fn literal(&self, text: &str, model: &ModelFacts) -> Result<String, ApiError> {
        let factory = self.factory(model)?;
        let marked = [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat();
        Ok(match factory.tok_env().tok_trie().token_id_at_bytes(&marked) {
            Some(id) => format!("<[{id}]>"),
            None => json!(text).to_string(),
        })
    }

    fn constraint(
        &self,
        grammar: TopLevelGrammar,
        name: &'static str,
        model: &ModelFacts,
    ) -> Result<Constraint, ApiError> {
        let refused = |reason: &str| {
            let reason: String =
                reason.lines().next().unwrap_or_default().chars().take(300).collect();
            ApiError::field(name, format!("{name}: cannot be followed: {reason}"))
        };
        if self.are_unread {
            return Err(refused("it is not read here"));
        }
        let (matcher, first) = read(Arc::clone(self.factory(model)?), grammar)?;
        if let Some(error) = matcher.get_error() {
            return Err(refused(&error));
        }
        // A grammar that allows nothing at all, or too much for one step, is found before anything
        // is read.
        match first {
            Ok(mask) if mask.is_zero() => Err(refused("nothing that this model can write fits it")),
            Ok(_) => Ok(Constraint(matcher)),
            Err(error) => Err(refused(&error)),
        }
    }

    /// Made when the first request needs it: it takes a moment and memory for a large vocabulary.
    fn factory(&self, model: &ModelFacts) -> Result<&Arc<ParserFactory>, ApiError> {
        let made = self.factory.get_or_init(|| factory(model).map(Arc::new));
        made.as_ref().map_err(|reason| {
            let message = format!("answers of this model cannot be held to a form: {reason}");
            ApiError::bad("unsupported", message)
        })
    }
}

impl Constraint {
    /// Takes away what the answer cannot go on with. An answer that is complete may end.
    pub(crate) fn mask(&mut self, logits: &mut [f32]) -> Result<(), ApiError> {
        let mask = self.0.compute_mask_or_eos().map_err(|error| broken(&error.to_string()))?;
        if mask.is_zero() || mask.len() != logits.len() {
            return Err(broken("there is no token to go on with"));
        }
        mask.iter_unset_entries(|id| logits[id] = f32::NEG_INFINITY);
        Ok(())
    }

    /// Goes on to the next token. Whether the answer is complete and nothing can follow.
    pub(crate) fn take(&mut self, id: u32) -> Result<bool, ApiError> {
        self.0.consume_token(id).map_err(|error| broken(&error.to_string()))?;
        if self.0.is_stopped() && !self.0.stop_reason().is_ok() {
            return Err(broken(&self.0.stop_reason().to_string()));
        }
        Ok(self.0.is_stopped())
    }
}

/// Reads a grammar where rules that lead to rules may go deep: llguidance follows them by calls
/// within calls, and what overflows a stack ends the program. Who waits for it does so for
/// [`READ_TIME`] at most; what takes longer holds one of few places until it ends.
fn read(
    factory: Arc<ParserFactory>,
    grammar: TopLevelGrammar,
) -> Result<(Matcher, Result<SimpleVob, String>), ApiError> {
    static READING: Mutex<usize> = Mutex::new(0);
    static ENDED: Condvar = Condvar::new();
    let lock = || READING.lock().unwrap_or_else(PoisonError::into_inner);
    let is_full = |n: &mut usize| *n >= MAX_READING;
    let waited = ENDED.wait_timeout_while(lock(), READ_TIME, is_full);
    let (mut n, waited) = waited.unwrap_or_else(PoisonError::into_inner);
    if waited.timed_out() {
        let message = "other forms of answers are being read; ask again later";
        return Err(ApiError::unavailable("busy", message));
    }
    *n += 1;
    drop(n);
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(DEEP_STACK);
    let spawned = thread.spawn(move || {
        // llguidance turns its own panics into errors; one of another kind gives the place back.
        let made = catch_unwind(AssertUnwindSafe(|| {
            let mut matcher = Matcher::new(factory.create_parser(grammar));
            let first = matcher.compute_mask_or_eos().map_err(|error| error.to_string());
            (matcher, first)
        }));
        *lock() -= 1;
        ENDED.notify_one();
        // Nobody may wait any more.
        if let Ok(made) = made {
            let _ = sender.send(made);
        }
    });
    if spawned.is_err() {
        *lock() -= 1;
        ENDED.notify_one();
    }
    receiver.recv_timeout(READ_TIME).map_err(|error| match error {
        RecvTimeoutError::Timeout => broken("reading it takes too long"),
        RecvTimeoutError::Disconnected => ApiError::internal("the form could not be read"),
    })
}

/// A grammar that asks for more work in a step than one request may cost.
fn broken(reason: &str) -> ApiError {
    let reason = reason.lines().next().unwrap_or_default();
    let message = format!("the form of the answer is too complex to go on: {reason}");
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "grammar_too_complex", message)
}

fn factory(model: &ModelFacts) -> Result<ParserFactory, String> {
    let tokenizer = model.tokenizer.vocabulary_json().map_err(|error| error.to_string())?;
    // It asserts where a file is odd, which is no reason to end the server.
    let made = catch_unwind(AssertUnwindSafe(|| {
        let bytes = llguidance::token_bytes_from_tokenizer_json(&tokenizer);
        let mut words = bytes.map_err(|error| error.to_string())?;
        drop(tokenizer);
        words.resize(model.vocab_size, Vec::new());
        let n_vocab = model.vocab_size as u32;
        let ends: Vec<u32> = model.eos_ids.iter().copied().filter(|id| *id < n_vocab).collect();
        let first = *ends.first().ok_or("no token ends its texts")?;
        let trie = TokTrie::from(&TokRxInfo::new(n_vocab, first), &words).with_eos_tokens(&ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            // A quarter of what llguidance allows by default: a step of all waits for it.
            initial_lexer_fuel: 250_000,
            step_lexer_fuel: 50_000,
            step_max_items: 12_500,
            max_lexer_states: 50_000,
            max_grammar_size: 100_000,
            precompute_large_lexemes: false,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(factory)
    }));
    made.unwrap_or_else(|_| Err("its tokenizer has tokens of an unknown form".to_owned()))
}

/// The schema that a format object holds; none where it is any text.
fn schema_of_format(format: &Value, name: &str) -> Result<Option<Value>, ApiError> {
    let kind = format["type"].as_str();
    match kind.ok_or_else(|| wrong(name, "an object with a type"))? {
        "text" => Ok(None),
        "json_object" => {
            let any = || json!({ "type": "object" });
            Ok(Some(format.get("schema").cloned().unwrap_or_else(any)))
        }
        "json_schema" => {
            let inner = format.get("json_schema").unwrap_or(format);
            let schema = inner.get("schema").filter(|schema| schema.is_object());
            let wanted = "of type json_schema with a schema, which is an object";
            schema.cloned().map(Some).ok_or_else(|| wrong(name, wanted))
        }
        _ => Err(wrong(name, "of type text, json_object or json_schema")),
    }
}

/// A schema within its bounds.
pub(crate) fn check_schema(schema: &Value, name: &str) -> Result<(), ApiError> {
    if !(schema.is_object() || schema.is_boolean()) {
        return Err(wrong(name, "a JSON schema, which is an object"));
    }
    check_bytes(schema.to_string().len(), name)?;
    if depth(schema) > MAX_DEPTH {
        let message = format!("{name}: has more than {MAX_DEPTH} levels");
        return Err(ApiError::field(name, message));
    }
    if n_patterns(schema) > MAX_PATTERNS {
        let message = format!("{name}: has more than {MAX_PATTERNS} patternProperties");
        return Err(ApiError::field(name, message));
    }
    Ok(())
}

/// Patterns for names of properties in all of a schema.
fn n_patterns(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.iter().map(n_patterns).sum(),
        Value::Object(map) => {
            let own = map.get("patternProperties").and_then(Value::as_object);
            own.map_or(0, |own| own.len()) + map.values().map(n_patterns).sum::<usize>()
        }
        _ => 0,
    }
}

fn check_bytes(bytes: usize, name: &str) -> Result<(), ApiError> {
    if bytes > MAX_BYTES {
        let message = format!("{name}: has {bytes} bytes, above the limit of {MAX_BYTES}");
        return Err(ApiError::field(name, message));
    }
    Ok(())
}

/// Levels of a value. The reader of JSON bounds them, so this may call itself.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// A schema with the space that answers have.
pub(crate) fn spaced(mut schema: Value) -> Value {
    if schema == json!(true) {
        schema = json!({});
    }
    if schema.is_object() {
        let options = JsonCompileOptions {
            whitespace_flexible: false,
            whitespace_pattern: Some(SPACE.to_owned()),
            ..JsonCompileOptions::default()
        };
        options.apply_to(&mut schema);
    }
    schema
}

fn of_schema(schema: Value, name: &str) -> Result<TopLevelGrammar, ApiError> {
    check_schema(&schema, name)?;
    Ok(TopLevelGrammar::from_json_schema(spaced(schema)))
}

/// llama.cpp's grammars, or Lark's.
fn of_grammar(text: &str) -> Result<TopLevelGrammar, ApiError> {
    check_bytes(text.len(), "grammar")?;
    // A schema within a grammar is not looked into, and these are what takes long.
    if text.contains("patternProperties") {
        let message = "grammar: has patternProperties, which only a json_schema may have";
        return Err(ApiError::field("grammar", message));
    }
    if !text.contains("::=") {
        return Ok(TopLevelGrammar::from_lark(text.to_owned()));
    }
    let lark = gbnf::to_lark(text).map_err(|reason| {
        ApiError::field("grammar", format!("grammar: cannot be followed: {reason}"))
    })?;
    Ok(TopLevelGrammar::from_lark(lark))
}
