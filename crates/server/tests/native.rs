//! llama.cpp's own paths: its form of completions, and paths without `/v1`.

use serde_json::{Value, json};

use crate::support::{document, expected, question, serve};
use longview_server::ServerOptions;

#[test]
fn a_completion_has_llama_cpps_form() {
    let served = serve(ServerOptions::default());
    let (text, facts) = document(30, 5);
    let mut body = question(&text, &facts[0]);
    body["n_predict"] = body.as_object_mut().expect("fields").remove("max_tokens").expect("one");
    let answer = served.post("/completion", &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    let whole = answer.json();
    assert_eq!(whole["content"], expected(&facts[0]), "{whole}");
    assert_eq!((&whole["stop"], &whole["stop_type"]), (&json!(true), &json!("word")));
    assert_eq!((&whole["stopping_word"], &whole["truncated"]), (&json!("."), &json!(false)));
    assert_eq!((&whole["model"], &whole["tokens"]), (&json!("needle"), &json!([])));
    let n = whole["tokens_predicted"].as_u64().expect("a number");
    assert_eq!(whole["timings"]["predicted_n"], n, "{whole}");
    let n_prompt = whole["tokens_evaluated"].as_u64().expect("a number");
    assert_eq!(whole["timings"]["prompt_n"], n_prompt, "nothing was known");
    assert!(whole["tokens_cached"].as_u64() >= Some(n_prompt), "{whole}");
    assert!(whole["choices"].is_null() && whole["completion_probabilities"].is_null(), "{whole}");

    // The other path of it, in a stream: parts in order, then what it took, and no mark.
    body["stream"] = json!(true);
    let answer = served.post("/completions", &body);
    assert!(answer.head.to_lowercase().contains("text/event-stream"), "{answer:?}");
    assert!(!answer.body.contains("[DONE]"), "{answer:?}");
    let events = answer.events();
    let (last, parts) = events.split_last().expect("events");
    assert!(parts.iter().all(|part| part["stop"] == false && part["timings"].is_null()));
    let said: String = events.iter().filter_map(|part| part["content"].as_str()).collect();
    assert_eq!(said, expected(&facts[0]));
    let tokens = |event: &Value| event["tokens"].as_array().map_or(0, Vec::len);
    let mut n_given = 0;
    for part in parts {
        n_given += tokens(part);
        assert_eq!(part["tokens_predicted"], n_given, "{part}");
        assert_eq!(part["tokens_evaluated"], n_prompt, "{part}");
    }
    assert_eq!((&last["stop"], &last["stop_type"]), (&json!(true), &json!("word")), "{last}");
    assert_eq!((&last["content"], &last["tokens_predicted"]), (&json!(""), &json!(n)), "{last}");
}

#[test]
fn a_completion_goes_on_without_a_limit_unless_one_is_given() {
    let served = serve(ServerOptions::default());
    let ask = |more: Value| {
        let mut body = json!({ "prompt": "It was", "ignore_eos": true });
        body.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
        served.post("/completion", &body)
    };
    let limited = ask(json!({ "n_predict": 3, "n_probs": 2, "return_tokens": true })).json();
    assert_eq!((&limited["stop_type"], &limited["stopping_word"]), (&json!("limit"), &json!("")));
    assert_eq!(limited["tokens"].as_array().map(Vec::len), Some(3), "{limited}");
    let probs = limited["completion_probabilities"].as_array().expect("a list");
    assert_eq!(probs.len(), 3, "{limited}");
    for prob in probs {
        assert!(prob["id"].is_u64() && prob["token"].is_string() && prob["bytes"].is_array());
        assert!(prob["logprob"].is_f64(), "{prob}");
        assert_eq!(prob["top_logprobs"].as_array().map(Vec::len), Some(2), "{prob}");
    }
    // OpenAI's 16 tokens are not what llama.cpp's clients expect.
    let unlimited = ask(json!({ "stop": ["\n\n"] })).json();
    assert_eq!(unlimited["stopping_word"], "\n\n", "{unlimited}");
    assert!(unlimited["tokens_predicted"].as_u64() > Some(16), "{unlimited}");
    let same = ask(json!({ "prompt": [7, 8], "n_predict": 1 })).json();
    assert_eq!(same["tokens_evaluated"], 2, "{same}");
    for (body, param) in [
        (json!({ "prompt": ["a", "b"] }), "prompt"),
        (json!({ "prompt": [[7], [8]] }), "prompt"),
        (json!({ "prompt": "" }), "prompt"),
        (json!({ "n": 2 }), "n"),
        (json!({ "return_tokens": 1 }), "return_tokens"),
        (json!({ "n_probs": 21 }), "n_probs"),
        (json!({ "tools": [{}] }), "tools"),
    ] {
        let answer = ask(body.clone());
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], param, "{body}");
    }
}

#[test]
fn paths_without_v1_are_the_same() {
    let served = serve(ServerOptions::default());
    assert_eq!(served.get("/v1/health").json(), served.get("/health").json());
    assert_eq!(served.get("/models").json(), served.get("/v1/models").json());
    let chat = json!({ "messages": [{ "role": "user", "content": "It was" }], "max_tokens": 2 });
    let answer = served.post("/chat/completions", &chat).json();
    assert_eq!(answer["object"], "chat.completion", "{answer}");
    let input = json!({ "input": "It was", "max_output_tokens": 2 });
    assert_eq!(served.post("/responses", &input).json()["object"], "response");
    assert_eq!(served.get("/embeddings").status, 404, "there are none under /v1 either");
}
