//! `longview serve` with a library: what a kill, a full disk and a broken file leave of it.

use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::serving::{Headers, Serving, send};
use crate::support::{command, longview};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("longview-serve-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn words(library: &Path) -> Vec<String> {
    let library = library.to_string_lossy().into_owned();
    let words = ["serve", "--device", "cpu", "--port", "0", "--ctx-size", "4096", "--library"];
    words.into_iter().map(str::to_owned).chain([library]).collect()
}

const JSON: Headers<'static> = &[("content-type", "application/json")];

fn post(serving: &Serving, path: &str, body: &Value) -> (u16, Value) {
    let (status, body) = serving.ask("POST", path, JSON, &body.to_string());
    (status, serde_json::from_str(&body).unwrap())
}

/// Files are read by a process of this very program.
#[test]
fn a_file_becomes_a_context() {
    let folder = Folder::new("file");
    let serving = Serving::start(command(words(&folder.0)));
    let post = |name: &str, file: &str, more: &str| {
        let body = format!(
            "--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n\
             {file}\r\n{more}--x--\r\n"
        );
        serving.ask(
            "POST",
            "/v1/contexts",
            &[("content-type", "multipart/form-data; boundary=x")],
            &body,
        )
    };
    let pin = "--x\r\ncontent-disposition: form-data; name=\"pin\"\r\n\r\ntrue\r\n";
    let page = "<html><p>The pass <b>key</b> is 48213.</p></html>";
    let (status, built) = post("../a page.html", page, pin);
    assert_eq!(status, 200, "{built}");
    let list = serving.ask("GET", "/v1/contexts", &[], "").1;
    assert!(list.contains("a page") && list.contains("\"pinned\":true"), "{list}");
    assert!(!list.contains("..") && !list.contains("<b>"), "{list}");
    // A long name keeps the ending, by which a file is told from plain text.
    let name = format!("{}.html", "a long name ".repeat(10));
    let [as_page, as_text] = [name.as_str(), "a name.txt"].map(|name| {
        let (status, built) = post(name, "<p>A lamp is <i>green</i>.</p>", "");
        assert_eq!(status, 200, "{built}");
        let built: Value = serde_json::from_str(&built).unwrap();
        built["n_tokens"].as_u64().unwrap()
    });
    assert!(as_page < as_text, "{as_page} tokens of a page, {as_text} with its tags");
    for (name, file) in [("a.pdf", "%PDF-1.7 junk"), ("a.bin", "\u{1}\u{2}\u{0}")] {
        let (status, refused) = post(name, file, "");
        assert!(status == 400 && refused.contains("unreadable_file"), "{status} {refused}");
    }
    let (status, refused) = serving.ask(
        "POST",
        "/v1/contexts",
        &[("content-type", "multipart/form-data; boundary=y")],
        "--x--",
    );
    assert!(status == 400 && refused.contains("invalid_form"), "{status} {refused}");
    serving.kill();
}

/// A text of its own for each `i`.
fn text(i: usize) -> String {
    let sentence = |n: usize| format!(" Guest {n} of house {i} came at noon and left again.");
    (0..60).map(sentence).collect()
}

/// Kills the server at some moment of a save, `n` times over one library.
fn kill_during_saves(n: usize) {
    let folder = Folder::new("kill");
    let (mut n_whole, mut n_open) = (0, 0);
    // From one that is whole on.
    let serving = Serving::start(command(words(&folder.0)));
    assert_eq!(post(&serving, "/v1/contexts", &json!({ "text": text(n) })).0, 200);
    serving.kill();
    for i in 0..n {
        let serving = Serving::start(command(words(&folder.0)));
        // What the kills before left: each session that is listed opens, and is right.
        let list = serving.ask("GET", "/v1/contexts", &[], "").1;
        let list: Value = serde_json::from_str(&list).unwrap();
        n_whole = 0;
        for context in list["data"].as_array().unwrap() {
            n_whole += context["sessions"].as_array().unwrap().len();
        }
        if let Some(context) = list["data"].as_array().unwrap().last() {
            let messages = json!([{ "role": "user", "content": "Who came?" }]);
            let mut body = json!({
                "context_id": context["id"], "messages": messages, "max_tokens": 6,
            });
            let (status, known) = post(&serving, "/v1/chat/completions", &body);
            assert_eq!(status, 200, "{known}");
            n_open += usize::from(known["usage"]["prompt_tokens_details"]["cached_tokens"] != 0);
            body["cache_prompt"] = json!(false);
            let cold = post(&serving, "/v1/chat/completions", &body).1;
            assert_eq!(known["choices"][0]["message"], cold["choices"][0]["message"]);
        }
        let body = json!({ "text": text(i) }).to_string();
        let stream = send(&serving.address, "POST", "/v1/contexts", JSON, &body);
        // From when the file is begun to after it has its name, which takes some 20 ms.
        let has_begun = |page: &str| page.contains("longview:context_builds_total 1");
        while !has_begun(&serving.ask("GET", "/metrics", &[], "").1) {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis((i as u64 * 7) % 60));
        let said = serving.kill();
        assert!(!said.contains("is not opened"), "{said}");
        drop(stream);
    }
    let library = folder.0.to_string_lossy().into_owned();
    // The last kill may have left a part of a file, which the next save would remove. All else is
    // as it was written.
    let said = longview(["kv", "--library", &library, "check", "--repair"]).ok();
    let is_harmless = |line: &str| {
        let kinds = ["left by a program that was killed", "not listed", "right, ", "set right"];
        kinds.iter().any(|kind| line.contains(kind))
    };
    assert!(said.lines().all(is_harmless), "{said}");
    longview(["kv", "--library", &library, "check"]).ok();
    assert!(n_open > 0 && n_whole > 0, "{n_whole} sessions, {n_open} opened");
}

/// `LONGVIEW_ROUNDS=200` kills that often, which takes minutes.
#[test]
fn a_kill_during_a_save_leaves_what_was_there_or_what_was_saved() {
    kill_during_saves(std::env::var("LONGVIEW_ROUNDS").map_or(8, |n| n.parse().unwrap()));
}

/// No file grows beyond 64 KiB: for the server that is a full disk.
#[test]
#[cfg(unix)]
fn a_full_disk_fails_the_build_and_nothing_else() {
    let folder = Folder::new("full");
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\""]);
    shell.arg(env!("CARGO_BIN_EXE_longview")).args(words(&folder.0));
    shell.stdin(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let serving = Serving::start(shell);
    let (status, refused) = post(&serving, "/v1/contexts", &json!({ "text": text(1) }));
    assert_eq!((status, &refused["error"]["code"]), (507, &json!("no_space")), "{refused}");
    let messages = json!([{ "role": "user", "content": format!("{}\n\nWho came?", text(1)) }]);
    let asked = json!({ "messages": messages, "max_tokens": 4 });
    let (status, answer) = post(&serving, "/v1/chat/completions", &asked);
    assert_eq!(status, 200, "{answer}");
    // What was read is in memory all the same.
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached > Some(256), "{answer}");
    let left = std::fs::read_dir(folder.0.join("sessions")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "half a file");
    serving.kill();
}
