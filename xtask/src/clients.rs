//! `cargo xtask clients`: the server, asked by clients that other people wrote.
//!
//! They are packages of Python's registry, pinned in `tests/clients/requirements.txt` and installed
//! once into an environment under `target/`. The server is the program itself with the embedded
//! model, on this machine's own address.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::args::Parsed;
use crate::process::{dev_binary, root, run as run_child};
use crate::wheel::{environment, target_folder};

pub(crate) const ABOUT: &str = "the openai, anthropic and mistralai packages against `longview \
                                serve`; REQUIRE_CLIENTS=1 makes their absence fail";

/// Fatal where the packages cannot be had.
const REQUIRED: &str = "REQUIRE_CLIENTS";
/// What the server wants of its clients.
const KEY: &str = "a-key-of-tests";

/// Says thoughts of turns before, as Qwen3's template does.
const THINKS: &str = "{% for message in messages %}{{ message.role }}: \
                      {% if message.reasoning_content %}<think>{{ message.reasoning_content }}\
                      </think>{% endif %}{{ message.content }}\n{% endfor %}";

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    Parsed::parse(args, &[], &[])?;
    check(std::env::var_os(REQUIRED).is_some_and(|value| value == "1"))
}

/// The stage of CI: what cannot be had fails.
pub(crate) fn stage() -> Result<()> {
    check(true)
}

fn check(is_required: bool) -> Result<()> {
    let folder = root().join("tests/clients");
    let python = match environment("clients", &folder.join("requirements.txt")) {
        Ok(python) => python,
        Err(error) if is_required => return Err(error),
        Err(error) => {
            println!("NOT RUN: 3 clients, which cannot be installed: {error:#}");
            return Ok(());
        }
    };
    let program = dev_binary("longview")?;
    let library = target_folder()?.join("clients-library");
    let _ = fs::remove_dir_all(&library);
    let (server, address) = Serving::start(&program, None, Some(&library))?;
    let (thinker, other) = Serving::start(&program, Some(&thinking_model()?), None)?;
    let mut clients = Command::new(python);
    clients.arg(folder.join("clients.py")).args([&address, KEY, &other]);
    let examples = root().join("docs/server.md");
    let result = run_child(clients.arg(examples));
    drop((server, thinker));
    let _ = fs::remove_dir_all(&library);
    result
}

/// A folder with the embedded model whose template knows thoughts: it has none, and is held to
/// some.
fn thinking_model() -> Result<PathBuf> {
    let (from, to) = (root().join("models/needle"), target_folder()?.join("clients-thinks"));
    fs::create_dir_all(&to)?;
    for entry in fs::read_dir(&from)? {
        let path = entry?.path();
        if let Some(name) = path.file_name().filter(|_| path.is_file()) {
            fs::copy(&path, to.join(name)).with_context(|| path.display().to_string())?;
        }
    }
    fs::write(to.join("chat_template.jinja"), THINKS)?;
    Ok(to)
}

/// A server that ends with this.
pub(crate) struct Serving(pub(crate) Child);

impl Serving {
    /// Starts it and waits until it says where it listens.
    fn start(
        program: &Path,
        model: Option<&Path>,
        library: Option<&Path>,
    ) -> Result<(Self, String)> {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0", "--ctx-size", "4096"]);
        match library {
            Some(library) => command.arg("--library").arg(library),
            None => command.arg("--no-library"),
        };
        if let Some(model) = model {
            command.arg("--model").arg(model);
        }
        command.args(["--api-key", KEY]);
        Self::begin(command)
    }

    /// Starts a server and waits until it serves.
    pub(crate) fn begin(mut command: Command) -> Result<(Self, String)> {
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().context("cannot start the server")?;
        let mut serving = Self(child);
        let stderr = serving.0.stderr.take().context("its messages")?;
        let mut lines = BufReader::new(stderr).lines();
        let address = loop {
            let Some(line) = lines.next() else { bail!("the server ended before it listened") };
            let line = line?;
            let found = line
                .split_whitespace()
                .find_map(|word| word.starts_with("http://").then(|| word.split("/v1").next())?);
            if let Some(address) = found {
                break address.to_owned();
            }
        };
        // What it says further is read, so that it need not wait, and shown.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| println!("{line}")));
        wait_until_ready(&address)?;
        Ok((serving, address))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks until the model is loaded.
fn wait_until_ready(address: &str) -> Result<()> {
    use std::io::{Read, Write};
    use std::time::{Duration, Instant};
    let host = address.trim_start_matches("http://");
    let end = Instant::now() + Duration::from_secs(120);
    while Instant::now() < end {
        let mut stream = std::net::TcpStream::connect(host)?;
        let head = format!("GET /health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if answer.starts_with("HTTP/1.1 200") {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("the server did not load its model in two minutes")
}
