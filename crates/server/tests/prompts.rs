//! Prompts that nobody named: what was read of them outlives its room in memory, and the server.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use longview_server::{ApiKey, Limits, ServerOptions};
use serde_json::{Value, json};

use crate::support::{Library, PATIENCE, Served, document, question, serve, serve_with};

/// Tokens that are worth a file.
const MIN_WRITTEN: u64 = 1024;
/// Tokens of the blocks by which files are found.
const BLOCK: u64 = 256;

fn cached(body: &Value) -> u64 {
    body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
}

fn total(body: &Value) -> u64 {
    body["usage"]["prompt_tokens"].as_u64().expect("a number")
}

/// Prompts that lie on disk.
fn n_files(library: &Library) -> usize {
    let folder = library.options().documents.expect("a library").folder().join("prompts");
    let files = |name: &str| std::fs::read_dir(folder.join(name)).map_or(0, Iterator::count);
    assert_eq!(files("texts"), files("sessions"), "each has its text");
    files("sessions")
}

/// The prompt of [`question`] with probabilities.
fn with_probabilities(text: &str, question_of: &longview_needles::facts::Fact) -> Value {
    let mut body = question(text, question_of);
    body["logprobs"] = json!(1);
    body
}

#[test]
fn a_prompt_is_known_after_a_restart_and_answers_are_the_same() {
    let library = Library::new();
    let (text, facts) = document(160, 21);
    let first = serve(library.options()).post("/v1/completions", &question(&text, &facts[0]));
    assert!(total(&first.json()) > MIN_WRITTEN + 2 * BLOCK, "{first:?}");
    assert_eq!(n_files(&library), 1);
    let asked = with_probabilities(&text, &facts[1]);
    let read = serve(ServerOptions::default()).post("/v1/completions", &asked).json();
    assert_eq!(cached(&read), 0);
    let served = serve(library.options());
    let known = served.post("/v1/completions", &asked).json();
    assert!(total(&known) - cached(&known) < 60, "the question alone is read: {known}");
    assert_eq!(known["choices"], read["choices"]);
    assert_eq!(served.metric("longview:contexts_restored_total"), 1.0);
    assert_eq!(served.get("/v1/contexts").json()["data"], json!([]), "nobody named it");
    drop(served);
    // What another question added is not worth a file.
    assert_eq!(n_files(&library), 1);
}

#[test]
fn a_conversation_whose_room_was_needed_goes_on_from_the_disk() {
    let library = Library::new();
    let served = serve(ServerOptions { max_kept: 1, ..library.options() });
    let (text, facts) = document(160, 22);
    let (other, _) = document(160, 23);
    let mut messages = vec![json!({ "role": "user", "content": text })];
    let mut answers = Vec::new();
    let mut turn = |messages: &mut Vec<Value>, asked: &str| {
        messages.push(json!({ "role": "user", "content": asked }));
        let body = json!({ "messages": messages, "max_tokens": 12 });
        let answer = served.post("/v1/chat/completions", &body).json();
        messages.push(answer["choices"][0]["message"].clone());
        answers.push((total(&answer), cached(&answer)));
    };
    turn(&mut messages, &facts[0].question);
    // What nobody has gone on from is not written.
    served.post("/v1/completions", &json!({ "prompt": "A short one.", "max_tokens": 1 }));
    turn(&mut messages, &facts[1].question);
    assert_eq!(served.metric("longview:prompts_written_total"), 0.0);
    turn(&mut messages, &facts[2].question);
    served.post("/v1/completions", &json!({ "prompt": other, "max_tokens": 1 }));
    served.wait_for("longview:prompts_written_total", 1.0);
    turn(&mut messages, &facts[0].question);
    let [(_, first), (_, second), (third, known), (_, after)] = answers[..] else { panic!() };
    assert!(first == 0 && second < BLOCK, "its room was needed: {answers:?}");
    assert!(known > MIN_WRITTEN, "it was in memory: {answers:?}");
    assert!(after + BLOCK >= third, "what was read of it comes from the disk: {answers:?}");
    assert_eq!(served.metric("longview:contexts_restored_total"), 1.0);
}

/// Starts to read a long prompt; returns when more than what is worth a file was read.
fn begin_to_read(served: &Served, text: &str) -> std::net::TcpStream {
    let body = json!({ "prompt": text, "max_tokens": 4, "stream": true }).to_string();
    let stream = served.send("POST", "/v1/completions", &[], &body);
    let end = Instant::now() + PATIENCE;
    while served.metric("llamacpp:prompt_tokens_total") < MIN_WRITTEN as f64 + 100.0 {
        assert!(Instant::now() < end, "it is read");
        thread::sleep(Duration::from_millis(2));
    }
    stream
}

#[test]
fn what_was_read_of_a_prompt_before_its_client_or_the_server_left_is_known_after_a_restart() {
    let (text, _) = document(280, 24);
    let asked = json!({ "prompt": text, "max_tokens": 4 });
    for server_leaves in [false, true] {
        let library = Library::new();
        let drain = if server_leaves { Duration::ZERO } else { PATIENCE };
        let limits = Limits { drain, ..Limits::default() };
        let served = serve_with(ServerOptions { limits, ..library.options() }, 16, Duration::ZERO);
        let stream = begin_to_read(&served, &text);
        if !server_leaves {
            drop(stream);
            served.wait_for("llamacpp:requests_processing", 0.0);
        }
        drop(served);
        assert_eq!(n_files(&library), 1, "server leaves: {server_leaves}");
        let answer = serve(library.options()).post("/v1/completions", &asked).json();
        assert!(cached(&answer) >= MIN_WRITTEN, "server leaves: {server_leaves}: {answer}");
        assert!(total(&answer) > cached(&answer) + BLOCK, "it was not read to its end: {answer}");
    }
}

#[test]
fn prompts_with_a_context_go_with_it() {
    let library = Library::new();
    let (text, facts) = document(160, 25);
    let (other, _) = document(160, 26);
    let asked = question(&text, &facts[0]);
    {
        let served = serve(library.options());
        served.post("/v1/completions", &asked);
        served.post("/v1/completions", &json!({ "prompt": other, "max_tokens": 1 }));
    }
    assert_eq!(n_files(&library), 2);
    let served = serve(library.options());
    assert!(cached(&served.post("/v1/completions", &asked).json()) > MIN_WRITTEN);
    let new = json!({ "text": text, "name": "goes" });
    assert_eq!(served.post("/v1/contexts", &new).status, 200);
    assert_eq!(served.ask("DELETE", "/v1/contexts/goes", &[], "").status, 200);
    assert_eq!(n_files(&library), 1, "the other prompt stays");
    drop(served);
    let served = serve(library.options());
    let again = served.post("/v1/completions", &json!({ "prompt": other, "max_tokens": 1 }));
    assert!(cached(&again.json()) > MIN_WRITTEN, "{again:?}");
}

#[test]
fn what_a_slot_forgets_is_not_kept_on_disk() {
    let library = Library::new();
    let (text, facts) = document(160, 31);
    let mut asked = question(&text, &facts[0]);
    asked["id_slot"] = json!(1);
    serve(library.options()).post("/v1/completions", &asked);
    assert_eq!(n_files(&library), 1);
    let served = serve(library.options());
    assert!(cached(&served.post("/v1/completions", &asked).json()) > MIN_WRITTEN);
    let erased = served.post("/slots/1?action=erase", &json!({})).json();
    assert!(erased["n_erased"].as_u64() > Some(MIN_WRITTEN), "{erased}");
    assert_eq!(n_files(&library), 0);
    drop(served);
    assert_eq!(n_files(&library), 0, "nor is it written when the server ends");
}

#[test]
fn what_is_short_or_too_much_or_not_wanted_is_not_written() {
    let (text, facts) = document(160, 27);
    let (short, _) = document(40, 27);
    for (prompt, prompt_bytes) in [(&short, 8 << 30), (&text, 0), (&text, 1 << 20)] {
        let library = Library::new();
        let options = || ServerOptions { prompt_bytes, ..library.options() };
        serve(options()).post("/v1/completions", &question(prompt, &facts[0]));
        assert_eq!(n_files(&library), 0, "{} bytes, {prompt_bytes}", prompt.len());
        let again = serve(options()).post("/v1/completions", &question(prompt, &facts[0]));
        assert_eq!(cached(&again.json()), 0);
    }
}

/// Each longer form of one conversation takes the place of the one before.
#[test]
fn a_longer_prompt_takes_the_place_of_what_it_begins_with() {
    let library = Library::new();
    let (text, _) = document(330, 28);
    let part = |n: usize| text[..text.len() * n / 3].to_owned();
    for n in [1, 2, 3] {
        let served = serve(library.options());
        let answer =
            served.post("/v1/completions", &json!({ "prompt": part(n), "max_tokens": 1 })).json();
        assert!(total(&answer) > MIN_WRITTEN * n as u64, "{answer}");
        drop(served);
        assert_eq!(n_files(&library), 1, "part {n}");
    }
}

#[test]
fn a_prompt_of_one_key_is_not_known_to_another_after_a_restart() {
    let library = Library::new();
    let (text, facts) = document(160, 29);
    let body = question(&text, &facts[0]).to_string();
    let options = || {
        let keys = ["alice:one", "bob:two"].map(|key| ApiKey::parse(key).expect("a key"));
        ServerOptions { api_keys: keys.to_vec(), ..library.options() }
    };
    let ask = |served: &Served, key: &str| {
        let headers = [("x-api-key", key)];
        served.ask("POST", "/v1/completions", &headers, &body).json()
    };
    assert_eq!(cached(&ask(&serve(options()), "one")), 0);
    let served = serve(options());
    assert_eq!(cached(&ask(&served, "two")), 0);
    let own = ask(&served, "one");
    assert!(cached(&own) > MIN_WRITTEN, "{own}");
}

#[test]
fn a_damaged_prompt_is_read_again() {
    let library = Library::new();
    let (text, facts) = document(160, 30);
    let asked = question(&text, &facts[0]);
    let read = serve(library.options()).post("/v1/completions", &asked).json();
    let folder: PathBuf = library.options().documents.expect("a library").folder().to_owned();
    for entry in std::fs::read_dir(folder.join("prompts/sessions")).expect("a folder").flatten() {
        let mut bytes = std::fs::read(entry.path()).expect("a file");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(entry.path(), bytes).expect("it is written");
    }
    let again = serve(library.options()).post("/v1/completions", &asked).json();
    assert_eq!((cached(&again), &again["choices"]), (0, &read["choices"]));
}
