//! `/v1/completions` and `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use longview_model::tokenizer::Specials;
use serde_json::{Map, Value, json};

use crate::answer::Form;
use crate::app::{App, aside, parse};
use crate::asked::{How, Sending, check_model};
use crate::error::{ApiError, json_response};
use crate::fields::{Fields, wrong};
use crate::known::{Known, text_of};
use crate::stream;

/// Messages of a conversation.
const MAX_MESSAGES: usize = 4096;
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
/// Fields that mean nothing here, and that clients send all the same.
const IGNORED: [&str; 6] =
    ["user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier"];

/// A request that was read.
struct Read {
    ids: Vec<u32>,
    how: How,
    sending: Sending,
}

/// Goes on from a text.
pub(crate) async fn completions(app: Arc<App>, body: Bytes) -> Result<Response<Body>, ApiError> {
    answer(app, body, false).await
}

/// Answers in a conversation.
pub(crate) async fn chat(app: Arc<App>, body: Bytes) -> Result<Response<Body>, ApiError> {
    answer(app, body, true).await
}

async fn answer(app: Arc<App>, body: Bytes, is_chat: bool) -> Result<Response<Body>, ApiError> {
    app.check_ready()?;
    let reader = Arc::clone(&app);
    let Read { ids, how, sending } = aside(move || read(&reader, &body, is_chat)).await?;
    let form = Form::new(&app, is_chat, sending, how.n).with_logprobs(how.logprobs.is_some());
    let events = app.submit(ids, how, None)?;
    if sending.stream {
        return Ok(stream::respond(events, form, app.options.limits.ping));
    }
    Ok(json_response(StatusCode::OK, &form.whole(events).await?))
}

fn read(app: &App, body: &[u8], is_chat: bool) -> Result<Read, ApiError> {
    let body = parse(body)?;
    let mut fields = Fields::of(&body)?;
    check_model(&mut fields, &app.model)?;
    let sending = Sending::read(&mut fields)?;
    let how = How::read(&mut fields, &app.model, is_chat)?;
    let document = text_of(app, fields.text("context_id")?)?;
    let ids = if is_chat {
        let messages = messages(&mut fields)?;
        let messages = with_document(app, messages, document)?;
        app.model.encode_chat(&messages, template_fields(&mut fields)?)?
    } else {
        prompt(app, &mut fields, document)?
    };
    for name in IGNORED {
        fields.any(name);
    }
    app.note_unknown(&fields);
    Ok(Read { ids, how, sending })
}

/// A text, or tokens.
fn prompt(
    app: &App,
    fields: &mut Fields<'_>,
    document: Option<Known>,
) -> Result<Vec<u32>, ApiError> {
    let document = match document {
        Some(Known::Messages(_)) => {
            let message = "context_id: is a conversation: it goes on at /v1/chat/completions";
            return Err(ApiError::field("context_id", message));
        }
        Some(Known::Text(text)) => Some(text),
        None => None,
    };
    let refused = || wrong("prompt", "a text, a list of one text, or a list of tokens");
    let value =
        fields.any("prompt").ok_or_else(|| ApiError::field("prompt", "prompt: is missing"))?;
    let text = match value {
        Value::String(text) => text,
        Value::Array(list) => match &list[..] {
            [Value::String(text)] => text,
            list if document.is_none() => {
                let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
                return list.iter().map(id).collect::<Option<_>>().ok_or_else(refused);
            }
            _ => return Err(refused()),
        },
        _ => return Err(refused()),
    };
    if text.is_empty() {
        return Err(ApiError::field("prompt", "prompt: is empty: there is nothing to go on from"));
    }
    app.model.encode(&(document.unwrap_or_default() + text), Specials::Add)
}

/// A conversation for the chat template.
pub(crate) fn messages(fields: &mut Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let list = fields.any("messages").and_then(Value::as_array);
    let list = list.filter(|list| (1..=MAX_MESSAGES).contains(&list.len()));
    let list =
        list.ok_or_else(|| wrong("messages", &format!("a list of 1 to {MAX_MESSAGES} messages")))?;
    list.iter().enumerate().map(|(i, message)| one_message(i, message)).collect()
}

fn one_message(i: usize, message: &Value) -> Result<Value, ApiError> {
    let name = format!("messages[{i}]");
    let role = message["role"].as_str().filter(|role| ROLES.contains(role));
    let role = role
        .ok_or_else(|| wrong(&format!("{name}.role"), &format!("one of {}", ROLES.join(", "))))?;
    if message.get("tool_calls").is_some_and(|calls| !calls.is_null()) {
        return Err(ApiError::unsupported(&format!("{name}.tool_calls")));
    }
    let content = match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let text = |part: &Value| {
                (part["type"] == "text").then(|| part["text"].as_str().map(str::to_owned)).flatten()
            };
            let texts: Option<Vec<String>> = parts.iter().map(text).collect();
            let refused = || wrong(&format!("{name}.content"), "a text or a list of text parts");
            texts.ok_or_else(refused)?.concat()
        }
        _ => return Err(wrong(&format!("{name}.content"), "a text or a list of text parts")),
    };
    Ok(json!({ "role": role, "content": content }))
}

/// The messages, the first of the user with the document before it.
fn with_document(
    app: &App,
    mut messages: Vec<Value>,
    document: Option<Known>,
) -> Result<Vec<Value>, ApiError> {
    let document = match document {
        None => return Ok(messages),
        Some(Known::Messages(mut before)) => {
            before.append(&mut messages);
            return Ok(before);
        }
        Some(Known::Text(document)) => document,
    };
    let user = messages.iter_mut().find(|message| message["role"] == "user");
    let user = user.ok_or_else(|| wrong("messages", "one of the user, for a context_id"))?;
    let question = user["content"].as_str().unwrap_or_default();
    user["content"] = json!(app.model.first_turn(&document, question));
    Ok(messages)
}

/// Further variables of the chat template.
pub(crate) fn template_fields(fields: &mut Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    match fields.any("chat_template_kwargs") {
        None => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map.clone()),
        Some(_) => Err(wrong("chat_template_kwargs", "an object")),
    }
}
