//! What is read under one key is unknown under another: in memory, on disk, and while it is read.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Answer, Library, Served, document, serve, serve_with};
use longview_server::{ApiKey, Limits, ROUTES, Route, ServerOptions};

/// A client with a key.
struct Client<'a>(&'a Served, &'static str);

impl Client<'_> {
    fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.0.ask(method, path, &[("x-api-key", self.1)], &body.to_string())
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, body)
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &json!({}))
    }

    fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").body;
        let value = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        value.unwrap_or_else(|| panic!("{name}: {page}")).parse().expect("a number")
    }

    fn wait_for(&self, name: &str, value: f64) {
        for _ in 0..4000 {
            if self.metric(name) == value {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{name} becomes {value}, not {}", self.metric(name));
    }

    /// Tokens of a prompt that were known.
    fn cached(&self, path: &str, body: &Value) -> u64 {
        let answer = self.post(path, body).json();
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        cached.as_u64().unwrap_or_else(|| panic!("{answer}"))
    }

    fn n_contexts(&self) -> usize {
        self.get("/v1/contexts").json()["data"].as_array().expect("a list").len()
    }
}

fn with_keys(options: ServerOptions, keys: &[&str]) -> ServerOptions {
    let key = |text: &&str| ApiKey::parse(text).expect("a key");
    ServerOptions { api_keys: keys.iter().map(key).collect(), ..options }
}

const KEYS: [&str; 2] = ["alice:one", "bob:two"];

/// Requests that can go on from a context, each as it must be without one.
fn askers() -> [(&'static str, Value); 6] {
    let messages = json!([{ "role": "user", "content": "Who rested?" }]);
    [
        ("/v1/completions", json!({ "prompt": " Who rested?", "max_tokens": 2 })),
        ("/v1/chat/completions", json!({ "messages": messages, "max_tokens": 2 })),
        ("/v1/responses", json!({ "input": "Who rested?", "max_output_tokens": 2 })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 2 })),
        ("/v1/messages/count_tokens", json!({ "messages": messages })),
        (
            "/v1/completions",
            json!({
                "prompt": " Who rested?", "max_tokens": 1, "longview": { "passages": true },
            }),
        ),
    ]
}

#[test]
fn no_route_knows_a_context_of_another_key() {
    let library = Library::new();
    let served = serve(with_keys(library.options(), &KEYS));
    let (alice, bob) = (Client(&served, "one"), Client(&served, "two"));
    let (text, _) = document(40, 11);
    let built = alice.post("/v1/contexts", &json!({ "text": text, "name": "days" })).json();
    let id = built["id"].as_str().expect("an id").to_owned();
    assert_eq!((alice.n_contexts(), bob.n_contexts()), (1, 0));
    let listed = bob.get("/v1/contexts").json();
    assert_eq!(listed["bytes"], 0, "{listed}");
    // Every way to name it, at every route that takes one. What removes it comes last.
    let takes_one = |route: &&Route| route.path.contains("{id}") && route.needs_library;
    let mut routes: Vec<_> = ROUTES.iter().filter(takes_one).collect();
    routes.sort_by_key(|route| route.method == "DELETE");
    assert!(routes.len() >= 4, "{routes:?}");
    for word in [&id, &id[..6], "days"] {
        for (path, body) in askers() {
            let mut body = body.clone();
            body["context_id"] = json!(word);
            let other = bob.post(path, &body);
            assert_eq!((other.status, other.code().as_str()), (404, "context_not_found"));
            assert_eq!(alice.post(path, &body).status, 200, "{path} {word}");
        }
        for route in &routes {
            let path = route.path.replace("{id}", word);
            let body = json!({ "pin": false });
            let other = bob.ask(route.method, &path, &body);
            assert_eq!((other.status, other.code().as_str()), (404, "context_not_found"));
            assert!(!other.body.contains("days") || word == "days", "{other:?}");
            if route.method != "DELETE" {
                assert_eq!(alice.ask(route.method, &path, &body).status, 200, "{path}");
            }
        }
    }
    // The same text and name under the other key is a context of its own.
    let same = bob.post("/v1/contexts", &json!({ "text": text, "name": "days" })).json();
    assert_eq!(same["id"], json!(id));
    assert_eq!(same["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{same}");
    let path = format!("/v1/contexts/{id}");
    assert_eq!(alice.ask("DELETE", &path, &json!({})).status, 200);
    assert_eq!((alice.n_contexts(), bob.n_contexts()), (0, 1));
    assert_eq!(bob.get(&path).status, 200);
    assert_eq!(alice.get(&path).status, 404);
}

#[test]
fn no_prefix_is_found_that_another_key_has_read() {
    let library = Library::new();
    let (text, _) = document(60, 12);
    let prompt = json!({ "prompt": format!("{text} Who"), "max_tokens": 1 });
    let path = "/v1/completions";
    {
        let served = serve(with_keys(library.options(), &KEYS));
        let (alice, bob) = (Client(&served, "one"), Client(&served, "two"));
        assert_eq!(alice.cached(path, &prompt), 0);
        assert_eq!(bob.cached(path, &prompt), 0, "in memory");
        assert!(alice.cached(path, &prompt) > 500);
        assert!(bob.cached(path, &prompt) > 500, "its own is known");
    }
    let chat = |question: &str| {
        let content = format!("{text}\n\n{question}");
        json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 1 })
    };
    {
        let served = serve(with_keys(library.options(), &KEYS));
        let alice = Client(&served, "one");
        assert_eq!(alice.post("/v1/contexts", &json!({ "text": text })).status, 200);
    }
    // From the disk, where both have a library; a new key of the same name has that of the name.
    let served = serve(with_keys(library.options(), &["alice:three", "bob:two"]));
    let (alice, bob) = (Client(&served, "three"), Client(&served, "two"));
    assert_eq!(Client(&served, "one").get("/v1/contexts").status, 401);
    let path = "/v1/chat/completions";
    assert_eq!(bob.cached(path, &chat("Who?")), 0, "on the disk");
    assert_eq!(bob.metric("longview:contexts_restored_total"), 0.0);
    assert!(alice.cached(path, &chat("Where?")) > 500);
    assert_eq!(alice.metric("longview:contexts_restored_total"), 1.0);
}

#[test]
fn what_is_read_just_now_is_not_shared_between_keys() {
    let library = Library::new();
    let options = ServerOptions { n_slots: 2, ..library.options() };
    let served = serve_with(with_keys(options, &KEYS), 16, Duration::ZERO);
    let (alice, bob) = (Client(&served, "one"), Client(&served, "two"));
    let (text, _) = document(120, 13);
    let body = json!({ "text": text, "stream": true });
    std::thread::scope(|scope| {
        let first = scope.spawn(|| alice.post("/v1/contexts", &body).events());
        let second = scope.spawn(|| bob.post("/v1/contexts", &body).events());
        for events in [first, second].map(|thread| thread.join().expect("a build")) {
            let last = events.last().expect("an event");
            let cached = &last["usage"]["prompt_tokens_details"]["cached_tokens"];
            assert_eq!(cached, 0, "{last}");
        }
    });
    assert_eq!(alice.metric("longview:context_builds_total"), 2.0);
}

#[test]
fn slots_and_removals_are_those_of_the_key() {
    let library = Library::new();
    let served = serve(with_keys(library.options(), &KEYS));
    let (alice, bob) = (Client(&served, "one"), Client(&served, "two"));
    let (text, _) = document(40, 14);
    for client in [&alice, &bob] {
        assert_eq!(client.post("/v1/contexts", &json!({ "text": text, "name": "d" })).status, 200);
    }
    let long = json!({
        "prompt": " Who", "context_id": "d", "max_tokens": 3000, "ignore_eos": true,
        "stream": true,
    });
    let running =
        served.send("POST", "/v1/completions", &[("x-api-key", "one")], &long.to_string());
    alice.wait_for("llamacpp:requests_processing", 1.0);
    let n_running = |client: &Client<'_>| {
        let slots = client.get("/slots").json();
        let slots = slots.as_array().expect("a list").clone();
        assert_eq!(slots.len(), 4);
        slots.iter().filter(|slot| slot["is_processing"] == true).count()
    };
    assert_eq!((n_running(&alice), n_running(&bob)), (1, 0));
    // Nobody waits for requests of another key.
    assert_eq!(bob.ask("DELETE", "/v1/contexts/d", &json!({})).status, 200);
    assert_eq!(alice.metric("llamacpp:requests_processing"), 1.0, "it still runs");
    assert_eq!((alice.n_contexts(), bob.n_contexts()), (1, 0));
    drop(running);
    alice.wait_for("llamacpp:requests_processing", 0.0);
}

#[test]
fn contexts_go_after_their_time_under_every_key() {
    let library = Library::new();
    let limits = Limits { sweep: Duration::from_millis(50), ..Limits::default() };
    let options = ServerOptions { limits, ..library.options() };
    let served = serve(with_keys(options, &KEYS));
    let clients = [Client(&served, "one"), Client(&served, "two")];
    for client in &clients {
        let (text, _) = document(5, 15);
        assert_eq!(client.post("/v1/contexts", &json!({ "text": text, "ttl": 5 })).status, 200);
    }
    for client in &clients {
        let is_gone = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            client.n_contexts() == 0
        });
        assert!(is_gone, "{} has its context still", client.1);
    }
}

#[test]
fn one_key_without_a_name_has_the_library_of_the_server() {
    let library = Library::new();
    let (text, _) = document(10, 16);
    {
        let served = serve(library.options());
        assert_eq!(served.post("/v1/contexts", &json!({ "text": text })).status, 200);
    }
    let served = serve(with_keys(library.options(), &["word"]));
    assert_eq!(Client(&served, "word").n_contexts(), 1);
    drop(served);
    let served = serve(with_keys(library.options(), &["word", "other"]));
    assert_eq!(Client(&served, "word").n_contexts(), 0);
}

#[test]
fn many_prompts_of_one_key_do_not_take_the_room_of_another() {
    let served = serve(with_keys(ServerOptions { max_kept: 4, ..Default::default() }, &KEYS));
    let (alice, bob) = (Client(&served, "one"), Client(&served, "two"));
    let prompt = |seed| {
        let text = format!("Text {seed}: {}", document(40, seed).0);
        json!({ "prompt": text, "max_tokens": 1 })
    };
    for seed in [51, 52] {
        assert!(alice.cached("/v1/completions", &prompt(seed)) < 20);
    }
    for seed in 60..66 {
        assert!(bob.cached("/v1/completions", &prompt(seed)) < 20);
    }
    let metrics = alice.get("/metrics").body;
    assert!(metrics.lines().any(|line| line == "longview:contexts_kept 4"), "{metrics}");
    for seed in [51, 52] {
        assert!(alice.cached("/v1/completions", &prompt(seed)) > 100, "{seed} is there still");
    }
    assert!(bob.cached("/v1/completions", &prompt(60)) < 20, "of its own the first ones went");
}
