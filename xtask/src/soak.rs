//! `cargo xtask soak`: a server under mixed requests for a while. Of ten requests one is malformed
//! and one is left by its client. At the end it must be the same process, say the same answers, and
//! hold no more memory and no more files than early on.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::args::{Parsed, UsageError};
use crate::process::{dev_binary, root};

pub(crate) const OPTIONS: &str = "[--minutes N] [--seconds N] [--clients N] [--binary FILE]";
pub(crate) const ABOUT: &str = "`longview serve` under questions, contexts, streams, 10 % malformed and 10 % aborted \
                                requests, 20 minutes or as long as said: no restart, no wrong answer, no growth. \
                                --clients: 4, or more than the server has places for: it may refuse \
                                those, quickly; --binary: a program that is built already";

/// Clients at the same time, where nothing is said.
const N_CLIENTS: u64 = 4;
/// Requests that wait at the server, beside the four that run.
const MAX_WAITING: &str = "32";
/// Time in which 99 of 100 refusals come.
const REFUSAL: Duration = Duration::from_millis(50);
/// Pause of a client that was refused. The server says a second; less is more of a load.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);
/// Pause of a client between two requests: others of the machine work as well.
const PAUSE: Duration = Duration::from_millis(20);
/// Questions of each client before the time begins. Until then threads get their heaps and the
/// server comes to hold as many contexts as it ever does: on a slow machine that takes half of a
/// short run.
const WARM_UP: u64 = 100;
/// Growth of resident memory from the early mark to the end, as a share of it.
const MOST_GROWTH: f64 = 0.02;
/// In a run that is too short for memory to settle.
const MOST_GROWTH_SHORT: f64 = 0.10;
/// Runs from this length on are long.
const LONG: Duration = Duration::from_secs(600);
/// Time without an answer after which the server counts as stuck.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Bodies that are refused, with their paths.
const MALFORMED: &[(&str, &str)] = &[
    ("/v1/completions", ""),
    ("/v1/completions", "{"),
    ("/v1/completions", "[]"),
    ("/v1/completions", "{}"),
    ("/v1/completions", r#"{"prompt": 7}"#),
    ("/v1/completions", r#"{"prompt": ""}"#),
    ("/v1/completions", r#"{"prompt": "a", "max_tokens": -2}"#),
    ("/v1/completions", r#"{"prompt": "a", "temperature": "hot"}"#),
    ("/v1/completions", r#"{"prompt": "a", "n": 9}"#),
    ("/v1/completions", r#"{"prompt": "a", "policy": "none of them"}"#),
    ("/v1/completions", r#"{"prompt": [1, 2, 4000000000]}"#),
    ("/v1/completions", r#"{"prompt": "a", "context_id": "ffffffffffff"}"#),
    ("/v1/chat/completions", r#"{"messages": []}"#),
    ("/v1/chat/completions", r#"{"messages": [{"role": "nobody", "content": "a"}]}"#),
    ("/v1/chat/completions", r#"{"messages": "a", "model": "another"}"#),
    ("/v1/contexts", r#"{"text": ""}"#),
    ("/v1/contexts", r#"{"text": ["a"]}"#),
    ("/detokenize", r#"{"tokens": [-1]}"#),
    ("/nowhere", "{}"),
];

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse(args, &[], &["--minutes", "--seconds", "--clients", "--binary"])?;
    let number = |name: &str| -> Result<Option<u64>> {
        let wrong = || UsageError(format!("{name}: must be a whole number above 0"));
        let read = |text: &str| text.parse().ok().filter(|n| *n > 0).ok_or_else(wrong);
        Ok(parsed.value(name).map(read).transpose()?)
    };
    let length = match (number("--minutes")?, number("--seconds")?) {
        (Some(_), Some(_)) => {
            return Err(UsageError("either --minutes or --seconds".into()).into());
        }
        (Some(minutes), None) => Duration::from_secs(60 * minutes),
        (None, Some(seconds)) => Duration::from_secs(seconds),
        (None, None) => Duration::from_secs(1200),
    };
    let binary = match parsed.value("--binary") {
        Some(path) => PathBuf::from(path),
        None => dev_binary("longview")?,
    };
    soak(&binary, length, number("--clients")?.unwrap_or(N_CLIENTS))
}

/// The stage of CI, for whoever runs it beside others, on the program that the tests built.
pub(crate) fn stage_command() -> Result<Command> {
    let binary = dev_binary("longview")?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["soak", "--seconds", "30", "--binary"]).arg(binary).current_dir(root());
    Ok(command)
}

/// A server that ends with this.
struct Serving {
    child: Child,
    address: String,
    library: PathBuf,
}

impl Serving {
    fn start(binary: &Path) -> Result<Self> {
        let library = format!("longview-soak-{}", std::process::id());
        let library = std::env::temp_dir().join(library);
        let mut command = Command::new(binary);
        command.args(["serve", "--device", "cpu", "--port", "0", "--ctx-size", "4096"]);
        command.args(["--max-waiting", MAX_WAITING]);
        command.arg("--library").arg(&library).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| binary.display().to_string())?;
        let mut err = BufReader::new(child.stderr.take().context("its stderr")?);
        let mut line = String::new();
        while !line.contains("http://") {
            line.clear();
            ensure!(err.read_line(&mut line)? > 0, "the server ended before it listened");
        }
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        let address = address.context("its address")?.0.to_owned();
        // What it says later is read, so that it never waits for that.
        thread::spawn(move || std::io::copy(&mut err, &mut std::io::sink()));
        let serving = Self { child, address, library };
        let end = Instant::now() + TIMEOUT;
        while serving.ask("GET", "/health", "")?.0 != 200 {
            ensure!(Instant::now() < end, "it does not load");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(serving)
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let (host, n) = (&self.address, body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
             content-length: {n}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes())?;
        Ok(stream)
    }

    /// Status and body, as they came.
    fn ask(&self, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
        let (status, _, body) = self.answer(method, path, body)?;
        Ok((status, body))
    }

    /// The same of a request that may be refused because the queue is full. That is counted, and
    /// the client waits.
    fn ask_busy(
        &self,
        counts: &Counts,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<(u16, String)> {
        let began = Instant::now();
        let (status, head, body) = self.answer(method, path, body)?;
        if status == 429 {
            counts.refused.lock().expect("no panic holds it").push(began.elapsed());
            ensure!(head.to_lowercase().contains("\nretry-after: "), "429 without Retry-After");
            thread::sleep(REFUSED_PAUSE);
        }
        Ok((status, body))
    }

    /// Status, head and body.
    fn answer(&self, method: &str, path: &str, body: &str) -> Result<(u16, String, String)> {
        let mut bytes = Vec::new();
        self.send(method, path, body)?.read_to_end(&mut bytes).context("no answer in time")?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").context("half an answer")?;
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        Ok((status.context("no status")?, head.to_owned(), body.to_owned()))
    }

    fn metric(&self, name: &str) -> Result<f64> {
        let page = self.ask("GET", "/metrics", "")?.1;
        let value = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        value.and_then(|value| value.parse().ok()).with_context(|| name.to_owned())
    }

    /// Resident bytes, open files and threads of the process; zeros where the system has no
    /// `/proc`.
    fn size(&self) -> Size {
        let folder = PathBuf::from(format!("/proc/{}", self.child.id()));
        let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        let n_files = fs::read_dir(folder.join("fd")).map_or(0, |files| files.count() as u64);
        Size { kib: field("VmRSS:"), n_files, n_threads: field("Threads:") }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.library);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Size {
    kib: u64,
    n_files: u64,
    n_threads: u64,
}

/// A question with one right answer.
struct Golden {
    path: &'static str,
    body: Value,
    text: String,
}

/// What clients count.
#[derive(Default)]
struct Counts {
    asked: AtomicU64,
    malformed: AtomicU64,
    aborted: AtomicU64,
    contexts: AtomicU64,
    /// How long it took to be refused, each time.
    refused: Mutex<Vec<Duration>>,
    /// Answers that are wrong, by what is wrong with them.
    wrong: Mutex<BTreeMap<String, u64>>,
}

impl Counts {
    fn wrong(&self, what: String) {
        *self.wrong.lock().expect("no panic holds it").entry(what).or_default() += 1;
    }
}

fn soak(binary: &Path, length: Duration, n_clients: u64) -> Result<()> {
    let mut serving = Serving::start(binary)?;
    let golden = golden(&serving)?;
    let (counts, is_over) = (Counts::default(), AtomicBool::new(false));
    let mut sizes: Vec<(Duration, Size)> = Vec::new();
    thread::scope(|scope| {
        for seed in 0..n_clients {
            let (serving, golden, counts, is_over) = (&serving, &golden, &counts, &is_over);
            scope.spawn(move || client(serving, golden, counts, is_over, seed));
        }
        while counts.asked.load(Ordering::Relaxed) < WARM_UP * n_clients {
            thread::sleep(Duration::from_millis(100));
        }
        let began = Instant::now();
        while began.elapsed() < length {
            thread::sleep(Duration::from_millis(500).min(length));
            sizes.push((began.elapsed(), serving.size()));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let end = Instant::now() + TIMEOUT;
    while serving.metric("llamacpp:requests_processing")?
        + serving.metric("llamacpp:requests_deferred")?
        > 0.0
    {
        ensure!(Instant::now() < end, "requests stay behind");
        thread::sleep(Duration::from_millis(20));
    }
    ensure!(serving.child.try_wait()?.is_none(), "the server ended");
    for golden in &golden {
        check(&serving, golden, &counts);
    }
    report(&counts, &sizes, length, n_clients)
}

/// Asks what is known to be right, with nothing known to the server, and keeps the answers.
fn golden(serving: &Serving) -> Result<Vec<Golden>> {
    let key = "The pass key is 48213. Remember it. 48213 is the pass key.";
    let mut all = Vec::new();
    for (n_sentences, place) in [(30, 10), (60, 50), (120, 60)] {
        let mut text = String::from("It was a plain day.");
        for i in 0..n_sentences {
            if i == place {
                text += " ";
                text += key;
            }
            text += &format!(" The baker number {i} walked to the orchard and rested.");
        }
        let asked = format!("{text} What is the pass key? The pass key is");
        let plain = json!({ "prompt": asked, "max_tokens": 8, "stop": "." });
        let chat = json!({ "messages": [{ "role": "user", "content": asked }], "max_tokens": 8 });
        for (path, body) in [("/v1/completions", plain), ("/v1/chat/completions", chat)] {
            let mut cold = body.clone();
            cold["cache_prompt"] = json!(false);
            let (status, answer) = serving.ask("POST", path, &cold.to_string())?;
            ensure!(status == 200, "{status}: {answer}");
            let text = text_of(&answer).context("no text")?;
            all.push(Golden { path, body, text });
        }
    }
    ensure!(all.iter().any(|golden| golden.text.contains("48213")), "none found the pass key");
    Ok(all)
}

fn text_of(answer: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    let choice = &answer["choices"][0];
    choice["text"].as_str().or(choice["message"]["content"].as_str()).map(str::to_owned)
}

fn check(serving: &Serving, golden: &Golden, counts: &Counts) {
    counts.asked.fetch_add(1, Ordering::Relaxed);
    match serving.ask_busy(counts, "POST", golden.path, &golden.body.to_string()) {
        Ok((200, answer)) if text_of(&answer).as_ref() == Some(&golden.text) => {}
        Ok((429, _)) => {}
        Ok((200, _)) => counts.wrong("another answer than at the start".into()),
        Ok((status, _)) => counts.wrong(format!("a question got {status}")),
        Err(error) => counts.wrong(format!("a question got none: {error:#}")),
    }
}

fn client(serving: &Serving, golden: &[Golden], counts: &Counts, is_over: &AtomicBool, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut random = move |n: u64| {
        // Xorshift: any numbers will do, the same in each run.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    while !is_over.load(Ordering::Relaxed) {
        let one = &golden[random(golden.len() as u64) as usize];
        match random(10) {
            0 => {
                let (path, body) = MALFORMED[random(MALFORMED.len() as u64) as usize];
                counts.malformed.fetch_add(1, Ordering::Relaxed);
                match serving.ask("POST", path, body) {
                    Ok((400..=499, _)) => {}
                    other => counts.wrong(format!("{path} {body}: {other:?}")),
                }
            }
            1 => {
                let mut body = one.body.clone();
                body["stream"] = json!(true);
                body["max_tokens"] = json!(200);
                counts.aborted.fetch_add(1, Ordering::Relaxed);
                if let Ok(stream) = serving.send("POST", one.path, &body.to_string()) {
                    thread::sleep(Duration::from_millis(random(60)));
                    drop(stream);
                }
            }
            2 => context(serving, counts, random(1000)),
            3 => {
                let mut body = one.body.clone();
                body["stream"] = json!(true);
                body["logprobs"] = if one.path.contains("chat") { json!(true) } else { json!(3) };
                match serving.ask_busy(counts, "POST", one.path, &body.to_string()) {
                    Ok((200, text)) if text.contains("[DONE]") => {}
                    Ok((429, _)) => {}
                    other => counts.wrong(format!("a stream: {:?}", other.map(|(code, _)| code))),
                }
            }
            _ => check(serving, one, counts),
        }
        thread::sleep(PAUSE);
    }
}

/// A document that is kept, asked and removed.
fn context(serving: &Serving, counts: &Counts, seed: u64) {
    counts.contexts.fetch_add(1, Ordering::Relaxed);
    let sentence = |i: u64| format!(" The guest {} of house {seed} came at noon.", i * 7 % 90);
    let text: String = (0..40).map(sentence).collect();
    let new = json!({ "text": text }).to_string();
    let built = serving.ask_busy(counts, "POST", "/v1/contexts", &new);
    let id = match &built {
        Ok((200, body)) => {
            let body: Value = serde_json::from_str(body).unwrap_or_default();
            body["id"].as_str().map(str::to_owned)
        }
        // Another client removed the same document meanwhile.
        Ok((404 | 429, _)) => return,
        _ => None,
    };
    let Some(id) = id else { return counts.wrong(format!("a context: {built:?}")) };
    let asked = json!({ "prompt": " Who came?", "max_tokens": 4, "context_id": id });
    for (method, path, body) in [
        ("POST", "/v1/completions".to_owned(), asked.to_string()),
        ("DELETE", format!("/v1/contexts/{id}"), String::new()),
    ] {
        match serving.ask_busy(counts, method, &path, &body) {
            Ok((200 | 404, _)) => {}
            Ok((429, _)) if method == "POST" => {}
            other => counts.wrong(format!("{method} of a context: {other:?}")),
        }
    }
}

fn report(
    counts: &Counts,
    sizes: &[(Duration, Size)],
    length: Duration,
    n_clients: u64,
) -> Result<()> {
    // What is kept at a moment varies by whole contexts: means over a tenth of the run do less.
    let (Some(early), Some(late)) = (mean(sizes, length, 0.25), mean(sizes, length, 0.9)) else {
        bail!("nothing was measured");
    };
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!(
        "{:.1} min: {} questions, {} malformed, {} aborted, {} contexts",
        length.as_secs_f64() / 60.0,
        count(&counts.asked),
        count(&counts.malformed),
        count(&counts.aborted),
        count(&counts.contexts),
    );
    let tenths = (0..10).filter_map(|i| mean(sizes, length, f64::from(i) / 10.0));
    let tenths: Vec<String> = tenths.map(|size| (size.kib / 1024).to_string()).collect();
    println!("resident in each tenth, MiB: {}", tenths.join(" "));
    let growth = late.kib as f64 / early.kib.max(1) as f64 - 1.0;
    println!(
        "resident: {} KiB after a quarter, {} KiB at the end ({:+.2} %)",
        early.kib,
        late.kib,
        100.0 * growth
    );
    println!(
        "files {} and {}, threads {} and {}",
        early.n_files, late.n_files, early.n_threads, late.n_threads
    );
    let wrong = counts.wrong.lock().expect("no panic holds it");
    for (what, n) in wrong.iter() {
        println!("{n} times: {what}");
    }
    ensure!(wrong.is_empty(), "{} answers were wrong", wrong.values().sum::<u64>());
    let most = if length >= LONG { MOST_GROWTH } else { MOST_GROWTH_SHORT };
    ensure!(growth <= most, "memory grew by {:.1} %, {:.0} % may be", 100.0 * growth, 100.0 * most);
    let n_more = late.n_files.saturating_sub(early.n_files);
    ensure!(n_more <= 2 * n_clients, "{n_more} more files are open than early on");
    let mut refused = counts.refused.lock().expect("no panic holds it").clone();
    refused.sort_unstable();
    if let Some(p99) = refused.get(refused.len() * 99 / 100) {
        let ms = |time: &Duration| time.as_secs_f64() * 1e3;
        let middle = ms(&refused[refused.len() / 2]);
        println!("{} refused: p50 {middle:.1} ms, p99 {:.1} ms", refused.len(), ms(p99));
        ensure!(*p99 < REFUSAL, "refusals take {:.0} ms, 50 may be", ms(p99));
    }
    println!("0 restarts, all answers as at the start");
    Ok(())
}

/// The mean over a tenth of the run, from this share of it on.
fn mean(sizes: &[(Duration, Size)], length: Duration, from: f64) -> Option<Size> {
    let span = length.mul_f64(from)..=length.mul_f64((from + 0.1).min(1.1));
    let within: Vec<Size> =
        sizes.iter().filter(|(at, _)| span.contains(at)).map(|(_, size)| *size).collect();
    let n = within.len() as u64;
    let sum = |of: fn(&Size) -> u64| within.iter().map(of).sum::<u64>().checked_div(n);
    Some(Size {
        kib: sum(|size| size.kib)?,
        n_files: sum(|size| size.n_files)?,
        n_threads: sum(|size| size.n_threads)?,
    })
}
