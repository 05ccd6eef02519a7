//! Requests that cannot be served are refused, say why, and harm nobody.

use serde_json::{Value, json};

use crate::support::{CTX_SIZE, Library, serve};

/// A field of a completion, and the parameter that the error names.
fn fields() -> Vec<(Value, &'static str)> {
    let long = "x".repeat(2000);
    let many: Vec<&str> = vec!["x"; 17];
    vec![
        (json!({ "prompt": 7 }), "prompt"),
        (json!({ "prompt": null }), "prompt"),
        (json!({ "prompt": "" }), "prompt"),
        (json!({ "prompt": ["a", 1] }), "prompt"),
        (json!({ "prompt": [1, -1] }), "prompt"),
        (json!({ "prompt": [1, 4_000_000] }), "prompt"),
        (json!({ "prompt": { "text": "a" } }), "prompt"),
        (json!({ "max_tokens": -2 }), "max_tokens"),
        (json!({ "max_tokens": 1.5 }), "max_tokens"),
        (json!({ "max_tokens": "9" }), "max_tokens"),
        (json!({ "max_completion_tokens": true }), "max_completion_tokens"),
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 9 }), "n"),
        (json!({ "n": 1e9 }), "n"),
        (json!({ "temperature": -0.1 }), "temperature"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "temperature": 1e300 }), "temperature"),
        (json!({ "top_p": -0.1 }), "top_p"),
        (json!({ "top_p": 1.1 }), "top_p"),
        (json!({ "top_k": -2 }), "top_k"),
        (json!({ "min_p": 2 }), "min_p"),
        (json!({ "seed": 1.5 }), "seed"),
        (json!({ "seed": "a" }), "seed"),
        (json!({ "repeat_penalty": 0 }), "repeat_penalty"),
        (json!({ "repetition_penalty": [] }), "repetition_penalty"),
        (json!({ "presence_penalty": 3 }), "presence_penalty"),
        (json!({ "frequency_penalty": "a" }), "frequency_penalty"),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias"),
        (json!({ "logit_bias": { "999999": 1 } }), "logit_bias"),
        (json!({ "logit_bias": { "1": 101 } }), "logit_bias"),
        (json!({ "logit_bias": [[]] }), "logit_bias"),
        (json!({ "logprobs": 21 }), "logprobs"),
        (json!({ "stop": [""] }), "stop"),
        (json!({ "stop": 5 }), "stop"),
        (json!({ "stop": many }), "stop"),
        (json!({ "stop": long }), "stop"),
        (json!({ "stream": "yes" }), "stream"),
        (json!({ "stream_options": 1 }), "stream_options"),
        (json!({ "cache_prompt": 1 }), "cache_prompt"),
        (json!({ "policy": "best" }), "policy"),
        (json!({ "policy": 1 }), "policy"),
        (json!({ "budget": 0 }), "budget"),
        (json!({ "budget": -5 }), "budget"),
        (json!({ "policy": "clusterkv", "budget": 1 }), "policy"),
        (json!({ "residual": "maybe" }), "residual"),
        (json!({ "tools": [{ "type": "function" }] }), "tools"),
        (json!({ "best_of": 2 }), "best_of"),
        (json!({ "echo": true }), "echo"),
        (json!({ "suffix": "b" }), "suffix"),
        (json!({ "grammar": "root ::= b" }), "grammar"),
        (json!({ "grammar": "start: [" }), "grammar"),
        (json!({ "grammar": 3 }), "grammar"),
        (json!({ "json_schema": "a" }), "json_schema"),
        (json!({ "json_schema": { "type": "bug" } }), "json_schema"),
        (json!({ "json_schema": {}, "grammar": "start: \"a\"" }), "grammar"),
        (json!({ "response_format": { "type": "xml" } }), "response_format"),
        (json!({ "response_format": { "type": "json_schema" } }), "response_format"),
        (json!({ "response_format": 3 }), "response_format"),
        (json!({ "model": 3 }), "model"),
        (json!({ "context_id": 3 }), "context_id"),
    ]
}

#[test]
fn wrong_fields_are_refused_by_name() {
    let library = Library::new();
    let served = serve(library.options());
    for (field, param) in fields() {
        let mut body = json!({ "prompt": "A" });
        for (name, value) in field.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let answer = served.post("/v1/completions", &body);
        assert_eq!(answer.status, 400, "{field}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], param, "{field}: {answer:?}");
    }
    for (messages, param) in [
        (json!(null), "messages"),
        (json!([]), "messages"),
        (json!("Hello"), "messages"),
        (json!([{ "content": "a" }]), "messages[0].role"),
        (json!([{ "role": "robot", "content": "a" }]), "messages[0].role"),
        (json!([{ "role": "user" }]), "messages[0].content"),
        (json!([{ "role": "user", "content": [{ "type": "image_url" }] }]), "messages[0].content"),
        (json!([{ "role": "user", "content": "a" }, 3]), "messages[1].role"),
    ] {
        let answer = served.post("/v1/chat/completions", &json!({ "messages": messages }));
        assert_eq!(answer.status, 400, "{answer:?}");
        assert_eq!(answer.json()["error"]["param"], param, "{answer:?}");
    }
    // Nothing of it came to the engine, and it serves.
    assert_eq!(served.metric("longview:requests_total"), 0.0);
    let unknown = json!({ "prompt": "A", "top_z": 1, "user": "me", "max_tokens": 1 });
    assert_eq!(served.post("/v1/completions", &unknown).status, 200);
}

#[test]
fn what_other_servers_do_is_not_ignored() {
    let served = serve(longview_server::ServerOptions::default());
    let turn = json!([{ "role": "user", "content": "A" }]);
    let ask = |path: &str, name: &str, value: &Value| {
        let mut body = json!({ "prompt": "A", "max_tokens": 1 });
        if path != "/v1/completions" {
            body = json!({ "messages": turn, "max_tokens": 1 });
        }
        body[name] = value.clone();
        served.post(path, &body)
    };
    let (all, chat) = (["/v1/completions", "/v1/chat/completions", "/v1/messages"], 1..2);
    for (name, asks, nothing, paths) in [
        ("guided_json", json!({ "type": "object" }), json!(null), 0..3),
        ("guided_regex", json!("a+"), json!(""), 0..3),
        ("guided_choice", json!(["a", "b"]), json!([]), 0..3),
        ("guided_grammar", json!("root ::= \"a\""), json!(null), 0..3),
        ("structured_outputs", json!({ "regex": "a" }), json!({}), 0..3),
        ("stop_token_ids", json!([7]), json!([]), 0..3),
        ("min_tokens", json!(4), json!(0), 0..3),
        ("continue_final_message", json!(true), json!(false), chat.clone()),
        ("modalities", json!(["text", "audio"]), json!(["text"]), chat),
        ("mcp_servers", json!([{ "name": "a" }]), json!([]), 2..3),
    ] {
        for path in &all[paths] {
            let answer = ask(path, name, &asks);
            assert_eq!((answer.status, answer.code().as_str()), (400, "unsupported"), "{name}");
            assert_eq!(answer.json()["error"]["param"], name, "{path}: {answer:?}");
            assert_eq!(ask(path, name, &nothing).status, 200, "{path} {name}");
        }
    }
}

#[test]
fn numbers_that_ask_for_nothing_are_taken() {
    let served = serve(longview_server::ServerOptions::default());
    let said = |more: Value| {
        let mut body = json!({ "prompt": "It was", "max_tokens": 8 });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let answer = served.post("/v1/completions", &body);
        assert_eq!(answer.status, 200, "{more}: {answer:?}");
        answer.json()["choices"][0]["text"].clone()
    };
    let greedy = said(json!({}));
    for same in [
        json!({ "seed": -1 }),
        json!({ "seed": -9 }),
        json!({ "best_of": 1 }),
        json!({ "top_k": -1 }),
        json!({ "top_k": 0 }),
        // The best token alone, however warm it is.
        json!({ "top_p": 0, "temperature": 2.0, "seed": 3 }),
        json!({ "top_p": 1e-60, "temperature": 2.0, "seed": 3 }),
    ] {
        assert_eq!(said(same.clone()), greedy, "{same}");
    }
    let penalised = json!({ "repeat_penalty": 1.5, "repeat_last_n": CTX_SIZE });
    let all = json!({ "repeat_penalty": 1.5, "repeat_last_n": -1 });
    assert_eq!(said(all), said(penalised));
    let long = json!({ "prompt": vec![300; CTX_SIZE - 40], "ignore_eos": true });
    for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
        let mut body = long.clone();
        body[name] = json!(-1);
        let answer = served.post("/v1/completions", &body).json();
        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{name}");
        assert!(answer["usage"]["completion_tokens"].as_u64() >= Some(39), "{answer}");
    }
    // What is wrong is said in few words.
    let wrong = served.post("/v1/completions", &json!({ "prompt": "A", "top_p": 2 })).json();
    assert_eq!(wrong["error"]["message"], "top_p: must be a number from 0 to 1");
}

#[test]
fn bodies_that_are_no_requests_are_refused() {
    let served = serve(crate::support::Library::new().options());
    let deep = "[".repeat(200) + &"]".repeat(200);
    let bodies = [
        "",
        "{",
        "nonsense",
        "[]",
        "3",
        "\"a\"",
        "{\"prompt\":\"a\"",
        "{\"prompt\":\"\\ud800\"}",
        &deep,
    ];
    for path in [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/v1/contexts",
    ] {
        for body in bodies {
            let answer = served.ask("POST", path, &[], body);
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (400, "invalid_json"),
                "{path} {body}"
            );
        }
    }
    for (path, body) in [
        ("/tokenize", json!({ "content": 1 })),
        ("/detokenize", json!({ "tokens": [99_999_999] })),
        ("/detokenize", json!({ "tokens": "a" })),
        ("/v1/contexts", json!({ "text": "  " })),
        ("/v1/contexts", json!({ "name": "a" })),
        ("/v1/contexts", json!({ "text": "a b c", "name": "../../etc" , "pin": 3})),
    ] {
        assert_eq!(served.post(path, &body).status, 400, "{path} {body}");
    }
}

#[test]
fn what_is_not_there_is_said() {
    let served = serve(longview_server::ServerOptions::default());
    let other = served.post("/v1/completions", &json!({ "prompt": "A", "model": "gpt\u{1b}[2J" }));
    assert_eq!((other.status, other.code().as_str()), (404, "model_not_found"));
    assert_eq!(other.json()["error"]["models"], json!(["needle"]));
    assert!(!other.body.contains("\\u001b"), "{other:?}");
    assert_eq!(served.get("/v2/models").status, 404);
    assert_eq!(served.get("/v1/contexts").status, 404, "there is no library");
    assert_eq!(served.get("/v1/completions").status, 405);
    let context = json!({ "prompt": "A", "context_id": "abcd" });
    assert_eq!(served.post("/v1/completions", &context).code(), "no_library");
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_both_numbers() {
    let library = Library::new();
    let served = serve(library.options());
    let ids: Vec<u32> = vec![300; CTX_SIZE];
    for prompt in
        [json!(ids), json!("a quiet day ".repeat(2000)), json!("a quiet day ".repeat(40_000))]
    {
        let answer = served.post("/v1/completions", &json!({ "prompt": prompt }));
        assert_eq!((answer.status, answer.code().as_str()), (400, "context_length_exceeded"));
        let error = &answer.json()["error"];
        assert_eq!(error["n_ctx"], CTX_SIZE);
        assert!(error["n_prompt_tokens"].as_u64() >= Some(CTX_SIZE as u64), "{error}");
    }
    let long = "a quiet day ".repeat(2000);
    let text = json!({ "text": long });
    assert_eq!(served.post("/v1/contexts", &text).code(), "context_length_exceeded");
    let chat = json!({ "messages": [{ "role": "user", "content": long }] });
    assert_eq!(served.post("/v1/chat/completions", &chat).code(), "context_length_exceeded");
    // One token of room is enough, and a huge limit is what fits.
    let fits = json!({ "prompt": ids[1..], "max_tokens": u64::MAX, "ignore_eos": true });
    let answer = served.post("/v1/completions", &fits).json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
    assert!(answer["usage"]["completion_tokens"].as_u64() <= Some(2), "{answer}");
}
