//! How a prompt is read, by request: what was read sparsely serves nobody who asks for exact, nor
//! the other way round.

use longview_engine::{EngineOptions, PrefillMode};
use serde_json::{Value, json};
use std::time::Duration;

use crate::support::{
    Library, Served, begin_engine, document, expected, facts_of_model, serve, serve_with,
};
use longview_core::DType;
use longview_server::{ModelFacts, ServerOptions};

/// Sentences of a document that is long enough for blocks to be left out.
const LONG: usize = 200;

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
}

/// A question about a document, its prompt read so.
fn asked(text: &str, question: &str, prefill: &str) -> Value {
    json!({
        "prompt": format!("{text}{question}"), "max_tokens": 12, "stop": ".", "prefill": prefill,
    })
}

fn ask(served: &Served, path: &str, body: &Value) -> Value {
    let answer = served.post(path, body);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// How the context of an answer was read.
fn how(answer: &Value) -> &str {
    answer["longview"]["prefill"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn each_way_of_reading_knows_its_own_alone() {
    let served = serve(ServerOptions::default());
    let (text, facts) = document(LONG, 4);
    let ask = |i: usize, prefill: &str| {
        let body = asked(&text, &facts[i].question, prefill);
        let answer = ask(&served, "/v1/completions", &body);
        assert_eq!(answer["choices"][0]["text"], expected(&facts[i]), "{prefill}: {answer}");
        answer
    };
    let sparse = ask(0, "sparse");
    assert_eq!((cached(&sparse), how(&sparse)), (0, "sparse:0.1"));
    let density = sparse["longview"]["prefill_density"].as_f64().expect("a number");
    assert!(density > 0.0 && density < 1.0, "{density}");
    let exact = ask(0, "exact");
    assert_eq!((cached(&exact), how(&exact)), (0, "exact"), "nothing of what was read sparsely");
    assert_eq!(exact["longview"]["prefill_density"], Value::Null);
    let other = ask(1, "sparse:0.3");
    assert_eq!((cached(&other), how(&other)), (0, "sparse:0.3"), "{other}");
    // Each goes on from what was read as it asks.
    for prefill in ["sparse:0.1", "exact", "sparse:0.3"] {
        let again = ask(2, prefill);
        assert!(cached(&again) > 1500, "{prefill}: {again}");
        assert_eq!(how(&again), prefill);
    }
}

#[test]
fn a_context_is_kept_in_each_way_and_known_after_a_restart() {
    let library = Library::new();
    let (text, facts) = document(LONG, 9);
    let by_id = |id: &str, prefill: Value| {
        json!({
            "context_id": id, "messages": [{ "role": "user", "content": facts[0].question }],
            "max_tokens": 8, "prefill": prefill,
        })
    };
    let id = {
        let served = serve(library.options());
        let body = json!({ "text": text, "prefill": "sparse" });
        let built = ask(&served, "/v1/contexts", &body);
        assert_eq!(how(&built), "sparse:0.1");
        built["id"].as_str().expect("an id").to_owned()
    };
    {
        let served = serve(library.options());
        // Exact is what this server does where a request does not say.
        let exact = ask(&served, "/v1/chat/completions", &by_id(&id, Value::Null));
        assert_eq!((cached(&exact), how(&exact)), (0, "exact"), "its text is read anew");
        assert_eq!(served.metric("longview:contexts_restored_total"), 0.0);
        let sparse = ask(&served, "/v1/chat/completions", &by_id(&id, json!("sparse")));
        assert!(cached(&sparse) > 1500 && how(&sparse) == "sparse:0.1", "{sparse}");
        assert_eq!(served.metric("longview:contexts_restored_total"), 1.0);
        let built = ask(&served, "/v1/contexts", &json!({ "text": text, "prefill": "exact" }));
        assert_eq!((built["id"].as_str(), how(&built)), (Some(id.as_str()), "exact"));
        let kept = served.get("/v1/contexts").json();
        let sessions = kept["data"][0]["sessions"].as_array().expect("a list").clone();
        let mut ways: Vec<_> = sessions.iter().filter_map(|one| one["prefill"].as_str()).collect();
        ways.sort_unstable();
        assert_eq!(ways, ["exact", "sparse:0.1"], "one document, read in two ways");
    }
    let served = serve(library.options());
    for prefill in ["sparse:0.3", "exact", "sparse"] {
        let answer = ask(&served, "/v1/chat/completions", &by_id(&id, json!(prefill)));
        let is_known = prefill != "sparse:0.3";
        assert_eq!(cached(&answer) > 1500, is_known, "{prefill}: {answer}");
        assert_eq!(cached(&answer) == 0, !is_known, "{prefill}: {answer}");
    }
    assert_eq!(served.metric("longview:contexts_restored_total"), 2.0);
}

/// Two who build one document in two ways at once get what each asked for.
#[test]
fn a_build_is_joined_by_those_who_ask_for_the_same_alone() {
    let library = Library::new();
    let served = serve_with(library.options(), 32, Duration::ZERO);
    let (text, _) = document(LONG, 5);
    let ways = ["exact", "sparse:0.1", "exact", "sparse:0.1"];
    std::thread::scope(|scope| {
        for prefill in ways {
            let body = json!({ "text": text, "prefill": prefill });
            let served = &served;
            scope.spawn(move || {
                assert_eq!(how(&ask(served, "/v1/contexts", &body)), prefill);
            });
        }
    });
    let n_read = served.metric("llamacpp:prompt_tokens_total");
    let one = &served.get("/v1/contexts").json()["data"][0]["sessions"][0]["n_tokens"];
    let one = one.as_f64().expect("a number");
    assert!(n_read >= 2.0 * one && n_read < 2.0 * one + 8.0, "{n_read} of twice {one}");
}

#[test]
fn a_server_reads_as_it_was_told_where_a_request_does_not_say() {
    let prefill = PrefillMode::sparse(0.2).expect("a threshold");
    let model = ModelFacts { prefill, ..facts_of_model() };
    let options = EngineOptions { prefill, ..EngineOptions::default() };
    let served = begin_engine(model, ServerOptions::default(), options, Duration::ZERO);
    served.wait_until_ready();
    assert_eq!(served.get("/props").json()["prefill"], "sparse:0.2");
    let (text, facts) = document(LONG, 4);
    let mut body = asked(&text, &facts[0].question, "exact");
    let exact = ask(&served, "/v1/completions", &body);
    assert_eq!(how(&exact), "exact");
    body["prefill"] = Value::Null;
    let other = ask(&served, "/v1/completions", &body);
    assert_eq!((cached(&other), how(&other)), (0, "sparse:0.2"));
    let short = json!({ "prompt": "A short text.", "max_tokens": 1 });
    let short = ask(&served, "/v1/completions", &short);
    assert_eq!(how(&short), "exact", "there was nothing to leave out");
}

/// The field is one of every endpoint that answers.
#[test]
fn what_cannot_be_read_so_is_refused_by_name() {
    let library = Library::new();
    let served = serve(library.options());
    let messages = json!([{ "role": "user", "content": "Who rested?" }]);
    let bodies = [
        ("/v1/completions", json!({ "prompt": "Who rested?", "max_tokens": 2 })),
        ("/v1/chat/completions", json!({ "messages": messages, "max_tokens": 2 })),
        ("/v1/responses", json!({ "input": "Who rested?", "max_output_tokens": 2 })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 2 })),
        ("/v1/contexts", json!({ "text": "The baker rested." })),
    ];
    let refused = |served: &Served, path: &str, body: &Value| {
        let answer = served.post(path, body);
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, error["param"].as_str()), (400, Some("prefill")), "{error}");
        error["message"].as_str().expect("a text").to_owned()
    };
    for (path, body) in &bodies {
        let mut body = body.clone();
        for wrong in [json!("fast"), json!("sparse:0"), json!("sparse:2"), json!(1), json!("")] {
            body["prefill"] = wrong;
            refused(&served, path, &body);
        }
        body["prefill"] = json!("sparse:0.5");
        ask(&served, path, &body);
        if *path == "/v1/contexts" {
            continue;
        }
        for policy in ["h2o", "infllm"] {
            body["policy"] = json!(policy);
            let message = refused(&served, path, &body);
            assert!(message.contains(policy) && message.contains("exact"), "{message}");
        }
        body["prefill"] = json!("exact");
        ask(&served, path, &body);
    }
    // Rows of 8 bits are read so, too.
    let options = EngineOptions { kv_dtype: DType::Q8, ..EngineOptions::default() };
    let coded = begin_engine(facts_of_model(), ServerOptions::default(), options, Duration::ZERO);
    coded.wait_until_ready();
    let (text, facts) = document(LONG, 4);
    for prefill in ["exact", "sparse:0.5"] {
        let body = asked(&text, &facts[0].question, prefill);
        let answer = ask(&coded, "/v1/completions", &body);
        assert_eq!(how(&answer), prefill);
    }
}

/// Answers that wait make chunks short; that changes no bit of what is read sparsely beside them.
#[test]
fn sparse_reading_does_not_depend_on_who_else_runs() {
    let (text, facts) = document(LONG, 4);
    let served = serve(ServerOptions::default());
    let mut body = asked(&text, &facts[0].question, "sparse:0.3");
    body["cache_prompt"] = json!(false);
    body["logprobs"] = json!(5);
    let alone = ask(&served, "/v1/completions", &body)["choices"].clone();
    // It goes on until its client leaves.
    let other = json!({
        "prompt": "The baker walked.", "max_tokens": 4000, "ignore_eos": true, "stream": true,
    });
    let stream = served.send("POST", "/v1/completions", &[], &other.to_string());
    served.wait_for("llamacpp:requests_processing", 1.0);
    for _ in 0..3 {
        assert_eq!(ask(&served, "/v1/completions", &body)["choices"], alone);
    }
    drop(stream);
}
