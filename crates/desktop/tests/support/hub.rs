//! A hub on this machine with one model, as far as a window speaks with it.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use ring::digest::{SHA256, digest};

/// The files of the model: the embedded one, as if it were published.
const FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];
const WEIGHTS: &str = "model.safetensors";
/// Bytes of weights that come before the gate is opened.
pub const FIRST: usize = 1 << 20;

/// A hub that runs until the process ends.
pub struct Hub {
    pub endpoint: String,
    /// Requests so far.
    pub asked: Arc<AtomicUsize>,
    gate: Arc<(Mutex<bool>, Condvar)>,
    pub bytes: u64,
}

impl Hub {
    /// A hub that holds the weights back behind their first bytes, and says nothing of `org/slow`.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let (seen, held) = (Arc::clone(&asked), Arc::clone(&gate));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                seen.fetch_add(1, Ordering::SeqCst);
                let held = Arc::clone(&held);
                // A client that goes is no error.
                thread::spawn(move || drop(answer(stream, &held)));
            }
        });
        let bytes = FILES.iter().map(|name| file(name).len() as u64).sum();
        Self { endpoint, asked, gate, bytes }
    }

    /// Lets the weights come.
    pub fn open_gate(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }
}

fn file(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/needle");
    std::fs::read(std::path::Path::new(folder).join(name)).unwrap()
}

fn answer(stream: TcpStream, gate: &(Mutex<bool>, Condvar)) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut from = 0;
    for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
        if let Some(range) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse().unwrap();
        }
    }
    let mut out = stream;
    let head = |status: &str, length: usize, more: &str| {
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{more}\r\n")
    };
    if path.starts_with("/api/models/org/slow/") {
        let open = gate.0.lock().unwrap();
        drop(gate.1.wait_while(open, |open| !*open).unwrap());
    }
    if path.starts_with("/api/models/org/needle/") {
        let list = list();
        out.write_all(head("200 x", list.len(), "").as_bytes())?;
        return out.write_all(list.as_bytes());
    }
    let name = path.rsplit('/').next().unwrap_or_default();
    if !path.starts_with("/org/needle/resolve/") || !FILES.contains(&name) {
        let more = "X-Error-Code: RepoNotFound\r\n";
        return out.write_all(head("404 x", 0, more).as_bytes());
    }
    let bytes = file(name);
    let (total, rest) = (bytes.len(), &bytes[from..]);
    let (status, range) = if from > 0 {
        ("206 x", format!("Content-Range: bytes {from}-{}/{total}\r\n", total - 1))
    } else {
        ("200 x", String::new())
    };
    let more = format!("ETag: \"{}\"\r\n{range}", hash(&bytes));
    out.write_all(head(status, rest.len(), &more).as_bytes())?;
    if name != WEIGHTS {
        return out.write_all(rest);
    }
    let (now, later) = rest.split_at(FIRST.min(rest.len()));
    out.write_all(now)?;
    let open = gate.0.lock().unwrap();
    drop(gate.1.wait_while(open, |open| !*open).unwrap());
    out.write_all(later)
}

fn hash(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn list() -> String {
    let files = FILES.map(|name| {
        let bytes = file(name);
        let (size, hash) = (bytes.len(), hash(&bytes));
        format!(
            "{{\"rfilename\": \"{name}\", \"size\": {size}, \"lfs\": {{\"sha256\": \"{hash}\", \
             \"size\": {size}}}}}"
        )
    });
    format!(
        "{{\"sha\": \"{}\", \"tags\": [\"license:mit\"], \"siblings\": [{}]}}",
        "c".repeat(40),
        files.join(", ")
    )
}
