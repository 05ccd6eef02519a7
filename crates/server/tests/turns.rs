//! Turns of a conversation as a template reads them that knows less than the client says.

use serde_json::{Value, json};

use crate::support::{Served, serve, serve_template};
use longview_server::ServerOptions;

/// Knows texts by roles, and nothing of tools.
const PLAIN: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}";
/// Knows the role as well.
const DEVELOPER: &str = "{% for m in messages %}{% if m.role == 'developer' %}[!]{% endif %}[{{ m.role }}]\
     {{ m.content }}{% endfor %}";

fn applied(served: &Served, body: &Value) -> String {
    let answer = served.post("/apply-template", body);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["prompt"].as_str().expect("a text").to_owned()
}

#[test]
fn the_developer_is_the_system_where_the_template_knows_none() {
    let function = json!({ "name": "f", "parameters": { "type": "object" } });
    let mut body = json!({ "messages": [
        { "role": "developer", "content": "Be brief." }, { "role": "user", "content": "Go on." },
    ] });
    let served = serve_template(PLAIN);
    assert_eq!(applied(&served, &body), "[system]Be brief.\n[user]Go on.\n");
    body["tools"] = json!([{ "type": "function", "function": function }]);
    let prompt = applied(&served, &body);
    assert!(prompt.starts_with("[system]Be brief.\n\nYou may call these tools"), "{prompt}");
    assert_eq!(prompt.matches("[system]").count(), 1, "{prompt}");
    // It is the same in all endpoints.
    let n_tokens = |path: &str, body: &Value, counted: &str| {
        let answer = served.post(path, body).json();
        answer["usage"][counted].as_u64().unwrap_or_else(|| panic!("{path} {answer}"))
    };
    body["max_tokens"] = json!(1);
    let chat = n_tokens("/v1/chat/completions", &body, "prompt_tokens");
    body["messages"][0]["role"] = json!("system");
    assert_eq!(chat, n_tokens("/v1/chat/completions", &body, "prompt_tokens"));
    let items = |role: &str| {
        json!({ "max_output_tokens": 1, "input": [
            { "role": role, "content": "Be brief." }, { "role": "user", "content": "Go on." },
        ] })
    };
    let developer = n_tokens("/v1/responses", &items("developer"), "input_tokens");
    assert_eq!(developer, n_tokens("/v1/responses", &items("system"), "input_tokens"));

    let served = serve_template(DEVELOPER);
    body["messages"][0]["role"] = json!("developer");
    let prompt = applied(&served, &body);
    assert!(prompt.starts_with("[!][developer]Be brief.\n\nYou may call"), "{prompt}");
    assert!(!prompt.contains("[system]"), "{prompt}");
}

#[test]
fn calls_and_results_are_texts_where_the_template_knows_no_tools() {
    let call = |id: &str, arguments: &str| {
        json!({ "id": id, "type": "function",
            "function": { "name": "weather", "arguments": arguments } })
    };
    let body = json!({ "add_generation_prompt": false, "messages": [
        { "role": "user", "content": "How is it?" },
        { "role": "assistant", "content": "I look.", "tool_calls": [
            call("a", "{\"city\": \"Bern\"}"), call("b", "{\"city\": \"Rome\"}"),
        ] },
        { "role": "tool", "tool_call_id": "a", "content": "sun" },
        { "role": "tool", "tool_call_id": "b", "content": "rain" },
        { "role": "assistant", "content": null, "tool_calls": [call("c", "{}")] },
        { "role": "tool", "tool_call_id": "c", "content": "snow" },
        { "role": "assistant", "content": "Mixed." },
    ] });
    let served = serve_template(PLAIN);
    let wanted = "[user]How is it?\n\
        [assistant]I look.\n\
        <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Bern\"}}\n</tool_call>\n\
        <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Rome\"}}\n</tool_call>\n\
        [user]<tool_response>\nsun\n</tool_response>\n<tool_response>\nrain\n</tool_response>\n\
        [assistant]<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>\n\
        [user]<tool_response>\nsnow\n</tool_response>\n\
        [assistant]Mixed.\n";
    assert_eq!(applied(&served, &body), wanted);
    // What the user says behind a result is of the same turn: strict templates refuse two in a row.
    let mut asked = body.clone();
    let messages = asked["messages"].as_array_mut().expect("a list");
    messages.truncate(4);
    messages.push(json!({ "role": "user", "content": "And now?" }));
    messages.push(json!({ "role": "user", "content": "Well?" }));
    let prompt = applied(&served, &asked);
    let turn = "[user]<tool_response>\nsun\n</tool_response>\n<tool_response>\nrain\n\
                </tool_response>\nAnd now?\n[user]Well?\n";
    assert!(prompt.ends_with(turn), "{prompt}");
    // A template that knows calls is given them.
    let knows = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}\
                 {{ m.tool_calls | length }}{% endif %}{% endfor %}";
    let prompt = applied(&serve_template(knows), &body);
    assert!(prompt.contains("[assistant]I look.2[tool]sun[tool]rain[assistant]1"), "{prompt}");
}

#[test]
fn turns_of_the_assistant_without_a_text_are_read() {
    let served = serve_template(PLAIN);
    let told = |turn: Value| {
        let turns = [json!({ "role": "user", "content": "A" }), turn];
        applied(&served, &json!({ "messages": turns, "add_generation_prompt": false }))
    };
    for (turn, said) in [
        (json!({ "role": "assistant", "content": null }), ""),
        (json!({ "role": "assistant" }), ""),
        (json!({ "role": "assistant", "content": null, "refusal": "No." }), "No."),
        (json!({ "role": "assistant", "content": "Yes.", "refusal": null }), "Yes."),
        (
            json!({ "role": "assistant", "content": [
                { "type": "text", "text": "Well. " }, { "type": "refusal", "refusal": "No." },
            ] }),
            "Well. No.",
        ),
    ] {
        assert_eq!(told(turn.clone()), format!("[user]A\n[assistant]{said}\n"), "{turn}");
    }
    let items = json!({ "max_output_tokens": 1, "input": [
        { "role": "user", "content": "A" },
        { "role": "assistant", "content": [{ "type": "refusal", "refusal": "No." }] },
        { "role": "user", "content": "B" },
    ] });
    assert_eq!(served.post("/v1/responses", &items).status, 200);
}

#[test]
fn parts_that_are_no_texts_are_refused_by_their_type() {
    let served = serve_template(PLAIN);
    let checked = |path: &str, body: &Value, kind: &str| {
        let answer = served.post(path, body);
        assert_eq!((answer.status, answer.code().as_str()), (400, "unsupported"), "{answer:?}");
        let message = answer.json()["error"]["message"].as_str().map(str::to_owned);
        let message = message.expect("a message");
        assert!(message.contains(kind) && message.contains("not supported"), "{message}");
    };
    for kind in ["image_url", "input_audio", "file", "video_url"] {
        let part = json!([{ "type": "text", "text": "A" }, { "type": kind }]);
        let body = json!({ "messages": [{ "role": "user", "content": part }] });
        checked("/v1/chat/completions", &body, kind);
    }
    let part = json!([{ "type": "input_image", "image_url": "x" }]);
    let items = json!({ "input": [{ "role": "user", "content": part }] });
    checked("/v1/responses", &items, "input_image");
    for kind in ["image", "document"] {
        let part = json!([{ "type": kind, "source": {} }]);
        let turns = json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": part }] });
        checked("/v1/messages", &turns, kind);
    }
}

#[test]
fn a_call_that_is_cut_off_leaves_the_text_before_it() {
    let served = serve(ServerOptions::default());
    let grammar = r#"root ::= "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>""#;
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    let function = json!({ "name": "weather", "parameters": parameters });
    let mut chat = json!({
        "messages": [{ "role": "user", "content": "How is it?" }], "grammar": grammar,
        "tools": [{ "type": "function", "function": function }],
    });
    let tool = json!({ "type": "function", "name": "weather", "parameters": parameters });
    let mut items = json!({ "input": "How is it?", "grammar": grammar, "tools": [tool] });
    let whole = served.post("/v1/chat/completions", &chat).json();
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls", "{whole}");
    let n_whole = whole["usage"]["completion_tokens"].as_u64().expect("a number");
    let (mut n_hidden, mut n_begun) = (0, 0);
    for n in 1..n_whole - 4 {
        chat["max_tokens"] = json!(n);
        chat["stream"] = json!(false);
        let choice = &served.post("/v1/chat/completions", &chat).json()["choices"][0];
        assert_eq!(choice["finish_reason"], "length", "{choice}");
        let text = choice["message"]["content"].as_str().expect("a text").to_owned();
        assert!("I look.\n<".starts_with(&text), "{text:?}");
        chat["stream"] = json!(true);
        let events = served.post("/v1/chat/completions", &chat).events();
        let said = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
        assert_eq!(said.collect::<String>(), text);

        let has_call = !choice["message"]["tool_calls"].is_null();
        n_hidden += u32::from(!has_call && text == "I look.");
        n_begun += u32::from(has_call);
        items["max_output_tokens"] = json!(n);
        items["stream"] = json!(false);
        let answer = served.post("/v1/responses", &items).json();
        assert_eq!(answer["status"], "incomplete", "{answer}");
        let output = answer["output"].as_array().expect("items");
        let states: Vec<&Value> = output.iter().map(|item| &item["status"]).collect();
        // Whose arguments are complete can be called.
        let arguments = output[output.len() - 1]["arguments"].as_str().unwrap_or_default();
        let is_whole = serde_json::from_str::<Value>(arguments).is_ok();
        let state = json!(if is_whole { "completed" } else { "incomplete" });
        assert_eq!(states.last(), Some(&&state), "{answer}");
        assert_eq!(output.len(), if has_call { 2 } else { 1 }, "{answer}");
        items["stream"] = json!(true);
        let events = served.post("/v1/responses", &items).events();
        let done = events.iter().filter(|e| e["type"] == "response.output_item.done");
        let done: Vec<&Value> = done.map(|event| &event["item"]["status"]).collect();
        assert_eq!(done, states, "{events:?}");
        let last = events.last().expect("an event");
        assert_eq!(last["type"], "response.incomplete");
        let said = last["response"]["output"].as_array().expect("items").iter();
        assert_eq!(said.map(|item| &item["status"]).collect::<Vec<_>>(), states);
    }
    assert!(n_hidden > 1 && n_begun > 1, "{n_hidden} {n_begun}");
}
