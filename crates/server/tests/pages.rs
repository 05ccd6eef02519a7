//! What the server says of itself is so: its page for programs, its slots and its properties.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Answer, CTX_SIZE, Library, begin_model, facts_of_model, logged, serve};
use longview_server::{ModelFacts, ROUTES, ServerOptions};

#[test]
fn every_route_is_on_the_page_and_nothing_else() {
    let library = Library::new();
    let described = |options: ServerOptions| {
        let page = serve(options).get("/openapi.json").json();
        assert!(page["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")));
        let mut found = BTreeSet::new();
        for (path, methods) in page["paths"].as_object().expect("paths") {
            for (method, operation) in methods.as_object().expect("methods") {
                assert!(operation["summary"].is_string(), "{operation}");
                let is_open = operation["security"].is_null();
                found.insert((method.to_uppercase(), path.clone(), is_open));
            }
        }
        found
    };
    let routes = |has_library: bool| {
        let there = ROUTES.iter().filter(move |route| has_library || !route.needs_library);
        there.map(|r| (r.method.to_owned(), r.path.to_owned(), r.is_open)).collect()
    };
    let with_library: BTreeSet<_> = routes(true);
    assert_eq!(described(library.options()), with_library);
    assert_eq!(with_library.len(), ROUTES.len());
    assert_eq!(described(ServerOptions::default()), routes(false));
}

#[test]
fn every_field_of_the_page_is_known_and_of_its_type() {
    let library = Library::new();
    let (served, lines) = logged(|| serve(library.options()));
    let other = serve(ServerOptions::default());
    assert_eq!(other.post("/tokenize", &json!({ "content": "A", "other": 1 })).status, 200);
    let page = served.get("/openapi.json").json();
    let mut n_fields = 0;
    for route in ROUTES.iter().filter(|route| route.method == "POST") {
        let operation = &page["paths"][route.path]["post"];
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let fields = schema["properties"].as_object().expect("fields");
        // Any one of the fields of a change is enough, and nothing is changed here.
        let changes = route.path == "/v1/contexts/{id}";
        assert_eq!(schema["minProperties"] == 1, changes, "{}", route.path);
        // The query says what is done to a slot, and one of the things takes no field.
        let is_slot = route.path == "/slots/{id}";
        let path = if is_slot { "/slots/0?action=save" } else { route.path };
        let first = match schema["required"][0].as_str() {
            None if changes || is_slot => "",
            first => first.expect("one"),
        };
        for (name, field) in fields {
            n_fields += 1;
            let wrong = match field["type"].as_str() {
                Some("string" | "array" | "object") => json!(7),
                Some(_) => json!("x"),
                // Of several types: flags are among none of them.
                None => json!(true),
            };
            let mut body = match first {
                "messages" => json!({ "messages": [{ "role": "user", "content": "A" }] }),
                "tokens" => json!({ "tokens": [7] }),
                "" => json!({}),
                first => json!({ first: "A" }),
            };
            if route.path == "/v1/messages" {
                body["max_tokens"] = json!(1);
            }
            body[name] = wrong;
            let answer = served.post(path, &body);
            assert_eq!(answer.status, 400, "{} {name}: {answer:?}", route.path);
            assert_eq!(answer.json()["error"]["param"], *name, "{}: {answer:?}", route.path);
            // Nothing is as good as absent, and known.
            body[name] = Value::Null;
            let is_context = route.path.starts_with("/v1/contexts");
            if name != first && !(is_context || is_slot || name == "max_tokens") {
                body["max_tokens"] = json!(1);
                assert_eq!(served.post(route.path, &body).status, 200, "{} {name}", route.path);
            }
        }
    }
    assert!(n_fields > 120, "{n_fields}");
    let answers = ["POST /v1/", "POST /completion", "POST /chat/", "POST /responses"];
    let (served, others): (Vec<_>, Vec<_>) = lines
        .all()
        .into_iter()
        .partition(|line| answers.iter().any(|start| line.starts_with(start)));
    let expected = ["unknown field in a request, ignored: max_tokens"];
    assert_eq!(others, expected, "of /tokenize and the like, once, and of no other server");
    assert!(!served.is_empty());
}

#[test]
fn slots_show_what_runs() {
    let served = serve(ServerOptions { n_slots: 2, ..ServerOptions::default() });
    let idle = served.get("/slots").json();
    assert_eq!(idle.as_array().map(Vec::len), Some(2));
    assert!(idle[0]["is_processing"] == false && idle[1]["is_processing"] == false, "{idle}");
    let body =
        json!({ "prompt": "It was", "max_tokens": 4000, "ignore_eos": true, "stream": true });
    let stream = served.send("POST", "/v1/completions", &[], &body.to_string());
    served.wait_for("llamacpp:requests_processing", 1.0);
    let busy = served.get("/slots").json();
    assert!(busy[0]["is_processing"] == true && busy[1]["is_processing"] == false, "{busy}");
    assert_eq!((&busy[0]["n_ctx"], &busy[1]["id"]), (&json!(CTX_SIZE), &json!(1)));
    assert!(busy[0]["n_prompt_tokens"].as_u64() > Some(1), "{busy}");
    assert!(
        ["reading", "indexing", "answering"].map(Value::from).contains(&busy[0]["state"]),
        "{busy}"
    );
    assert_eq!(busy[0]["prefill"], "exact");
    assert!(!busy.to_string().contains("It was"), "no prompt is shown");
    drop(stream);
    served.wait_for("llamacpp:requests_processing", 0.0);
    assert_eq!(served.get("/slots").json()[0]["is_processing"], false);
}

#[test]
fn properties_are_those_of_the_model_and_the_start() {
    let served = serve(ServerOptions { n_slots: 3, ..ServerOptions::default() });
    let props = served.get("/props").json();
    assert_eq!((&props["total_slots"], &props["n_ctx"]), (&json!(3), &json!(CTX_SIZE)));
    assert_eq!(props["default_generation_settings"]["n_ctx"], CTX_SIZE);
    assert_eq!(props["model_alias"], "needle");
    assert!(props["chat_template"].as_str().is_some_and(|text| text.contains("<|im_start|>")));
    assert_eq!(props["bos_token"], "<|begin_of_text|>");
    assert_eq!(props["eos_token"], "<|end_of_text|>");
    assert_eq!(props["modalities"], json!({ "vision": false, "audio": false }));
    let text = json!({ "content": "It was", "with_pieces": true });
    let pieces = served.post("/tokenize", &text).json();
    let pieces = pieces["tokens"].as_array().expect("a list").iter();
    let text: String = pieces.filter_map(|token| token["piece"].as_str()).collect();
    assert_eq!(text, "It was");
}

#[test]
fn a_model_has_one_name_to_show_and_paths_stay_here() {
    let path = "/srv/secret folder/needle.gguf";
    let names = ["lab/needle", "needle.gguf", path].map(str::to_owned).to_vec();
    let model = ModelFacts { names, words: path.to_owned(), ..facts_of_model() };
    let served = begin_model(model, ServerOptions::default(), 128, Duration::ZERO);
    served.wait_until_ready();
    let models = served.get("/v1/models").json();
    let list = models["data"].as_array().expect("a list");
    assert_eq!((list.len(), &list[0]["id"]), (1, &json!("lab/needle")));
    for id in ["lab/needle", "lab%2Fneedle", "needle.gguf", "/srv/secret%20folder/needle.gguf"] {
        let one = served.get(&format!("/v1/models/{id}"));
        assert_eq!((one.status, one.json()), (200, list[0].clone()), "{id}");
    }
    let other = served.get("/v1/models/lab");
    assert_eq!((other.status, other.code().as_str()), (404, "model_not_found"), "{other:?}");
    assert_eq!(other.json()["error"]["models"], json!(["lab/needle"]));
    let bad = served.get("/v1/models/%ff");
    assert_eq!((bad.status, &bad.json()["error"]["param"]), (400, &json!("id")), "{bad:?}");
    assert_eq!(served.get("/v1/models/").status, 404);
    // The path is a name, and nobody learns it.
    let ask = |model: &str| {
        served.post("/v1/completions", &json!({ "prompt": "A", "max_tokens": 1, "model": model }))
    };
    assert_eq!(ask(path).status, 200);
    let pages = [served.get("/props"), ask("gpt"), ask(path), other];
    assert!(pages.iter().all(|page| !page.body.contains("secret")), "{pages:?}");
}

#[test]
fn each_request_that_is_served_has_a_line_when_it_ends() {
    let library = Library::new();
    let (served, lines) = logged(|| serve(library.options()));
    let text = "It was a plain day.";
    let asked = json!({ "prompt": text, "max_tokens": 3, "ignore_eos": true });
    let answer = served.post("/v1/completions", &asked).json();
    let mut streamed = asked.clone();
    streamed["prompt"] = json!([text, text]);
    streamed["stream"] = json!(true);
    assert_eq!(served.post("/v1/completions", &streamed).status, 200);
    assert_eq!(served.post("/v1/contexts", &json!({ "text": text })).status, 200);
    // What was refused was not served, and what needs no engine is not worth a line.
    assert_eq!(served.post("/v1/completions", &json!({ "prompt": 1 })).status, 400);
    assert_eq!(served.get("/health").status, 200);
    let n = answer["usage"]["prompt_tokens"].as_u64().expect("a number");
    // Behind the words are the same as fields.
    let lines = lines.all();
    let words = lines.iter().map(|line| line.split_once(" request_id=").expect(line).0);
    let lines: Vec<_> = words.collect();
    let told: Vec<_> = lines.iter().map(|line| line.split_once(" ms, ").expect(line)).collect();
    let heads: Vec<_> = told.iter().map(|(head, _)| head.rsplit_once(' ').expect(head).0).collect();
    let (completions, contexts) = ("POST /v1/completions: 200 in", "POST /v1/contexts: 200 in");
    assert_eq!(heads, [completions, completions, contexts], "{lines:?}");
    assert_eq!(told[0].1, format!("{n} tokens of prompt, 0 of them cached, 3 generated"));
    let both = format!("{} tokens of prompt, {} of them cached, 6 generated", 2 * n, 2 * n - 2);
    assert_eq!(told[1].1, both);
    assert!(lines.iter().all(|line| !line.contains("plain day")), "{lines:?}");
}

/// In its answer, whatever that is, and on its lines.
#[test]
fn each_request_has_an_id_of_its_own_or_of_its_client() {
    let library = Library::new();
    let (served, lines) = logged(|| serve(library.options()));
    let id_of = |answer: &Answer| {
        let lines = answer.head.lines().filter_map(|line| line.split_once(": "));
        let mut ids = lines.filter(|(name, _)| name.eq_ignore_ascii_case("x-request-id"));
        let (_, id) = ids.next().unwrap_or_else(|| panic!("no id: {answer:?}"));
        assert!(ids.next().is_none(), "one id: {answer:?}");
        id.to_owned()
    };
    let body = json!({ "prompt": "A", "max_tokens": 1 });
    let stream = json!({ "prompt": "A", "max_tokens": 1, "stream": true });
    let wrong = json!({ "prompt": 1 });
    let mut drawn = Vec::new();
    for (method, path, body, status) in [
        ("GET", "/health", json!({}), 200),
        ("GET", "/", json!({}), 200),
        ("GET", "/nothing", json!({}), 404),
        ("PUT", "/health", json!({}), 405),
        ("POST", "/tokenize", json!({ "content": "A" }), 200),
        ("POST", "/v1/completions", body, 200),
        ("POST", "/v1/completions", stream, 200),
        ("POST", "/v1/completions", wrong, 400),
        ("POST", "/v1/contexts", json!({ "text": "A plain day." }), 200),
        ("GET", "/v1/contexts/nothing", json!({}), 404),
    ] {
        let body = body.to_string();
        let own = format!("gateway-7/{}", drawn.len());
        let answer = served.ask(method, path, &[("x-request-id", &own)], &body);
        assert_eq!((answer.status, id_of(&answer)), (status, own), "{method} {path}");
        for bad in ["", "two words", &"x".repeat(129)] {
            let answer = served.ask(method, path, &[("x-request-id", bad)], &body);
            assert_eq!(answer.status, status, "{method} {path}");
            drawn.push(id_of(&answer));
        }
    }
    assert!(drawn.iter().all(|id| id.len() == 32), "{drawn:?}");
    let foreign = [("origin", "http://evil.example"), ("x-request-id", "mine")];
    assert_eq!(id_of(&served.ask("GET", "/health", &foreign, "")), "mine", "a refusal too");
    // Each answered request has its line, with the id that its answer had.
    let lines = lines.all();
    let ids = lines.iter().filter_map(|line| line.split_once("request_id=")?.1.split(' ').next());
    let ids: Vec<_> = ids.collect();
    assert_eq!(ids.len(), 3 * 4, "{lines:?}");
    assert_eq!(ids.iter().filter(|id| id.starts_with("gateway-7/")).count(), 3, "{lines:?}");
    assert!(ids[1..4].iter().all(|id| drawn.iter().any(|known| known == id)), "{lines:?}");
}
