//! A server of the embedded model, and a client that can also misbehave.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use longview_core::SplitMix64;
use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{Draft, Engine, EngineOptions, PrefillMode};
use longview_library::documents::Documents;
use longview_model::chat::ChatTemplate;
use longview_model::folder::ModelFolder;
use longview_model::tokenizer::SpecialTokens;
use longview_needles::facts::{Fact, facts};
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset};
use longview_server::{LoadError, ModelFacts, Server, ServerOptions};
use serde_json::{Value, json};

/// The context of the tests' servers.
pub const CTX_SIZE: usize = 4096;

/// How long a test waits for what must come. Alone nothing takes a tenth of it; beside compilers on
/// two slow cores, 20 s have been too short.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A server that ends with the test.
pub struct Served {
    server: Option<Server>,
    pub address: SocketAddr,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
            let result = server.wait();
            if !std::thread::panicking() {
                result.expect("the server ends well");
            }
        }
    }
}

fn folder() -> ModelFolder {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/needle");
    ModelFolder::open(Path::new(path)).expect("the embedded model")
}

/// Starts a server and waits until it serves.
pub fn serve(options: ServerOptions) -> Served {
    serve_with(options, 128, Duration::ZERO)
}

/// The same with chunks of `chunk_size` tokens; loading takes `delay` longer.
pub fn serve_with(options: ServerOptions, chunk_size: usize, delay: Duration) -> Served {
    let served = begin(options, chunk_size, delay);
    served.wait_until_ready();
    served
}

/// Starts a server whose model has another chat template.
pub fn serve_template(template: &str) -> Served {
    serve_template_with(template, ServerOptions::default())
}

/// The same with other options.
pub fn serve_template_with(template: &str, options: ServerOptions) -> Served {
    let special = SpecialTokens::default();
    let chat = ChatTemplate::compile(template, "test.jinja", special).expect("a template");
    let model = ModelFacts { chat: Some(chat), ..facts_of_model() };
    let served = begin_model(model, options, 128, Duration::ZERO);
    served.wait_until_ready();
    served
}

/// Starts a server and does not wait.
pub fn begin(options: ServerOptions, chunk_size: usize, delay: Duration) -> Served {
    begin_model(facts_of_model(), options, chunk_size, delay)
}

/// The same for a model of which something else is known.
pub fn begin_model(
    model: ModelFacts,
    options: ServerOptions,
    chunk_size: usize,
    delay: Duration,
) -> Served {
    let engine = EngineOptions { chunk_size, ..EngineOptions::default() };
    begin_engine(model, options, engine, delay)
}

/// The same with an engine that is set up in another way.
pub fn begin_engine(
    model: ModelFacts,
    options: ServerOptions,
    engine: EngineOptions,
    delay: Duration,
) -> Served {
    let device = move || {
        std::thread::sleep(delay);
        let cpu = CpuOptions { threads: 1, ..CpuOptions::default() };
        Ok(Arc::new(CpuBackend::new(cpu)?))
    };
    begin_device(model, options, engine, device)
}

/// The same on any device.
pub fn begin_device<B: Backend + 'static>(
    model: ModelFacts,
    options: ServerOptions,
    engine: EngineOptions,
    device: impl FnOnce() -> Result<Arc<B>, LoadError> + Send + 'static,
) -> Served {
    let folder = folder();
    let policy = model.policy.clone();
    let engine_options =
        EngineOptions { ctx_size: CTX_SIZE, max_sequences: options.n_slots, ..engine };
    let options = ServerOptions { port: 0, ..options };
    let load = move || Ok(Engine::load(device()?, folder, engine_options, &policy)?);
    let server = Server::start(options, model, load).expect("it starts");
    Served { address: server.address(), server: Some(server) }
}

/// Lines of the servers that `start` starts, and of no others, with what it returns.
pub fn logged<T>(start: impl FnOnce() -> T) -> (T, Lines) {
    let lines = Lines::default();
    let to = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .without_time()
        .with_level(false)
        .with_target(false)
        .with_ansi(false)
        .with_writer(move || to.clone())
        .finish();
    LazyLock::force(&SECOND);
    (tracing::subscriber::with_default(subscriber, start), lines)
}

/// While there is one subscriber alone, `tracing` asks that of the thread which first comes to a
/// place whether anybody listens there, and remembers the answer. Where a server that nobody
/// listens to came first, nobody would hear the others. With a second one all of them are asked.
static SECOND: LazyLock<tracing::Dispatch> =
    LazyLock::new(|| tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new()));

/// Lines that servers have logged.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    pub fn all(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is known of the embedded model.
pub fn facts_of_model() -> ModelFacts {
    let folder = folder();
    ModelFacts {
        names: vec!["needle".to_owned()],
        words: "needle".to_owned(),
        is_embedded: true,
        eos_ids: folder.eos_token_ids(),
        tokenizer: folder.tokenizer.expect("a tokenizer"),
        chat: folder.chat,
        generation: folder.generation,
        n_layers: folder.config.n_layers,
        n_kv_heads: folder.config.n_kv_heads,
        vocab_size: folder.config.vocab_size,
        ctx_size: CTX_SIZE,
        policy: PolicyOptions::new(Preset::DEFAULT),
        draft: Draft::Lookup,
        prefill: PrefillMode::Exact,
    }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The events of a stream, without OpenAI's mark.
    pub fn events(&self) -> Vec<Value> {
        let lines = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.filter(|l| *l != "[DONE]").map(|l| serde_json::from_str(l).expect("JSON")).collect()
    }

    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Served {
    pub fn wait_until_ready(&self) {
        let end = Instant::now() + PATIENCE;
        while self.get("/health").status != 200 {
            assert!(Instant::now() < end, "it loads");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "")
    }

    /// Where events of what is kept are heard, and where missed ones are asked for.
    #[cfg(feature = "kv-events")]
    pub fn kv_events(&self) -> (SocketAddr, Option<SocketAddr>) {
        let server = self.server.as_ref().expect("a server");
        server.kv_events().expect("events")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[], &body.to_string())
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.ask_bytes(method, path, headers, body.as_bytes())
    }

    /// The same with a body that need not be a text.
    pub fn ask_bytes(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let mut stream = self.send_bytes(method, path, headers, body);
        read_answer(&mut stream)
    }

    /// Sends a request and leaves the answer where it is.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TcpStream {
        self.send_bytes(method, path, headers, body.as_bytes())
    }

    fn send_bytes(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TcpStream {
        let mut stream = self.connect();
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head += &format!("host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("content-length: {}\r\n\r\n", body.len());
        // A server that refuses early may have closed already.
        let _ = stream.write_all(&[head.as_bytes(), body].concat());
        stream
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        stream
    }

    /// A gauge or counter.
    pub fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").body;
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {page}")).parse().expect("a number")
    }

    /// Waits until a gauge has a value.
    pub fn wait_for(&self, name: &str, value: f64) {
        let end = Instant::now() + PATIENCE;
        while self.metric(name) != value {
            assert!(Instant::now() < end, "{name} becomes {value}, not {}", self.metric(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Reads until the server closes.
pub fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // One that resets after its answer has given it all the same.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked { unchunked(body) } else { body.to_owned() };
    Answer { status, head: head.to_owned(), body }
}

fn unchunked(mut body: &str) -> String {
    let mut all = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        let Some(piece) = rest.get(..size).filter(|piece| !piece.is_empty()) else { break };
        all += piece;
        body = rest.get(size + 2..).unwrap_or_default();
    }
    all
}

/// A text with facts in it, and the facts.
pub fn document(n_sentences: usize, seed: u64) -> (String, Vec<Fact>) {
    let mut rng = SplitMix64::new(seed);
    let facts = facts(3, &mut rng);
    let mut text = String::from("It was a plain day.");
    for i in 0..n_sentences {
        if let Some(at) = (0..3).find(|at| i == (at + 1) * n_sentences / 4) {
            text += &facts[at].statement;
        }
        text += &format!(
            " The {} walked to the {} and rested.",
            WORDS[(i * 7 + seed as usize) % 6],
            WORDS[(i * 5) % 6]
        );
    }
    (text, facts)
}

const WORDS: [&str; 6] = ["baker", "lantern", "orchard", "meadow", "teacher", "stable"];

/// A request to go on from a document with a question.
pub fn question(text: &str, fact: &Fact) -> Value {
    json!({ "prompt": format!("{text}{}", fact.question), "max_tokens": 12, "stop": "." })
}

/// What the answer to a fact's question is without its point.
pub fn expected(fact: &Fact) -> &str {
    fact.answer.trim_end_matches('.')
}

/// A folder for a library that goes with the test.
pub struct Library(PathBuf);

impl Library {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("longview-server-test-{}-{n}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub fn options(&self) -> ServerOptions {
        let documents = Documents::open(&self.0).expect("a library");
        ServerOptions { documents: Some(documents), ..ServerOptions::default() }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
