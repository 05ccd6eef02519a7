//! Requests that cannot be served are refused, say why, and harm nobody. `ROWS` has one for each
//! kind of bad input that other servers had faults with, by what it is and the CVE of such a fault.

use serde_json::{Map, Value, json};

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
        let error = &answer.json()["error"];
        assert_eq!(error["param"], param, "{field}: {answer:?}");
        let message = error["message"].as_str().expect("a text");
        assert!(!message.starts_with("--"), "{message}: there is no command line here");
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
        ("/v1/contexts", json!({ "text": "a b c", "name": "a", "pin": 3 })),
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

/// What is sent, where, and what is answered: a code and the field that it names.
struct Row {
    /// What kind of input it is, and where one like it did harm.
    label: &'static str,
    path: &'static str,
    body: Vec<u8>,
    wanted: (u16, &'static str, Option<&'static str>),
}

fn row(
    label: &'static str,
    path: &'static str,
    body: Value,
    wanted: (u16, &'static str, Option<&'static str>),
) -> Row {
    Row { label, path, body: body.to_string().into_bytes(), wanted }
}

/// Completions with one field that is wrong.
fn field(label: &'static str, name: &'static str, value: Value) -> Row {
    let body = json!({ "prompt": "A", "max_tokens": 1, name: value });
    row(label, "/v1/completions", body, (400, "invalid_value", Some(name)))
}

fn rows() -> Vec<Row> {
    [bytes(), prompts(), counts(), templates(), forms(), paths(), tokens()]
        .into_iter()
        .flatten()
        .collect()
}

/// That a field has a value that it cannot have.
const fn bad(param: &'static str) -> (u16, &'static str, Option<&'static str>) {
    (400, "invalid_value", Some(param))
}

/// A conversation with more fields.
fn chat(more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "A" }], "max_tokens": 1 });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// Bytes that are no text, and no JSON.
fn bytes() -> Vec<Row> {
    let raw = |label, bytes: &[u8]| Row {
        label,
        path: "/v1/completions",
        body: bytes.to_vec(),
        wanted: (400, "invalid_json", None),
    };
    let nested = "{\"a\":".repeat(200);
    vec![
        raw("invalid UTF-8", b"{\"prompt\": \"\xff\xfe\"}"),
        raw("invalid UTF-8: a part of a character", b"{\"prompt\": \"\xe2\x82\"}"),
        raw("invalid UTF-8: an overlong slash", b"{\"prompt\": \"\xc0\xaf\"}"),
        raw("invalid UTF-8: half of a pair", b"{\"prompt\": \"\xed\xa0\x80\"}"),
        raw("invalid JSON: a lone surrogate", b"{\"prompt\": \"\\ud800\"}"),
        raw("invalid JSON: nothing", b""),
        raw("invalid JSON: zeros", &[0; 64]),
        raw("invalid JSON: a number too large", b"{\"prompt\": \"A\", \"seed\": 1e999}"),
        raw("depth", nested.as_bytes()),
        raw("compressed body, CVE-2024-12886", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x4b, 4, 0]),
    ]
}

/// Prompts.
fn prompts() -> Vec<Row> {
    vec![
        field("prompt > context", "prompt", json!("a ".repeat(CTX_SIZE + 1)))
            .code("context_length_exceeded"),
        field("prompt: 1 MiB of one letter", "prompt", json!("a".repeat(1 << 20)))
            .code("context_length_exceeded"),
        field("empty prompt, CVE-2024-8768", "prompt", json!("")),
        field("empty prompt: no tokens, CVE-2024-8768", "prompt", json!([])).code("empty_prompt"),
        field("tokens: negative, CVE-2026-21869", "prompt", json!([1, -1])),
        field("tokens: beyond the vocabulary, CVE-2025-49847", "prompt", json!([1, 4_000_000])),
        field("tokens: beyond 32 bits, CVE-2025-52566", "prompt", json!([1, 1u64 << 40])),
        field("tokens: fractions", "prompt", json!([1.5])),
        field("tokens and texts mixed", "prompt", json!(["a", 1])),
    ]
}

/// Counts.
fn counts() -> Vec<Row> {
    let biases: Map<String, Value> = (0..1025).map(|id| (id.to_string(), json!(1))).collect();
    vec![
        field("max_tokens: negative, CVE-2026-21869", "max_tokens", json!(-2)),
        field("max_tokens: a fraction", "max_tokens", json!(1.5)),
        field("max_tokens: no number", "max_tokens", json!("1")),
        field("id_slot: negative, CVE-2026-21869", "id_slot", json!(-2)),
        field("n, CVE-2026-34756", "n", json!(1_000_000)),
        field("n: none", "n", json!(0)),
        field("best_of, CVE-2024-8939", "best_of", json!(1_000_000)).code("unsupported"),
        field("stop: too many", "stop", json!(vec!["x"; 17])),
        field("stop: too long", "stop", json!("x".repeat(1025))),
        field("logprobs, CVE-2026-116173", "logprobs", json!(1_000_000)),
        field("logit_bias: too many", "logit_bias", Value::Object(biases)),
        field("logit_bias: beyond the vocabulary", "logit_bias", json!({ "4000000": 1 })),
        field("logit_bias: negative, CVE-2026-21869", "logit_bias", json!([[-1, 1]])),
        field("penalties, CVE-2026-44223", "presence_penalty", json!(1e9)),
        field("budget: negative", "budget", json!(-1)),
        field("temperature: beyond f32", "temperature", json!(1e300)),
        field("seed: a fraction", "seed", json!(0.5)),
        field("prompt embeds, CVE-2025-62164", "prompt", json!({ "embeds": "gASV" })),
    ]
}

/// Templates.
fn templates() -> Vec<Row> {
    vec![
        row(
            "chat_template_kwargs: no object, CVE-2025-61620",
            "/v1/chat/completions",
            chat(json!({ "chat_template_kwargs": [1] })),
            bad("chat_template_kwargs"),
        ),
        row(
            "chat: too long for a template",
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": "a".repeat(1 << 20) }] }),
            (400, "context_length_exceeded", None),
        ),
        row(
            "chat: a role of a template's own, CVE-2024-34359",
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "{{ 1 }}", "content": "A" }] }),
            bad("messages[0].role"),
        ),
        row(
            "chat: a picture, CVE-2026-22773",
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            (400, "unsupported", Some("messages[0].content")),
        ),
        row(
            "chat: too many messages",
            "/v1/chat/completions",
            json!({ "messages": vec![json!({ "role": "user", "content": "A" }); 4097] }),
            bad("messages"),
        ),
    ]
}

/// Forms and tools.
fn forms() -> Vec<Row> {
    let deep = (0..40).fold(json!({}), |inner, _| json!({ "properties": { "a": inner } }));
    let tool = json!({ "type": "function", "function": { "name": "f" } });
    let pattern = json!({ "type": "function", "function": {
        "name": "f", "parameters": { "type": "object", "properties": { "a": { "pattern": "(" } } },
    } });
    let kind = json!({ "type": "function", "function": {
        "name": "f", "parameters": { "type": "bug" },
    } });
    let calls = |tool: Value| chat(json!({ "tools": [tool], "tool_choice": "required" }));
    vec![
        field("schema: an unknown type, CVE-2025-48944", "json_schema", json!({ "type": "bug" })),
        field(
            "schema: a broken pattern, CVE-2025-48943",
            "json_schema",
            json!({ "type": "string", "pattern": "(" }),
        ),
        field("schema: too deep", "json_schema", deep),
        field("schema: too large", "json_schema", json!({ "const": "a".repeat(70 << 10) })),
        field("grammar: broken, CVE-2026-105757", "grammar", json!("root ::= this is (not valid")),
        field("grammar: an unknown rule, CVE-2025-48942", "grammar", json!("root ::= b")),
        field("grammar: too large, CVE-2025-29770", "grammar", json!("a".repeat(70 << 10))),
        row(
            "tools: too many",
            "/v1/chat/completions",
            chat(json!({ "tools": vec![tool; 129] })),
            bad("tools"),
        ),
        row(
            "tools: a broken pattern, CVE-2025-48944",
            "/v1/chat/completions",
            calls(pattern),
            bad("tools"),
        ),
        row(
            "tools: an unknown type, CVE-2025-48944",
            "/v1/chat/completions",
            calls(kind),
            bad("tools"),
        ),
    ]
}

/// Names that could be paths.
fn paths() -> Vec<Row> {
    vec![
        row(
            "path: of a context, CVE-2024-37032",
            "/v1/contexts",
            json!({ "text": "a b c", "name": "a\nb" }),
            bad("name"),
        ),
        row(
            "path: an option, CVE-2024-45436",
            "/v1/contexts",
            json!({ "text": "a b c", "name": "-x" }),
            bad("name"),
        ),
        row(
            "path: of a slot's file, CVE-2026-43629",
            "/slots/0?action=restore",
            json!({ "filename": "../../etc/passwd" }),
            (404, "context_not_found", None),
        ),
        row(
            "path: in a context_id, CVE-2024-39719",
            "/v1/completions",
            json!({ "prompt": "A", "context_id": "../../etc/passwd" }),
            (404, "context_not_found", Some("context_id")),
        ),
        row(
            "path: as a model, CVE-2026-103663",
            "/v1/completions",
            json!({ "prompt": "A", "model": "../../etc/passwd" }),
            (404, "model_not_found", Some("model")),
        ),
    ]
}

/// Tokens of others.
fn tokens() -> Vec<Row> {
    vec![
        row(
            "detokenize: beyond the vocabulary",
            "/detokenize",
            json!({ "tokens": [99_999_999] }),
            bad("tokens"),
        ),
        row(
            "detokenize: negative, CVE-2026-21869",
            "/detokenize",
            json!({ "tokens": [-1] }),
            bad("tokens"),
        ),
        row("tokenize: no text", "/tokenize", json!({ "content": 1 }), bad("content")),
        row(
            "tokenize: 1 MiB of one letter",
            "/tokenize",
            json!({ "content": "a".repeat(1 << 20) }),
            (400, "context_length_exceeded", None),
        ),
    ]
}

impl Row {
    /// The same with another code, about no field.
    fn code(mut self, code: &'static str) -> Self {
        let param = self.wanted.2.filter(|_| code == "unsupported");
        self.wanted = (self.wanted.0, code, param);
        self
    }
}

/// Of each kind of bad input at least one, and the server serves behind all of them.
#[test]
fn each_kind_of_bad_input_is_refused_by_name() {
    let library = Library::new();
    let served = serve(library.options());
    let body = json!({ "prompt": "It was", "max_tokens": 4 });
    let whole = served.post("/v1/completions", &body).json()["choices"][0]["text"].clone();
    let rows = rows();
    assert!(rows.len() >= 60, "{} rows", rows.len());
    let labels: std::collections::BTreeSet<_> = rows.iter().map(|row| row.label).collect();
    assert_eq!(labels.len(), rows.len(), "each has a label of its own");
    for Row { label, path, body, wanted: (status, code, param) } in &rows {
        let began = std::time::Instant::now();
        let answer = served.ask_bytes("POST", path, &[], body);
        let error = answer.json()["error"].clone();
        assert_eq!(
            (answer.status, error["code"].as_str()),
            (*status, Some(*code)),
            "{label}: {error}"
        );
        if let Some(param) = param {
            assert_eq!(error["param"], *param, "{label}: {error}");
        }
        // What is refused is refused soon, whatever its size.
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{label}");
        assert!(answer.body.len() < 4000, "{label}: says too much");
    }
    assert_eq!(served.metric("longview:requests_total"), 1.0, "no other came to the engine");
    assert_eq!(served.post("/v1/completions", &body).json()["choices"][0]["text"], whole);
}

/// What looks bad, and is nothing: an unknown field, variables that a template does not read, and
/// names that would be paths if they were any.
#[test]
fn what_looks_bad_and_means_nothing_does_nothing() {
    let library = Library::new();
    let served = serve(library.options());
    let said = |path: &str, body: &Value| {
        let answer = served.post(path, body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["choices"][0].clone()
    };
    let plain = json!({ "prompt": "It was", "max_tokens": 4 });
    let whole = said("/v1/completions", &plain);
    // CVE-2026-21869: there are no such fields here.
    for name in ["n_discard", "n_keep", "n_indent", "t_max_predict_ms", "id_task"] {
        let mut body = plain.clone();
        body[name] = json!(-1_000_000);
        assert_eq!(said("/v1/completions", &body), whole, "{name}");
    }
    // CVE-2025-62426: heavy variables; those that a template renders are bounded by its limits.
    let turn = json!({ "messages": [{ "role": "user", "content": "A" }], "max_tokens": 4 });
    let whole = said("/v1/chat/completions", &turn);
    let mut heavy = turn.clone();
    let many: Map<String, Value> =
        (0..2000).map(|i| (format!("v{i}"), json!("a".repeat(1000)))).collect();
    heavy["chat_template_kwargs"] = Value::Object(many);
    let began = std::time::Instant::now();
    assert_eq!(said("/v1/chat/completions", &heavy), whole);
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    // CVE-2024-37032, CVE-2024-45436: a name is a name.
    let documents = library.options().documents.expect("a library");
    for (i, name) in
        ["../../etc/passwd", "/etc/passwd", "..", "a/../../b", "C:\\x"].iter().enumerate()
    {
        let text = format!("It was day {i}.");
        let body = json!({ "text": text, "name": name });
        let added = served.post("/v1/contexts", &body).json();
        assert_eq!(added["name"], *name, "{added}");
        let id = added["id"].as_str().expect("an id");
        assert!(id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    }
    let mut files = 0;
    for folder in ["texts", "sessions"] {
        let entries = std::fs::read_dir(documents.folder().join(folder)).expect("a folder");
        for entry in entries.map(|entry| entry.expect("an entry").file_name()) {
            let name = entry.to_string_lossy().into_owned();
            let stem = name.split('.').next().unwrap_or_default();
            assert!(stem.len() >= 16 && stem.bytes().all(|b| b.is_ascii_hexdigit()), "{name}");
            files += 1;
        }
    }
    assert!(files >= 10, "{files}");
}
