//! What llama.cpp's own server is tested for (`tools/server/tests/unit` in its repository), where
//! this server has the same. The cases are theirs, what is expected is written anew.

use serde_json::{Value, json};

use crate::support::{Served, serve};
use longview_server::ServerOptions;

const BOOK: &str = "The meaning of life is";

fn chat(content: &str) -> Value {
    json!({
        "messages": [
            { "role": "system", "content": "Book" }, { "role": "user", "content": content },
        ],
        "max_tokens": 8,
        "ignore_eos": true,
    })
}

fn with(mut body: Value, more: Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn completed(served: &Served, more: Value) -> Value {
    let body = json!({ "prompt": BOOK, "max_tokens": 12, "ignore_eos": true });
    let answer = served.post("/v1/completions", &with(body, more));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// `test_chat_completion`, `.._stream`, `.._with_timings_per_token`.
#[test]
fn a_chat_and_its_stream_are_of_one_answer() {
    let served = serve(ServerOptions::default());
    let parts = json!([{ "type": "text", "text": "What is" }, { "type": "text", "text": " it" }]);
    let mut whole = chat("What is it");
    let said = served.post("/v1/chat/completions", &whole).json();
    assert!(said["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")), "{said}");
    assert_eq!(said["model"], "needle");
    let choice = &said["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["role"]),
        (&json!("length"), &json!("assistant"))
    );
    assert_eq!(said["usage"]["completion_tokens"], 8);
    whole["messages"][1]["content"] = parts;
    let of_parts = served.post("/v1/chat/completions", &whole).json();
    assert_eq!(of_parts["usage"]["prompt_tokens"], said["usage"]["prompt_tokens"]);
    assert_eq!(of_parts["choices"][0]["message"], choice["message"]);
    let stream =
        with(whole, json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let events = served.post("/v1/chat/completions", &stream).events();
    let (last, parts) = events.split_last().expect("events");
    assert!(parts.iter().all(|event| event["id"] == last["id"] && event["timings"].is_null()));
    let roles = parts.iter().filter(|event| !event["choices"][0]["delta"]["role"].is_null());
    assert_eq!(roles.count(), 1, "the first alone says who speaks");
    let text = parts.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(choice["message"]["content"], text.collect::<String>());
    assert_eq!(last["usage"]["total_tokens"], said["usage"]["total_tokens"]);
    for figure in ["prompt_per_second", "predicted_per_second", "predicted_n"] {
        assert!(last["timings"][figure].as_f64() > Some(0.0), "{last}");
    }
}

/// `test_chat_completion_cached_tokens`.
#[test]
fn what_a_prompt_shares_with_those_before_is_counted() {
    let served = serve(ServerOptions::default());
    let mut known = Vec::new();
    for content in ["1 2 3 4 5 6", "1 2 3 4 5 6", "1 2 3 4 5 9", "1 2 3 9 9 9"] {
        let said = served.post("/v1/chat/completions", &chat(content)).json();
        let usage = &said["usage"];
        let n = usage["prompt_tokens"].as_u64().expect("a number");
        known.push(n - usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number"));
    }
    assert!(known[0] > known[3] && known[3] > known[2] && known[2] > known[1], "{known:?}");
    assert_eq!(known[1], 1, "all but the last token, which is computed anew");
}

/// `test_completion_with_response_format`, `.._json_schema`, `.._grammar`, `.._invalid_grammar`.
#[test]
fn chats_are_held_to_forms() {
    let served = serve(ServerOptions::default());
    let said = |more: Value| {
        let answer = served.post("/v1/chat/completions", &with(chat("Write"), more));
        let body = answer.json();
        let text = body.pointer("/choices/0/message/content").and_then(Value::as_str);
        (answer.status, text.map(str::to_owned))
    };
    let format = |format: Value| json!({ "response_format": format });
    let is = |text: &str| (200, Some(text.to_owned()));
    let constant = json!({ "const": "42" });
    assert_eq!(said(format(json!({ "type": "json_object", "schema": constant }))), is("\"42\""));
    let schema = json!({ "schema": { "const": "foo" } });
    assert_eq!(
        said(format(json!({ "type": "json_schema", "json_schema": schema }))),
        is("\"foo\"")
    );
    assert_eq!(said(json!({ "json_schema": constant })), is("\"42\""));
    assert_eq!(said(json!({ "grammar": "root ::= \"a\"{5,5}" })), is("aaaaa"));
    for more in [
        format(json!({ "type": "sound" })),
        format(json!({ "type": "json_object", "schema": 123 })),
        format(json!({ "type": "json_object", "schema": { "type": 123 } })),
        format(json!({ "type": "json_object", "schema": { "type": "hiccup" } })),
        json!({ "grammar": "root ::= this is (not valid GBNF" }),
    ] {
        assert_eq!(said(more.clone()).0, 400, "{more}");
    }
}

/// `test_invalid_chat_completion_req`.
#[test]
fn conversations_that_are_none_are_refused() {
    let served = serve(ServerOptions::default());
    for messages in [
        json!(null),
        json!("string"),
        json!([123]),
        json!([{}]),
        json!([{ "role": 123 }]),
        json!([{ "role": "system", "content": 123 }]),
        json!([{ "content": "hello" }]),
        json!([{ "role": "system", "content": "test" }, {}]),
    ] {
        let answer = served.post("/v1/chat/completions", &json!({ "messages": messages }));
        assert_eq!(answer.status, 400, "{messages} {answer:?}");
        assert!(answer.json()["error"]["message"].is_string());
    }
}

/// `test_logprobs`, `test_logprobs_stream`, `test_n_probs`.
#[test]
fn probabilities_are_of_the_tokens_of_the_text() {
    let served = serve(ServerOptions::default());
    let body = with(chat("What"), json!({ "logprobs": true, "top_logprobs": 10 }));
    let whole = served.post("/v1/chat/completions", &body).json();
    let choice = &whole["choices"][0];
    let check = |tokens: Vec<Value>, text: &str| {
        let joined: String = tokens.iter().filter_map(|token| token["token"].as_str()).collect();
        assert_eq!(joined, text);
        assert_eq!(tokens.len(), 8);
        for token in &tokens {
            let top = token["top_logprobs"].as_array().expect("a list");
            let probs: Vec<f64> = top.iter().filter_map(|t| t["logprob"].as_f64()).collect();
            assert!(probs.len() == 10 && probs.is_sorted_by(|a, b| a >= b), "{token}");
            assert_eq!(token["logprob"], probs[0], "greedy");
            assert!(probs.iter().map(|p| p.exp()).sum::<f64>() < 1.001, "{token}");
        }
    };
    let content = |choice: &Value| choice["logprobs"]["content"].as_array().cloned();
    let text = choice["message"]["content"].as_str().expect("a text");
    check(content(choice).expect("a list"), text);
    let events =
        served.post("/v1/chat/completions", &with(body, json!({ "stream": true }))).events();
    let streamed = events.iter().filter_map(|event| content(&event["choices"][0])).flatten();
    check(streamed.collect(), text);
}

/// `test_consistent_result_same_seed`, `test_different_result_different_seed`,
/// `test_completion_with_tokens_input`, `test_completion_stream_vs_non_stream`.
#[test]
fn seeds_decide_and_tokens_are_as_good_as_their_text() {
    let served = serve(ServerOptions::default());
    let text = |more: Value| completed(&served, more)["choices"][0]["text"].clone();
    let seeded =
        |seed: u64| text(json!({ "seed": seed, "temperature": 2.0, "cache_prompt": false }));
    assert!((0..3).all(|_| seeded(42) == seeded(42)));
    assert_ne!(seeded(42), seeded(43));
    let ids = served.post("/tokenize", &json!({ "content": BOOK, "add_special": true })).json();
    assert_eq!(ids["tokens"][0], 0, "the token that begins a text");
    let whole = text(json!({}));
    assert_eq!(text(json!({ "prompt": ids["tokens"] })), whole);
    let body = json!({ "prompt": BOOK, "max_tokens": 12, "ignore_eos": true, "stream": true });
    let events = served.post("/v1/completions", &body).events();
    let parts = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
    assert_eq!(whole, parts.collect::<String>());
}

/// `test_return_progress`.
#[test]
fn progress_begins_with_what_is_known_and_ends_with_all() {
    let served = crate::support::serve_with(ServerOptions::default(), 64, Default::default());
    let long = "This is a test ".repeat(40);
    let body = with(chat(&long), json!({ "stream": true, "return_progress": true }));
    for is_known in [false, true] {
        let events = served.post("/v1/chat/completions", &body).events();
        let all: Vec<&Value> =
            events.iter().map(|e| &e["prompt_progress"]).filter(|p| !p.is_null()).collect();
        let (first, last) = (all[0], all[all.len() - 1]);
        assert_eq!(first["processed"], first["cache"]);
        assert_eq!(first["cache"].as_u64() > Some(0), is_known, "{first}");
        assert_eq!(last["processed"], last["total"]);
        assert!(all.is_sorted_by(|a, b| a["processed"].as_u64() < b["processed"].as_u64()));
        assert!(all.iter().all(|p| p["total"] == first["total"] && p["cache"] == first["cache"]));
        assert!(is_known || all.len() > 3, "{all:?}");
    }
}

/// `test_apply_chat_template`, `test_tokenize_*`, `test_server_models`, and
/// `test_chat_completions_multiple_choices`.
#[test]
fn templates_tokens_models_and_several_answers() {
    let served = serve(ServerOptions::default());
    let prompt = served.post("/apply-template", &chat("What is it")).json();
    let expected = "<|begin_of_text|><|im_start|>system\nBook<|im_end|>\n<|im_start|>user\nWhat is \
                    it<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt["prompt"], expected);
    let content = "A test with \u{5abd} and \u{1f917}";
    let ids = served.post("/tokenize", &json!({ "content": content })).json();
    let text = served.post("/detokenize", &json!({ "tokens": ids["tokens"] })).json();
    assert_eq!(text["content"], content);
    let pieces = json!({ "content": content, "with_pieces": true });
    let pieces = served.post("/tokenize", &pieces).json();
    let pieces = pieces["tokens"].as_array().expect("a list");
    assert_eq!(ids["tokens"], pieces.iter().map(|t| t["id"].clone()).collect::<Value>());
    // What is no text by itself is a list of bytes.
    assert!(pieces.iter().any(|token| token["piece"].is_array()), "{pieces:?}");
    let bytes = pieces.iter().flat_map(|token| match &token["piece"] {
        Value::Array(bytes) => bytes.iter().map(|b| b.as_u64().expect("a byte") as u8).collect(),
        text => text.as_str().expect("a text").as_bytes().to_vec(),
    });
    assert_eq!(String::from_utf8(bytes.collect()).as_deref(), Ok(content));
    let models = served.get("/v1/models").json();
    assert_eq!(
        (models["data"].as_array().map(Vec::len), &models["data"][0]["id"]),
        (Some(1), &json!("needle"))
    );
    let two = served.post("/v1/chat/completions", &with(chat("What"), json!({ "n": 2 }))).json();
    let choices = two["choices"].as_array().expect("a list");
    assert!(choices.len() == 2 && choices.iter().all(|c| c["finish_reason"] == "length"), "{two}");
}

/// `test_anthropic_*`: conversations with results of tools in each order, and blocks in theirs.
#[test]
fn anthropics_conversations_are_read_whole() {
    let served = serve(ServerOptions::default());
    let used = json!({ "role": "assistant", "content": [
        { "type": "thinking", "thinking": "Hm.", "signature": "x" },
        { "type": "tool_use", "id": "test123", "name": "get_weather", "input": { "a": "b" } },
    ] });
    let result = json!({ "type": "tool_result", "tool_use_id": "test123", "content": "Sunny" });
    let text = json!({ "type": "text", "text": "Here it is:" });
    let failed = json!({ "type": "tool_result", "tool_use_id": "test123", "is_error": true,
        "content": [{ "type": "text", "text": "No such city" }] });
    for content in [json!([result]), json!([text, result]), json!([result, text]), json!([failed])]
    {
        let messages = json!([
            { "role": "user", "content": "How is it?" }, used, { "role": "user", "content": content },
        ]);
        let body = json!({ "max_tokens": 4, "messages": messages, "temperature": 0.5, "seed": 0, "top_k": 40,
            "top_p": 0.9, "metadata": { "user_id": "me" } });
        let answer = served.post("/v1/messages", &body);
        assert_eq!((answer.status, &answer.json()["type"]), (200, &json!("message")), "{answer:?}");
        let count = served.post("/v1/messages/count_tokens", &json!({ "messages": messages }));
        let usage = answer.json()["usage"].clone();
        let n = |name: &str| usage[name].as_u64().expect("a number");
        let all = n("input_tokens") + n("cache_read_input_tokens");
        assert_eq!(count.json(), json!({ "input_tokens": all }));
    }
    let image = json!({ "type": "tool_result", "tool_use_id": "test123", "content": [
        { "type": "image", "source": {} }] });
    let messages =
        json!([{ "role": "user", "content": "A" }, used, { "role": "user", "content": [image] }]);
    let refused = served.post("/v1/messages", &json!({ "max_tokens": 1, "messages": messages }));
    assert_eq!(refused.json()["error"]["param"], "messages[2].content[0].content");
}
