//! Chat templates, run in a process with limits, and what to do about those that are wrong.

use anyhow::{Result, anyhow};
use longview_model::chat::{ChatError, ChatMessage, ChatTemplate, RenderOptions};
pub use longview_startup::template::{open_folder, serve};

/// Finds what is wrong with a template before a model is loaded.
pub fn check(chat: &ChatTemplate) -> Result<()> {
    chat.check().map_err(advise)
}

/// The text of a conversation.
pub fn render(
    chat: &ChatTemplate,
    messages: &[ChatMessage],
    options: &RenderOptions,
) -> Result<String> {
    chat.render(messages, options).map_err(advise)
}

fn advise(error: ChatError) -> anyhow::Error {
    anyhow!("{error}; correct the file, or give --no-chat-template")
}
