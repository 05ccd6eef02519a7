//! `/v1/completions` and `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use longview_model::tokenizer::Specials;
use serde_json::Value;

use crate::answer::Form;
use crate::app::{App, aside, parse};
use crate::asked::{Endpoint, How, Sending, check_model};
use crate::caller::Caller;
use crate::conversation::{self, messages, template_fields};
use crate::error::{ApiError, json_response};
use crate::fields::{Fields, wrong};
use crate::known::{Known, text_of};
use crate::look::{Look, LookedAt};
use crate::stream;
use crate::texts::Conversation;
use crate::tools::{Style, Tools};

/// Fields that mean nothing here, and that clients send all the same.
const IGNORED: [&str; 5] = ["user", "metadata", "store", "service_tier", "safety_identifier"];

/// A request that was read.
struct Read {
    ids: Vec<u32>,
    how: How,
    sending: Sending,
    style: Option<Style>,
}

/// Goes on from a text.
pub(crate) async fn completions(app: Caller, body: Bytes) -> Result<Response<Body>, ApiError> {
    answer(app, body, false).await
}

/// Answers in a conversation.
pub(crate) async fn chat(app: Caller, body: Bytes) -> Result<Response<Body>, ApiError> {
    answer(app, body, true).await
}

async fn answer(app: Caller, body: Bytes, is_chat: bool) -> Result<Response<Body>, ApiError> {
    app.check_ready()?;
    let reader = app.clone();
    let Read { ids, how, sending, style } = aside(move || read(&reader, &body, is_chat)).await?;
    let form = Form::new(&app, is_chat, sending, how.n)
        .with_logprobs(how.logprobs.is_some())
        .with_calls(style);
    let events = app.submit(ids, how, None)?;
    if sending.stream {
        return Ok(stream::respond(events, form, app.options.limits.ping));
    }
    Ok(json_response(StatusCode::OK, &form.whole(events).await?))
}

fn read(app: &Caller, body: &[u8], is_chat: bool) -> Result<Read, ApiError> {
    let body = parse(body)?;
    let mut fields = Fields::of(&body)?;
    check_model(&mut fields, &app.model)?;
    let sending = Sending::read(&mut fields)?;
    let endpoint = if is_chat { Endpoint::Chat } else { Endpoint::Completions };
    let mut how = How::read(&mut fields, &app.model, &app.grammars, endpoint)?;
    let document = text_of(app, fields.text("context_id")?)?;
    let looked_at = match (&how.look, &document) {
        (Some(look), Some(Known::Text(text))) if look.wants_passages => Some(text.clone()),
        (Some(look), _) if look.wants_passages => return Err(Look::without_document()),
        _ => None,
    };
    let ((text, specials), style) = if is_chat {
        let tools = Tools::read(&mut fields)?;
        let messages = messages(&mut fields)?;
        let extra = template_fields(&mut fields)?;
        let style = how.call_tools(&tools, &app.model, &app.grammars)?;
        let told = Conversation { messages, extra, ..Conversation::default() };
        let told = conversation::with_all(app, told, document, &tools)?;
        (app.model.render_chat(told)?, style)
    } else {
        fields.refuse(&["tools", "tool_choice"])?;
        match prompt(&mut fields, document)? {
            Prompt::Text(text) => ((text, Specials::Add), None),
            Prompt::Tokens(ids) => return Ok(done(app, &mut fields, ids, how, sending, None)),
        }
    };
    let ids = app.model.encode(&text, specials)?;
    if let (Some(look), Some(document)) = (&mut how.look, looked_at) {
        look.document = Some(Arc::new(LookedAt::new(&app.model, &text, ids.len(), document)?));
    }
    Ok(done(app, &mut fields, ids, how, sending, style))
}

/// All that the fields said.
fn done(
    app: &App,
    fields: &mut Fields<'_>,
    ids: Vec<u32>,
    how: How,
    sending: Sending,
    style: Option<Style>,
) -> Read {
    for name in IGNORED {
        fields.any(name);
    }
    app.note_unknown(fields);
    Read { ids, how, sending, style }
}

/// What is gone on from.
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

fn prompt(fields: &mut Fields<'_>, document: Option<Known>) -> Result<Prompt, ApiError> {
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
                let ids = list.iter().map(id).collect::<Option<_>>();
                return ids.map(Prompt::Tokens).ok_or_else(refused);
            }
            _ => return Err(refused()),
        },
        _ => return Err(refused()),
    };
    if text.is_empty() {
        return Err(ApiError::field("prompt", "prompt: is empty: there is nothing to go on from"));
    }
    Ok(Prompt::Text(document.unwrap_or_default() + text))
}
