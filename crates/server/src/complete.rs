//! `/v1/completions` and `/v1/chat/completions`, and llama.cpp's `/completion`.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use longview_model::tokenizer::Specials;
use serde_json::Value;

use crate::answer::Form;
use crate::app::{App, aside, parse};
use crate::asked::{Endpoint, How, Sending, check_model};
use crate::caller::Caller;
use crate::calls::Calls;
use crate::conversation::{self, template_fields};
use crate::error::{ApiError, json_response};
use crate::fields::{Fields, wrong};
use crate::known::{Known, text_of};
use crate::look::{Look, LookedAt};
use crate::native;
use crate::stream;
use crate::thoughts::Thoughts;
use crate::tools::Tools;

/// Fields that mean nothing here, and that clients send all the same.
const IGNORED: [&str; 5] = ["user", "metadata", "store", "service_tier", "safety_identifier"];

/// Prompts of a request.
const MAX_PROMPTS: usize = 64;

/// A request that was read.
struct Read {
    prompts: Vec<Vec<u32>>,
    how: How,
    sending: Sending,
    calls: Calls,
    /// Whether a whole answer in llama.cpp's form says its tokens.
    has_tokens: bool,
}

/// Goes on from a text.
pub(crate) async fn completions(app: Caller, body: Bytes) -> Result<Response<Body>, ApiError> {
    answer(app, body, Endpoint::Completions).await
}

/// Answers in a conversation.
pub(crate) async fn chat(app: Caller, body: Bytes) -> Result<Response<Body>, ApiError> {
    answer(app, body, Endpoint::Chat).await
}

/// Goes on from a text, in llama.cpp's own form.
pub(crate) async fn completion(app: Caller, body: Bytes) -> Result<Response<Body>, ApiError> {
    app.check_free()?;
    let reader = app.clone();
    let read = aside(move || read(&reader, &body, Endpoint::Native)).await?;
    let Read { mut prompts, how, sending, has_tokens, .. } = read;
    let ids = prompts.remove(0);
    let form = native::Form::new(&app, ids.len(), how.logprobs.is_some())
        .with_tokens(has_tokens || sending.stream)
        .with_slot(how.slot);
    let events = app.submit(ids, how, None)?;
    if sending.stream {
        return Ok(stream::respond(events, form, app.options.limits.ping));
    }
    Ok(json_response(StatusCode::OK, &form.whole(events).await?))
}

async fn answer(app: Caller, body: Bytes, endpoint: Endpoint) -> Result<Response<Body>, ApiError> {
    app.check_free()?;
    let reader = app.clone();
    let read = aside(move || read(&reader, &body, endpoint)).await?;
    let Read { mut prompts, how, sending, calls, .. } = read;
    let is_chat = endpoint == Endpoint::Chat;
    let form = Form::new(&app, is_chat, sending, how.n * prompts.len())
        .with_logprobs(how.logprobs.is_some())
        .with_tokens(how.returns_tokens)
        .with_calls(calls);
    let events = match prompts.len() {
        1 => app.submit(prompts.remove(0), how, None)?,
        _ => app.submit_all(prompts, how)?,
    };
    if sending.stream {
        return Ok(stream::respond(events, form, app.options.limits.ping));
    }
    Ok(json_response(StatusCode::OK, &form.whole(events).await?))
}

/// Reads a request, and counts the tokens of its prompts.
pub(crate) fn n_tokens(app: &Caller, body: &[u8], endpoint: Endpoint) -> Result<usize, ApiError> {
    Ok(read(app, body, endpoint)?.prompts.iter().map(Vec::len).sum())
}

fn read(app: &Caller, body: &[u8], endpoint: Endpoint) -> Result<Read, ApiError> {
    let body = parse(body)?;
    let mut fields = Fields::of(&body)?;
    check_model(&mut fields, &app.model)?;
    let sending = Sending::read(&mut fields)?;
    let mut how = How::read(&mut fields, &app.model, &app.grammars, endpoint)?;
    let document = text_of(app, fields.text("context_id")?)?;
    let looked_at = match (&how.look, &document) {
        (Some(look), Some(Known::Text(text))) if look.wants_passages => Some(text.clone()),
        (Some(look), _) if look.wants_passages => return Err(Look::without_document()),
        _ => None,
    };
    if endpoint != Endpoint::Chat {
        fields.refuse(&["tools", "tool_choice"])?;
        let (begin, specials) = match document {
            Some(Known::Text(text)) => {
                let (begin, specials) = app.model.begin_document(&text)?;
                (Some(begin), specials)
            }
            Some(Known::Messages(_)) => {
                let message = "context_id: is a conversation: it goes on at /v1/chat/completions";
                return Err(ApiError::field("context_id", message));
            }
            None => (None, Specials::Add),
        };
        let prompts = prompts(&mut fields, begin, app.n_places())?;
        if prompts.len() > 1 && endpoint == Endpoint::Native {
            return Err(wrong("prompt", "one: /v1/completions takes several"));
        }
        if prompts.len() > 1 && how.look.is_some() {
            return Err(wrong("longview", "given with one prompt"));
        }
        let encode = |prompt| match prompt {
            Prompt::Tokens(ids) => Ok(ids),
            Prompt::Text(text) => encode(app, &text, specials, &mut how, looked_at.as_deref()),
        };
        let prompts = prompts.into_iter().map(encode).collect::<Result<_, _>>()?;
        let is_native = endpoint == Endpoint::Native;
        let has_tokens = is_native && fields.flag("return_tokens")?.unwrap_or(false);
        let read = Read { prompts, how, sending, calls: Calls::new(None), has_tokens };
        return Ok(done(app, &mut fields, read));
    }
    let tools = Tools::read(&mut fields)?;
    let mut told = conversation::asked(&mut fields)?;
    told.extra = template_fields(&mut fields)?;
    let has_thoughts = Thoughts::are_wanted(&mut fields)?;
    let calls = how.call_tools(&tools, &app.model, &app.grammars)?;
    let told = conversation::with_all(app, told, document, &tools)?;
    let begun = told.begun.clone();
    let (text, specials) = app.model.render_chat(told)?;
    let thoughts = conversation::thoughts(app, (&text, &begun), (has_thoughts, &mut how));
    let ids = encode(app, &text, specials, &mut how, looked_at.as_deref())?;
    let calls = calls.behind(thoughts);
    let read = Read { prompts: vec![ids], how, sending, calls, has_tokens: false };
    Ok(done(app, &mut fields, read))
}

/// The tokens of a prompt; a document in it is found, where the answer's passages are wanted.
fn encode(
    app: &App,
    text: &str,
    specials: Specials,
    how: &mut How,
    looked_at: Option<&str>,
) -> Result<Vec<u32>, ApiError> {
    let ids = app.model.encode(text, specials)?;
    if let (Some(look), Some(document)) = (&mut how.look, looked_at) {
        let document = LookedAt::new(&app.model, text, ids.len(), document.to_owned())?;
        look.document = Some(Arc::new(document));
    }
    Ok(ids)
}

/// All that the fields said.
fn done(app: &App, fields: &mut Fields<'_>, read: Read) -> Read {
    for name in IGNORED {
        fields.any(name);
    }
    app.note_unknown(fields);
    read
}

/// What is gone on from.
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// At most as many as there are places: all of a request begin, or none does. `begin` is what each
/// text goes on from.
fn prompts(
    fields: &mut Fields<'_>,
    begin: Option<String>,
    n_places: usize,
) -> Result<Vec<Prompt>, ApiError> {
    let most = MAX_PROMPTS.min(n_places);
    let refused = || {
        let lists = format!("a list of up to {most} texts, or of up to {most} lists of tokens");
        wrong("prompt", &format!("a text, a list of tokens, {lists}"))
    };
    let value =
        fields.any("prompt").ok_or_else(|| ApiError::field("prompt", "prompt: is missing"))?;
    let texts: Vec<&str> = match value {
        Value::String(text) => vec![text],
        Value::Array(list) if list.first().is_some_and(Value::is_string) => {
            list.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(refused)?
        }
        Value::Array(list) if begin.is_none() => {
            let is_of_lists = list.first().is_some_and(Value::is_array);
            let lists = if is_of_lists { list.iter().collect() } else { vec![value] };
            let prompts = lists.into_iter().map(tokens).collect::<Option<Vec<_>>>();
            return prompts.filter(|prompts| prompts.len() <= most).ok_or_else(refused);
        }
        _ => return Err(refused()),
    };
    if texts.len() > most {
        return Err(refused());
    }
    if texts.iter().any(|text| text.is_empty()) {
        return Err(ApiError::field("prompt", "prompt: is empty: there is nothing to go on from"));
    }
    let begin = begin.unwrap_or_default();
    Ok(texts.into_iter().map(|text| Prompt::Text(format!("{begin}{text}"))).collect())
}

fn tokens(list: &Value) -> Option<Prompt> {
    let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
    list.as_array()?.iter().map(id).collect::<Option<_>>().map(Prompt::Tokens)
}
