//! Calls of tools as texts, in the form of Hermes.

use serde_json::{Value, json};

/// What a call begins and ends with.
pub(crate) const OPEN: &str = "<tool_call>";
pub(crate) const CLOSE: &str = "</tool_call>";
/// The name of its arguments.
pub(crate) const ARGUMENTS: &str = "arguments";

/// Calls and their results as texts of the assistant and the user, for templates that know neither:
/// in the form of Hermes, as such models are asked for calls. Results that follow each other, and
/// what the user says behind them, are one message, because templates refuse two of one role in a
/// row.
pub(crate) fn as_texts(messages: Vec<Value>) -> Vec<Value> {
    let mut told: Vec<Value> = Vec::new();
    let mut is_result = false;
    for mut message in messages {
        let was_result = std::mem::replace(&mut is_result, message["role"] == "tool");
        if let Value::Array(calls) = message["tool_calls"].take() {
            let said = message["content"].as_str().unwrap_or_default();
            let texts = (!said.is_empty()).then(|| said.to_owned());
            let texts = texts.into_iter().chain(calls.iter().map(call_text));
            message["content"] = json!(texts.collect::<Vec<_>>().join("\n"));
        }
        if let Some(fields) = message.as_object_mut() {
            fields.remove("tool_calls");
        }
        if is_result {
            let said = message["content"].as_str().unwrap_or_default();
            let text = format!("<tool_response>\n{said}\n</tool_response>");
            message = json!({ "role": "user", "content": text });
        }
        match told.last_mut().filter(|_| was_result && message["role"] == "user") {
            Some(last) => {
                let [before, more] = [&*last, &message].map(|m| m["content"].as_str());
                let [before, more] = [before, more].map(Option::unwrap_or_default);
                last["content"] = json!(format!("{before}\n{more}"));
            }
            None => told.push(message),
        }
    }
    told
}

/// A call as a model of this form writes it.
fn call_text(call: &Value) -> String {
    let function = &call["function"];
    let (name, arguments) = (&function["name"], &function["arguments"]);
    format!("{OPEN}\n{{\"name\": {name}, \"{ARGUMENTS}\": {arguments}}}\n{CLOSE}")
}
