//! What goes wrong for one request, or for one client, goes wrong for nobody else.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use longview_core::SplitMix64;
use longview_engine::EngineOptions;
use longview_scheduler::{HostBytesMut, HostStoreKind, PolicyOptions, Preset};
use longview_wgpu::{WgpuBackend, WgpuOptions};
use serde_json::{Value, json};

use crate::support::{
    Library, PATIENCE, begin_device, begin_engine, document, expected, facts_of_model, logged,
    question, read_answer, serve, serve_with,
};
use longview_server::{Limits, ModelFacts, ServerOptions};

const RUNNING: &str = "llamacpp:requests_processing";
const WAITING: &str = "llamacpp:requests_deferred";

/// Writes that panic before the next ones work again.
static FAULTS: AtomicU32 = AtomicU32::new(0);

/// Host memory in which a write can be a fault of the program.
struct Faulty(Vec<u8>);

impl HostBytesMut for Faulty {
    fn read(&self, at: usize, out: &mut [u8]) {
        self.0.read(at, out);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let one_less = |n: u32| n.checked_sub(1);
        let fault = FAULTS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        assert!(fault.is_err(), "a fault of the program, as the test wants it");
        HostBytesMut::write(&mut self.0, at, bytes);
    }

    fn fork(&self, used: &[Range<usize>]) -> Option<Box<dyn HostBytesMut>> {
        self.0.fork(used)
    }
}

#[test]
fn a_fault_of_the_program_ends_one_request_alone() {
    let engine = EngineOptions {
        simulate_device: true,
        host_store: HostStoreKind::Elsewhere(|len| Some(Box::new(Faulty(vec![0; len])))),
        ..EngineOptions::default()
    };
    let options = ServerOptions { max_kept: 0, ..ServerOptions::default() };
    let model = facts_of_model();
    let (served, lines) = logged(|| begin_engine(model, options, engine, Duration::ZERO));
    served.wait_until_ready();
    let body = json!({ "prompt": "It was", "max_tokens": 800, "ignore_eos": true });
    let whole = served.post("/v1/completions", &body).json()["choices"][0]["text"].clone();
    // While a prompt is read.
    FAULTS.store(1, Ordering::SeqCst);
    let failed = served.post("/v1/completions", &body);
    assert_eq!((failed.status, failed.code().as_str()), (500, "internal_error"));
    assert_eq!(served.post("/v1/completions", &body).json()["choices"][0]["text"], whole);
    // While three are answered.
    let answers: Vec<_> = thread::scope(|scope| {
        let ask = || served.post("/v1/completions", &body);
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        let answers_of_three = || {
            let slots = served.get("/slots").json();
            let slots = slots.as_array().expect("a list of slots");
            slots.iter().filter(|slot| slot["n_decoded"].as_u64() > Some(2)).count() == 3
        };
        let end = Instant::now() + PATIENCE;
        while !answers_of_three() {
            assert!(Instant::now() < end, "three are not answered at once");
            thread::sleep(Duration::from_millis(1));
        }
        // One in the step of all, one when the first of them is computed alone.
        FAULTS.store(2, Ordering::SeqCst);
        threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
    });
    assert_eq!(FAULTS.load(Ordering::SeqCst), 0);
    let failed: Vec<_> = answers.iter().filter(|answer| answer.status != 200).collect();
    assert_eq!(failed.len(), 1, "{answers:?}");
    assert_eq!((failed[0].status, failed[0].code().as_str()), (500, "internal_error"));
    for answer in answers.iter().filter(|answer| answer.status == 200) {
        assert_eq!(answer.json()["choices"][0]["text"], whole, "{answer:?}");
    }
    assert_eq!(served.post("/v1/completions", &body).json()["choices"][0]["text"], whole);
    let lines = lines.all();
    let is_told =
        |line: &&String| line.starts_with("a request failed: ") && line.contains(" request_id=");
    let n_told = lines.iter().filter(is_told).count();
    assert_eq!(n_told, 2, "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("It was")), "a prompt in the log: {lines:?}");
}

/// Whether host memory that is opened now makes no numbers of what is written to it.
static MAKES_NO_NUMBERS: AtomicBool = AtomicBool::new(false);

/// Host memory that may be as that of a device which computes nonsense.
struct NoNumbers {
    bytes: Box<dyn HostBytesMut>,
    is_broken: bool,
}

impl HostBytesMut for NoNumbers {
    fn read(&self, at: usize, out: &mut [u8]) {
        self.bytes.read(at, out);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        // All bits set are no number in any floating-point format.
        let none = vec![0xff; bytes.len()];
        let bytes = if self.is_broken { &none } else { bytes };
        self.bytes.write(at, bytes);
    }

    fn fork(&self, used: &[Range<usize>]) -> Option<Box<dyn HostBytesMut>> {
        Some(Self::open(self.bytes.fork(used)?))
    }
}

impl NoNumbers {
    fn open(bytes: Box<dyn HostBytesMut>) -> Box<dyn HostBytesMut> {
        Box::new(Self { bytes, is_broken: MAKES_NO_NUMBERS.load(Ordering::SeqCst) })
    }
}

/// Rows that are no numbers end their request, and nobody goes on from them.
#[test]
fn what_is_no_number_ends_one_request_and_is_not_kept() {
    // One index is made of sums that tell at once, one of keys as they are.
    for preset in [Preset::DEFAULT, Preset::Quest] {
        computes_nonsense(preset);
    }
}

fn computes_nonsense(preset: Preset) {
    let engine = EngineOptions {
        simulate_device: true,
        chunk_size: 64,
        host_store: HostStoreKind::Elsewhere(|len| Some(NoNumbers::open(Box::new(vec![0; len])))),
        ..EngineOptions::default()
    };
    let library = Library::new();
    let model = ModelFacts { policy: PolicyOptions::new(preset), ..facts_of_model() };
    let served = begin_engine(model, library.options(), engine, Duration::ZERO);
    served.wait_until_ready();
    let (text, facts) = document(40, 83);
    let right = question(&text, &facts[0]);
    let long = json!({ "prompt": "The baker", "max_tokens": 900, "ignore_eos": true });
    let whole = served.post("/v1/completions", &long).json()["choices"][0]["text"].clone();
    let other = thread::scope(|scope| {
        let other = scope.spawn(|| served.post("/v1/completions", &long));
        let is_answered = || {
            let slots = served.get("/slots").json();
            slots[0]["n_decoded"].as_u64() > Some(2)
        };
        let end = Instant::now() + PATIENCE;
        while !is_answered() {
            assert!(Instant::now() < end && !other.is_finished(), "it is answered beside");
            thread::sleep(Duration::from_millis(1));
        }
        MAKES_NO_NUMBERS.store(true, Ordering::SeqCst);
        let failed = served.post("/v1/completions", &right);
        assert_eq!((failed.status, failed.code().as_str()), (500, "numeric_error"), "{failed:?}");
        let mut streamed = right.clone();
        streamed["stream"] = json!(true);
        let told = served.post("/v1/completions", &streamed);
        assert!(told.body.contains("numeric_error") && !told.body.contains("[DONE]"), "{told:?}");
        // A document of which nothing is said is looked at as well.
        let build = served.post("/v1/contexts", &json!({ "text": text, "name": "book" }));
        assert_eq!((build.status, build.code().as_str()), (500, "numeric_error"), "{build:?}");
        MAKES_NO_NUMBERS.store(false, Ordering::SeqCst);
        other.join().expect("an answer")
    });
    assert_eq!(other.json()["choices"][0]["text"], whole, "{other:?}");
    assert_eq!(served.metric("longview:requests_failed_total"), 3.0);
    let book = served.get("/v1/contexts/book").json();
    assert_eq!(book["sessions"], json!([]), "nothing of it was written");
    // All of it is read anew, but for the token that all texts begin with.
    let answer = served.post("/v1/completions", &right).json();
    assert_eq!(answer["choices"][0]["text"], expected(&facts[0]), "{answer}");
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached <= Some(1), "{answer}");
}

/// Requests of every kind, each left after a moment: while it waits, is read, is answered or has
/// ended. Nothing of them stays.
#[test]
fn five_hundred_clients_that_leave_at_any_moment_leave_nothing_behind() {
    let library = Library::new();
    let options = ServerOptions { max_kept: 0, n_slots: 3, ..library.options() };
    let served = serve_with(options, 32, Duration::ZERO);
    let (text, facts) = document(40, 31);
    let streamed =
        json!({ "prompt": "It was", "stream": true, "max_tokens": 60, "ignore_eos": true });
    let build = json!({ "text": document(50, 32).0, "stream": true });
    let requests = [
        ("/v1/completions", question(&text, &facts[0])),
        ("/v1/completions", streamed),
        ("/v1/contexts", build),
    ];
    thread::scope(|scope| {
        for client in 0..10 {
            let (served, requests) = (&served, &requests);
            scope.spawn(move || {
                let mut rng = SplitMix64::new(client);
                for _ in 0..50 {
                    let (path, body) = &requests[rng.next_u64() as usize % requests.len()];
                    let mut stream = served.send("POST", path, &[], &body.to_string());
                    thread::sleep(Duration::from_micros(rng.next_u64() % 60_000));
                    if rng.next_u64().is_multiple_of(2) {
                        // With something unread, the system tells the other side by a reset.
                        let _ = stream.read(&mut [0; 16]);
                    }
                    let _ = stream.shutdown(Shutdown::Both);
                }
            });
        }
    });
    served.wait_for(RUNNING, 0.0);
    served.wait_for(WAITING, 0.0);
    let end = Instant::now() + PATIENCE;
    // What was read of the document is written after its client has left.
    while served.get("/props").json()["n_taken"] != 0 {
        assert!(Instant::now() < end, "a place is not given back");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(served.metric("longview:contexts_kept_tokens"), 0.0);
    let n_left = served.metric("longview:requests_cancelled_total");
    assert!(n_left > 50.0, "{n_left} left before their answer was there");
    // Files: the one document, at most one session of it, and nothing half written.
    let documents = library.options().documents.expect("a library");
    let listed: usize = documents.list().expect("a list").iter().map(|d| d.sessions.len()).sum();
    let sessions = std::fs::read_dir(documents.folder().join("sessions"));
    let n_files = sessions.map_or(0, Iterator::count);
    assert!(listed <= 1 && n_files == listed, "{n_files} files, {listed} listed");
    let answer = served.post("/v1/completions", &question(&text, &facts[0])).json();
    assert_eq!(answer["choices"][0]["text"], expected(&facts[0]), "{answer}");
}

/// Heads and bodies that never end, and answers that nobody takes, while others are served.
#[test]
fn two_hundred_half_open_sockets_and_slow_readers_hold_nobody_up() {
    let limits = Limits {
        header: Duration::from_millis(1500),
        body: Duration::from_millis(1500),
        stall: Duration::from_millis(1500),
        ..Limits::default()
    };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let body = json!({ "prompt": "It was", "max_tokens": 8 });
    let whole = served.post("/v1/completions", &body).json()["choices"][0]["text"].clone();
    let mut sockets: Vec<_> = (0..200)
        .map(|i| {
            let mut stream = served.connect();
            let part: &[u8] = match i % 4 {
                0 => b"",
                1 => b"POST /v1/completions HT",
                2 => b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx-a",
                _ => b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{",
            };
            stream.write_all(part).expect("it is taken");
            stream
        })
        .collect();
    let endless = json!({
        "prompt": "It was", "stream": true, "max_tokens": 4000, "ignore_eos": true, "n": 8,
        "logprobs": 20,
    });
    let slow: Vec<_> =
        (0..3).map(|_| served.send("POST", "/v1/completions", &[], &endless.to_string())).collect();
    let began = Instant::now();
    for _ in 0..5 {
        let answer = served.post("/v1/completions", &body).json();
        assert_eq!(answer["choices"][0]["text"], whole, "{answer}");
    }
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    for socket in &mut sockets {
        // The server closes; a body that does not come is answered first.
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
        let text = String::from_utf8_lossy(&rest);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 408"), "{text}");
    }
    drop(slow);
    served.wait_for(RUNNING, 0.0);
    assert_eq!(served.get("/props").json()["n_taken"], 0);
}

/// What a step loses is told, what comes waits until the device is open again, and is answered as
/// before. A device that is lost between two steps is opened by the next one, and nobody notices:
/// so it is lost until a step fails.
#[test]
#[expect(clippy::print_stderr, reason = "what is not run says so")]
fn a_lost_device_is_opened_again() {
    if std::env::var_os("LONGVIEW_NO_GPU").is_some() {
        eprintln!("NOT RUN: LONGVIEW_NO_GPU is set");
        return;
    }
    assert!((0..10).any(|_| loses_a_step()), "a device that is lost in a step");
}

/// Loses the device of a server while it answers; whether that failed a step.
fn loses_a_step() -> bool {
    let options = WgpuOptions { spares_software: true, ..WgpuOptions::default() };
    let backend = pollster::block_on(WgpuBackend::new(&options)).expect("a device for WGSL");
    let lost = Arc::new(backend);
    let backend = Arc::clone(&lost);
    let engine = EngineOptions { chunk_size: 64, ..EngineOptions::default() };
    let server = ServerOptions { n_slots: 1, ..ServerOptions::default() };
    let served = begin_device(facts_of_model(), server, engine, move || Ok(backend));
    served.wait_until_ready();
    let body = json!({ "prompt": "It was", "max_tokens": 6 });
    let expected = served.post("/v1/completions", &body).json()["choices"][0]["text"].clone();
    let long = |stream: bool| json!({ "prompt": "It was", "stream": stream, "max_tokens": 200, "ignore_eos": true });
    let mut running = served.send("POST", "/v1/completions", &[], &long(true).to_string());
    while running.peek(&mut [0; 600]).expect("a part") < 600 {
        thread::sleep(Duration::from_millis(1));
    }
    // One that waits for its place.
    let mut waiting = served.send("POST", "/v1/completions", &[], &body.to_string());
    served.wait_for(WAITING, 1.0);
    lost.destroy_device();
    drop(lost);
    let answer = read_answer(&mut running);
    let meanwhile = [served.get("/health"), served.post("/v1/completions", &body)];
    served.wait_until_ready();
    let waited = read_answer(&mut waiting);
    assert_eq!(waited.json()["choices"][0]["text"], expected, "{waited:?}");
    assert_eq!(served.metric("longview:device_lost"), 0.0);
    let n_failed = served.metric("longview:requests_failed_total");
    let is_told = answer.body.contains("device_lost");
    if is_told {
        assert!(!answer.body.contains("[DONE]"), "{answer:?}");
        assert_eq!(n_failed, 1.0);
        // Who asks in the meantime hears why, and when to come again.
        for told in meanwhile {
            assert_eq!((told.status, told.code().as_str()), (503, "device_lost"), "{told:?}");
            assert!(told.head.contains("retry-after: 1"), "{told:?}");
        }
    } else {
        let text = |event: &Value| event["choices"][0]["text"].as_str().unwrap_or("").to_owned();
        let said: String = answer.events().iter().map(text).collect();
        assert!(answer.body.contains("[DONE]"), "{answer:?}");
        let whole = served.post("/v1/completions", &long(false)).json();
        assert_eq!(whole["choices"][0]["text"], said);
        assert_eq!(n_failed, 0.0);
    }
    assert_eq!(served.post("/v1/completions", &body).json()["choices"][0]["text"], expected);
    is_told
}
