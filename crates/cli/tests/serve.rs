//! `longview serve` as a program: how it starts, what it prints, and how a signal ends it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{command, longview};

/// A server with a free port, and the rest of what it says.
struct Serving {
    child: Child,
    err: BufReader<ChildStderr>,
    address: String,
    /// Where the page for people is.
    page: Option<String>,
    curl: String,
}

fn serve(words: &[&str], variables: &[(&str, &str)]) -> Serving {
    let mut command = command([&["serve", "--device", "cpu"], words].concat());
    if words.is_empty() {
        // A switch, as all options are: an invalid library shows that nobody opens it.
        command.env("LONGVIEW_NO_LIBRARY", "1").env("LONGVIEW_LIBRARY", "/dev/null/x");
    } else {
        command.arg("--no-library");
    }
    let mut child = command.envs(variables.iter().copied()).spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let (mut address, mut curl, mut page) = (String::new(), String::new(), None);
    while curl.is_empty() {
        let mut line = String::new();
        assert!(err.read_line(&mut line).unwrap() > 0, "it ended");
        let line = message(&line);
        if let Some((_, rest)) = line.split_once("http://") {
            address = rest.split_once('/').unwrap().0.to_owned();
        }
        if let Some((_, at)) = line.split_once("a page for people: ") {
            page = Some(at.trim().to_owned());
        }
        if line.trim_start().starts_with("curl ") {
            curl = line.trim().to_owned();
        }
    }
    Serving { child, err, address, page, curl }
}

/// What a line says, which may be the message of an object.
fn message(line: &str) -> String {
    let object = serde_json::from_str::<Value>(line).ok();
    let message = object.as_ref().and_then(|object| object["message"].as_str());
    message.unwrap_or(line).to_owned()
}

impl Serving {
    /// Sends the request of the line that it printed, once it serves.
    fn answer(&self) -> String {
        let body = self.curl.split_once("-d '").unwrap().1.trim_end_matches('\'');
        let path = self.curl.split_once(&self.address).unwrap().1.split(' ').next().unwrap();
        self.post(path, body)
    }

    /// Sends a request, once it serves.
    fn post(&self, path: &str, body: &str) -> String {
        loop {
            let mut stream = TcpStream::connect(&self.address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
            let (host, n) = (&self.address, body.len());
            write!(
                stream,
                "POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer word\r\n\
                 x-request-id: req-7\r\nconnection: close\r\ncontent-length: {n}\r\n\r\n{body}"
            )
            .unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            if !answer.starts_with("HTTP/1.1 503") {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it with a signal; what it said on the way.
    fn end(mut self, signal: &str) -> (Option<i32>, String) {
        let pid = self.child.id().to_string();
        let status = std::process::Command::new("kill").args([signal, &pid]).status();
        assert!(status.unwrap().success());
        let mut rest = String::new();
        self.err.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

/// Memory of the process in use, in MiB, as the kernel counts it.
#[cfg(target_os = "linux")]
fn resident_mib(serving: &Serving) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", serving.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Every head of every layer has its rows in a part of its own of a large reservation. A short
/// question takes small pages of these, not one of 2 MiB for each head, which is 20 MiB here.
#[cfg(target_os = "linux")]
#[test]
fn a_short_question_takes_little_of_a_large_context() {
    let serving = serve(&["-c", "131072"], &[]);
    assert!(serving.post("/tokenize", r#"{"content":"a"}"#).starts_with("HTTP/1.1 200"));
    let before = resident_mib(&serving);
    assert!(serving.answer().starts_with("HTTP/1.1 200"));
    let taken = resident_mib(&serving).saturating_sub(before);
    assert!(taken < 28, "{taken} MiB for one short question");
    serving.end("-TERM");
}

#[test]
fn the_line_that_it_prints_works_and_a_signal_ends_it_well() {
    for signal in ["-TERM", "-INT"] {
        let serving = serve(&["--port", "0"], &[]);
        let answer = serving.answer();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("48213"), "{answer}");
        assert_eq!(serving.page, Some(format!("http://{}/", serving.address)));
        let (code, said) = serving.end(signal);
        assert_eq!(code, Some(0), "{said}");
        assert!(!said.contains("pass key"), "a prompt in the log: {said}");
    }
}

/// A line is what it was when the server wrote it itself: the text, and nothing around it.
#[test]
fn what_it_logs_is_on_stderr_as_far_as_it_is_wanted() {
    let line = "unknown field in a request, ignored: no\\u{1b}such";
    for (words, is_wanted) in [
        (&["--port", "0"][..], true),
        (&["--port", "0", "--log", "warn"], false),
        (&["--port", "0", "--log", "off"], false),
    ] {
        let serving = serve(words, &[]);
        // Of a field's name a terminal would act on the second word.
        let body = r#"{ "content": "Hush", "no\u001bsuch": 1 }"#;
        let answer = serving.post("/tokenize", body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let (code, said) = serving.end("-TERM");
        assert_eq!(code, Some(0), "{said}");
        let wanted: &[&str] = if is_wanted { &[line] } else { &[] };
        assert_eq!(said.lines().collect::<Vec<_>>(), wanted, "{words:?}");
    }
    let serving = serve(&["--port", "0"], &[("LONGVIEW_LOG", "debug")]);
    assert!(serving.post("/tokenize?secret", r#"{ "content": "Hush" }"#).contains("tokens"));
    let (code, said) = serving.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    let wanted =
        "request{method=POST path=\"/tokenize\" request_id=req-7}: answered status=200 ms=";
    assert!(said.lines().any(|line| line.starts_with(wanted)), "{said}");
    assert!(["Hush", "secret", "word"].iter().all(|word| !said.contains(word)), "{said}");
    longview(["serve", "--log", "loud"]).refuses_usage(&["--log", "loud", "info"]);
}

/// A pipe holds 64 KiB that nobody reads. Who starts a server and forgets what it says must not
/// stop it, neither its answers nor its end.
#[test]
fn a_server_whose_lines_nobody_reads_goes_on() {
    let serving = serve(&["--port", "0", "--log", "debug"], &[]);
    let path = format!("/{}", "x".repeat(4096));
    let n_asked = 256;
    // A line has 700 letters of it.
    for _ in 0..n_asked {
        assert!(serving.post(&path, "").starts_with("HTTP/1.1 404"));
    }
    let pid = serving.child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let Serving { mut child, mut err, .. } = serving;
    let until = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < until, "it waits for its reader");
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut said = String::new();
    err.read_to_string(&mut said).unwrap();
    assert!(status.success() && said.contains("/xxxx"), "{status}: {said}");
    assert!(said.lines().count() < n_asked, "the pipe was never full: {} bytes", said.len());
}

/// The line of a request that was served, and the same for programs.
#[test]
fn a_served_request_is_a_line_of_text_or_an_object() {
    let serving = serve(&["--port", "0"], &[]);
    assert!(serving.answer().starts_with("HTTP/1.1 200"));
    let (code, said) = serving.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    let line = said.trim();
    assert!(line.starts_with("POST /v1/completions: 200 in "), "{said}");
    assert!(line.ends_with(" generated request_id=req-7"), "{said}");
    for (words, variables) in [
        (&["--port", "0", "--log-format", "json", "--log", "debug"][..], &[][..]),
        (&["--port", "0"], &[("LONGVIEW_LOG_FORMAT", "json"), ("LONGVIEW_LOG", "debug")]),
    ] {
        let serving = serve(words, variables);
        assert!(serving.answer().starts_with("HTTP/1.1 200"));
        let (code, said) = serving.end("-TERM");
        assert_eq!(code, Some(0), "{said}");
        assert!(!said.contains("pass key"), "a prompt in the log: {said}");
        let object = |line| serde_json::from_str::<Value>(line).expect("every line is an object");
        let lines: Vec<_> = said.lines().map(object).collect();
        for line in &lines {
            let time = line["timestamp"].as_str().unwrap();
            assert!(time.starts_with("20") && time.ends_with('Z'), "{line}");
            assert!(line["level"].is_string() && line["message"].is_string(), "{line}");
        }
        let served = lines.iter().find(|line| line["route"].is_string()).expect("its line");
        let (level, id, route) = (&served["level"], &served["request_id"], &served["route"]);
        assert_eq!(
            (level, id, route),
            (&"INFO".into(), &"req-7".into(), &"/v1/completions".into())
        );
        assert_eq!((&served["method"], &served["status"]), (&"POST".into(), &200.into()));
        assert!(served["ms"].is_u64() && served["n_predicted"].as_u64() > Some(0), "{served}");
        let answered = lines.iter().rfind(|line| line["message"] == "answered").expect("a line");
        assert_eq!(answered["span"]["request_id"], "req-7", "{answered}");
        assert_eq!((&answered["status"], answered["ms"].is_u64()), (&200.into(), true));
    }
    longview(["serve", "--log-format", "xml"]).refuses_usage(&["--log-format", "xml", "text"]);
}

/// Its name asks for the model inside the program as no name does: it has forms of its own.
#[test]
fn the_embedded_model_by_name_gets_the_line_that_it_can_answer() {
    let serving = serve(&["--port", "0", "-m", "needle"], &[]);
    assert!(serving.curl.contains("/v1/completions"), "{}", serving.curl);
    let answer = serving.answer();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("48213"), "{answer}");
    let (status, said) = serving.end("-INT");
    assert_eq!(status, Some(0), "{said}");
}

#[test]
fn options_come_from_the_environment_too() {
    let variables =
        [("LONGVIEW_PORT", "0"), ("LONGVIEW_API_KEY", "word"), ("LONGVIEW_ALIAS", "me")];
    let variables = [&variables[..], &[("LONGVIEW_NO_PAGE", "1")]].concat();
    let serving = serve(&[], &variables);
    assert_eq!(serving.page, None);
    assert!(serving.curl.contains("Authorization: Bearer KEY"), "{}", serving.curl);
    let answer = serving.answer();
    assert!(answer.contains("\"model\":\"me\""), "{answer}");
    let (code, said) = serving.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert!(!longview(["serve", "--help"]).ok().contains("word"));
}

#[test]
fn what_is_not_safe_or_does_not_go_is_refused_at_once() {
    let open = ["serve", "--no-library", "--device", "cpu", "--host", "0.0.0.0", "--port", "0"];
    longview(open).fails_with(&["--host 0.0.0.0", "--api-key"]);
    longview(["serve", "--no-library", "--api-key", ""]).fails_with(&["--api-key"]);
    longview(["serve", "--port", "99999"]).refuses_usage(&["99999"]);
    for (origin, fix) in [
        ("*", "name each as"),
        ("chat.example", "write https://chat.example"),
        ("https://chat.example/", "leave out what follows"),
    ] {
        longview(["serve", "--allow-origin", origin]).refuses_usage(&["--allow-origin", fix]);
    }
    let mut from_variable = command(["serve"]);
    from_variable.env("LONGVIEW_ALLOW_ORIGIN", "https://a.example,null");
    let done: crate::support::Done = from_variable.output().unwrap().into();
    done.refuses_usage(&["--allow-origin", "null"]);
    longview(["serve", "--parallel", "0"]).refuses_usage(&["--parallel"]);
    longview(["serve", "--host", "nowhere"]).refuses_usage(&["nowhere"]);
}

#[test]
fn several_keys_come_from_the_line_the_environment_and_a_file() {
    for (words, variables) in [
        (&["--port", "0", "--api-key", "alice:a,word"][..], &[][..]),
        (&["--port", "0"], &[("LONGVIEW_API_KEY", "word,bob:b")]),
    ] {
        let serving = serve(words, variables);
        assert!(serving.answer().starts_with("HTTP/1.1 200"));
        let (code, said) = serving.end("-TERM");
        assert_eq!(code, Some(0), "{said}");
    }
    let path = std::env::temp_dir().join(format!("longview-keys-{}", std::process::id()));
    std::fs::write(&path, "# who asks\n\nalice:a\n  bob:word  \n").unwrap();
    let file = path.to_str().unwrap();
    let serving = serve(&["--port", "0", "--api-key-file", file], &[]);
    let answer = serving.answer();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (code, said) = serving.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    let refused = |text: &str, words: &[&str]| {
        std::fs::write(&path, text).unwrap();
        longview(["serve", "--no-library", "--api-key-file", file]).fails_with(words);
    };
    refused("# no key\n", &["--api-key-file", "no key"]);
    refused("alice:a\nBob:b\n", &["line 2", "a-z"]);
    refused("alice:\n", &["line 1", "letters"]);
    refused("alice:a\nbob:a\n", &["'alice'", "'bob'"]);
    std::fs::remove_file(&path).unwrap();
}
