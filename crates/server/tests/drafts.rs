//! Drafted tokens: answers are what they are without, alone and beside others.

use std::time::Duration;

use longview_engine::{EngineOptions, MAX_DRAFTED};
use longview_server::ServerOptions;
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
