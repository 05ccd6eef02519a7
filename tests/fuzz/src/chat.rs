//! Chat templates, with a conversation as JSON behind a zero where there is one.
//!
//! A template is a program, and `~`, `+` and `*` double a text in one step: the command line runs
//! it in a process with little memory. So here, too, a template that wants more is ended, and that
//! is no fault (see [`crate::memory`]); one that ends this process is.

use longview_model::chat::{ChatError, ChatTemplate, RenderOptions};
use longview_model::tokenizer::SpecialTokens;
use serde_json::{Value, json};

use crate::input::two_files;
use crate::memory;
use crate::outcome::Outcome;

/// What a template may have. It is little because to fill memory is all the time that a run takes.
const MEMORY_BYTES: usize = 16 << 20;

pub(super) fn run(bytes: &[u8]) -> Outcome {
    let (template, messages) = two_files(bytes);
    let Ok(template) = std::str::from_utf8(template) else { return Outcome::Refused };
    let given = messages.and_then(|bytes| serde_json::from_slice(bytes).ok());
    let messages: Vec<Value> = given.unwrap_or_else(conversation);
    let rendered = memory::within(MEMORY_BYTES, || render(template, &messages));
    match rendered {
        None | Some(Err(ChatError::Endless { .. } | ChatError::TooMuch { .. })) => Outcome::Limited,
        Some(rendered) => Outcome::of(rendered),
    }
}

/// Renders as for a question, and as for a question that tools may answer.
fn render(template: &str, messages: &[Value]) -> Result<(), ChatError> {
    let token = |text: &str| Some(text.to_owned());
    let special =
        SpecialTokens { bos: token("<s>"), eos: token("</s>"), ..SpecialTokens::default() };
    let template = ChatTemplate::compile(template, "t.jinja", special)?;
    let plain = RenderOptions {
        add_generation_prompt: true,
        now_unix_s: Some(1_700_000_000),
        ..RenderOptions::default()
    };
    let tools = Some(json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]));
    template.render(messages, &RenderOptions { tools, may_drop: true, ..plain.clone() })?;
    template.render(messages, &plain).map(drop)
}

fn conversation() -> Vec<Value> {
    vec![
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": " hi \u{e9}\n\"<b>\" "}),
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": {"x": 1.5, "y": [true]}}},
        ]}),
        json!({"role": "tool", "content": "2"}),
        json!({"role": "user", "content": "and now?"}),
    ]
}
