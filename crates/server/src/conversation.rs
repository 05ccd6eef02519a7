//! Conversations as chat templates read them: texts by roles, calls of tools and their results.

use serde_json::{Map, Value, json};

use crate::app::App;
use crate::asked::How;
use crate::error::{ApiError, clip};
use crate::fields::{Fields, wrong};
use crate::known::Known;
use crate::texts::Conversation;
use crate::thoughts::{CLOSE, Thoughts};
use crate::tools::Tools;

/// Messages of a conversation.
const MAX_MESSAGES: usize = 4096;
/// A kind of part, and the field of a message, in which OpenAI's models say that they will not
/// answer. It is what they said in that turn.
pub(crate) const REFUSAL: &str = "refusal";
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// A conversation for the chat template.
pub(crate) fn messages(fields: &mut Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let list = fields.any("messages").and_then(Value::as_array);
    let list = list.filter(|list| (1..=MAX_MESSAGES).contains(&list.len()));
    let list =
        list.ok_or_else(|| wrong("messages", &format!("a list of 1 to {MAX_MESSAGES} messages")))?;
    list.iter().enumerate().map(|(i, message)| one_message(i, message)).collect()
}

/// A conversation that is to be answered, or whose last message is to be gone on with.
pub(crate) fn asked(fields: &mut Fields<'_>) -> Result<Conversation, ApiError> {
    let messages = messages(fields)?;
    if let [.., before, last] = &messages[..]
        && [before, last].iter().all(|message| message["role"] == "assistant")
    {
        let message = "messages: end with two of the assistant, and one alone is gone on with: \
                       make one of them";
        return Err(ApiError::field("messages", message));
    }
    Ok(Conversation { messages, ..Conversation::default() }.go_on())
}

fn one_message(i: usize, message: &Value) -> Result<Value, ApiError> {
    let name = format!("messages[{i}]");
    let role = message["role"].as_str().filter(|role| ROLES.contains(role));
    let role = role
        .ok_or_else(|| wrong(&format!("{name}.role"), &format!("one of {}", ROLES.join(", "))))?;
    let calls = match &message["tool_calls"] {
        Value::Null => None,
        Value::Array(calls) if role == "assistant" => {
            let one = |(at, call)| one_call(&format!("{name}.tool_calls[{at}]"), call);
            Some(calls.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?)
        }
        _ => {
            let wanted = "a list, in a message of the assistant";
            return Err(wrong(&format!("{name}.tool_calls"), wanted));
        }
    };
    let kinds: &[&str] = if role == "assistant" { &["text", REFUSAL] } else { &["text"] };
    let mut content = match &message["content"] {
        // Who calls a tool or refuses need not say anything, and clients send such turns back.
        Value::Null if role == "assistant" => String::new(),
        content => text_of_content(&format!("{name}.content"), content, kinds)?,
    };
    match &message[REFUSAL] {
        Value::String(text) if role == "assistant" => content += text,
        Value::Null | Value::String(_) => {}
        _ => return Err(wrong(&format!("{name}.{REFUSAL}"), "a text")),
    }
    let mut read = json!({ "role": role, "content": content });
    if let Some(calls) = calls.filter(|calls| !calls.is_empty()) {
        read["tool_calls"] = Value::Array(calls);
    }
    // Templates that know thoughts decide which of those before are said again.
    let fields = [("tool_call_id", "tool"), ("name", "tool"), ("reasoning_content", "assistant")];
    for (field, known) in fields {
        match &message[field] {
            Value::String(text) if role == known => read[field] = json!(text),
            Value::Null | Value::String(_) => {}
            _ => return Err(wrong(&format!("{name}.{field}"), "a text")),
        }
    }
    Ok(read)
}

/// A text, or a list of parts of the types `kinds`.
pub(crate) fn text_of_content(
    name: &str,
    content: &Value,
    kinds: &[&str],
) -> Result<String, ApiError> {
    let refused = || wrong(name, "a text or a list of text parts");
    let text = |part: &Value| {
        let kind = part["type"].as_str().ok_or_else(refused)?;
        if !kinds.contains(&kind) {
            return Err(unsupported_part(name, kind));
        }
        let key = if kind == REFUSAL { REFUSAL } else { "text" };
        part[key].as_str().map(str::to_owned).ok_or_else(refused)
    };
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => parts.iter().map(text).collect(),
        _ => Err(refused()),
    }
}

/// That `name` has a part of a type of which no text can be made.
pub(crate) fn unsupported_part(name: &str, kind: &str) -> ApiError {
    let kind = clip(kind);
    let message =
        format!("{name}: parts of type '{kind}' are not supported: this model reads text");
    ApiError::bad("unsupported", message).about(name)
}

/// A call that the assistant made. Templates write its arguments as JSON, so they get the value
/// and not a text of it.
fn one_call(name: &str, call: &Value) -> Result<Value, ApiError> {
    let function = &call["function"];
    let called = function["name"].as_str();
    let called = called.ok_or_else(|| wrong(&format!("{name}.function.name"), "a text"))?;
    let id = match &call["id"] {
        Value::Null => "",
        id => id.as_str().ok_or_else(|| wrong(&format!("{name}.id"), "a text"))?,
    };
    let arguments = match &function["arguments"] {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        Value::Object(map) => Value::Object(map.clone()),
        Value::Null => json!({}),
        _ => return Err(wrong(&format!("{name}.function.arguments"), "a text")),
    };
    Ok(call_of(id, called, arguments))
}

/// A call as templates read it.
pub(crate) fn call_of(id: &str, name: &str, arguments: Value) -> Value {
    json!({
        "id": id,
        "type": "function",
        "function": { "name": name, "arguments": arguments },
    })
}

/// What a conversation becomes.
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    /// Tells thoughts from the answer.
    pub(crate) thoughts: Thoughts,
}

/// The tokens of a conversation, with a document before what the user says first. Where thoughts
/// are wanted `how` has their marks written out.
pub(crate) fn encode(
    app: &App,
    told: Conversation,
    document: Option<Known>,
    tools: &Tools,
    (wants_thoughts, how): (bool, &mut How),
) -> Result<Prompt, ApiError> {
    let told = with_all(app, told, document, tools)?;
    let begun = told.begun.clone();
    let (text, specials) = app.model.render_chat(told)?;
    let thoughts = thoughts(app, (&text, &begun), (wants_thoughts, how));
    Ok(Prompt { ids: app.model.encode(&text, specials)?, thoughts })
}

/// How thoughts are told from the answer to a prompt, which ends with what was `begun` of it.
pub(crate) fn thoughts(
    app: &App,
    (prompt, begun): (&str, &str),
    (are_wanted, how): (bool, &mut How),
) -> Thoughts {
    if !are_wanted {
        return Thoughts::default();
    }
    how.keeps_special |= Thoughts::need_specials(&app.model);
    // An answer that was begun is behind its thoughts only where it says so.
    let before = prompt.strip_suffix(begun).unwrap_or(prompt);
    Thoughts::of(&app.model, before, how.constraint.is_some() || begun.contains(CLOSE))
}

/// The conversation with the document before what the user says first, and with tools.
pub(crate) fn with_all(
    app: &App,
    mut told: Conversation,
    document: Option<Known>,
    tools: &Tools,
) -> Result<Conversation, ApiError> {
    told.messages = with_document(app, told.messages, document)?;
    told.messages = app.model.as_known(told.messages);
    told.tools = tools.tell(&app.model, &mut told.messages);
    Ok(told)
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
