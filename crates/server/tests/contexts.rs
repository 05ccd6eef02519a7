//! Documents that are read once: by whomever, before a restart or after.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Library, PATIENCE, document, expected, question, serve, serve_template_with, serve_with,
};
use longview_server::{Limits, ServerOptions};

fn cached(body: &Value) -> u64 {
    body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
}

fn total(body: &Value) -> u64 {
    body["usage"]["prompt_tokens"].as_u64().expect("a number")
}

#[test]
fn name_pin_and_time_of_a_context_can_be_changed() {
    let library = Library::new();
    let served = serve(library.options());
    let new = |text: &str, name: &str| json!({ "text": text, "name": name });
    let id = served.post("/v1/contexts", &new("This one changes.", "old")).json()["id"].clone();
    assert_eq!(served.post("/v1/contexts", &new("This one stays.", "other")).status, 200);
    let path = format!("/v1/contexts/{}", id.as_str().expect("an id"));
    let change = |body: &Value| served.post(&path, body);
    let said = |body: &Value| [&body["name"], &body["pinned"], &body["ttl"]].map(Value::clone);
    let changed = change(&json!({ "name": "new", "pin": true, "ttl": 3600 })).json();
    assert_eq!(said(&changed), [json!("new"), json!(true), json!(3600)], "{changed}");
    assert_eq!(served.get("/v1/contexts/new").json()["id"], id);
    assert_eq!(served.get("/v1/contexts/old").status, 404);
    // Each by itself, and the others stay.
    let changed = change(&json!({ "ttl": 0 })).json();
    assert_eq!(said(&changed), [json!("new"), json!(true), Value::Null], "{changed}");
    let changed = change(&json!({ "name": "newer" })).json();
    assert_eq!(said(&changed), [json!("newer"), json!(true), Value::Null], "{changed}");
    // What is refused is refused by its name, and nothing of it is done.
    for (body, param) in [
        (json!({}), "pin"),
        (json!({ "pin": false, "name": "other" }), "name"),
        (json!({ "pin": false, "name": "" }), "name"),
        (json!({ "pin": false, "name": 7 }), "name"),
        (json!({ "pin": false, "ttl": -1 }), "ttl"),
        (json!({ "pin": "no", "ttl": 60 }), "pin"),
    ] {
        let answer = change(&body);
        let about = answer.json()["error"]["param"].clone();
        assert_eq!((answer.status, about), (400, json!(param)), "{body}: {answer:?}");
        let there = served.get(&path).json();
        assert_eq!(said(&there), [json!("newer"), json!(true), Value::Null], "{body} {there}");
    }
}

#[test]
fn a_context_is_built_once_and_known_after_a_restart() {
    let library = Library::new();
    let (text, facts) = document(80, 4);
    let id = {
        let served = serve(library.options());
        let body = json!({ "text": text, "name": "days", "stream": true });
        let built = served.post("/v1/contexts", &body);
        let events = built.events();
        let progress: Vec<_> = events.iter().filter(|e| !e["prompt_progress"].is_null()).collect();
        assert!(progress.len() > 5, "{events:?}");
        let last = events.last().expect("an event");
        assert_eq!((&last["object"], &last["name"]), (&json!("context"), &json!("days")));
        assert!(built.body.ends_with("data: [DONE]\n\n"));
        last["id"].as_str().expect("an id").to_owned()
    };
    let served = serve(library.options());
    let by_id = json!({
        "context_id": id, "messages": [{ "role": "user", "content": facts[0].question }],
        "max_tokens": 40,
    });
    let answer = served.post("/v1/chat/completions", &by_id).json();
    let said = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    assert!(said.contains(expected(&facts[0]).trim()), "{said}");
    assert!(total(&answer) - cached(&answer) < 60, "the question alone is read: {answer}");
    assert_eq!(served.metric("longview:contexts_restored_total"), 1.0);
    // Who sends the whole text again has as much of it.
    let content = format!("{text}\n\n{}", facts[1].question);
    let whole = json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 40 });
    let answer = served.post("/v1/chat/completions", &whole).json();
    assert!(total(&answer) - cached(&answer) < 60, "{answer}");
    assert_eq!(served.metric("longview:contexts_restored_total"), 1.0, "it is in memory now");
    let again = served.post("/v1/contexts", &json!({ "text": text })).json();
    assert_eq!((&again["id"], again["timings"]["prompt_n"].as_u64()), (&json!(id), Some(1)));
    let list = served.get("/v1/contexts").json();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(served.get("/v1/contexts/days").json()["id"], json!(id));
    let gone = served.ask("DELETE", &format!("/v1/contexts/{id}"), &[], "");
    assert_eq!(gone.json()["deleted"], true);
    assert_eq!(served.get(&format!("/v1/contexts/{id}")).status, 404);
    assert_eq!(served.post("/v1/chat/completions", &by_id).code(), "context_not_found");
}

/// With no room in memory every question opens the context anew, and reads no more of it.
#[test]
fn a_context_on_the_disk_serves_where_memory_keeps_none() {
    let library = Library::new();
    let served = serve(ServerOptions { max_kept: 0, ..library.options() });
    let (text, facts) = document(80, 4);
    let id = served.post("/v1/contexts", &json!({ "text": text })).json()["id"].clone();
    for (n, fact) in (1u8..).zip(&facts[..2]) {
        let by_id = json!({
            "context_id": id, "messages": [{ "role": "user", "content": fact.question }],
            "max_tokens": 40,
        });
        let answer = served.post("/v1/chat/completions", &by_id).json();
        let said = answer["choices"][0]["message"]["content"].as_str().expect("a text");
        assert!(said.contains(expected(fact).trim()), "{said}");
        assert!(total(&answer) - cached(&answer) < 60, "the question alone is read: {answer}");
        assert_eq!(served.metric("longview:contexts_restored_total"), f64::from(n));
        assert_eq!(served.metric("longview:contexts_kept"), 0.0);
    }
}

#[test]
fn clients_that_build_one_document_cause_one_build() {
    let library = Library::new();
    let served = serve_with(library.options(), 32, Duration::ZERO);
    let (text, _) = document(120, 5);
    let body = json!({ "text": text });
    let ids: Vec<Value> = thread::scope(|scope| {
        let ask = || served.post("/v1/contexts", &body).json()["id"].clone();
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a build")).collect()
    });
    assert!(ids.iter().all(|id| id.is_string() && *id == ids[0]), "{ids:?}");
    let n_tokens = served.get("/v1/contexts").json()["data"][0]["sessions"][0]["n_tokens"].clone();
    // Who comes after the build is over reads one token of it.
    let n_read = served.metric("llamacpp:prompt_tokens_total");
    assert!(n_read <= n_tokens.as_f64().expect("a number") + 3.0, "{n_read} of {n_tokens}");
}

#[test]
fn ten_people_who_ask_one_document_at_once_cause_one_reading() {
    let served = serve_with(ServerOptions::default(), 64, Duration::ZERO);
    let (text, facts) = document(100, 6);
    let n_read_alone = {
        let served = serve_with(ServerOptions::default(), 64, Duration::ZERO);
        served.post("/v1/completions", &question(&text, &facts[0]));
        served.metric("llamacpp:prompt_tokens_total")
    };
    thread::scope(|scope| {
        for i in 0..10 {
            let (served, fact, text) = (&served, &facts[i % 3], &text);
            scope.spawn(move || {
                let answer = served.post("/v1/completions", &question(text, fact)).json();
                assert_eq!(answer["choices"][0]["text"], expected(fact), "{answer}");
            });
        }
    });
    let n_read = served.metric("llamacpp:prompt_tokens_total");
    assert!(n_read < n_read_alone + 10.0 * 60.0, "{n_read} tokens, one reads {n_read_alone}");
}

#[test]
fn a_damaged_session_is_read_again_and_not_used() {
    let library = Library::new();
    let (text, facts) = document(60, 7);
    serve(library.options()).post("/v1/contexts", &json!({ "text": text }));
    let sessions = library.options().documents.expect("a library").folder().join("sessions");
    for entry in std::fs::read_dir(sessions).expect("a folder").flatten() {
        let mut bytes = std::fs::read(entry.path()).expect("a file");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(entry.path(), bytes).expect("it is written");
    }
    let served = serve(library.options());
    let prompt = json!({
        "messages": [{ "role": "user", "content": format!("{text}\n\n{}", facts[2].question) }],
        "max_tokens": 40,
    });
    let answer = served.post("/v1/chat/completions", &prompt).json();
    assert_eq!(cached(&answer), 0, "{answer}");
    let said = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    assert!(said.contains(expected(&facts[2]).trim()), "{said}");
}

#[test]
fn a_build_whose_document_is_removed_fails_alone() {
    let library = Library::new();
    let served = serve_with(library.options(), 32, Duration::ZERO);
    let (text, _) = document(250, 10);
    let other = json!({ "prompt": "It was", "max_tokens": 300, "ignore_eos": true });
    thread::scope(|scope| {
        let build =
            scope.spawn(|| served.post("/v1/contexts", &json!({ "text": text, "name": "gone" })));
        while served.metric("llamacpp:prompt_tokens_total") < 64.0 {
            thread::sleep(Duration::from_millis(1));
        }
        let beside = scope.spawn(|| served.post("/v1/completions", &other).json());
        assert_eq!(served.ask("DELETE", "/v1/contexts/gone", &[], "").status, 200);
        let build = build.join().expect("an answer");
        assert_eq!((build.status, build.code().as_str()), (404, "context_not_found"), "{build:?}");
        // At once, not when all is read.
        let read = served.metric("llamacpp:prompt_tokens_total");
        let all = served.post("/tokenize", &json!({ "content": text })).json();
        let n_tokens = all["tokens"].as_array().map_or(0, Vec::len);
        assert!(read < n_tokens as f64, "{read} of {n_tokens}");
        let beside = beside.join().expect("an answer");
        assert_eq!(beside["usage"]["completion_tokens"], 300, "{beside}");
    });
    assert_eq!(served.metric("llamacpp:requests_processing"), 0.0);
    assert_eq!(served.post("/v1/completions", &other).status, 200);
}

#[test]
fn all_who_wait_for_a_build_hear_that_its_context_is_removed() {
    let library = Library::new();
    let options = ServerOptions { n_slots: 1, ..library.options() };
    let served = serve_with(options, 32, Duration::ZERO);
    let (text, _) = document(250, 10);
    let new = json!({ "text": text, "name": "gone" });
    let streamed = json!({ "text": text, "name": "gone", "stream": true });
    // Both wait for the only place; another prefill is a build of its own.
    let other = json!({ "text": text, "name": "gone", "prefill": "sparse" });
    thread::scope(|scope| {
        let build = scope.spawn(|| served.post("/v1/contexts", &new));
        while served.metric("llamacpp:prompt_tokens_total") < 64.0 {
            thread::sleep(Duration::from_millis(1));
        }
        let also = scope.spawn(|| served.post("/v1/contexts", &streamed));
        let waits = scope.spawn(|| served.post("/v1/contexts", &other));
        served.wait_for("llamacpp:requests_deferred", 2.0);
        assert_eq!(served.ask("DELETE", "/v1/contexts/gone", &[], "").status, 200);
        for build in [build, waits] {
            let build = build.join().expect("an answer");
            assert_eq!((build.status, build.code().as_str()), (404, "context_not_found"));
        }
        let also = also.join().expect("an answer");
        let heard = also.events().iter().any(|e| e["error"]["code"] == "context_not_found");
        assert!(heard || also.code() == "context_not_found", "{also:?}");
    });
    assert_eq!(served.metric("llamacpp:requests_processing"), 0.0);
    assert_eq!(served.get("/v1/contexts").json()["data"], json!([]));
    // The same again is a new one.
    assert_eq!(served.post("/v1/contexts", &new).status, 200);
}

#[test]
fn names_that_no_path_can_have_work_encoded() {
    let library = Library::new();
    let served = serve(library.options());
    for (name, path) in [
        ("the book", "the%20book"),
        ("caf\u{e9}", "caf%C3%A9"),
        ("part/one", "part%2Fone"),
        ("100% sure?", "100%25%20sure%3F"),
        (&"\u{e9}".repeat(200), &"%C3%A9".repeat(200)),
    ] {
        let new = json!({ "text": format!("This is {name}."), "name": name });
        assert_eq!(served.post("/v1/contexts", &new).status, 200, "{name}");
        let path = format!("/v1/contexts/{path}");
        assert_eq!(served.get(&path).json()["name"], name);
        assert_eq!(served.get(&format!("{path}/text")).json()["name"], name);
        let pinned = served.post(&path, &json!({ "pin": true })).json();
        assert_eq!((&pinned["name"], &pinned["pinned"]), (&json!(name), &json!(true)));
        assert_eq!(served.ask("DELETE", &path, &[], "").status, 200, "{name}");
        assert_eq!(served.get(&path).code(), "context_not_found", "{name}");
    }
    for bad in ["%", "a%2", "%zz", "caf%E9"] {
        let answer = served.get(&format!("/v1/contexts/{bad}"));
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_value"), "{answer:?}");
        assert_eq!(answer.json()["error"]["param"], "id", "{bad}");
    }
}

#[test]
fn a_conversation_is_a_context_too() {
    let library = Library::new();
    let served = serve(library.options());
    let (text, facts) = document(60, 11);
    let before = json!([{ "role": "user", "content": text }]);
    let context = served.post("/v1/contexts", &json!({ "messages": before })).json();
    let asked = json!([{ "role": "user", "content": facts[0].question }]);
    let body = json!({ "context_id": context["id"], "messages": asked, "max_tokens": 12 });
    let answer = served.post("/v1/chat/completions", &body).json();
    assert!(total(&answer) - cached(&answer) < 60, "{answer}");
    let whole = json!([{ "role": "user", "content": text }, asked[0]]);
    let body = json!({ "messages": whole, "max_tokens": 12 });
    let same = served.post("/v1/chat/completions", &body).json();
    assert_eq!(same["choices"][0]["message"], answer["choices"][0]["message"]);
    let plain = json!({ "context_id": context["id"], "prompt": "a" });
    assert_eq!(served.post("/v1/completions", &plain).json()["error"]["param"], "context_id");
    let both = json!({ "messages": before, "text": "a" });
    assert_eq!(served.post("/v1/contexts", &both).json()["error"]["param"], "text");
}

#[test]
fn a_context_goes_when_it_was_not_used_for_its_time() {
    let library = Library::new();
    let limits = Limits { sweep: Duration::from_millis(50), ..Limits::default() };
    let served = serve(ServerOptions { limits, ..library.options() });
    let stays = served.post("/v1/contexts", &json!({ "text": "This one stays." })).json();
    let goes = json!({ "text": "This one goes.", "ttl": 3 });
    let goes = served.post("/v1/contexts", &goes).json();
    let pinned = json!({ "text": "This one is pinned.", "ttl": 3, "pin": true });
    let pinned = served.post("/v1/contexts", &pinned).json();
    let status = |context: &Value| {
        let id = context["id"].as_str().expect("an id");
        served.get(&format!("/v1/contexts/{id}")).status
    };
    // A busy machine takes a second for these.
    assert_eq!([&stays, &goes, &pinned].map(status), [200; 3]);
    let end = std::time::Instant::now() + PATIENCE;
    while status(&goes) != 404 {
        assert!(std::time::Instant::now() < end, "it goes");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!([&stays, &pinned].map(status), [200; 2]);
    let wrong = json!({ "text": "a", "ttl": 0 });
    assert_eq!(served.post("/v1/contexts", &wrong).json()["error"]["param"], "ttl");
}

#[test]
fn a_context_that_is_used_is_removed_when_its_requests_have_ended() {
    let library = Library::new();
    let served = serve(library.options());
    let (text, _) = document(30, 12);
    let context = served.post("/v1/contexts", &json!({ "text": text, "name": "used" })).json();
    let body = json!({
        "context_id": context["id"], "messages": [{ "role": "user", "content": "Go on." }],
        "max_tokens": 600, "ignore_eos": true,
    });
    thread::scope(|scope| {
        let asked = scope.spawn(|| served.post("/v1/chat/completions", &body).json());
        served.wait_for("llamacpp:requests_processing", 1.0);
        let gone = scope.spawn(|| served.ask("DELETE", "/v1/contexts/used", &[], ""));
        thread::sleep(Duration::from_millis(30));
        assert!(asked.is_finished() || !gone.is_finished(), "it waits");
        let answer = asked.join().expect("an answer");
        assert_eq!(answer["usage"]["completion_tokens"], 600, "{answer}");
        assert_eq!(gone.join().expect("an answer").status, 200);
    });
    assert_eq!(served.get("/v1/contexts/used").status, 404);
}

#[test]
fn a_build_that_is_left_goes_on_after_a_restart_where_it_was() {
    let library = Library::new();
    let (text, _) = document(250, 13);
    let body = json!({ "text": text });
    {
        let served = serve_with(library.options(), 32, Duration::ZERO);
        let stream = served.send("POST", "/v1/contexts", &[], &body.to_string());
        while served.metric("llamacpp:prompt_tokens_total") < 300.0 {
            thread::sleep(Duration::from_millis(1));
        }
        drop(stream);
        served.wait_for("longview:requests_cancelled_total", 1.0);
    }
    let served = serve_with(library.options(), 32, Duration::ZERO);
    let built = served.post("/v1/contexts", &body).json();
    assert!(cached(&built) >= 256, "{built}");
    assert!(built["timings"]["prompt_n"].as_u64() > Some(1), "{built}");
}

#[test]
fn a_completion_goes_on_from_a_context_whatever_template_it_was_read_with() {
    let template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}";
    let library = Library::new();
    let served = serve_template_with(template, library.options());
    let (text, facts) = document(40, 9);
    let context = served.post("/v1/contexts", &json!({ "text": text })).json();
    let mut body = question("", &facts[0]);
    body["context_id"] = context["id"].clone();
    let answer = served.post("/v1/completions", &body).json();
    assert!(total(&answer) - cached(&answer) < 60, "the prompt alone is read: {answer}");
    let said = answer["choices"][0]["text"].as_str().expect("a text");
    assert!(said.contains(expected(&facts[0]).trim()), "{said}");
    body["cache_prompt"] = json!(false);
    let anew = served.post("/v1/completions", &body).json();
    assert_eq!((cached(&anew), &anew["choices"][0]["text"]), (0, &answer["choices"][0]["text"]));
}
