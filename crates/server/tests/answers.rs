//! Right answers, whoever else asks.

use std::thread;

use serde_json::{Value, json};

use crate::support::{document, expected, question, serve};
use longview_server::ServerOptions;

/// What was said, and the bits of its probabilities.
fn said(body: &Value) -> (String, Vec<u64>) {
    let choice = &body["choices"][0];
    let probs = choice["logprobs"]["token_logprobs"].as_array().cloned().unwrap_or_default();
    let bits = probs.iter().map(|p| p.as_f64().expect("a number").to_bits()).collect();
    (choice["text"].as_str().expect("a text").to_owned(), bits)
}

#[test]
fn facts_of_a_document_are_found_and_nothing_is_read_twice() {
    let served = serve(ServerOptions::default());
    let (text, facts) = document(60, 1);
    let mut cached = Vec::new();
    for fact in &facts {
        let answer = served.post("/v1/completions", &question(&text, fact));
        assert_eq!(answer.status, 200, "{answer:?}");
        let body = answer.json();
        assert_eq!(said(&body).0, expected(fact), "{body}");
        assert_eq!(body["choices"][0]["finish_reason"], "stop");
        let usage = &body["usage"];
        let n = usage["prompt_tokens"].as_u64().expect("a number");
        let known = usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
        assert_eq!(body["timings"]["prompt_n"], n - known);
        assert!(body["longview"]["attended_tokens"].as_f64().is_some_and(|n| n > 100.0), "{body}");
        cached.push((known, n));
    }
    assert_eq!(cached[0].0, 0);
    for (known, n) in &cached[1..] {
        assert!(n - known < 60, "only the question is read: {cached:?}");
    }
}

#[test]
fn an_answer_is_the_same_to_the_bit_alone_and_beside_others() {
    let body = |seed: u64, policy: &str| {
        let (text, facts) = document(40, seed);
        let mut body = question(&text, &facts[0]);
        body["logprobs"] = json!(2);
        body["temperature"] = json!(0.7);
        body["seed"] = json!(0);
        body["max_tokens"] = json!(24);
        body["stop"] = json!(null);
        body["ignore_eos"] = json!(true);
        body["policy"] = json!(policy);
        body
    };
    let asked: Vec<_> = [(1, "longview"), (2, "full"), (3, "clusterkv"), (4, "longview")]
        .map(|(seed, policy)| body(seed, policy))
        .into();
    let alone: Vec<_> = asked
        .iter()
        .map(|body| {
            let served = serve(ServerOptions::default());
            said(&served.post("/v1/completions", body).json())
        })
        .collect();
    let served = serve(ServerOptions::default());
    let together: Vec<_> = thread::scope(|scope| {
        let ask = |body| said(&served.post("/v1/completions", body).json());
        let threads: Vec<_> = asked.iter().map(|body| scope.spawn(move || ask(body))).collect();
        threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
    });
    assert!(served.metric("llamacpp:n_busy_slots_per_decode") > 1.0, "steps were shared");
    for (alone, together) in alone.iter().zip(&together) {
        assert_eq!(alone.1.len(), 24);
        assert_eq!(alone, together);
    }
}

#[test]
fn what_is_known_already_is_used_unless_all_is_to_be_read() {
    let served = serve(ServerOptions::default());
    let (text, facts) = document(50, 9);
    let mut body = question(&text, &facts[1]);
    body["logprobs"] = json!(0);
    let first = said(&served.post("/v1/completions", &body).json());
    let again = served.post("/v1/completions", &body).json();
    assert!(again["timings"]["cache_n"].as_u64().is_some_and(|n| n > 500), "{again}");
    assert_eq!(said(&again).0, first.0);
    let near = |(a, b): (&u64, &u64)| (f64::from_bits(*a) - f64::from_bits(*b)).abs() < 1e-4;
    assert!(said(&again).1.iter().zip(&first.1).all(near), "{again}");
    body["cache_prompt"] = json!(false);
    let whole = served.post("/v1/completions", &body).json();
    assert_eq!(whole["timings"]["cache_n"], 0);
    assert_eq!(said(&whole), first, "to the bit");
}

#[test]
fn several_answers_draw_for_themselves_and_a_seed_gives_them_again() {
    let served = serve(ServerOptions::default());
    let (text, _) = document(20, 3);
    let body = json!({
        "prompt": text, "n": 3, "temperature": 2.0, "seed": 5, "max_tokens": 12,
    });
    let texts = |body: &Value| -> Vec<String> {
        let choices = body["choices"].as_array().expect("choices").iter();
        choices.map(|choice| choice["text"].as_str().expect("a text").to_owned()).collect()
    };
    let first = served.post("/v1/completions", &body).json();
    assert_eq!(texts(&first).len(), 3);
    assert!(texts(&first)[0] != texts(&first)[1], "{first}");
    assert_eq!(first["usage"]["completion_tokens"], 36);
    assert_eq!(texts(&served.post("/v1/completions", &body).json()), texts(&first));
}

#[test]
fn biases_and_penalties_turn_the_choice_and_chats_answer() {
    let served = serve(ServerOptions::default());
    let (text, facts) = document(20, 3);
    let plain = served.post("/v1/completions", &question(&text, &facts[0])).json();
    let first = served.post("/tokenize", &json!({ "content": expected(&facts[0]) })).json();
    let id = first["tokens"][0].as_u64().expect("a token").to_string();
    let mut body = question(&text, &facts[0]);
    body["logit_bias"] = json!({ id: -100 });
    assert_ne!(said(&served.post("/v1/completions", &body).json()), said(&plain));
    let chat = json!({
        "model": "needle",
        "messages": [{ "role": "user", "content": format!("{text}{}", facts[0].question) }],
        "logprobs": true, "top_logprobs": 2, "max_completion_tokens": 40,
    });
    let chat = served.post("/v1/chat/completions", &chat).json();
    let said = chat["choices"][0]["message"]["content"].as_str().expect("a text");
    assert!(said.contains(expected(&facts[0]).trim()), "{said}");
    let content = chat["choices"][0]["logprobs"]["content"].as_array().expect("a list");
    assert_eq!(content[0]["top_logprobs"].as_array().map(Vec::len), Some(2), "{chat}");
    let none = json!({ "prompt": "A", "max_tokens": 0 });
    let none = served.post("/v1/completions", &none).json();
    assert_eq!(
        (&none["choices"][0]["text"], &none["choices"][0]["finish_reason"]),
        (&json!(""), &json!("length"))
    );
}

#[test]
fn texts_become_tokens_and_texts_again() {
    let served = serve(ServerOptions::default());
    let tokens = served.post("/tokenize", &json!({ "content": "A quiet lantern." })).json();
    let back = served.post("/detokenize", &tokens).json();
    assert_eq!(back["content"], "A quiet lantern.");
    let messages = json!([{ "role": "user", "content": [{ "type": "text", "text": "Hello" }] }]);
    let prompt = served.post("/apply-template", &json!({ "messages": messages })).json();
    let prompt = prompt["prompt"].as_str().expect("a text");
    assert!(
        prompt.contains("user\nHello<|im_end|>") && prompt.ends_with("assistant\n"),
        "{prompt}"
    );
    let models = served.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "needle");
    assert_eq!(served.get("/props").json()["n_ctx"], 4096);
}

#[test]
fn a_request_chooses_what_its_answer_attends_and_hears_what_it_was() {
    let served = serve(ServerOptions::default());
    let (text, facts) = document(100, 8);
    for (policy, budget, cached) in [("longview", None, false), ("clusterkv", Some(192), true)] {
        let mut body = question(&text, &facts[0]);
        body["policy"] = json!(policy);
        body["budget"] = json!(budget);
        let answer = served.post("/v1/completions", &body).json();
        assert_eq!(answer["timings"]["cache_n"] != 0, cached, "{answer}");
        let said = &answer["longview"];
        assert_eq!(said["policy"], policy);
        let (attended, of) = (said["attended_tokens"].as_f64(), said["of_tokens"].as_f64());
        assert!(of > Some(1000.0), "{answer}");
        assert!(attended <= budget.map(f64::from).or(of) && attended > Some(64.0), "{answer}");
        assert_eq!(said.get("left_out_at_most"), None, "nobody asked: {answer}");
    }
}

/// For each of the prompts alone, and for several in one request.
#[test]
fn a_request_asks_how_much_of_the_attention_its_answer_left_out() {
    let served = serve(ServerOptions::default());
    let (text, facts) = document(100, 8);
    let mut body = question(&text, &facts[0]);
    body["policy"] = json!("clusterkv");
    body["budget"] = json!(192);
    body["policy_options"] = json!({ "attention-bound": "sampled" });
    let prompt = body["prompt"].clone();
    for prompt in [prompt.clone(), json!([prompt, prompt])] {
        body["prompt"] = prompt;
        let answer = served.post("/v1/completions", &body).json();
        let bounds = &answer["longview"]["left_out_at_most"];
        assert_eq!(bounds["confidence"], 0.95, "{answer}");
        let [median, most] = ["median", "of_99_percent"].map(|name| bounds[name].as_f64());
        assert!(median > Some(0.0) && median <= most && most < Some(1.0), "{answer}");
    }
}

#[test]
fn an_answer_without_a_seed_is_drawn_anew_and_can_be_had_again() {
    let served = serve(ServerOptions::default());
    let body = json!({ "prompt": "It was", "n": 2, "temperature": 2.0, "max_tokens": 16 });
    let answer = |path: &str, body: &serde_json::Value| {
        let answer = served.post(path, body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    };
    let texts = |answer: &serde_json::Value| {
        [0, 1].map(|i| answer["choices"][i]["text"].as_str().expect("a text").to_owned())
    };
    let all: Vec<_> = (0..3).map(|_| answer("/v1/completions", &body)).collect();
    let seeds: std::collections::BTreeSet<u64> =
        all.iter().map(|one| one["longview"]["seed"].as_u64().expect("a seed")).collect();
    assert_eq!(seeds.len(), 3, "{all:?}");
    assert_ne!(texts(&all[0]), texts(&all[1]));
    let mut again = body.clone();
    again["seed"] = all[0]["longview"]["seed"].clone();
    assert_eq!(texts(&answer("/v1/completions", &again)), texts(&all[0]));
    // A seed below 0 is none; each request draws one.
    again["seed"] = json!(-1);
    let other = answer("/v1/completions", &again);
    assert!(!seeds.contains(&other["longview"]["seed"].as_u64().expect("a seed")), "{other}");
    // It is said in all forms; where nothing is drawn there is none.
    let turn = json!([{ "role": "user", "content": "It was" }]);
    let mut turns = json!({ "messages": turn, "max_tokens": 4, "temperature": 1.0, "seed": 7 });
    for path in ["/v1/chat/completions", "/v1/messages"] {
        assert_eq!(answer(path, &turns)["longview"]["seed"], 7, "{path}");
    }
    turns["temperature"] = json!(0);
    assert!(answer("/v1/chat/completions", &turns)["longview"]["seed"].is_null());
}

#[test]
fn tokens_that_are_parts_of_a_character_have_its_bytes() {
    let served = serve(ServerOptions::default());
    let body = json!({
        "messages": [{ "role": "user", "content": "It was" }], "grammar": "root ::= \"\u{20ac}\"",
        "logprobs": true, "top_logprobs": 1, "max_tokens": 8,
    });
    let answer = served.post("/v1/chat/completions", &body).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "\u{20ac}", "{answer}");
    let content = choice["logprobs"]["content"].as_array().expect("a list");
    let parts: Vec<&Value> = content.iter().filter(|t| t["token"] != "").collect();
    assert!(parts.iter().any(|token| token["token"] == "\u{fffd}"), "{answer}");
    let bytes = |token: &Value| token["bytes"].as_array().expect("bytes").clone();
    let all: Vec<Value> = content.iter().flat_map(bytes).collect();
    let all: Vec<u8> = all.iter().map(|byte| byte.as_u64().expect("a byte") as u8).collect();
    assert!(all.starts_with("\u{20ac}".as_bytes()), "{all:x?} {answer}");
}

#[test]
fn no_two_answers_of_any_server_have_one_name() {
    let (one, other) = (serve(ServerOptions::default()), serve(ServerOptions::default()));
    let user = json!([{ "role": "user", "content": "It was" }]);
    let mut names = std::collections::BTreeSet::new();
    for served in [&one, &one, &other] {
        for (path, begin, body) in [
            ("/v1/completions", "cmpl-", json!({ "prompt": "It was", "max_tokens": 1 })),
            ("/v1/chat/completions", "chatcmpl-", json!({ "messages": user, "max_tokens": 1 })),
            ("/v1/responses", "resp-", json!({ "input": "It was", "max_output_tokens": 1 })),
            ("/v1/messages", "msg-", json!({ "messages": user, "max_tokens": 1 })),
        ] {
            let answer = served.post(path, &body).json();
            let name = answer["id"].as_str().and_then(|id| id.strip_prefix(begin));
            let name = name.unwrap_or_else(|| panic!("{begin}: {answer}")).to_owned();
            let is_random = name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit());
            assert!(is_random && names.insert(name), "{answer}");
        }
    }
}
