//! Streams say what whole answers say; who leaves is let go of, and what was read stays.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{
    PATIENCE, begin, document, expected, question, read_answer, serve, serve_with,
};
use longview_server::{Limits, ServerOptions};

const RUNNING: &str = "llamacpp:requests_processing";

#[test]
fn a_stream_says_what_a_whole_answer_says() {
    let served = serve(ServerOptions::default());
    let (text, facts) = document(40, 2);
    let mut body = question(&text, &facts[2]);
    body["n"] = json!(2);
    body["temperature"] = json!(1.5);
    body["seed"] = json!(11);
    body["stop"] = json!(["."]);
    let whole = served.post("/v1/completions", &body).json();
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    body["return_progress"] = json!(true);
    let streamed = served.post("/v1/completions", &body);
    assert!(streamed.head.contains("text/event-stream"), "{streamed:?}");
    assert!(streamed.body.ends_with("data: [DONE]\n\n"));
    let events = streamed.events();
    for (i, choice) in whole["choices"].as_array().expect("choices").iter().enumerate() {
        let own = |e: &&serde_json::Value| e["choices"][0]["index"] == i;
        let text: String =
            events.iter().filter(own).filter_map(|e| e["choices"][0]["text"].as_str()).collect();
        assert_eq!(choice["text"], text.as_str(), "{events:?}");
        let reasons =
            events.iter().filter(own).filter_map(|e| e["choices"][0]["finish_reason"].as_str());
        assert_eq!(
            reasons.collect::<Vec<_>>(),
            [choice["finish_reason"].as_str().expect("a reason")]
        );
    }
    assert_eq!(
        events.last().expect("one")["usage"]["completion_tokens"],
        whole["usage"]["completion_tokens"]
    );
    assert!(events.iter().any(|e| e["prompt_progress"]["total"].is_u64()), "{events:?}");
    let chat = json!({
        "messages": [{ "role": "user", "content": format!("{text}\n\n{}", facts[0].question) }],
        "max_tokens": 40, "stream": true,
    });
    let events = served.post("/v1/chat/completions", &chat).events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let said = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
    assert!(said.collect::<String>().contains(expected(&facts[0]).trim()), "{events:?}");
    assert!(events.iter().all(|e| e["usage"].is_null()), "nobody asked for it");
}

#[test]
fn only_who_asks_for_usage_gets_a_part_without_choices() {
    let served = serve(ServerOptions::default());
    let prompts = [
        ("/v1/completions", json!({ "prompt": "It was", "n": 2 })),
        ("/v1/completions", json!({ "prompt": ["It was", "The baker"] })),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": "It was" }], "n": 2 }),
        ),
    ];
    for (path, mut body) in prompts {
        body["stream"] = json!(true);
        body["max_tokens"] = json!(6);
        let events = served.post(path, &body).events();
        let n_choices = |event: &serde_json::Value| event["choices"].as_array().map(Vec::len);
        assert!(events.iter().all(|event| n_choices(event) == Some(1)), "{events:?}");
        let reasons = events.iter().filter(|e| !e["choices"][0]["finish_reason"].is_null());
        assert_eq!(reasons.count(), 2, "{events:?}");
        let (last, parts) = events.split_last().expect("events");
        assert!(last["choices"][0]["finish_reason"].is_string(), "{last}");
        assert_eq!(last["timings"]["predicted_n"], 12, "{last}");
        assert!(last["longview"]["policy"].is_string() && last["usage"].is_null(), "{last}");
        assert!(parts.iter().all(|part| part["timings"].is_null()), "{parts:?}");

        body["stream_options"] = json!({ "include_usage": true });
        let events = served.post(path, &body).events();
        let (last, parts) = events.split_last().expect("events");
        assert!(parts.iter().all(|event| n_choices(event) == Some(1)), "{parts:?}");
        assert_eq!((n_choices(last), &last["usage"]["completion_tokens"]), (Some(0), &json!(12)));
        assert_eq!(last["timings"]["predicted_n"], 12, "{last}");
        let reason = &parts.last().expect("a part")["choices"][0]["finish_reason"];
        assert!(reason.is_string(), "{parts:?}");
    }
}

#[test]
fn who_leaves_while_a_prompt_is_read_frees_the_place_and_what_was_read_stays() {
    let served = serve_with(ServerOptions::default(), 32, Duration::ZERO);
    let (text, facts) = document(250, 3);
    let body = question(&text, &facts[0]);
    let stream = served.send("POST", "/v1/completions", &[], &body.to_string());
    let end = Instant::now() + PATIENCE;
    while served.metric("llamacpp:prompt_tokens_total") < 200.0 {
        assert!(Instant::now() < end, "it is read");
    }
    drop(stream);
    served.wait_for(RUNNING, 0.0);
    assert_eq!(served.metric("longview:requests_cancelled_total"), 1.0);
    let n_kept = served.metric("longview:contexts_kept_tokens");
    let answer = served.post("/v1/completions", &body).json();
    assert_eq!(answer["choices"][0]["text"], expected(&facts[0]), "{answer}");
    assert_eq!(answer["timings"]["cache_n"].as_f64(), Some(n_kept), "{answer}");
    assert!(n_kept >= 200.0 && answer["timings"]["prompt_n"].as_u64() > Some(0), "{answer}");
}

#[test]
fn who_leaves_while_an_answer_is_generated_frees_the_place() {
    let served = serve(ServerOptions::default());
    let body =
        json!({ "prompt": "It was", "stream": true, "max_tokens": 4000, "ignore_eos": true });
    let mut streams: Vec<_> =
        (0..3).map(|_| served.send("POST", "/v1/completions", &[], &body.to_string())).collect();
    // Some of each answer comes before its client leaves in one of three ways.
    for stream in &mut streams {
        let mut begun = [0; 600];
        stream.read_exact(&mut begun).expect("a part");
    }
    streams[0].shutdown(Shutdown::Both).expect("it is closed");
    streams[1].shutdown(Shutdown::Write).expect("it is half open");
    drop(streams.pop());
    served.wait_for(RUNNING, 0.0);
    assert_eq!(served.metric("longview:requests_cancelled_total"), 3.0);
    assert_eq!(served.post("/v1/completions", &json!({ "prompt": "A" })).status, 200);
}

#[test]
fn who_takes_nothing_is_let_go_of() {
    let limits = Limits { stall: Duration::from_millis(200), ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let body = json!({
        "prompt": "It was", "stream": true, "max_tokens": 4000, "ignore_eos": true, "n": 8,
        "logprobs": 20,
    });
    let stream = served.send("POST", "/v1/completions", &[], &body.to_string());
    served.wait_for(RUNNING, 1.0);
    served.wait_for(RUNNING, 0.0);
    assert_eq!(served.metric("longview:requests_cancelled_total"), 1.0);
    drop(stream);
}

#[test]
fn a_server_that_ends_lets_what_runs_come_to_its_end() {
    let served = serve(ServerOptions::default());
    let body = json!({ "prompt": "It was", "max_tokens": 200, "ignore_eos": true, "stream": true });
    let mut stream = served.send("POST", "/v1/completions", &[], &body.to_string());
    served.wait_for(RUNNING, 1.0);
    drop(served);
    let answer = read_answer(&mut stream);
    assert!(answer.body.ends_with("data: [DONE]\n\n"), "{answer:?}");
    assert_eq!(answer.events().last().expect("one")["timings"]["predicted_n"], 200);
}

#[test]
fn a_server_that_may_not_wait_tells_who_is_cut_off() {
    let limits = Limits { drain: Duration::from_millis(50), ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let body =
        json!({ "prompt": "It was", "max_tokens": 4000, "ignore_eos": true, "stream": true });
    let mut stream = served.send("POST", "/v1/completions", &[], &body.to_string());
    served.wait_for(RUNNING, 1.0);
    drop(served);
    let answer = read_answer(&mut stream);
    assert!(!answer.body.contains("[DONE]"), "{answer:?}");
    assert_eq!(answer.events().last().expect("one")["error"]["code"], "stopping");
}

#[test]
fn a_server_that_loads_says_so_and_a_slow_stream_shows_signs_of_life() {
    let limits = Limits { ping: Duration::from_millis(1), ..Limits::default() };
    let options = ServerOptions { limits, ..ServerOptions::default() };
    let served = begin(options.clone(), 128, Duration::from_secs(1));
    let health = served.get("/health");
    assert_eq!((health.status, health.code().as_str()), (503, "loading"));
    assert!(health.head.contains("retry-after: 1"), "{health:?}");
    assert_eq!(served.post("/v1/completions", &json!({ "prompt": "A" })).status, 503);
    drop(served);
    let served = serve_with(options, 512, Duration::ZERO);
    let (text, facts) = document(200, 3);
    let mut body = question(&text, &facts[0]);
    body["stream"] = json!(true);
    assert!(served.post("/v1/completions", &body).body.contains(": ping\n\n"));
}

#[test]
fn heads_that_do_not_come_are_not_waited_for() {
    let limits = Limits {
        header: Duration::from_millis(150),
        body: Duration::from_millis(150),
        ..Limits::default()
    };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut slow = served.connect();
    slow.write_all(b"GET /health HTTP/1.1\r\nhost: local").expect("it is sent");
    let begun = Instant::now();
    let answer = read_answer(&mut slow);
    assert!(matches!(answer.status, 0 | 408), "{answer:?}");
    assert!(begun.elapsed() < Duration::from_secs(5));
    let mut slow = served.connect();
    let head = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{";
    slow.write_all(head.as_bytes()).expect("it is sent");
    assert_eq!(read_answer(&mut slow).status, 408);
    assert_eq!(served.get("/health").status, 200);
}
