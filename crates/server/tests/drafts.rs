//! Drafted tokens: answers are what they are without, alone and beside others.

use std::time::Duration;

use longview_engine::{Draft, EngineOptions, MAX_DRAFTED};
use longview_server::{ModelFacts, ServerOptions};
use serde_json::{Value, json};

use crate::support::{Served, begin_engine, document, facts_of_model};

fn serve(max_drafted: usize) -> Served {
    let engine = EngineOptions { chunk_size: 128, max_drafted, ..EngineOptions::default() };
    let served = begin_engine(facts_of_model(), ServerOptions::default(), engine, Duration::ZERO);
    served.wait_until_ready();
    served
}

/// A text that says its sentences again and again, so that what follows was there before.
fn repeating(seed: u64) -> String {
    let (text, _) = document(12, seed);
    text.repeat(4)
}

fn body(prompt: &str, temperature: f32) -> Value {
    json!({ "prompt": prompt, "max_tokens": 48, "temperature": temperature, "seed": 5,
            "logprobs": 2, "ignore_eos": true })
}

/// The answer, and how many tokens were drafted and accepted.
fn answered(answer: &Value) -> (Value, u64, u64) {
    let count = |name: &str| answer["timings"][name].as_u64().unwrap_or(0);
    let (drafted, accepted) = (count("draft_n"), count("draft_n_accepted"));
    assert!(accepted <= drafted, "{answer}");
    (answer["choices"].clone(), drafted, accepted)
}

/// The server drafts unless a request says `none`, here; a program's default is the other way.
#[test]
fn a_request_says_whether_tokens_are_drafted() {
    let served = serve(MAX_DRAFTED);
    let mut body = body(&repeating(3), 0.0);
    let mut ask = |draft: Option<&str>| {
        body["draft"] = draft.map_or(Value::Null, Value::from);
        answered(&served.post("/v1/completions", &body).json())
    };
    let (default, n_default, _) = ask(None);
    let (plain, n_plain, _) = ask(Some("none"));
    let (drafted, n_drafted, n_accepted) = ask(Some("lookup"));
    assert_eq!((&plain, &drafted), (&default, &default));
    assert_eq!(n_plain, 0);
    assert!(n_default > 0 && n_drafted > 0 && n_accepted > 0, "{n_default} {n_drafted}");
    // Counters are the sums of what answers say; a step drafts one token or more.
    let counted = |name: &str| served.metric(&format!("llamacpp:spec_decode_num_{name}_total"));
    assert_eq!(counted("draft_tokens"), (n_default + n_drafted) as f64);
    assert!(counted("accepted_tokens") >= n_accepted as f64);
    assert!(counted("drafts") > 0.0 && counted("drafts") <= counted("draft_tokens"));
    let model = ModelFacts { draft: Draft::Off, ..facts_of_model() };
    let engine = EngineOptions { max_drafted: MAX_DRAFTED, ..EngineOptions::default() };
    let off = begin_engine(model, ServerOptions::default(), engine, Duration::ZERO);
    off.wait_until_ready();
    body["draft"] = Value::Null;
    assert_eq!(answered(&off.post("/v1/completions", &body).json()).1, 0);
    body["draft"] = "lookup".into();
    let (asked, n_asked, _) = answered(&off.post("/v1/completions", &body).json());
    assert!(n_asked > 0 && asked == default);
}

#[test]
fn drafts_that_cannot_be_are_refused_by_name() {
    let (none, served) = (serve(0), serve(MAX_DRAFTED));
    let refused = |served: &Served, body: &Value, words: &str| {
        let answer = served.post("/v1/completions", body);
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, error["param"].as_str()), (400, Some("draft")), "{error}");
        assert!(error["message"].as_str().is_some_and(|said| said.contains(words)), "{error}");
    };
    let mut body = body("A text.", 0.0);
    body["draft"] = "lookup".into();
    refused(&none, &body, "no room for drafts");
    assert_eq!(served.post("/v1/completions", &body).status, 200);
    body["policy"] = "h2o".into();
    refused(&served, &body, "h2o");
    body["draft"] = "none".into();
    assert_eq!(served.post("/v1/completions", &body).status, 200);
    for wrong in [json!("often"), json!(true)] {
        body["draft"] = wrong;
        refused(&served, &body, "draft: ");
    }
}

#[test]
fn drafts_change_no_answer_and_are_counted() {
    let (plain, drafting) = (serve(0), serve(MAX_DRAFTED));
    let prompts = [repeating(3), repeating(4)];
    let bodies: Vec<Value> =
        prompts.iter().flat_map(|prompt| [body(prompt, 0.0), body(prompt, 0.7)]).collect();
    let ask = |served: &Served, body: &Value| served.post("/v1/completions", body).json();
    let wanted: Vec<Value> = bodies
        .iter()
        .map(|body| {
            let (choices, drafted, _) = answered(&ask(&plain, body));
            assert_eq!(drafted, 0, "drafts are off unless asked for");
            choices
        })
        .collect();
    let mut n_accepted = 0;
    for (body, want) in bodies.iter().zip(&wanted) {
        let (choices, _, accepted) = answered(&ask(&drafting, body));
        assert_eq!(&choices, want);
        n_accepted += accepted;
    }
    assert!(n_accepted > 20, "{n_accepted} tokens came from drafts");
    // All at once: steps hold drafts of several answers.
    std::thread::scope(|scope| {
        let ask = &ask;
        let asked: Vec<_> =
            bodies.iter().map(|body| scope.spawn(|| ask(&drafting, body))).collect();
        for (answer, want) in asked.into_iter().zip(&wanted) {
            assert_eq!(&answered(&answer.join().expect("an answer")).0, want);
        }
    });
}
