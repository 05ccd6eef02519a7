//! Models by name: `pull`, `ls`, `rm`, `-m NAME` and `-hf`, against a hub on this machine.

#[expect(dead_code, reason = "the library's own tests ask for more misbehaviour")]
#[path = "../../library/tests/support/server.rs"]
mod server;

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use self::server::{Fault, TestHub, noise};
use crate::support::{Done, TempFolder, command, needle};

const REPO: &str = "org/needle";
const WEIGHTS: &str = "model.safetensors";
const QUESTION: [&str; 6] = ["-p", "The pass key is 12", "-n", "4", "--device", "cpu"];

/// A hub with the embedded model, and an empty cache.
struct Models {
    hub: TestHub,
    cache: TempFolder,
}

impl Models {
    fn new() -> Self {
        let hub = TestHub::start();
        for entry in fs::read_dir(needle()).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            hub.file(REPO, name, fs::read(&path).unwrap());
        }
        Self { hub, cache: TempFolder::new() }
    }

    /// A process of this cache and hub, and of no token.
    fn prepare(&self, mut command: Command) -> Command {
        for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"] {
            command.env_remove(name);
        }
        command.env_remove("HF_HUB_OFFLINE");
        command.env("HF_HOME", self.cache.path()).env("HF_ENDPOINT", self.hub.endpoint());
        command
    }

    fn command(&self, words: &[&str]) -> Command {
        self.prepare(command(words))
    }

    fn run(&self, words: &[&str]) -> Done {
        self.command(words).output().unwrap().into()
    }

    fn repo(&self) -> PathBuf {
        self.cache.file("hub").join("models--org--needle")
    }

    /// A download that has begun to write the weights.
    fn pulling(&self) -> Child {
        let n_asked = self.ranges().len();
        let child = self.command(&["pull", REPO]).spawn().unwrap();
        let begun = |bytes: u64| {
            let entries = fs::read_dir(self.repo().join("blobs")).into_iter().flatten().flatten();
            entries
                .filter(|e| e.path().extension().is_some())
                .any(|entry| entry.metadata().is_ok_and(|data| data.len() > bytes))
        };
        let start = Instant::now();
        while self.ranges().len() == n_asked || !begun(100_000) {
            assert!(start.elapsed() < Duration::from_secs(20), "the download does not begin");
            thread::sleep(Duration::from_millis(5));
        }
        child
    }

    /// Every request for the weights asked for the rest but the first.
    fn ranges(&self) -> Vec<bool> {
        let seen = self.hub.asked_for(WEIGHTS);
        seen.iter().map(|seen| seen.headers.contains_key("range")).collect()
    }
}

fn answer(models: &Models, words: &[&str]) -> String {
    models.run(&[&["run"], words, &QUESTION].concat()).ok()
}

fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
}

fn end(child: Child) -> Done {
    let output: Output = child.wait_with_output().unwrap();
    output.into()
}

/// Asserts that a download failed once it was said how large it is.
#[track_caller]
fn assert_failed(done: &Done, parts: &[&str]) {
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{}", done.stderr);
    let (size, error) = done.stderr.split_once('\n').unwrap();
    assert!(size.contains(" file") && error.starts_with("error: "), "{}", done.stderr);
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

#[test]
fn a_model_is_pulled_listed_asked_and_removed() {
    let models = Models::new();
    let folder = needle();
    let expected = answer(&models, &["-m", folder.to_str().unwrap()]);
    models.run(&["run", "-m", REPO, "-p", "x"]).fails_with(&[
        "org/needle: is neither a folder, nor a file, nor a model that was downloaded",
        "`longview pull org/needle` downloads it",
    ]);
    let done = models.run(&["pull", REPO]);
    assert!(done.stderr.contains("org/needle: "), "{}", done.stderr);
    assert!(done.stderr.contains(" files, 8.") && done.stderr.contains(" MiB"), "{}", done.stderr);
    let path = done.ok();
    assert!(path.trim_end().ends_with(&"c".repeat(40)), "{path}");
    assert_eq!(answer(&models, &["-m", REPO]), expected);
    assert_eq!(answer(&models, &["-hf", REPO, "--offline"]), expected);
    let table = models.run(&["ls"]).ok();
    let row = table.lines().nth(1).unwrap();
    assert!(row.starts_with("org/needle  safetensors  ") && row.contains(" MiB  20"), "{table}");
    let json: serde_json::Value =
        serde_json::from_str(&models.run(&["list", "--json"]).ok()).unwrap();
    assert_eq!(json["models"][0]["name"], REPO);
    assert_eq!(json["models"][0]["path"], path.trim_end());
    assert!(json["models"][0]["bytes"].as_u64().unwrap() > 8_000_000);
    models.run(&["rm", "org/neddle"]).fails_with(&["is not here; did you mean org/needle?"]);
    let removed = models.run(&["rm", REPO]).ok();
    assert!(removed.starts_with("org/needle: removed, "), "{removed}");
    assert!(removed.contains(" files, 8.") && removed.ends_with(" MiB freed\n"), "{removed}");
    assert!(!models.repo().exists());
    let done = models.run(&["ls"]);
    assert!(done.stderr.contains("`longview pull USER/REPO` downloads one"), "{}", done.stderr);
    assert_eq!(done.ok(), "");
}

#[test]
fn one_line_downloads_and_asks() {
    let models = Models::new();
    let folder = needle();
    let words = [&["run", "-hf", REPO], &QUESTION[..]].concat();
    let expected = answer(&models, &["-m", folder.to_str().unwrap()]);
    assert_eq!(models.run(&words).ok(), expected);
    let n_asked = models.hub.seen().len();
    let done = models.run(&words);
    assert!(!done.stderr.contains(" files, "), "{}", done.stderr);
    assert_eq!(done.ok(), expected);
    assert_eq!(models.hub.seen().len(), n_asked, "what is here is not asked for");
    let plan = models.run(&["plan", "-hf", REPO, "-c", "1024", "--device", "cpu"]).ok();
    assert!(plan.starts_with("org/needle: context 1,024 tokens"), "{plan}");
}

#[test]
fn offline_nothing_is_downloaded() {
    let models = Models::new();
    for words in [&["pull", REPO, "--offline"][..], &["run", "-hf", REPO, "--offline", "-p", "x"]] {
        models.run(words).fails_with(&["org/needle: is not here", "leave out --offline"]);
    }
    let done = models.command(&["pull", REPO]).env("HF_HUB_OFFLINE", "1").output().unwrap();
    Done::from(done).fails_with(&["org/needle: is not here", "unset HF_HUB_OFFLINE"]);
    assert!(models.hub.seen().is_empty());
}

#[test]
fn ctrl_c_ends_a_download_within_a_second_and_keeps_it() {
    let models = Models::new();
    for fault in [Fault::Slow(100_000, Duration::from_millis(100)), Fault::Hang(300_000)] {
        models.hub.faults(WEIGHTS, [fault]);
        let child = models.pulling();
        let start = Instant::now();
        interrupt(&child);
        let done = end(child);
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        assert_eq!(done.code, Some(130), "{}", done.stderr);
        let words = " MiB are here; the same command goes on from there";
        assert!(done.stderr.contains("interrupted: ") && done.stderr.contains(words));
        models.run(&["run", "-m", REPO, "-p", "x"]).fails_with(&["`longview pull org/needle`"]);
    }
    let list = models.run(&["ls"]).ok();
    assert!(list.contains("org/needle  incomplete  "), "{list}");
    let done = models.run(&["pull", REPO]);
    assert!(done.stderr.contains(" of them here"), "{}", done.stderr);
    done.ok();
    assert_eq!(models.ranges(), [false, true, true]);
    answer(&models, &["-m", REPO]);
}

#[test]
fn a_download_that_is_killed_goes_on() {
    let models = Models::new();
    models.hub.faults(WEIGHTS, [Fault::Slow(100_000, Duration::from_millis(20))]);
    let mut child = models.pulling();
    child.kill().unwrap();
    child.wait().unwrap();
    models.run(&["pull", REPO]).ok();
    assert_eq!(models.ranges(), [false, true]);
    answer(&models, &["-m", REPO]);
}

#[test]
fn two_programs_download_one_model() {
    let models = Models::new();
    models.hub.faults(WEIGHTS, [Fault::Slow(300_000, Duration::from_millis(50))]);
    let first = models.pulling();
    let second = models.command(&["pull", REPO]).spawn().unwrap();
    models.run(&["rm", REPO]).fails_with(&["is being downloaded by another program"]);
    let (first, second) = (end(first), end(second));
    assert!(second.stderr.contains("another program downloads model.safetensors"));
    assert_eq!(first.ok(), second.ok());
    assert_eq!(models.ranges(), [false]);
}

#[test]
fn a_disk_without_room_is_named_and_nothing_is_lost() {
    let models = Models::new();
    // A file of at most 1 MiB: what a shell can limit, without a file system of its own. The signal
    // for it is ignored, so that the program gets an error as from a full disk.
    let mut shell = Command::new("sh");
    let line = "trap '' XFSZ; ulimit -f 2048; exec \"$0\" pull org/needle";
    shell.args(["-c", line, env!("CARGO_BIN_EXE_longview")]);
    let done = Done::from(models.prepare(shell).output().unwrap());
    assert_failed(&done, &["blobs: no room: ", " MiB more are needed; free some, or set HF_HOME"]);
    assert!(!models.repo().join("snapshots").exists());
    models.run(&["pull", REPO]).ok();
    assert_eq!(models.ranges(), [false, true]);
    answer(&models, &["-m", REPO]);
}

#[test]
fn the_token_is_in_no_output() {
    let models = Models::new();
    let secret = "hf_test_secret_word";
    models.hub.private(REPO, secret, true);
    let run = |token: &str| {
        let mut command = models.command(&["pull", REPO]);
        let output = command.env("HF_TOKEN", token).env("RUST_LOG", "trace").output();
        Done::from(output.unwrap())
    };
    let done = run("hf_other_secret_word");
    assert!(!done.stderr.contains("secret"), "{}", done.stderr);
    done.fails_with(&["org/needle: is gated; accept its terms at ", "/org/needle, with the"]);
    models.run(&["pull", REPO]).fails_with(&["is gated", "then set HF_TOKEN"]);
    models.hub.faults(WEIGHTS, [Fault::Cut(1000)]);
    let done = run(secret);
    assert!(done.stderr.contains("; attempt 2 of 5 in 1 s"), "{}", done.stderr);
    assert!(!done.stderr.contains("secret"), "{}", done.stderr);
    done.ok();
    for seen in models.hub.seen().iter().filter(|seen| seen.is_store) {
        assert!(!seen.headers.contains_key("authorization"), "{seen:?}");
    }
}

#[test]
fn what_the_hub_does_not_have_is_named() {
    let models = Models::new();
    models.hub.file("org/quants", "m-Q4_0.gguf", noise(2000));
    models.run(&["pull", "org/nowhere"]).fails_with(&["org/nowhere: there is no such model at"]);
    models.run(&["pull", "org/needle@v9"]).fails_with(&["org/needle: has no revision v9"]);
    models.run(&["pull", "org/quants:Q8_0"]).fails_with(&["quantisation Q8_0; it has Q4_0"]);
    models.run(&["run", "-hf", "org/quants:Q2_K", "-p", "x"]).fails_with(&["it has Q4_0"]);
    let file = ["run", "-hf", "org/quants", "-hff", "other.gguf", "-p", "x"];
    models.run(&file).fails_with(&["has no file other.gguf; it has m-Q4_0.gguf"]);
    models.hub.faults("m-Q4_0.gguf", [Fault::Flipped]);
    assert_failed(&models.run(&["pull", "org/quants"]), &["m-Q4_0.gguf: has the hash "]);
}

#[test]
fn names_that_are_none_are_wrong_usage() {
    let models = Models::new();
    for (words, parts) in [
        (&["pull", "../../etc"][..], &["<NAME>", "more than one `/`"][..]),
        (&["pull", "a/../b"], &["more than one `/`"]),
        (&["pull", "a/b\u{1b}[31m"], &["characters other than"]),
        (&["pull"], &["<NAME>"]),
        (&["rm"], &["<NAME>"]),
        (&["rm", "/"], &["a part of it is empty"]),
        (&["rm", "a/b", ".."], &["contains `--` or `..`", "USER/REPO"]),
        (&["ls", "x"], &["unexpected argument 'x'"]),
        (&["run", "-hf", "a/b/c", "-p", "x"], &["--hf-repo", "more than one `/`"]),
        (&["run", "-hf", "a/b", "-m", "x", "-p", "x"], &["cannot be used with"]),
        (&["run", "-hft", "hf_x", "-m", "x", "-p", "x"], &["use the variable HF_TOKEN"]),
        (&["run", "-mu", "x", "-p", "x"], &["use -hf USER/REPO"]),
    ] {
        let done = models.run(words);
        assert!(!done.stderr.contains('\u{1b}'), "{:?}", done.stderr);
        done.refuses_usage(parts);
    }
    let done = models.command(&["pull", REPO]).env("HF_ENDPOINT", "hub").output().unwrap();
    Done::from(done).fails_with(&["HF_ENDPOINT: must be the address of a hub"]);
}

#[test]
fn a_hub_elsewhere_is_reached_through_the_proxy() {
    let models = Models::new();
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let first = thread::spawn(move || {
        let (mut stream, _) = proxy.accept().unwrap();
        let mut bytes = [0; 20];
        stream.read_exact(&mut bytes).unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    });
    let mut command = models.command(&["pull", REPO]);
    for name in ["NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy", "https_proxy"] {
        command.env_remove(name);
    }
    // A name that no server has.
    command.env("HF_ENDPOINT", "https://hub.invalid").env("HTTPS_PROXY", address);
    let mut child = command.spawn().unwrap();
    assert_eq!(first.join().unwrap(), "CONNECT hub.invalid:");
    child.kill().unwrap();
    child.wait().unwrap();
}
