//! What a template is told: a conversation, and what else it may know.

use serde::{Deserialize, Serialize};

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
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RenderOptions {
    /// End with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Functions the model may call, as JSON schemas.
    pub tools: Option<serde_json::Value>,
    /// Further variables, such as `enable_thinking`.
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// Seconds since 1970 for templates that print the date; `None` asks the system.
    pub now_unix_s: Option<i64>,
    /// A template may leave out the last message of the user or of the system, which is an error
    /// otherwise: the model would answer what nobody asked.
    pub may_drop: bool,
}
