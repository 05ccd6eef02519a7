//! What a request sees of its answer: passages, steps, the map; and contexts as the page has them.

use serde_json::{Value, json};

use crate::support::{CTX_SIZE, Library, Served, document, expected, serve};
use longview_needles::facts::Fact;
use longview_server::{Limits, ServerOptions};

/// A server that has read a document with letters of four bytes before its facts.
fn read(library: &Library) -> (Served, String, Vec<Fact>, Value) {
    let served = serve(library.options());
    let (text, facts) = document(90, 21);
    let text = format!("\u{1F5D2}\u{1F5D2} {text}");
    let context = served.post("/v1/contexts", &json!({ "text": text, "name": "days" })).json();
    (served, text, facts, context["id"].clone())
}

fn ask(id: &Value, fact: &Fact, look: &Value) -> Value {
    json!({
        "context_id": id, "messages": [{ "role": "user", "content": fact.question }],
        "max_tokens": 40, "budget": 256, "longview": look,
    })
}

#[test]
fn passages_are_those_that_the_answer_stands_in() {
    let library = Library::new();
    let (served, text, facts, id) = read(&library);
    let letters: Vec<char> = text.chars().collect();
    for fact in &facts {
        let body = ask(&id, fact, &json!({ "passages": true }));
        let answer = served.post("/v1/chat/completions", &body).json();
        let seen = &answer["longview"];
        let passages = seen["passages"].as_array().expect("passages");
        assert!((1..=8).contains(&passages.len()), "{answer}");
        let weights: Vec<f64> = passages.iter().filter_map(|p| p["weight"].as_f64()).collect();
        assert!(weights.is_sorted_by(|a, b| a >= b) && weights.iter().sum::<f64>() <= 1.0 + 1e-9);
        let place = |end: &str| passages[0][end].as_u64().expect("a number") as usize;
        let quoted: String = letters[place("start")..place("end")].iter().collect();
        assert_eq!(passages[0]["text"], quoted);
        let wanted = expected(fact).trim();
        assert!(quoted.contains(wanted), "{wanted}: {seen}");
        assert!(seen["device_bytes"].as_u64() > Some(0) && seen["host_bytes"].as_u64() > Some(0));
        // On the CPU rows are attended where they lie: nothing is looked up in a cache.
        assert!(seen["hit_rate"].is_null() && seen.get("hit_rate").is_some(), "{seen}");
        // Looking changes nothing of the answer.
        let plain = served.post("/v1/chat/completions", &ask(&id, fact, &Value::Null)).json();
        assert_eq!(plain["choices"], answer["choices"]);
        assert!(plain["longview"]["passages"].is_null(), "{plain}");
    }
    // A message of the system comes before the document, and moves its tokens.
    let mut body = ask(&id, &facts[0], &json!({ "passages": true }));
    let system = json!({ "role": "system", "content": "Answer." });
    body["messages"].as_array_mut().expect("messages").insert(0, system);
    let answer = served.post("/v1/chat/completions", &body).json();
    let quoted = answer["longview"]["passages"][0]["text"].as_str().expect("a passage");
    assert!(quoted.contains(expected(&facts[0]).trim()), "{answer}");
}

#[test]
fn steps_tell_what_was_recalled_and_where_the_tokens_stood() {
    let library = Library::new();
    let (served, _, facts, id) = read(&library);
    let mut body = ask(&id, &facts[1], &json!({ "map": { "layer": 1, "head": 0 } }));
    body["stream"] = json!(true);
    let answer = served.post("/v1/chat/completions", &body);
    let events = answer.events();
    let steps: Vec<&Value> = events.iter().filter(|e| !e["longview"]["hits"].is_null()).collect();
    assert!(steps.len() > 2, "{answer:?}");
    let n_tokens = events.last().expect("an event")["longview"]["of_tokens"].as_u64();
    for (i, step) in steps.iter().enumerate() {
        let seen = &step["longview"];
        assert_eq!(seen["tokens"], i as u64 + 1, "{step}");
        let map = &seen["map"];
        let cells = map["cells"].as_str().expect("cells");
        assert!(cells.len() <= 4096 && cells.bytes().all(|b| b.is_ascii_digit() && b < b'6'));
        let counts: Vec<u64> =
            map["counts"].as_array().expect("counts").iter().filter_map(Value::as_u64).collect();
        assert_eq!(map["cell_tokens"], 1);
        assert_eq!(counts.iter().sum::<u64>(), cells.len() as u64);
        assert!(counts.iter().sum::<u64>() <= n_tokens.expect("a number"));
        // Sinks, recent ones, hits and misses: no more than the budget, beside the rest.
        assert!((1..=256).contains(&counts[1..5].iter().sum::<u64>()), "{map}");
        assert!(counts[0] > 0, "{map}");
    }
    // Rows that are attended where they lie count as hits in the map.
    let recalled = |step: &&&Value| step["longview"]["map"]["counts"][3].as_u64() > Some(0);
    assert_eq!(steps.iter().filter(recalled).count(), steps.len());
    // Without a map steps are still told where that is wanted, and not otherwise.
    for (look, is_told) in [(json!({ "steps": true }), true), (json!({}), false)] {
        let mut body = ask(&id, &facts[1], &look);
        body["stream"] = json!(true);
        let events = served.post("/v1/chat/completions", &body).events();
        let told: Vec<&Value> =
            events.iter().filter(|e| !e["longview"]["hits"].is_null()).collect();
        assert_eq!(told.is_empty(), !is_told, "{events:?}");
        assert!(told.iter().all(|step| step["longview"]["map"].is_null()));
    }
}

#[test]
fn steps_that_attend_too_much_are_not_looked_at() {
    let library = Library::new();
    let limits = Limits { looked_at_rows: 3000, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..library.options() });
    let (text, facts) = document(90, 21);
    let context = served.post("/v1/contexts", &json!({ "text": text })).json();
    let n_passages = |budget: u64| {
        let mut body = ask(&context["id"], &facts[0], &json!({ "passages": true }));
        body["budget"] = json!(budget);
        let answer = served.post("/v1/chat/completions", &body).json();
        answer["longview"]["passages"].as_array().map(Vec::len)
    };
    // Five layers of two KV heads.
    assert!(n_passages(256) > Some(0));
    assert_eq!(n_passages(512), Some(0));
}

#[test]
fn what_cannot_be_looked_at_is_refused_by_name() {
    let library = Library::new();
    let (served, _, facts, id) = read(&library);
    let good = ask(&id, &facts[0], &json!({ "passages": true }));
    let cases = [
        ("longview", json!(7)),
        ("longview", json!([])),
        ("longview", json!({ "passages": 1 })),
        ("longview", json!({ "steps": "yes" })),
        ("longview", json!({ "pasages": true })),
        ("longview", json!({ "map": true })),
        ("longview", json!({ "map": { "layer": 0 } })),
        ("longview", json!({ "map": { "layer": 5, "head": 0 } })),
        ("longview", json!({ "map": { "layer": 0, "head": 2 } })),
        ("longview", json!({ "map": { "layer": -1, "head": 0 } })),
        ("policy_options", json!({ "sinks": 4 })),
        ("policy_options", json!({ "no-such": "4" })),
        ("policy_options", json!({ "sinks": "-4" })),
        ("n", json!(2)),
        ("context_id", Value::Null),
    ];
    for (field, value) in cases {
        let mut body = good.clone();
        body[field] = value;
        let answer = served.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        let param = if field == "policy_options" { field } else { "longview" };
        assert_eq!(answer.json()["error"]["param"], param, "{body}: {answer:?}");
    }
    let mut body = good;
    body["policy_options"] = json!({ "sinks": "4" });
    assert_eq!(served.post("/v1/chat/completions", &body).status, 200);
    // A conversation has no text in which passages could stand.
    let messages = json!([{ "role": "user", "content": "The pass key is 4711." }]);
    let talk = served.post("/v1/contexts", &json!({ "messages": messages })).json();
    let answer = served
        .post("/v1/chat/completions", &ask(&talk["id"], &facts[0], &json!({ "passages": true })));
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("longview")));
}

#[test]
fn a_context_gives_its_text_back_and_is_pinned() {
    let library = Library::new();
    let (served, text, _, id) = read(&library);
    let found = served.get("/v1/contexts/days/text").json();
    assert_eq!((&found["text"], &found["id"], &found["name"]), (&json!(text), &id, &json!("days")));
    let pin = |word: &str, body: &Value| served.post(&format!("/v1/contexts/{word}"), body);
    for is_pinned in [true, false] {
        let changed = pin("days", &json!({ "pin": is_pinned }));
        assert_eq!((changed.status, &changed.json()["pinned"]), (200, &json!(is_pinned)));
        assert_eq!(served.get("/v1/contexts/days").json()["pinned"], is_pinned);
    }
    assert_eq!(pin("days", &json!({})).json()["error"]["param"], "pin");
    let none = pin("nothing", &json!({ "pin": true }));
    assert_eq!(none.code(), "context_not_found");
    // Whoever gets it has no command line there.
    let advice = none.json()["error"]["message"].to_string();
    assert!(advice.contains("GET /v1/contexts lists") && !advice.contains("kv"), "{advice}");
    let near = served.get("/v1/contexts/day").json()["error"]["message"].to_string();
    assert!(near.contains("did you mean days?"), "{near}");
    let again = served.post("/v1/contexts", &json!({ "text": "Another.", "name": "days" }));
    let advice = again.json()["error"]["message"].to_string();
    assert!(advice.contains("DELETE /v1/contexts/ID") && !advice.contains("kv"), "{advice}");
    assert_eq!(served.get("/v1/contexts/nothing/text").code(), "context_not_found");
    let list = served.get("/v1/contexts").json();
    assert!(list["bytes"].as_u64() > Some(text.len() as u64), "{list}");
    let entry = &list["data"][0];
    assert_eq!(
        (&entry["is_conversation"], &entry["sessions"][0]["is_served"]),
        (&json!(false), &json!(true))
    );
    let events = served.post("/v1/contexts", &json!({ "text": text, "stream": true })).events();
    assert!(events.iter().all(|event| event["id"] == id), "{events:?}");
}

#[test]
fn properties_name_policies_and_heads() {
    let props = serve(ServerOptions::default()).get("/props").json();
    assert_eq!((&props["n_layers"], &props["n_kv_heads"]), (&json!(5), &json!(2)));
    assert_eq!((&props["default_policy"], &props["n_ctx"]), (&json!("longview"), &json!(CTX_SIZE)));
    let policies = props["policies"].as_array().expect("a list");
    let full = policies.iter().find(|policy| policy["name"] == "full").expect("full attention");
    assert!(full["options"].is_array() && full["title"].is_string(), "{full}");
    let described = full["description"].as_str().expect("a sentence");
    assert!(described.ends_with('.'), "{described}");
    let names = props["policy_options"].as_array().expect("a list");
    assert!(names.iter().any(|option| option["name"] == "budget"), "{names:?}");
}
