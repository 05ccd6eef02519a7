//! Requests begin when there is memory for them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use longview_server::ServerOptions;
use serde_json::{Value, json};

use crate::support::{Answer, Library, document, expected, question, serve, serve_with};

/// Four prompts of one length that have nothing in common.
fn prompts() -> Vec<(Value, String)> {
    let prompt = |seed| {
        let (text, facts) = document(140, seed);
        let text = format!("Text number {seed}. {text}");
        (question(&text, &facts[0]), expected(&facts[0]).to_owned())
    };
    (31..35).map(prompt).collect()
}

fn too_little(options: ServerOptions) -> Answer {
    let answer = serve(options).post("/v1/completions", &prompts()[0].0);
    assert_eq!((answer.status, answer.code().as_str()), (507, "out_of_memory"), "{answer:?}");
    answer
}

/// Asks all at once. Returns how many ran at the same time at most, and how many are kept.
fn ask_at_once(options: ServerOptions) -> (f64, f64) {
    let served = serve_with(ServerOptions { n_slots: 4, ..options }, 32, Duration::ZERO);
    let n_left = AtomicUsize::new(prompts().len());
    let most = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most: f64 = 0.0;
            while n_left.load(Ordering::Relaxed) > 0 {
                most = most.max(served.metric("llamacpp:requests_processing"));
                thread::sleep(Duration::from_millis(2));
            }
            most
        });
        let ask = |(body, expected): (Value, String)| {
            let (served, n_left) = (&served, &n_left);
            scope.spawn(move || {
                let answer = served.post("/v1/completions", &body);
                n_left.fetch_sub(1, Ordering::Relaxed);
                assert_eq!(answer.json()["choices"][0]["text"], expected, "{answer:?}");
            })
        };
        let asked: Vec<_> = prompts().into_iter().map(ask).collect();
        asked.into_iter().for_each(|thread| thread.join().expect("an answer"));
        watch.join().expect("a number")
    });
    (most, served.metric("longview:contexts_kept"))
}

#[test]
fn requests_wait_until_there_is_memory_and_what_is_kept_goes_for_them() {
    let refused = too_little(ServerOptions { session_memory: Some(1), ..ServerOptions::default() });
    let error = refused.json()["error"].clone();
    let needed = error["needed_bytes"].as_u64().expect("a number");
    assert!(needed > 1 << 20 && error["free_bytes"] == 1, "{error}");
    let with_memory = |session_memory| ServerOptions { session_memory, ..ServerOptions::default() };
    let (most, kept) = ask_at_once(with_memory(None));
    assert!(most > 1.0 && kept == 4.0, "{most} at a time, {kept} kept");
    let (most, kept) = ask_at_once(with_memory(Some(needed * 3 / 2)));
    assert_eq!((most, kept), (1.0, 1.0), "one at a time, and one is kept");
    let (most, kept) = ask_at_once(with_memory(Some(needed * 5 / 2)));
    assert!((most, kept) == (2.0, 2.0), "{most} at a time, {kept} kept");
}

/// How often the system says in the next test that nothing is left.
static NONE_LEFT: AtomicUsize = AtomicUsize::new(0);

fn left() -> Option<u64> {
    let less = |n: usize| n.checked_sub(1);
    let is_none = NONE_LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
    Some(if is_none { 0 } else { u64::MAX })
}

/// While a conversation whose room was needed is written its memory is not free yet. What else is
/// kept stays.
#[test]
fn no_more_goes_than_is_needed_while_a_conversation_is_written() {
    let library = Library::new();
    let served = serve(ServerOptions { free_memory: Some(left), ..library.options() });
    let [first, second, third, last] = &prompts()[..] else { panic!("four prompts") };
    let ask = |(body, expected): &(Value, String)| {
        let answer = served.post("/v1/completions", body).json();
        assert_eq!(answer["choices"][0]["text"], *expected, "{answer}");
        answer
    };
    // A turn behind the first one: it is a conversation, and the one that was used longest ago.
    let said = ask(first)["choices"][0]["text"].clone();
    let mut turn = first.0.clone();
    let before = turn["prompt"].as_str().expect("a text");
    turn["prompt"] = json!(format!("{before}{}. And then?", said.as_str().expect("a text")));
    assert_eq!(served.post("/v1/completions", &turn).status, 200);
    ask(second);
    ask(third);
    assert_eq!(served.metric("longview:contexts_kept"), 3.0);
    // When the last one comes, and once more when the first has begun to go.
    NONE_LEFT.store(2, Ordering::Relaxed);
    ask(last);
    served.wait_for("longview:prompts_written_total", 1.0);
    assert_eq!(served.metric("longview:contexts_kept"), 3.0, "the second, the third and the last");
}

#[test]
fn what_the_system_has_left_counts() {
    let with_free =
        |free: fn() -> Option<u64>| ServerOptions { free_memory: Some(free), ..Default::default() };
    let error = too_little(with_free(|| Some(0))).json()["error"].clone();
    assert_eq!(error["free_bytes"], 0, "{error}");
    for free in [(|| Some(1 << 40)) as fn() -> Option<u64>, || None] {
        assert_eq!(ask_at_once(with_free(free)).1, 4.0);
    }
}
