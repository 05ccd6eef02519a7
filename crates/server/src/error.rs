//! What a client is told when something goes wrong, in OpenAI's form, and why a server ends.

use std::net::SocketAddr;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use longview_core::{acts_on_terminal, quoted};
use longview_engine::EngineError;
use longview_library::Size;
use longview_library::documents::DocumentsError;
use longview_ops::OpError;
use longview_scheduler::SchedulerError;
use serde_json::{Map, Value, json};

use crate::keys::SharedKey;

/// The code of errors for want of memory.
const OUT_OF_MEMORY: &str = "out_of_memory";
/// Seconds after which a client may ask again where the server is full or not ready.
const RETRY_AFTER_S: u64 = 1;

/// The code of what is no number.
const NUMERIC: &str = "numeric_error";

/// Letters of a message, which may quote what a request says.
const MOST_LETTERS: usize = 1_000;

/// Letters of a client's word in a message.
const MOST_QUOTED: usize = 64;

/// A message that is no longer than is read, and that acts on no terminal, whoever wrote it: what
/// quotes a word of a client calls [`clip`], so that the rest of its sentence is there too.
fn shown(message: String) -> String {
    let acts = |letter: char| acts_on_terminal(letter) && letter != '\n';
    if message.len() <= MOST_LETTERS && !message.contains(acts) {
        return message;
    }
    let mut shown = String::with_capacity(MOST_LETTERS);
    for (i, letter) in message.chars().enumerate() {
        if i == MOST_LETTERS {
            shown.push_str("...");
            break;
        }
        if acts(letter) { shown.extend(letter.escape_default()) } else { shown.push(letter) }
    }
    shown
}

/// A request that is refused or failed. In a box, because most results are none.
#[derive(Clone, Debug)]
pub(crate) struct ApiError(Box<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    status: StatusCode,
    code: &'static str,
    param: Option<String>,
    message: String,
    /// Numbers that belong to it.
    more: Map<String, Value>,
    /// The methods that the path knows, where that is what was wrong.
    allowed: Option<HeaderValue>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let message = shown(message.into());
        let more = Map::new();
        Self(Box::new(Parts { status, code, param: None, message, more, allowed: None }))
    }

    /// A field that cannot be used as it is.
    pub(crate) fn field(name: &str, message: impl Into<String>) -> Self {
        Self::bad("invalid_value", message).about(name)
    }

    /// A request that cannot be used as it is.
    pub(crate) fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// A known field that this server cannot honour: it is never ignored in silence.
    pub(crate) fn unsupported(name: &str) -> Self {
        let message = format!("{name}: is not supported by this server; leave it out");
        Self::bad("unsupported", message).about(name)
    }

    /// A prompt for which there is no room: it is never cut.
    pub(crate) fn too_long(n_prompt: usize, n_ctx: usize, is_all: bool) -> Self {
        let at_least = if is_all { "" } else { "at least " };
        let message = format!(
            "the prompt has {at_least}{n_prompt} tokens, and the context holds {n_ctx} with the \
             answer; nothing was cut off: shorten the prompt or start the server with a larger \
             --ctx-size"
        );
        let error = Self::bad("context_length_exceeded", message);
        error.with("n_prompt_tokens", json!(n_prompt)).with("n_ctx", json!(n_ctx))
    }

    /// A path that knows the methods `allowed` and no others.
    pub(crate) fn not_allowed(allowed: &[&str]) -> Self {
        let message = "this path does not know this method";
        let mut error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        error.0.allowed = HeaderValue::from_str(&allowed.join(", ")).ok();
        error
    }

    pub(crate) fn unavailable(code: &'static str, message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    }

    /// What runs has ended; what waits, and what comes, is served when the device is there again.
    pub(crate) fn device_lost() -> Self {
        Self::unavailable("device_lost", "the device was lost and is opened again; ask again soon")
    }

    /// A request that takes more memory than there is with nothing else running.
    pub(crate) fn no_memory(message: String) -> Self {
        Self::new(StatusCode::INSUFFICIENT_STORAGE, OUT_OF_MEMORY, message)
    }

    /// Whether what it needs was taken by others.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.0.code == OUT_OF_MEMORY
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// What is said where the engine's thread ended in the middle of an answer.
    pub(crate) fn ended() -> Self {
        Self::internal("the engine ended before the answer was complete")
    }

    pub(crate) fn about(mut self, param: &str) -> Self {
        self.0.param = Some(param.to_owned());
        self
    }

    pub(crate) fn with(mut self, name: &str, value: Value) -> Self {
        self.0.more.insert(name.to_owned(), value);
        self
    }

    /// Whether the model made something that is no number.
    pub(crate) fn is_numeric(&self) -> bool {
        self.0.code == NUMERIC
    }

    /// Whether what it needs is not there any more.
    pub(crate) fn is_not_found(&self) -> bool {
        self.0.status == StatusCode::NOT_FOUND
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.0.status
    }

    fn kind(&self) -> &'static str {
        match self.0.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            503 => "unavailable_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// As a body, or an event of a stream.
    pub(crate) fn json(&self) -> Value {
        let mut error = self.0.more.clone();
        error.insert("message".into(), json!(self.0.message));
        error.insert("type".into(), json!(self.kind()));
        error.insert("param".into(), json!(self.0.param));
        error.insert("code".into(), json!(self.0.code));
        json!({ "error": error })
    }

    /// As a body, or an event of a stream, in Anthropic's form. What OpenAI's form says more is
    /// there as well.
    pub(crate) fn anthropic_json(&self) -> Value {
        let mut error = self.json();
        error["type"] = json!("error");
        error["error"]["type"] = json!(match self.0.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 | 405 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        });
        error
    }

    /// As an answer of the endpoint at `path`.
    pub(crate) fn response(&self, path: &str) -> Response<Body> {
        let is_anthropic = path == "/v1/messages" || path.starts_with("/v1/messages/");
        let body = if is_anthropic { self.anthropic_json() } else { self.json() };
        let mut response = json_response(self.0.status, &body);
        if matches!(self.0.status.as_u16(), 429 | 503) {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_S.into());
        }
        if let Some(allowed) = &self.0.allowed {
            response.headers_mut().insert(header::ALLOW, allowed.clone());
        }
        if self.0.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

/// An answer in JSON.
pub(crate) fn json_response(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::PromptTooLong { prompt, used, context } => {
                Self::too_long(prompt + used, context, true)
            }
            EngineError::PromptFarTooLong { at_least, context, .. } => {
                Self::too_long(at_least, context, false)
            }
            EngineError::EmptyPrompt => Self::bad("empty_prompt", error.to_string()),
            EngineError::Policy(_) => {
                Self::bad("invalid_policy", error.to_string()).about("policy")
            }
            EngineError::Scheduler(SchedulerError::NoSparsePrefill { .. }) => {
                Self::field("prefill", error.to_string())
            }
            EngineError::Sampling { .. } => Self::bad("invalid_value", error.to_string()),
            EngineError::Chat(_) => Self::bad("chat_template", error.to_string()),
            EngineError::NonFinite { .. } | EngineError::Scheduler(SchedulerError::NonFinite) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, NUMERIC, error.to_string())
            }
            EngineError::Op(OpError::OutOfMemory { .. })
            | EngineError::Scheduler(SchedulerError::Op(OpError::OutOfMemory { .. })) => {
                let message = format!("{error}; others take it: ask again later");
                Self::unavailable(OUT_OF_MEMORY, &message)
            }
            _ => Self::internal(error.to_string()),
        }
    }
}

impl From<DocumentsError> for ApiError {
    fn from(error: DocumentsError) -> Self {
        let bad = |code| Self::bad(code, error.to_string());
        let not_found = |message| Self::new(StatusCode::NOT_FOUND, "context_not_found", message);
        // What a client can do is another thing than what a command line can: it has its scope's
        // contexts, and not the server's folders.
        match &error {
            DocumentsError::NotFound { word, near } => not_found(no_context(word, near)),
            DocumentsError::Removed { .. } => not_found(error.to_string()),
            DocumentsError::NameTaken { name } => {
                let message = format!(
                    "{name}: another context is called so; give another name, or DELETE \
                     /v1/contexts/ID of that one first"
                );
                Self::field("name", message)
            }
            DocumentsError::BadName { .. } => bad("invalid_value").about("name"),
            DocumentsError::Ambiguous { .. } => bad("ambiguous_context"),
            DocumentsError::EmptyText { .. } => bad("empty_text").about("text"),
            DocumentsError::NoSpace { .. } => no_space(
                "the server's disk has no room for this; what was there before is as it was: \
                 DELETE contexts that are not needed"
                    .to_owned(),
            ),
            DocumentsError::OverQuota { name, needed_bytes, quota_bytes, pinned_bytes } => {
                no_space(format!(
                    "{name}: takes {}, and all contexts together may take {} ({} of it pinned); \
                     POST pin false to /v1/contexts/ID, or DELETE some",
                    Size(*needed_bytes),
                    Size(*quota_bytes),
                    Size(*pinned_bytes)
                ))
            }
            _ => Self::internal(error.to_string()),
        }
    }
}

/// A text of a client in a message: its beginning, without what a terminal acts on.
pub(crate) fn clip(text: &str) -> String {
    quoted(text, MOST_QUOTED)
}

fn no_space(message: String) -> ApiError {
    ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "no_space", message)
}

/// That there is no such context, and how to find the right one.
pub(crate) fn no_context(word: &str, near: &[String]) -> String {
    let word = clip(word);
    match near {
        [] => format!("{word}: there is no such context; GET /v1/contexts lists those there are"),
        near => {
            format!("{word}: there is no such context; did you mean {}?", near.join(" or "))
        }
    }
}

/// Why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// An address that others reach, without a key.
    #[error(
        "--host {0}: others than this machine would reach it; give --api-key KEY as well, or keep \
         to 127.0.0.1"
    )]
    OpenWithoutKey(SocketAddr),
    /// A key that two have.
    #[error("--api-key: {0}")]
    SharedKey(#[from] SharedKey),
    /// The library of a key cannot be opened.
    #[error(transparent)]
    Library(#[from] DocumentsError),
    /// The system refused the address.
    #[error("{address}: cannot be listened on ({source}); choose another with --host and --port")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Events of what is kept, at an address that others reach, without a key.
    #[error(
        "--kv-events {0}: others than this machine would read the tokens of documents there, and \
         it asks for no key; give the server an --api-key as well, or keep to 127.0.0.1"
    )]
    OpenKvEvents(SocketAddr),
    /// The system refused the address of these events.
    #[error("--kv-events {address}: cannot be listened on ({reason})")]
    KvEvents {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        reason: String,
    },
    /// This program was built without them.
    #[error(
        "--kv-events: this build has no events; `cargo install --path crates/cli --profile dist \
         --features kv-events` makes one that has"
    )]
    NoKvEvents,
    /// The system refused a thread, or the like.
    #[error("the server cannot be started ({0})")]
    Start(#[from] std::io::Error),
    /// The model could not be loaded.
    #[error(transparent)]
    Load(Box<dyn std::error::Error + Send + Sync>),
    /// The thread of the engine ended before it was told to.
    #[error("the engine's thread ended by a fault of the program")]
    EngineEnded,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_short_and_acts_on_no_terminal() {
        let message = |text: &str| ApiError::bad("x", text).json()["error"]["message"].clone();
        assert_eq!(message("a\nbé"), "a\nbé");
        assert_eq!(message("a\u{7f}b\u{1b}[2J"), "a\\u{7f}b\\u{1b}[2J");
        assert_eq!(message(&"é".repeat(5_000)), format!("{}...", "é".repeat(MOST_LETTERS)));
    }
}
