//! Real servers: `longview serve` on this machine, each on a processor of its own, and a client.

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use longview_eval::filler::Filler;
use serde_json::{Value, json};

/// Time without an answer after which a server counts as stuck.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Questions so far: no two are alike, so that none is known from the last one.
static N_ASKED: AtomicU64 = AtomicU64::new(0);

/// The next question; all have about as many tokens.
fn question() -> String {
    let n = N_ASKED.fetch_add(1, Ordering::Relaxed) % 900 + 100;
    format!("{n}: what does the text say about the lighthouse and the old harbour?")
}

/// How servers are started.
#[derive(Clone, Debug)]
pub struct Start {
    /// The `longview` program that serves.
    pub binary: PathBuf,
    /// A model; none: that of the program.
    pub model: Option<PathBuf>,
    /// `--ctx-size`.
    pub ctx_size: u64,
    /// `--keep`.
    pub keep: u64,
    /// Added to the priority, where others use the machine.
    pub nice: i32,
}

impl Start {
    /// The words of the command, without program, port and library.
    pub fn words(&self) -> Vec<String> {
        let mut words = vec!["serve".to_owned()];
        if let Some(model) = &self.model {
            words.extend(["-m".to_owned(), model.display().to_string()]);
        }
        let options = format!(
            "--device cpu --threads 1 --ctx-size {} --keep {} --no-page",
            self.ctx_size, self.keep
        );
        words.extend(options.split(' ').map(str::to_owned));
        words
    }

    /// As one would type it, without paths.
    pub fn line(&self) -> String {
        let words = self.words();
        let name = |word: &String| match word.rsplit_once('/') {
            Some((_, name)) => name.to_owned(),
            None => word.clone(),
        };
        let words: Vec<_> = words.iter().map(name).collect();
        format!("taskset -c CORE nice -n {} longview {}", self.nice, words.join(" "))
    }
}

/// A server that ends with this.
pub struct Serving {
    child: Child,
    /// Where it listens.
    pub address: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serving {
    /// Starts one that computes on processor `core` and keeps contexts in `library`.
    ///
    /// # Errors
    /// Where it does not serve.
    pub fn start(start: &Start, core: usize, library: &Path) -> Result<Self> {
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string(), "nice", "-n", &start.nice.to_string()]);
        command.arg(&start.binary).args(start.words()).args(["--port", "0"]);
        command.arg("--library").arg(library).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("taskset (util-linux) starts servers")?;
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
        let serving = Self { child, address };
        let end = Instant::now() + Duration::from_secs(60);
        while get(&serving.address, "/health").is_err() {
            ensure!(Instant::now() < end, "it does not load");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(serving)
    }
}

/// What a client saw of an answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Seconds from sending to the first token.
    pub ttft: f64,
    /// When each token came, in seconds.
    pub tokens: Vec<f64>,
    /// When the stream ended.
    pub end: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Those that were known.
    pub cached_tokens: u64,
}

/// A context of a server.
#[derive(Clone, Debug)]
pub struct Read {
    /// Its id.
    pub id: String,
    /// Tokens that were read for it.
    pub tokens: u64,
    /// Seconds until the server said so.
    pub seconds: f64,
}

/// Reads a text into a context.
///
/// # Errors
/// Where the server refuses.
pub fn read(address: &str, text: &str) -> Result<Read> {
    let began = Instant::now();
    let answer = post(address, "/v1/contexts", &json!({ "text": text }))?;
    let seconds = began.elapsed().as_secs_f64();
    let id = answer["id"].as_str().context("no id")?.to_owned();
    Ok(Read { id, tokens: number(&answer, "/n_tokens")?, seconds })
}

/// Asks about a context, for exactly `n` tokens.
///
/// # Errors
/// Where the server refuses, or the stream ends before its end.
pub fn ask(address: &str, id: &str, n: u64) -> Result<Answer> {
    let body = json!({
        "messages": [{ "role": "user", "content": question() }],
        "context_id": id, "max_tokens": n, "ignore_eos": true, "temperature": 0,
        "stream": true, "stream_options": { "include_usage": true },
    });
    let began = Instant::now();
    let stream = send(address, "POST", "/v1/chat/completions", &body.to_string())?;
    let mut answer = Answer::default();
    for line in BufReader::new(stream).lines() {
        let line = line.context("the stream broke")?;
        let now = began.elapsed().as_secs_f64();
        if line == "data: [DONE]" {
            answer.end = now;
            return Ok(answer);
        }
        let Some(event) = line.strip_prefix("data: ") else { continue };
        let event: Value = serde_json::from_str(event).context("an event")?;
        if let Some(error) = event.get("error") {
            bail!("{error}");
        }
        if event.pointer("/choices/0/delta/content").and_then(Value::as_str).is_some() {
            if answer.tokens.is_empty() {
                answer.ttft = now;
            }
            answer.tokens.push(now);
        }
        if event["usage"].is_object() {
            answer.prompt_tokens = number(&event, "/usage/prompt_tokens")?;
            answer.cached_tokens = number(&event, "/usage/prompt_tokens_details/cached_tokens")?;
        }
    }
    bail!("the stream ended before its end")
}

/// Bytes of a context's session on the disk, and of keys, values and index in memory.
///
/// # Errors
/// Where the server does not say.
pub fn bytes(address: &str, id: &str) -> Result<(u64, u64)> {
    let context = get(address, &format!("/v1/contexts/{id}"))?;
    let body = json!({
        "messages": [{ "role": "user", "content": question() }],
        "context_id": id, "max_tokens": 4, "longview": { "passages": true },
    });
    let answer = post(address, "/v1/chat/completions", &body)?;
    let in_memory =
        number(&answer, "/longview/host_bytes")? + number(&answer, "/longview/device_bytes")?;
    Ok((number(&context, "/sessions/0/bytes")?, in_memory))
}

/// Tokens of a text.
///
/// # Errors
/// Where the server does not say.
pub fn count(address: &str, text: &str) -> Result<u64> {
    let answer = post(address, "/tokenize", &json!({ "content": text }))?;
    Ok(answer["tokens"].as_array().context("no tokens")?.len() as u64)
}

/// Sessions that the server opened from its disk so far.
///
/// # Errors
/// Where the server does not say.
pub fn opened(address: &str) -> Result<u64> {
    let page = text_of(send(address, "GET", "/metrics", "")?)?;
    let name = "longview:contexts_restored_total ";
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
    value.context("no count of opened sessions")
}

/// A text of about so many words, which follows from the seed.
pub fn text(n_words: u64, seed: u64) -> String {
    let mut filler = Filler::new(seed);
    let (mut text, mut n) = (format!("Text number {seed}."), 0);
    while n < n_words {
        let sentence = filler.sentence();
        n += sentence.split_whitespace().count() as u64;
        text = text + " " + &sentence;
    }
    text
}

/// A folder that ends with this.
pub struct Folder(PathBuf);

impl Folder {
    /// An empty one.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn number(value: &Value, pointer: &str) -> Result<u64> {
    let found = value.pointer(pointer).and_then(Value::as_u64);
    found.with_context(|| format!("no {pointer} in {value}"))
}

fn get(address: &str, path: &str) -> Result<Value> {
    whole(send(address, "GET", path, "")?)
}

fn post(address: &str, path: &str, body: &Value) -> Result<Value> {
    whole(send(address, "POST", path, &body.to_string())?)
}

/// HTTP/1.0, so that no body comes in chunks.
fn send(address: &str, method: &str, path: &str, body: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let n = body.len();
    let head =
        format!("{method} {path} HTTP/1.0\r\nhost: {address}\r\ncontent-length: {n}\r\n\r\n");
    stream.write_all((head + body).as_bytes())?;
    Ok(stream)
}

fn whole(stream: TcpStream) -> Result<Value> {
    let body = text_of(stream)?;
    serde_json::from_str(&body).with_context(|| body)
}

/// The body of an answer.
fn text_of(mut stream: TcpStream) -> Result<String> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).context("no answer in time")?;
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").context("half an answer")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status == "200", "{status}: {body}");
    Ok(body.to_owned())
}
