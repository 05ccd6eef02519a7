//! What a model writes for itself, apart from its answer.

use serde_json::{Value, json};

use crate::support::{serve, serve_template};
use longview_server::ServerOptions;

/// A template that says thoughts of turns before, as Qwen3's does.
const KNOWS: &str = "{% for message in messages %}{{ message.role }}: \
                     {% if message.reasoning_content %}<think>{{ message.reasoning_content }}\
                     </think>{% endif %}{{ message.content }}\n{% endfor %}";
/// One that begins them for the model, as DeepSeek-R1's does.
const BEGINS: &str = "{% for message in messages %}{{ message.content }}{% endfor %}<think>\n";
/// The embedded model has no thoughts: it is held to some.
const GRAMMAR: &str = r#"root ::= "<think>\nIt is 4 < 5.\n</think>\n\n" ("Yes." | "No.")"#;

fn body(more: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "Is 4 less than 5?" }], "max_tokens": 60,
    });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
    body
}

#[test]
fn thoughts_are_a_field_of_the_message() {
    let served = serve_template(KNOWS);
    let path = "/v1/chat/completions";
    let message = |body: &Value| {
        let answer = served.post(path, body).json();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        answer["choices"][0]["message"].clone()
    };
    let asked = body(json!({ "grammar": GRAMMAR }));
    let whole = message(&asked);
    assert_eq!(whole["reasoning_content"], "It is 4 < 5.", "{whole}");
    let said = whole["content"].as_str().expect("a text").to_owned();
    assert!(said == "Yes." || said == "No.", "{said}");
    let kept = message(&body(json!({ "grammar": GRAMMAR, "reasoning_format": "none" })));
    assert_eq!(kept["content"], json!(format!("<think>\nIt is 4 < 5.\n</think>\n\n{said}")));
    assert_eq!(kept["reasoning_content"], Value::Null);
    let mut streamed = asked.clone();
    streamed["stream"] = json!(true);
    let events = served.post(path, &streamed).events();
    let deltas = || events.iter().map(|event| &event["choices"][0]["delta"]);
    let joined =
        |field: &str| deltas().filter_map(|delta| delta[field].as_str()).collect::<String>();
    assert_eq!(joined("reasoning_content"), "It is 4 < 5.");
    assert_eq!(joined("content"), said);
    assert!(deltas().filter(|delta| delta["reasoning_content"].is_string()).count() > 1);
    // What it thought before comes back to the template.
    let turns = json!({ "messages": [
        { "role": "user", "content": "a" },
        { "role": "assistant", "content": "b", "reasoning_content": "because" },
        { "role": "user", "content": "c" },
    ] });
    let prompt = served.post("/apply-template", &turns).json()["prompt"].clone();
    assert_eq!(prompt, "user: a\nassistant: <think>because</think>b\nuser: c\n");
    let wrong = served.post(path, &body(json!({ "reasoning_format": "hidden" })));
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("reasoning_format")));
}

#[test]
fn thoughts_that_the_prompt_begins_are_thoughts_without_a_mark() {
    let served = serve_template(BEGINS);
    let path = "/v1/chat/completions";
    let answer = served.post(path, &body(json!({ "max_tokens": 5, "ignore_eos": true }))).json();
    let message = &answer["choices"][0]["message"];
    assert!(message["reasoning_content"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
    assert_eq!(
        (&message["content"], &answer["choices"][0]["finish_reason"]),
        (&json!(""), &json!("length"))
    );
    // An answer that is held to a form has it from the first token on.
    let held = body(json!({ "response_format": { "type": "json_object" } }));
    let answer = served.post(path, &held).json();
    let message = &answer["choices"][0]["message"];
    assert!(message["content"].as_str().is_some_and(|text| text.starts_with('{')), "{answer}");
    assert_eq!(message["reasoning_content"], Value::Null);
}

#[test]
fn a_template_without_thoughts_leaves_all_as_it_is() {
    let served = serve(ServerOptions::default());
    let answer = served.post("/v1/chat/completions", &body(json!({ "grammar": GRAMMAR }))).json();
    let message = &answer["choices"][0]["message"];
    assert!(
        message["content"].as_str().is_some_and(|text| text.starts_with("<think>")),
        "{answer}"
    );
    assert_eq!(message["reasoning_content"], Value::Null);
}
