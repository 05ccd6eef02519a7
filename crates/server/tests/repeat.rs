//! One request has one answer, to the bit of its probabilities: however often it is asked, whoever
//! asks beside it, in whatever chunks its prompt is read, and whatever part of it was known; under
//! `clusterkv` ([`KEEPS_CLUSTERS`]) only if nothing of it was known.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    PATIENCE, Served, begin_model, document, facts_of_model, question, serve_with,
};
use longview_server::{Limits, ServerOptions};

/// Text and probabilities, as they were written.
fn said(served: &Served, body: &Value) -> (String, String) {
    let answer = served.post("/v1/completions", body).json();
    let choice = &answer["choices"][0];
    let text = choice["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    (text.to_owned(), choice["logprobs"].to_string())
}

fn asked(n_sentences: usize, seed: u64) -> Value {
    let (text, facts) = document(n_sentences, seed);
    let mut body = question(&text, &facts[0]);
    body["logprobs"] = json!(2);
    body
}

/// Segments of 256 tokens, so that several of them end in a prompt.
#[test]
fn the_length_of_chunks_changes_no_bit() {
    let body = asked(130, 21);
    for preset in ["longview", "clusterkv"] {
        let answers: BTreeSet<_> = [512, 100, 17]
            .map(|chunk_size| {
                let mut model = facts_of_model();
                model.policy =
                    preset.parse().map(longview_scheduler::PolicyOptions::new).expect("it");
                model.policy = model.policy.with_budget(128);
                model.policy.cluster_segment = Some(256);
                let served =
                    begin_model(model, ServerOptions::default(), chunk_size, Duration::ZERO);
                served.wait_until_ready();
                said(&served, &body)
            })
            .into();
        assert_eq!(answers.len(), 1, "{preset}: {answers:?}");
    }
}

/// A model that answers under `preset`, with segments of 256 tokens where it has any, so that
/// several of them end in a prompt.
fn serve_policy(preset: &str) -> Served {
    let options = ServerOptions { n_slots: 8, ..ServerOptions::default() };
    let mut model = facts_of_model();
    model.policy = preset.parse().map(longview_scheduler::PolicyOptions::new).expect("it");
    if preset != "full" {
        model.policy = model.policy.with_budget(128);
    }
    if ["longview", "clusterkv"].contains(&preset) {
        model.policy.cluster_segment = Some(256);
    }
    let served = begin_model(model, options, 64, Duration::ZERO);
    served.wait_until_ready();
    served
}

/// Each of `n_rounds` asks at concurrency 1, 2 and 8, cold and with what is known: the beginning of
/// another question about the same text, and then the question itself. Returns how many answers
/// there were.
fn repeat(preset: &str, n_rounds: usize, at_once: &[usize]) -> usize {
    let served = serve_policy(preset);
    let body = asked(60, 22);
    let other = {
        let (text, facts) = document(60, 22);
        question(&text, &facts[1])
    };
    let mut cold = body.clone();
    cold["cache_prompt"] = json!(false);
    let (mut answers, mut n) = (BTreeSet::new(), 0);
    let keeps_clusters = KEEPS_CLUSTERS.contains(&preset);
    for _ in 0..n_rounds {
        for &n_at_once in at_once {
            served.post("/v1/completions", &other);
            for (body, is_cold) in [(&body, false), (&cold, true)] {
                let all: Vec<_> = thread::scope(|scope| {
                    let ask = || said(&served, body);
                    let threads: Vec<_> = (0..n_at_once).map(|_| scope.spawn(ask)).collect();
                    threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
                });
                n += all.len();
                if is_cold || !keeps_clusters {
                    answers.extend(all);
                }
            }
        }
    }
    assert_eq!(answers.len(), 1, "{preset}: {answers:?}");
    assert!(served.metric("longview:cached_tokens_total") > 1000.0, "{preset}: nothing was known");
    n
}

/// All attention, and all presets that recall.
const POLICIES: [&str; 9] = [
    "full",
    "clusterkv",
    "longview",
    "quest",
    "infllm",
    "ktransformers",
    "loki",
    "infinigen",
    "lrqk",
];

/// Policies under which what is known may change an answer: clusters of a known beginning stay, and
/// to make them anew would take longer than reading the question by far.
const KEEPS_CLUSTERS: [&str; 1] = ["clusterkv"];

/// 86 runs: the policies of documents at concurrency 1, 2 and 8, the others at 1 and 2. With
/// `LONGVIEW_ROUNDS=6` all at each, 1,188 runs, which take minutes; with `LONGVIEW_ROUNDS=46` and
/// `LONGVIEW_POLICIES=longview` that one alone, 1,012 runs.
#[test]
fn a_request_has_one_answer_alone_beside_others_and_known() {
    let n_rounds = std::env::var("LONGVIEW_ROUNDS").map(|n| n.parse().expect("a number"));
    let wanted = std::env::var("LONGVIEW_POLICIES").unwrap_or_else(|_| POLICIES.join(","));
    for preset in wanted.split(',') {
        assert!(POLICIES.contains(&preset), "LONGVIEW_POLICIES: {preset}");
        let is_whole = n_rounds.is_ok() || ["clusterkv", "longview"].contains(&preset);
        let at_once: &[usize] = if is_whole { &[1, 2, 8] } else { &[1, 2] };
        let n_rounds = n_rounds.clone().unwrap_or(1);
        let n = repeat(preset, n_rounds, at_once);
        assert_eq!(n, 2 * n_rounds * at_once.iter().sum::<usize>(), "{preset}");
    }
}

/// The second turn of a conversation: behind an answer that was given, and read as a whole.
#[test]
fn an_earlier_turn_with_its_answer_changes_no_bit() {
    // Under the others clusters of the first turn stay in the second one.
    for preset in POLICIES.into_iter().filter(|preset| !KEEPS_CLUSTERS.contains(preset)) {
        let served = serve_policy(preset);
        let (text, facts) = document(60, 23);
        let first = question(&text, &facts[0]);
        let answer = served.post("/v1/completions", &first).json();
        let said_first = answer["choices"][0]["text"].as_str().expect("a text");
        let turns = format!("{text}{}{said_first}.{}", facts[0].question, facts[1].question);
        let mut body = question(&turns, &facts[2]);
        body["logprobs"] = json!(2);
        let known = said(&served, &body);
        assert!(served.metric("longview:cached_tokens_total") > 300.0, "{preset}");
        body["cache_prompt"] = json!(false);
        assert_eq!(said(&served, &body), known, "{preset}");
    }
}

/// Chunks become short while somebody waits for tokens, and only then.
#[test]
fn chunks_are_cut_so_that_answers_go_on() {
    let limits = Limits { max_stall: Duration::from_millis(1), ..Limits::default() };
    let options = ServerOptions { limits, ..ServerOptions::default() };
    let served = serve_with(options, 512, Duration::ZERO);
    let n_events = |served: &Served, seed| {
        let mut body = asked(60, seed);
        body["stream"] = json!(true);
        body["return_progress"] = json!(true);
        let events = served.post("/v1/completions", &body).events();
        events.iter().filter(|event| !event["prompt_progress"].is_null()).count()
    };
    assert!(n_events(&served, 24) < 6, "nobody waits");
    let long =
        json!({ "prompt": "It was", "max_tokens": 3000, "ignore_eos": true, "stream": true });
    let (beside, began) =
        (served.send("POST", "/v1/completions", &[], &long.to_string()), Instant::now());
    served.wait_for("llamacpp:requests_processing", 1.0);
    while served.metric("llamacpp:n_decode_total") < 4.0 {
        assert!(began.elapsed() < PATIENCE, "it answers");
        thread::sleep(Duration::from_millis(2));
    }
    assert!(n_events(&served, 25) > 20, "somebody waits");
    drop(beside);
}

/// A server whose rounds have time for one piece of a prompt's end, and for a short chunk.
fn serve_in_pieces(preset: &str) -> Served {
    let limits = Limits { max_stall: Duration::ZERO, ..Limits::default() };
    let mut model = facts_of_model();
    model.policy = preset.parse().map(longview_scheduler::PolicyOptions::new).expect("it");
    if preset != "longview" {
        model.policy = model.policy.with_budget(64);
    }
    let served =
        begin_model(model, ServerOptions { limits, ..Default::default() }, 128, Duration::ZERO);
    served.wait_until_ready();
    served
}

/// What a request says beside a long answer: its text and probabilities, the pieces in which ends
/// of prompts were made for it, and the steps of the other one meanwhile.
fn said_beside(served: &Served, body: &Value) -> ((String, String), f64, f64) {
    let counts = || {
        let pieces = served.metric("longview:prompt_end_pieces_total");
        (pieces, served.metric("llamacpp:n_decode_total"))
    };
    let long =
        json!({ "prompt": "It was", "max_tokens": 3900, "ignore_eos": true, "stream": true });
    let n_decoded = counts().1;
    let beside = served.send("POST", "/v1/completions", &[], &long.to_string());
    // The end of its own prompt is made before it answers.
    let began = Instant::now();
    while counts().1 <= n_decoded {
        assert!(began.elapsed() < Duration::from_secs(60), "it answers");
        thread::sleep(Duration::from_millis(1));
    }
    let begin = counts();
    let answer = said(served, body);
    let end = counts();
    assert_eq!(served.metric("llamacpp:requests_processing"), 1.0, "the other one goes on");
    drop(beside);
    served.wait_for("llamacpp:requests_processing", 0.0);
    (answer, end.0 - begin.0, end.1 - begin.1)
}

/// What is between two steps of an answer, while a prompt beside it is read: a short chunk, or one
/// piece of the prompt's end, never all of it. Counted, because a clock says how busy the machine
/// is.
#[test]
fn the_end_of_a_prompt_is_made_in_pieces_between_the_steps_of_others() {
    let served = serve_in_pieces("longview");
    // Clusters, blocks, tokens.
    for preset in ["clusterkv", "quest", "loki"] {
        let mut body = asked(150, 26);
        body["cache_prompt"] = json!(false);
        body["policy"] = json!(preset);
        body["budget"] = json!(64);
        let before = served.metric("longview:prompt_end_pieces_total");
        let alone = said(&served, &body);
        let n_alone = served.metric("longview:prompt_end_pieces_total") - before;
        let (answer, n_pieces, n_steps) = said_beside(&served, &body);
        assert_eq!(answer, alone, "{preset}: pieces change no bit");
        assert_eq!(n_pieces, n_alone, "{preset}: the same pieces");
        assert!(n_pieces > 10.0, "{preset}: {n_pieces} pieces");
        assert!(n_steps >= n_pieces, "{preset}: {n_steps} steps between {n_pieces} pieces");
    }
}

/// The same of the index of what was known: under another policy than that of the request before,
/// and of clusters where the prompt parts from it.
#[test]
fn the_index_of_a_known_beginning_is_made_in_pieces_between_the_steps_of_others() {
    for (own, preset) in [("longview", "quest"), ("longview", "loki"), ("clusterkv", "clusterkv")] {
        let served = serve_in_pieces(own);
        let (text, facts) = document(150, 27);
        let ask = |fact| {
            let mut body = question(&text, fact);
            body["logprobs"] = json!(2);
            body
        };
        said(&served, &ask(&facts[0]));
        let n_cached = || served.metric("longview:cached_tokens_total");
        let (mut body, cached_before) = (ask(&facts[1]), n_cached());
        if own != preset {
            body["policy"] = json!(preset);
            body["budget"] = json!(64);
        }
        let (answer, n_pieces, n_steps) = said_beside(&served, &body);
        assert!(n_cached() - cached_before > 500.0, "{preset}: it was known");
        body["cache_prompt"] = json!(false);
        let before = served.metric("longview:prompt_end_pieces_total");
        let cold = said(&served, &body);
        let n_cold = served.metric("longview:prompt_end_pieces_total") - before;
        if !KEEPS_CLUSTERS.contains(&preset) {
            assert_eq!(answer, cold, "{preset}");
        }
        // Those of the known beginning, then those of the whole.
        assert!(n_pieces > 1.5 * n_cold, "{preset}: {n_pieces} pieces, {n_cold} of a whole prompt");
        assert!(n_steps >= n_pieces, "{preset}: {n_steps} steps between {n_pieces} pieces");
    }
}
