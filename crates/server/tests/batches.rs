//! Several prompts in one request to `/v1/completions`, and probabilities under llama.cpp's name.

use serde_json::{Value, json};

use crate::support::{document, expected, question, serve};
use longview_server::ServerOptions;

#[test]
fn prompts_of_one_request_are_answered_as_each_alone() {
    let served = serve(ServerOptions::default());
    let (text, facts) = document(40, 21);
    let alone: Vec<Value> = facts.iter().map(|fact| question(&text, fact)).collect();
    let answer = |body: &Value| served.post("/v1/completions", body).json();
    let mut wanted = Vec::new();
    for (fact, body) in facts.iter().zip(&alone) {
        let answer = answer(body);
        let said = answer["choices"][0]["text"].as_str().expect("a text").to_owned();
        assert!(said.contains(expected(fact).trim()), "{answer}");
        wanted.push((said, answer["usage"].clone()));
    }
    let prompts: Vec<&Value> = alone.iter().map(|body| &body["prompt"]).collect();
    let ids = |prompt: &&Value| {
        let body = json!({ "content": prompt, "add_special": true });
        served.post("/tokenize", &body).json()["tokens"].clone()
    };
    let tokens: Vec<Value> = prompts.iter().map(ids).collect();
    for prompts in [json!(prompts), json!(tokens)] {
        let body = json!({ "prompt": prompts, "max_tokens": 12, "stop": ".", "n": 2 });
        let all = answer(&body);
        let choices = all["choices"].as_array().expect("a list");
        assert_eq!(choices.len(), 6, "{all}");
        for (i, choice) in choices.iter().enumerate() {
            assert_eq!(choice["index"], json!(i));
            assert_eq!(choice["text"], json!(wanted[i / 2].0), "{i}: {all}");
            assert_eq!(choice["finish_reason"], "stop");
        }
        let sum = |name: &str| wanted.iter().map(|(_, usage)| usage[name].as_u64()).sum();
        assert_eq!(all["usage"]["prompt_tokens"].as_u64(), sum("prompt_tokens"));
        let n_answers: Option<u64> = sum("completion_tokens");
        assert_eq!(all["usage"]["completion_tokens"].as_u64(), n_answers.map(|n| 2 * n));
        let mut stream = body.clone();
        stream["stream"] = json!(true);
        stream["return_progress"] = json!(true);
        stream["cache_prompt"] = json!(false);
        stream["stream_options"] = json!({ "include_usage": true });
        let answer = served.post("/v1/completions", &stream);
        assert!(answer.body.ends_with("data: [DONE]\n\n"), "{answer:?}");
        let events = answer.events();
        let mut said = vec![String::new(); 6];
        for choice in events.iter().flat_map(|event| event["choices"].as_array().expect("a list")) {
            let i = choice["index"].as_u64().expect("an index") as usize;
            said[i] += choice["text"].as_str().expect("a text");
        }
        let each: Vec<String> = (0..6).map(|i| wanted[i / 2].0.clone()).collect();
        assert_eq!(said, each);
        let mut progress = events.iter().filter(|event| !event["prompt_progress"].is_null());
        let last = &progress.next_back().expect("progress")["prompt_progress"];
        assert_eq!(last["processed"], last["total"], "{last}");
        let usage = &events.last().expect("an event")["usage"];
        assert_eq!(usage["prompt_tokens"], last["total"], "{usage}");
    }
}

#[test]
fn all_prompts_of_a_request_have_places_or_none() {
    let served = serve(ServerOptions { n_slots: 1, max_waiting: 2, ..ServerOptions::default() });
    let prompts = |n: usize| {
        let one = |i: usize| format!("The baker number {i} walked");
        let prompts: Vec<String> = (0..n).map(one).collect();
        json!({ "prompt": prompts, "max_tokens": 3000, "ignore_eos": true, "stream": true })
    };
    let too_many = served.post("/v1/completions", &prompts(4));
    assert_eq!((too_many.status, &too_many.json()["error"]["param"]), (400, &json!("prompt")));
    assert!(too_many.body.contains("up to 3"), "{too_many:?}");
    let two = served.send("POST", "/v1/completions", &[], &prompts(2).to_string());
    served.wait_for("llamacpp:requests_processing", 1.0);
    served.wait_for("llamacpp:requests_deferred", 1.0);
    let full = served.post("/v1/completions", &prompts(2));
    assert_eq!((full.status, full.code().as_str()), (429, "queue_full"), "{full:?}");
    // None of those that were refused has a place, and who leaves lets go of all.
    assert_eq!(served.metric("llamacpp:requests_deferred"), 1.0);
    drop(two);
    served.wait_for("llamacpp:requests_processing", 0.0);
    served.wait_for("llamacpp:requests_deferred", 0.0);
    let ids = json!({ "prompt": [[5, 6], [7]], "max_tokens": 1 });
    assert_eq!(served.post("/v1/completions", &ids).status, 200);
}

#[test]
fn one_prompt_that_cannot_be_answered_refuses_the_request() {
    let served = serve(ServerOptions::default());
    for prompt in [
        json!(["A", ""]),
        json!(["A", 1]),
        json!([1, "A"]),
        json!([[1], []]),
        json!([[1], "A"]),
        json!([[1], [-1]]),
        json!([[1], [4_000_000]]),
        json!([["A"]]),
        json!([[[1]]]),
        json!([]),
        json!(vec!["A"; 65]),
    ] {
        let answer = served.post("/v1/completions", &json!({ "prompt": prompt, "max_tokens": 1 }));
        assert_eq!(answer.status, 400, "{prompt}: {answer:?}");
    }
    assert_eq!(served.metric("longview:requests_total"), 0.0);
    let look = json!({ "prompt": ["A", "B"], "longview": { "steps": true } });
    assert_eq!(served.post("/v1/completions", &look).json()["error"]["param"], "longview");
}

#[test]
fn probabilities_have_llama_cpps_name_as_well() {
    let served = serve(ServerOptions::default());
    let ask = |path: &str, more: Value| {
        let mut body = json!({ "max_tokens": 3 });
        body["prompt"] = json!("It was a plain");
        if path.contains("chat") {
            body["messages"] = json!([{ "role": "user", "content": "It was a plain" }]);
        }
        body.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        served.post(path, &body).json()["choices"][0]["logprobs"].clone()
    };
    let (plain, chat) = ("/v1/completions", "/v1/chat/completions");
    let probs = ask(plain, json!({ "n_probs": 4 }));
    assert_eq!(probs["top_logprobs"][0].as_object().map(serde_json::Map::len), Some(4));
    assert_eq!(probs, ask(plain, json!({ "logprobs": 4 })));
    assert_eq!(ask(plain, json!({ "n_probs": 0 })), Value::Null);
    let probs = ask(chat, json!({ "n_probs": 4 }));
    assert_eq!(probs["content"][0]["top_logprobs"].as_array().map(Vec::len), Some(4), "{probs}");
    assert_eq!(probs, ask(chat, json!({ "logprobs": true, "top_logprobs": 4 })));
    assert_eq!(ask(chat, json!({ "n_probs": 0 })), Value::Null);
}
