//! Answers in a form: JSON schemas, grammars, and what of them is refused.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::support::{Served, expected, question, serve};
use longview_server::ServerOptions;

/// An answer that is all chance, so that only its form holds it together.
fn drawn(served: &Served, seed: u64, form: &Value) -> Value {
    let mut body = json!({
        "prompt": "It was", "max_tokens": 400, "temperature": 8.0, "seed": seed,
    });
    for (name, value) in form.as_object().expect("an object") {
        body[name] = value.clone();
    }
    let answer = served.post("/v1/completions", &body);
    assert_eq!(answer.status, 200, "{form}: {answer:?}");
    answer.json()
}

fn text(answer: &Value) -> &str {
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    answer["choices"][0]["text"].as_str().expect("a text")
}

#[test]
fn anthropics_form_of_a_schema_is_kept() {
    let served = serve(ServerOptions::default());
    let schema = json!({
        "type": "object",
        "properties": { "city": { "enum": ["Bern", "Rome"] } },
        "required": ["city"],
        "additionalProperties": false,
    });
    let format = json!({ "type": "json_schema", "schema": schema });
    let ask = |more: Value| {
        let mut body = json!({
            "messages": [{ "role": "user", "content": "Where?" }], "max_tokens": 200,
            "temperature": 8.0, "seed": 3,
        });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        served.post("/v1/messages", &body)
    };
    for form in
        [json!({ "output_config": { "format": format } }), json!({ "output_format": format })]
    {
        let answer = ask(form).json();
        assert_eq!(answer["stop_reason"], "end_turn", "{answer}");
        let text = answer["content"][0]["text"].as_str().expect("a text");
        let said: Value = serde_json::from_str(text).expect("JSON");
        assert!(said == json!({ "city": "Bern" }) || said == json!({ "city": "Rome" }), "{said}");
    }
    let other = json!({ "output_config": { "effort": "low" }, "max_tokens": 1 });
    assert_eq!(ask(other).status, 200, "nothing is said of the form");
    for (more, param) in [
        (json!({ "output_config": { "format": { "type": "xml" } } }), "output_config.format"),
        (json!({ "output_format": { "type": "json_schema" } }), "output_format"),
        (json!({ "output_format": format, "grammar": "start: \"a\"" }), "output_config"),
    ] {
        let answer = ask(more);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)));
    }
}

#[test]
fn answers_of_chance_are_what_their_schema_says() {
    let served = serve(ServerOptions::default());
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 12 },
            "age": { "type": "integer", "minimum": 0, "maximum": 120 },
            "tags": { "type": "array", "items": { "enum": ["a", "b"] }, "maxItems": 3 },
            "next": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/point" }] },
        },
        "required": ["name", "age", "tags", "next"],
        "additionalProperties": false,
        "$defs": { "point": {
            "type": "object",
            "properties": { "x": { "type": "boolean" } },
            "required": ["x"],
            "additionalProperties": false,
        } },
    });
    let forms = [
        json!({ "json_schema": schema }),
        json!({ "response_format": {
            "type": "json_schema", "json_schema": { "name": "a", "schema": schema },
        } }),
        json!({ "response_format": { "type": "json_object", "schema": schema } }),
    ];
    for seed in 0..12 {
        let answer = drawn(&served, seed, &forms[seed as usize % 3]);
        let said: Value = serde_json::from_str(text(&answer)).expect("JSON");
        let keys: Vec<&String> = said.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["name", "age", "tags", "next"], "{said}");
        assert!(said["name"].as_str().is_some_and(|name| name.chars().count() <= 12), "{said}");
        assert!(said["age"].as_u64().is_some_and(|age| age <= 120), "{said}");
        let tags = said["tags"].as_array().expect("a list");
        assert!(tags.len() <= 3 && tags.iter().all(|tag| tag == "a" || tag == "b"), "{said}");
        assert!(said["next"].is_null() || said["next"]["x"].is_boolean(), "{said}");
    }
    // Any object: it begins as one, and where it ends it is one.
    let any = drawn(&served, 1, &json!({ "response_format": { "type": "json_object" } }));
    let said = any["choices"][0]["text"].as_str().expect("a text");
    assert!(said.starts_with('{'), "{said}");
    if any["choices"][0]["finish_reason"] == "stop" {
        assert!(serde_json::from_str::<Value>(said).expect("JSON").is_object(), "{said}");
    }
}

#[test]
fn grammars_of_both_forms_are_followed_in_a_stream_as_well() {
    let served = serve(ServerOptions::default());
    let gbnf = r#"
        # As llama.cpp writes them.
        root ::= "<" Item-a ("," item-b)* ">" end?
        Item-a ::= [a-c]{2,3}
        item-b ::= "\x30" | [^a-z<>,]
        end ::= "\n"
    "#;
    for seed in 0..6 {
        let answer = drawn(&served, seed, &json!({ "grammar": gbnf }));
        let said = text(&answer).trim_end_matches('\n');
        let inner = said.strip_prefix('<').and_then(|s| s.strip_suffix('>')).expect("brackets");
        let mut items = inner.split(',');
        let first = items.next().expect("one");
        assert!((2..=3).contains(&first.len()), "{said}");
        assert!(first.bytes().all(|b| (b'a'..=b'c').contains(&b)), "{said}");
        assert!(items.all(|item| item.chars().count() == 1), "{said}");
    }
    let lark = json!({ "grammar": "start: (\"yes\" | \"no\") / sir[.!]/" });
    let body = json!({ "prompt": "A", "stream": true, "grammar": lark["grammar"], "n": 2 });
    let events = served.post("/v1/completions", &body).events();
    for index in 0..2 {
        let of = events.iter().map(|e| &e["choices"][0]).filter(|c| c["index"] == index);
        let said: String = of.filter_map(|c| c["text"].as_str()).collect();
        let forms = ["yes sir.", "yes sir!", "no sir.", "no sir!"];
        assert!(forms.contains(&said.as_str()), "{said}");
    }
    // What is ignored otherwise ends an answer that is complete.
    let ends = json!({ "grammar": "start: \"yes\"", "ignore_eos": true });
    assert_eq!(text(&drawn(&served, 1, &ends)), "yes");
}

#[test]
fn others_are_not_held_to_a_form_of_one() {
    let served = serve(ServerOptions::default());
    let (document, facts) = crate::support::document(20, 3);
    let plain = question(&document, &facts[0]);
    let alone = served.post("/v1/completions", &plain).json();
    let digits = json!({
        "prompt": "It was", "grammar": "start: /[0-9]{300}/", "max_tokens": 300, "stream": true,
    });
    let stream = served.send("POST", "/v1/completions", &[], &digits.to_string());
    served.wait_for("llamacpp:requests_processing", 1.0);
    let beside = served.post("/v1/completions", &plain).json();
    assert_eq!(beside["choices"][0]["text"], alone["choices"][0]["text"]);
    assert_eq!(beside["choices"][0]["text"], expected(&facts[0]));
    drop(stream);
}

/// A value within values.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!({}), |inner, _| json!({ "properties": { "a": inner } }))
}

#[test]
fn forms_that_are_too_much_are_refused_or_bounded() {
    let served = serve(ServerOptions::default());
    let many: Vec<String> = (0..8000).map(|i| format!("word {i}")).collect();
    let patterns: Map<String, Value> =
        (0..20).map(|i| (format!("^a{{{i}}}b+$"), json!({}))).collect();
    // Rules that lead to rules, one after the other.
    let chain: String = (0..3500).map(|i| format!("a{i}: a{}\n", i + 1)).collect();
    let chain = format!("start: a0\n{chain}a3500: \"x\"");
    // Each level refers to the one below twice: 2^20 ways.
    let mut doubled = json!({ "type": "object", "$defs": { "a0": { "type": "string" } } });
    for i in 1..=20 {
        let below = json!({ "$ref": format!("#/$defs/a{}", i - 1) });
        let all = json!({ "allOf": [below, { "anyOf": [below, below] }] });
        doubled["$defs"][format!("a{i}")] = all;
    }
    doubled["properties"] = json!({ "a": { "$ref": "#/$defs/a20" } });
    let refused = [
        ("json_schema", nested(40)),
        ("json_schema", json!({ "enum": many })),
        ("json_schema", json!({ "patternProperties": patterns })),
        ("json_schema", json!({ "type": "string", "pattern": "(?=a)b" })),
        ("json_schema", doubled),
        ("json_schema", json!({ "$ref": "http://other.example/schema" })),
        ("json_schema", json!({ "$ref": "#/$defs/none" })),
        ("grammar", json!("root ::= \"".to_owned() + &"a".repeat(70_000) + "\"")),
        ("grammar", json!("start: start")),
        ("grammar", json!("start: ".to_owned() + &"(".repeat(30_000))),
        ("grammar", json!("start: %json { \"type\": \"bug\" }")),
    ];
    for (name, form) in &refused {
        let begun = Instant::now();
        let mut body = json!({ "prompt": "A", "max_tokens": 4 });
        body[*name] = form.clone();
        let answer = served.post("/v1/completions", &body);
        let shown: String = form.to_string().chars().take(80).collect();
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_value"), "{shown}");
        assert_eq!(answer.json()["error"]["param"], *name, "{shown}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{shown}: {:?}", begun.elapsed());
    }
    // These mean much and cost little.
    let ambiguous = "start: a\na: \"a\" | a a | a a a";
    for (name, form) in [
        ("json_schema", json!({ "type": "array", "items": {}, "maxItems": 1_000_000_000 })),
        ("json_schema", json!({ "type": "string", "pattern": "(a{500}){500}" })),
        ("grammar", json!("start: /(a{900}){900}/")),
        ("grammar", json!("root ::= (((\"a\"{9999}){9999}){9999}){9999}")),
        ("grammar", json!(ambiguous)),
        ("grammar", json!(chain)),
    ] {
        let begun = Instant::now();
        let mut body = json!({ "prompt": "A", "max_tokens": 8, "temperature": 3.0, "seed": 0 });
        body[name] = form;
        let answer = served.post("/v1/completions", &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    assert_eq!(served.get("/health").status, 200);
}
