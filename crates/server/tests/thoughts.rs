//! What a model writes for itself, apart from its answer.

use serde_json::{Value, json};

use crate::support::{Served, serve, serve_template};
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

/// The data of all events of a stream.
fn streamed(served: &Served, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    served.post(path, &body).events()
}

/// The same request in the forms of the two other endpoints.
fn others(more: Value) -> (Value, Value) {
    let mut turns = body(more);
    let mut items = turns.clone();
    items["input"] = items["messages"].take();
    items.as_object_mut().expect("an object").remove("messages");
    turns["max_tokens"] = json!(60);
    (turns, items)
}

#[test]
fn thoughts_are_a_block_of_their_own_in_anthropics_form() {
    let served = serve_template(KNOWS);
    let path = "/v1/messages";
    let (asked, _) = others(json!({ "grammar": GRAMMAR, "thinking": { "type": "adaptive" } }));
    let whole = served.post(path, &asked).json();
    let thinking = json!({ "type": "thinking", "thinking": "It is 4 < 5.", "signature": "" });
    assert_eq!(whole["content"][0], thinking, "{whole}");
    let said = whole["content"][1]["text"].as_str().expect("a text").to_owned();
    assert!(said == "Yes." || said == "No.", "{said}");
    assert_eq!((&whole["content"][2], &whole["stop_reason"]), (&Value::Null, &json!("end_turn")));
    let events = streamed(&served, path, &asked);
    let of = |kind: &str| events.iter().filter(|e| e["type"] == kind).cloned().collect::<Vec<_>>();
    let starts = of("content_block_start");
    assert_eq!(starts.len(), 2, "{starts:?}");
    let empty = json!({ "type": "thinking", "thinking": "", "signature": "" });
    assert_eq!((&starts[0]["content_block"], &starts[0]["index"]), (&empty, &json!(0)));
    assert_eq!(starts[1]["content_block"], json!({ "type": "text", "text": "" }));
    let deltas = of("content_block_delta");
    let joined = |kind: &str, field: &str| {
        let own = deltas.iter().filter(|e| e["delta"]["type"] == kind);
        own.filter_map(|e| e["delta"][field].as_str()).collect::<String>()
    };
    assert_eq!(joined("thinking_delta", "thinking"), "It is 4 < 5.");
    assert_eq!(joined("text_delta", "text"), said);
    assert!(deltas.iter().filter(|e| e["delta"]["type"] == "thinking_delta").count() > 1);
    let signed = deltas.iter().filter(|e| e["delta"]["type"] == "signature_delta");
    assert_eq!(signed.map(|e| e["index"].clone()).collect::<Vec<_>>(), [json!(0)]);
    let stops: Vec<_> = of("content_block_stop").iter().map(|e| e["index"].clone()).collect();
    assert_eq!(stops, [json!(0), json!(1)], "each block ends before the next");
    // Thoughts come back to the template, and what nobody can read does not.
    let count = |content: Value| {
        let turns = json!({ "messages": [
            { "role": "user", "content": "a" }, { "role": "assistant", "content": content },
            { "role": "user", "content": "c" },
        ] });
        served.post("/v1/messages/count_tokens", &turns).json()["input_tokens"].as_u64()
    };
    let text = json!({ "type": "text", "text": "b" });
    let plain = count(json!([text]));
    assert!(count(json!([thinking, text])) > plain && plain.is_some());
    assert_eq!(count(json!([{ "type": "redacted_thinking", "data": "x" }, text])), plain);
    let (kept, _) = others(json!({ "grammar": GRAMMAR, "reasoning_format": "none" }));
    let kept = served.post(path, &kept).json();
    assert_eq!(
        kept["content"],
        json!([{ "type": "text", "text": format!("<think>\nIt is 4 < 5.\n</think>\n\n{said}") }])
    );
}

#[test]
fn thinking_is_asked_of_templates_that_leave_the_choice() {
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}\
                    {% if enable_thinking %}<think>\n{% else %}<think></think>{% endif %}";
    let served = serve_template(template);
    let ask = |thinking: Value| {
        let (asked, _) = others(json!({ "thinking": thinking, "max_tokens": 60, "stop": "." }));
        let answer = served.post("/v1/messages", &asked).json();
        answer["content"][0]["type"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    assert_eq!(ask(json!({ "type": "enabled", "budget_tokens": 1024 })), "thinking");
    assert_eq!(ask(json!({ "type": "disabled" })), "text");
    let wrong = others(json!({ "thinking": { "type": "on" } })).0;
    let wrong = served.post("/v1/messages", &wrong);
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("thinking")));
    let plain = serve(ServerOptions::default());
    let refused = others(json!({ "thinking": { "type": "enabled" } })).0;
    let refused = plain.post("/v1/messages", &refused);
    assert_eq!((refused.status, refused.code().as_str()), (400, "unsupported"), "{refused:?}");
}

#[test]
fn thoughts_are_an_item_of_their_own_in_openais_newer_form() {
    let served = serve_template(KNOWS);
    let path = "/v1/responses";
    let (_, asked) = others(json!({ "grammar": GRAMMAR }));
    let whole = served.post(path, &asked).json();
    let (thought, message) = (&whole["output"][0], &whole["output"][1]);
    let part = json!({ "type": "reasoning_text", "text": "It is 4 < 5." });
    assert_eq!((&thought["type"], &thought["summary"]), (&json!("reasoning"), &json!([])));
    assert_eq!(thought["content"], json!([part]), "{whole}");
    assert!(thought["id"].as_str().is_some_and(|id| id.starts_with("rs_")), "{whole}");
    let said = message["content"][0]["text"].as_str().expect("a text").to_owned();
    assert!(said == "Yes." || said == "No.", "{said}");
    let n_thought = whole["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64();
    let n_all = whole["usage"]["output_tokens"].as_u64();
    assert!(n_thought > Some(3) && n_thought < n_all, "{whole}");
    let events = streamed(&served, path, &asked);
    let kinds: Vec<_> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    let mut order = kinds.clone();
    order.dedup();
    assert_eq!(
        order,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let deltas = |kind: &str| {
        let own = events.iter().filter(|event| event["type"] == kind);
        own.filter_map(|event| event["delta"].as_str()).collect::<Vec<_>>()
    };
    let thoughts = deltas("response.reasoning_text.delta");
    assert!(thoughts.len() > 1 && thoughts.concat() == "It is 4 < 5.", "{thoughts:?}");
    assert_eq!(deltas("response.output_text.delta").concat(), said);
    let last = &events.last().expect("an event")["response"];
    assert_eq!(last["output"][0]["content"], json!([part]));
    assert_eq!(last["output"][1]["content"], message["content"]);
    assert_eq!(last["usage"]["output_tokens_details"], whole["usage"]["output_tokens_details"]);
    // Items of an answer are taken back as they are, thoughts with the message that followed.
    let tokens = |items: Value| {
        let body = json!({ "input": items, "max_output_tokens": 1 });
        served.post(path, &body).json()["usage"]["input_tokens"].as_u64().expect("a number")
    };
    let (first, next) =
        (json!({ "role": "user", "content": "a" }), json!({ "role": "user", "content": "c" }));
    let with = tokens(json!([first, thought, message, next]));
    assert!(with > tokens(json!([first, message, next])));
    assert_eq!(tokens(json!([first, thought])), tokens(json!([first])), "nothing followed");
    let in_chat = json!({ "max_tokens": 1, "messages": [
        first, { "role": "assistant", "content": said, "reasoning_content": "It is 4 < 5." }, next,
    ] });
    let in_chat = served.post("/v1/chat/completions", &in_chat).json();
    assert_eq!(in_chat["usage"]["prompt_tokens"].as_u64(), Some(with));
}

#[test]
fn thoughts_that_are_cut_off_are_all_there_is() {
    let served = serve_template(BEGINS);
    let (turns, mut items) = others(json!({ "max_tokens": 5, "ignore_eos": true }));
    let mut turns = turns;
    turns["max_tokens"] = json!(5);
    items["max_output_tokens"] = json!(5);
    let message = served.post("/v1/messages", &turns).json();
    assert_eq!(
        (&message["content"][0]["type"], &message["content"][1]),
        (&json!("thinking"), &Value::Null)
    );
    assert_eq!(message["stop_reason"], "max_tokens");
    let whole = served.post("/v1/responses", &items).json();
    assert_eq!(
        (&whole["output"][0]["type"], &whole["status"]),
        (&json!("reasoning"), &json!("incomplete"))
    );
    assert_eq!(whole["output"].as_array().map(Vec::len), Some(1), "{whole}");
    let events = streamed(&served, "/v1/responses", &items);
    let last = &events.last().expect("an event")["response"];
    assert_eq!(last["output"][0]["content"], whole["output"][0]["content"]);
    assert_eq!(last["output"].as_array().map(Vec::len), Some(1), "{last}");
}
