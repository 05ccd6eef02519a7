//! Chat templates: a conversation as the one text that a model was trained to continue.
//!
//! Templates are Jinja programs that come with the model, written for Python's jinja2 and run
//! here by minijinja. What differs between the two and occurs in published templates is made up
//! for: Python's string methods, printing, `tojson`, `{% generation %}`. A template comes from a
//! stranger: its size and the steps it may take are bounded.

mod date;
mod python;
mod source;

use std::path::Path;

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error as JinjaError, ErrorKind, State};
use serde::Serialize;

use crate::tokenizer::{RawTemplates, SpecialTokens, TokenizerConfig};

/// The longest template source, in bytes. Published ones have up to 20 KB.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// Instructions one rendering may take: some hundred per message, so enough for 10,000 of them.
const FUEL: u64 = 10_000_000;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// Where `strftime_now` finds the time of this rendering.
const NOW: &str = "__longview_now";

/// One turn of a conversation, for callers without tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl ChatMessage {
    /// A turn of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// What a template may know besides the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// End with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Functions the model may call, as JSON schemas.
    pub tools: Option<serde_json::Value>,
    /// Further variables, such as `enable_thinking`.
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// Seconds since 1970 for templates that print the date; `None` asks the system.
    pub now_unix_s: Option<i64>,
}

/// A template that cannot be used, or that refused a conversation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The system refused.
    #[error("{origin}: cannot be read ({source})")]
    Read {
        /// The file.
        origin: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// No template has ever been this long.
    #[error("{origin}: the chat template has {bytes} bytes, above the cap of {MAX_TEMPLATE_BYTES}")]
    TooLong {
        /// The file.
        origin: String,
        /// Its length.
        bytes: usize,
    },
    /// Several templates and none to begin with.
    #[error("{origin}: none of the chat templates ({names}) is called \"default\"")]
    NoDefault {
        /// The file.
        origin: String,
        /// What they are called.
        names: String,
    },
    /// It does not parse.
    #[error("{origin}: the chat template is broken in line {line}: {reason}")]
    Syntax {
        /// The file.
        origin: String,
        /// Counted from 1.
        line: usize,
        /// What the parser said.
        reason: String,
    },
    /// It stopped while running.
    #[error("{origin}: the chat template failed in line {line}: {reason}")]
    Render {
        /// The file.
        origin: String,
        /// Counted from 1.
        line: usize,
        /// What went wrong.
        reason: String,
    },
    /// It called `raise_exception`.
    #[error("the model's chat template refuses this conversation: {message}")]
    Refused {
        /// The template's words.
        message: String,
    },
    /// It ran without end.
    #[error("{origin}: the chat template did not end within {FUEL} steps")]
    Endless {
        /// The file.
        origin: String,
    },
}

/// The chat template of a model, compiled.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The file, for messages.
    origin: String,
    special: SpecialTokens,
}

impl ChatTemplate {
    /// The template of the folder `dir`: `chat_template.jinja`, else the one in its
    /// `tokenizer_config.json`, parsed as `config`. `None` if there is neither.
    pub fn open(dir: &Path, config: &TokenizerConfig) -> Result<Option<Self>, ChatError> {
        let path = dir.join("chat_template.jinja");
        let read = |source| ChatError::Read { origin: path.display().to_string(), source };
        let source = path.is_file().then(|| std::fs::read_to_string(&path)).transpose();
        Self::of_folder(dir, source.map_err(read)?.as_deref(), config)
    }

    /// As [`ChatTemplate::open`], given the text of `chat_template.jinja` if there is such a file.
    pub(crate) fn of_folder(
        dir: &Path,
        source: Option<&str>,
        config: &TokenizerConfig,
    ) -> Result<Option<Self>, ChatError> {
        if let Some(source) = source {
            let origin = dir.join("chat_template.jinja").display().to_string();
            return Self::compile(source, origin, config.special.clone()).map(Some);
        }
        let origin = dir.join("tokenizer_config.json").display().to_string();
        match &config.templates {
            None => Ok(None),
            Some(RawTemplates::One(source)) => {
                Self::compile(source, origin, config.special.clone()).map(Some)
            }
            Some(RawTemplates::Named(list)) => {
                let list = list.iter().map(|t| (t.name.as_str(), t.template.as_str()));
                Self::compile_named(list, origin, config.special.clone()).map(Some)
            }
        }
    }

    /// Compiles one template. `origin` names the file in messages.
    pub fn compile(
        source: &str,
        origin: impl Into<String>,
        special: SpecialTokens,
    ) -> Result<Self, ChatError> {
        Self::compile_named([(DEFAULT, source)].into_iter(), origin.into(), special)
    }

    fn compile_named<'a>(
        list: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        origin: String,
        special: SpecialTokens,
    ) -> Result<Self, ChatError> {
        if !list.clone().any(|(name, _)| name == DEFAULT) {
            let names = list.map(|(name, _)| name).collect::<Vec<_>>().join(", ");
            return Err(ChatError::NoDefault { origin, names });
        }
        let mut environment = environment();
        for (name, source) in list {
            if source.len() > MAX_TEMPLATE_BYTES {
                return Err(ChatError::TooLong { origin, bytes: source.len() });
            }
            let source = source::rewrite_generation_tags(source);
            if let Err(error) = environment.add_template_owned(name.to_owned(), source) {
                let (line, reason) = describe(&error);
                return Err(ChatError::Syntax { origin, line, reason });
            }
        }
        Ok(Self { environment, origin, special })
    }

    /// The text of a conversation. Messages are whatever serialises to an object with `role` and
    /// `content`, such as [`ChatMessage`] or JSON with tool calls.
    ///
    /// The text holds the special tokens: encode it with
    /// [`Specials::AsWritten`](crate::tokenizer::Specials).
    pub fn render<M: Serialize>(
        &self,
        messages: &[M],
        options: &RenderOptions,
    ) -> Result<String, ChatError> {
        let has_tools = options.tools.as_ref().is_some_and(|tools| !tools.is_null());
        let template = match self.environment.get_template(TOOL_USE) {
            Ok(template) if has_tools => template,
            _ => self.environment.get_template(DEFAULT).expect("checked when compiled"),
        };
        template.render(self.context(messages, options)).map_err(|error| self.explain(&error))
    }

    /// The variables, as transformers passes them.
    fn context<M: Serialize>(&self, messages: &[M], options: &RenderOptions) -> Value {
        let mut variables: Vec<(&str, Value)> = vec![
            ("messages", Value::from_serialize(messages)),
            ("tools", Value::from_serialize(&options.tools)),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
            (NOW, Value::from(options.now_unix_s.unwrap_or_else(date::now_unix_s))),
        ];
        let special = &self.special;
        let tokens = [
            ("bos_token", &special.bos),
            ("eos_token", &special.eos),
            ("unk_token", &special.unk),
            ("pad_token", &special.pad),
        ];
        let named = tokens.into_iter().filter_map(|(name, token)| {
            token.as_ref().map(|token| (name, Value::from(token.as_str())))
        });
        variables.extend(named);
        let extra = options.extra.iter();
        variables.extend(extra.map(|(name, value)| (name.as_str(), Value::from_serialize(value))));
        variables.into_iter().collect()
    }

    fn explain(&self, error: &JinjaError) -> ChatError {
        if let Some(message) = refusal(error) {
            return ChatError::Refused { message };
        }
        let origin = self.origin.clone();
        if error.kind() == ErrorKind::OutOfFuel {
            return ChatError::Endless { origin };
        }
        let (line, reason) = describe(error);
        ChatError::Render { origin, line, reason }
    }
}

/// jinja2 as transformers sets it up.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, _, value| python::print(out, value));
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

/// The message of `raise_exception`, carried through minijinja's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, JinjaError> {
    let error = JinjaError::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Raised(message)))
}

fn refusal(error: &JinjaError) -> Option<String> {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Some(message.clone());
        }
        cause = error.source();
    }
    None
}

fn strftime_now(state: &State<'_, '_>, format: &str) -> Result<String, JinjaError> {
    let now = state.lookup(NOW).and_then(|now| now.as_i64()).unwrap_or(0);
    date::strftime(now, format).map_err(|directive| {
        let text = format!("strftime_now does not know %{directive}");
        JinjaError::new(ErrorKind::InvalidOperation, text)
    })
}

/// Python's `json.dumps` with transformers' defaults, instead of Jinja's filter that escapes HTML.
fn tojson(value: &Value, indent: Option<Value>, options: Kwargs) -> Result<String, JinjaError> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Value>>("indent")?,
    };
    let indent = match indent {
        Some(indent) if !indent.is_none() => Some(usize::try_from(indent)?),
        _ => None,
    };
    let style = python::JsonStyle {
        indent,
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: separators(options.get("separators")?)?,
    };
    options.assert_all_used()?;
    python::to_json(value, &style)
}

fn separators(given: Option<Vec<String>>) -> Result<Option<(String, String)>, JinjaError> {
    let Some(given) = given else { return Ok(None) };
    let pair = <[String; 2]>::try_from(given).map_err(|_| {
        JinjaError::new(ErrorKind::InvalidOperation, "tojson: separators must be two strings")
    })?;
    Ok(Some(pair.into()))
}

/// The line and the reason without minijinja's own position text.
fn describe(error: &JinjaError) -> (usize, String) {
    let reason = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    (error.line().unwrap_or(1), reason)
}

#[cfg(test)]
mod tests;
