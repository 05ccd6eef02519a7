//! Machines that share documents through a real S3 server: the command line, two servers, and two
//! servers behind nginx, of which one is killed.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use longview_library::documents::Documents;
use longview_library::shared::{Published, Share, ShareKey};
use longview_object_server::{BUCKET, Fault, ObjectServer, Proxy, files_below};
use serde_json::{Value, json};

use crate::nginx::Nginx;
use crate::support::serving::{Headers, Serving, ask, send};
use crate::support::{TempFolder, command};

const KEY: &str = "the key of all machines of a test";

/// `longview` with these words on a machine whose library is `library`.
fn machine(storage: std::net::SocketAddr, words: &[&str]) -> Command {
    let mut command = command(words);
    command.envs(ObjectServer::environment(storage));
    command.env("LONGVIEW_SHARE", format!("s3://{BUCKET}/team")).env("LONGVIEW_SHARE_KEY", KEY);
    command
}

fn words_of(library: &str) -> [&str; 7] {
    ["serve", "--device", "cpu", "--port", "0", "--library", library]
}

/// A server of such a machine.
fn serving(storage: std::net::SocketAddr, library: &str, more: &[&str]) -> Serving {
    serving_with(storage, library, &[&["--ctx-size", "4096"], more].concat())
}

/// The same with a context that the options say.
fn serving_with(storage: std::net::SocketAddr, library: &str, options: &[&str]) -> Serving {
    Serving::start(machine(storage, &[&words_of(library)[..], options].concat()))
}

fn metric(serving: &Serving, name: &str) -> f64 {
    let page = serving.ask("GET", "/metrics", &[("x-api-key", "one")], "").1;
    let value = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    value.unwrap_or_else(|| panic!("{name}: {page}")).parse().unwrap()
}

fn wait_for(serving: &Serving, name: &str, value: f64) {
    let end = Instant::now() + Duration::from_secs(30);
    while metric(serving, name) != value {
        assert!(Instant::now() < end, "{name} becomes {value}, not {}", metric(serving, name));
        thread::sleep(Duration::from_millis(10));
    }
}

fn post(address: &str, path: &str, headers: Headers<'_>, body: &Value) -> Value {
    let (status, body) = ask(address, "POST", path, headers, &body.to_string());
    assert_eq!(status, 200, "{body}");
    // What nginx passes on in chunks stands between their lengths.
    let body = body.find('{').zip(body.rfind('}')).map(|(at, end)| &body[at..=end]).unwrap();
    serde_json::from_str(body).unwrap()
}

/// A text of more than a thousand tokens, with a fact in it.
fn text(i: usize) -> String {
    text_of(90, i)
}

fn text_of(n_guests: usize, i: usize) -> String {
    let sentence = |n: usize| format!(" Guest {n} of house {i} came at noon and left again.");
    let guests = |range: std::ops::Range<usize>| range.map(sentence).collect::<String>();
    let at = n_guests * 5 / 9;
    format!("{} The pass key is 48213.{}", guests(0..at), guests(at..n_guests))
}

const CHAT: &str = "/v1/chat/completions";

fn question(id: &Value) -> Value {
    let messages = json!([{ "role": "user", "content": "The pass key is" }]);
    json!({ "context_id": id, "messages": messages, "max_tokens": 6 })
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn the_command_line_opens_what_another_machine_built() {
    let (storage, folder) = (ObjectServer::start().unwrap(), TempFolder::new());
    let file = folder.write("book.txt", text(1));
    let (a, b) = (folder.file("a"), folder.file("b"));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    let run = |words: &[&str]| {
        let done = machine(storage.address(), words).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        (done.status.code(), String::from_utf8(done.stdout).unwrap(), said)
    };
    let device = ["--device", "cpu"];
    let build = ["kv", "--library", a, "build", file.to_str().unwrap(), "-m", "needle"];
    let (code, _, said) = run(&[&build[..], &device].concat());
    assert!(code == Some(0) && said.contains(" shared in "), "{said}");
    let (code, answer, said) =
        run(&[&["kv", "--library", b, "open", "book", "The pass key is", "-n", "8"][..], &device]
            .concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("tokens came from shared storage"), "{said}");
    assert!(!said.contains("is read now"), "{said}");
    assert!(!answer.trim().is_empty(), "{answer}");
    // Gone for who does not have it yet.
    assert_eq!(run(&["kv", "--library", a, "rm", "book"]).0, Some(0));
    let c = folder.file("c");
    let (code, _, said) = run(&["kv", "--library", c.to_str().unwrap(), "open", "book", "x"]);
    assert!(code == Some(1) && said.contains("no such document"), "{said}");
    // A storage that refuses is a warning; what is here is asked.
    storage.set_expired(true);
    let (code, _, said) =
        run(&[&["kv", "--library", b, "open", "book", "The pass key is"][..], &device].concat());
    assert_eq!(code, Some(0), "{said}");
    let rest = ["kv", "--library", a, "build", file.to_str().unwrap(), "-m", "needle"];
    let (code, _, said) = run(&[&rest[..], &device].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("not shared") && said.contains("expired"), "{said}");
}

#[test]
fn what_one_server_built_another_answers_without_reading() {
    let (storage, folder) = (ObjectServer::start().unwrap(), TempFolder::new());
    let network = Proxy::to(storage.address()).unwrap();
    let keys = folder.write("keys", "alice:one\nbob:two\n");
    let more = ["--api-key-file", keys.to_str().unwrap()];
    let library = |name: &str| folder.file(name).to_str().unwrap().to_owned();
    let a = serving(storage.address(), &library("a"), &more);
    let b = serving(network.address(), &library("b"), &more);
    let (alice, bob) = ([("x-api-key", "one")], [("x-api-key", "two")]);

    let text = text(2);
    let built = post(&a.address, "/v1/contexts", &alice, &json!({ "text": text, "name": "t" }));
    let (id, n_tokens) = (&built["id"], built["n_tokens"].as_u64().unwrap());
    wait_for(&a, "longview:shared_sent_total", 1.0);
    let here = post(&a.address, CHAT, &alice, &question(id));

    let there = post(&b.address, CHAT, &alice, &question(id));
    assert!(cached(&there) >= n_tokens - 1, "{there}");
    assert_eq!(there["choices"], here["choices"]);
    assert_eq!(metric(&b, "longview:shared_fetched_total"), 1.0);
    assert!(metric(&b, "llamacpp:prompt_tokens_total") < 20.0);
    // Its library has it now.
    let end = Instant::now() + Duration::from_secs(20);
    while !ask(&b.address, "GET", "/v1/contexts/t", &alice, "").1.contains("\"n_tokens\"") {
        assert!(Instant::now() < end, "it is kept");
        thread::sleep(Duration::from_millis(10));
    }
    // Another key knows neither the context nor what was read.
    let refused = ask(&b.address, "POST", CHAT, &bob, &question(id).to_string());
    assert!(refused.0 == 404 && refused.1.contains("context_not_found"), "{refused:?}");
    let again = json!({ "text": text });
    assert_eq!(cached(&post(&b.address, "/v1/contexts", &bob, &again)), 0);
    assert!(cached(&post(&b.address, "/v1/contexts", &alice, &again)) >= n_tokens - 1);

    // A storage that does not answer costs the answer nothing but the reading.
    network.set(Fault::Closed);
    let start = Instant::now();
    let other = json!({ "text": self::text(3) });
    // (But for what both texts begin with.)
    assert!(cached(&post(&b.address, "/v1/contexts", &alice, &other)) < 20);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    network.set(Fault::None);

    // Removed at one, it is gone from what is shared.
    let path = format!("/v1/contexts/{}", id.as_str().unwrap());
    assert_eq!(ask(&a.address, "DELETE", &path, &alice, "").0, 200);
    assert_eq!(ask(&a.address, "GET", &path, &alice, "").0, 404);
    assert_eq!(metric(&a, "vllm:num_requests_running"), 0.0);
    assert_eq!(metric(&a, "vllm:kv_cache_usage_perc"), 0.0);
}

/// Copies what a library has to the storage, in parts that are small beside a layer.
fn publish(storage: &ObjectServer, library: &str, part_bytes: u64) {
    let environment = ObjectServer::environment(storage.address());
    let key = ShareKey::new(KEY).unwrap();
    let share = Share::open_with(&format!("s3://{BUCKET}/team"), &key, &environment).unwrap();
    let (share, documents) =
        (share.with_part_bytes(part_bytes), Documents::open(Path::new(library)).unwrap());
    let all = documents.list().unwrap();
    let sessions = all.iter().flat_map(|d| d.sessions.iter().map(|session| (d.id, session)));
    let sent = sessions.map(|(id, session)| share.publish(&documents, id, session).unwrap());
    assert!(matches!(sent.collect::<Vec<_>>()[..], [Published::Sent(_)]));
}

/// The parts of the one session of a storage, in their order.
fn parts(storage: &ObjectServer) -> Vec<PathBuf> {
    let mut parts = files_below(&storage.folder());
    parts.retain(|path| path.to_string_lossy().contains("/parts/"));
    let number = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().parse::<usize>();
    parts.retain(|path| number(path).is_ok());
    parts.sort_by_key(|path| number(path).unwrap());
    parts
}

#[test]
fn a_question_is_begun_while_its_document_comes() {
    // The policy that servers have by default makes no index up to 8,192 tokens, and such a
    // document would wait for all layers. `clusterkv` makes one of any.
    let options = ["--policy", "clusterkv", "--ctx-size", "4096"];
    let Coming { storage, network, folder, id, here } =
        begins_while_it_comes(&options, &text(6), 32 << 10);

    // A part of the last layer that is not as it was written: nothing that was begun is used.
    let parts = parts(&storage);
    let damaged = &parts[parts.len() * 9 / 10];
    let mut bytes = fs::read(damaged).unwrap();
    bytes[100] ^= 1;
    fs::write(damaged, &bytes).unwrap();
    let library = folder.file("c").to_str().unwrap().to_owned();
    let reads = serving_with(network.address(), &library, &options);
    let answer = post(&reads.address, CHAT, &[], &question(&id));
    assert_eq!(answer["choices"], here["choices"]);
    assert_eq!(cached(&answer), 0, "it was read");
    assert_eq!(metric(&reads, "longview:shared_fetched_total"), 0.0);
    assert_eq!(metric(&reads, "longview:shared_missed_total"), 1.0);
    assert_eq!(metric(&reads, "longview:shared_begun_layers_total"), 0.0);
    let listed = Documents::open(Path::new(&library)).unwrap().list().unwrap();
    assert!(listed.iter().all(|document| document.sessions.is_empty()));
}

#[test]
fn a_question_about_a_long_document_is_begun_while_it_comes_by_default() {
    let coming = begins_while_it_comes(&["--ctx-size", "16384"], &text_of(660, 7), 256 << 10);
    let n_tokens = cached(&coming.here);
    assert!(n_tokens > 8_192, "{n_tokens} tokens");
}

/// What came to a server in [`begins_while_it_comes`].
struct Coming {
    storage: ObjectServer,
    network: Proxy,
    folder: TempFolder,
    /// The document, and the answer of the server that read it.
    id: Value,
    here: Value,
}

/// A server with these options begins a question about this text while its session comes, in parts
/// of so many bytes.
fn begins_while_it_comes(options: &[&str], text: &str, part_bytes: u64) -> Coming {
    let (storage, folder) = (ObjectServer::start().unwrap(), TempFolder::new());
    let network = Proxy::to(storage.address()).unwrap();
    let library = |name: &str| folder.file(name).to_str().unwrap().to_owned();
    let alone = Serving::start(command([&words_of(&library("a"))[..], options].concat()));
    let built = post(&alone.address, "/v1/contexts", &[], &json!({ "text": text }));
    let (id, n_tokens) = (&built["id"], built["n_tokens"].as_u64().unwrap());
    publish(&storage, &library("a"), part_bytes);
    let here = post(&alone.address, CHAT, &[], &question(id));

    // A layer is a fifth of the file, and what is on its way at once a small part of one.
    let parts = parts(&storage);
    let size: u64 = parts.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(parts.len() > 80, "{} parts", parts.len());
    network.set(Fault::Slow { bytes_per_s: size / 3 });
    let slow = serving_with(network.address(), &library("b"), options);
    let there = post(&slow.address, CHAT, &[], &question(id));
    assert_eq!(there["choices"], here["choices"]);
    assert_eq!(cached(&there), n_tokens, "the question itself was not known");
    assert_eq!(metric(&slow, "longview:shared_fetched_total"), 1.0);
    // Counted when the rest came: so many layers were computed before the last bytes were there.
    let n_begun = metric(&slow, "longview:shared_begun_layers_total");
    assert!((1.0..5.0).contains(&n_begun), "{n_begun} layers");
    // Others go on from what came, and the library gets it.
    let again = post(&slow.address, CHAT, &[], &question(id));
    assert_eq!(again["choices"], here["choices"]);
    wait_for(&slow, "longview:shared_fetched_total", 1.0);
    Coming { storage, network, folder, id: id.clone(), here }
}

#[test]
fn a_copy_that_failed_is_made_when_the_storage_answers_again() {
    let (storage, folder) = (ObjectServer::start().unwrap(), TempFolder::new());
    let server = serving(storage.address(), folder.file("a").to_str().unwrap(), &[]);
    storage.set_expired(true);
    post(&server.address, "/v1/contexts", &[], &json!({ "text": text(4) }));
    wait_for(&server, "longview:shared_failed_total", 1.0);
    assert_eq!(metric(&server, "longview:shared_sent_total"), 0.0);
    storage.set_expired(false);
    // Nobody asks for the document again.
    wait_for(&server, "longview:shared_sent_total", 1.0);
    assert_eq!(metric(&server, "longview:shared_failed_total"), 1.0);
}

/// The text of a stream, and why it ended.
fn streamed(address: &str, headers: Headers<'_>, body: &str) -> (String, String) {
    let mut answer = Vec::new();
    send(address, "POST", CHAT, headers, body).read_to_end(&mut answer).unwrap();
    let body_at = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let (mut rest, mut events) = (&answer[body_at..], Vec::new());
    // Chunks, each behind its length, may end anywhere in an event.
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        events.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
    }
    let events = String::from_utf8(events).unwrap();
    assert!(events.contains("data: [DONE]"), "{events}");
    let (mut text, mut reason) = (String::new(), String::new());
    for event in events.lines().filter_map(|line| line.strip_prefix("data: {")) {
        let event: Value = serde_json::from_str(&format!("{{{event}")).unwrap();
        let choice = &event["choices"][0];
        text += choice["delta"]["content"].as_str().unwrap_or_default();
        reason += choice["finish_reason"].as_str().unwrap_or_default();
    }
    (text, reason)
}

#[test]
fn two_servers_behind_nginx_of_which_one_is_killed() {
    let (storage, folder) = (ObjectServer::start().unwrap(), TempFolder::new());
    let library = |name: &str| folder.file(name).to_str().unwrap().to_owned();
    let servers = ["a", "b"].map(|name| serving(storage.address(), &library(name), &[]));
    let [a, b] = &servers;
    let Some(nginx) = Nginx::start(&folder, [&a.address, &b.address], &[]) else { return };
    let n_sent = || servers.iter().map(|s| metric(s, "longview:shared_sent_total")).sum::<f64>();
    let wait_for_sent = |n: f64| {
        let end = Instant::now() + Duration::from_secs(30);
        while n_sent() < n {
            assert!(Instant::now() < end, "it is shared");
            thread::sleep(Duration::from_millis(10));
        }
    };
    let n_requests = || servers.each_ref().map(|s| metric(s, "longview:requests_total"));

    // Not sticky: whichever server is asked, the document is read once.
    let built = post(&nginx.in_turns, "/v1/contexts", &[], &json!({ "text": text(4) }));
    wait_for_sent(1.0);
    let answers: Vec<Value> =
        (0..4).map(|_| post(&nginx.in_turns, CHAT, &[], &question(&built["id"]))).collect();
    for answer in &answers {
        assert!(cached(answer) >= built["n_tokens"].as_u64().unwrap() - 1, "{answer}");
        assert_eq!(answer["choices"], answers[0]["choices"]);
    }
    assert!(n_requests().iter().all(|n| *n >= 2.0), "{:?}", n_requests());

    // Sticky: all requests with one header go to one server.
    let before = n_requests();
    let document = [("x-document", "the fifth text")];
    let built = post(&nginx.sticky, "/v1/contexts", &document, &json!({ "text": text(5) }));
    wait_for_sent(2.0);
    for _ in 0..2 {
        let answer = post(&nginx.sticky, CHAT, &document, &question(&built["id"]));
        assert!(cached(&answer) >= built["n_tokens"].as_u64().unwrap() - 1, "{answer}");
    }
    let after = n_requests();
    let n_asked = [after[0] - before[0], after[1] - before[1]];
    assert!(n_asked == [3.0, 0.0] || n_asked == [0.0, 3.0], "{n_asked:?}");
    let [mut a, mut b] = servers;
    let (killed, other) = if n_asked[0] > 0.0 { (&mut a, &mut b) } else { (&mut b, &mut a) };

    // Killed while it streams: the stream breaks off, and does not look as if it had ended.
    let stream_of = |n: usize| {
        let mut body = question(&built["id"]);
        body["max_tokens"] = json!(n);
        (body["ignore_eos"], body["stream"]) = (json!(true), json!(true));
        body.to_string()
    };
    let mut stream = BufReader::new(send(&nginx.sticky, "POST", CHAT, &document, &stream_of(2000)));
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "it streams");
    }
    killed.child.kill().unwrap();
    let mut rest = Vec::new();
    // nginx may reset the connection.
    let _ = stream.read_to_end(&mut rest);
    let rest = String::from_utf8_lossy(&rest);
    assert!(!rest.contains("[DONE]") && !rest.contains("finish_reason\":\"length"), "{rest}");
    assert!(!rest.ends_with("\r\n0\r\n\r\n"), "the body is not complete: {rest}");

    // The same request again goes to the other server, which has not read the document either, and
    // is answered as by a server that nothing happened to.
    let fetched = metric(other, "longview:shared_fetched_total");
    let read = metric(other, "llamacpp:prompt_tokens_total");
    let again = streamed(&nginx.sticky, &document, &stream_of(2000));
    assert_eq!(metric(other, "longview:shared_fetched_total"), fetched + 1.0);
    assert!(metric(other, "llamacpp:prompt_tokens_total") - read < 20.0);
    let undisturbed = serving(storage.address(), &library("c"), &[]);
    assert_eq!(again, streamed(&undisturbed.address, &[], &stream_of(2000)));
    assert!(again.0.len() > 2000 && again.1 == "length", "{again:?}");

    // Told to end, a server completes what it streams.
    let mut stream = send(&nginx.in_turns, "POST", CHAT, &[], &stream_of(200));
    let mut first = [0; 400];
    let n = stream.read(&mut first).unwrap();
    let pid = other.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let mut all = String::from_utf8_lossy(&first[..n]).into_owned();
    stream.read_to_string(&mut all).unwrap();
    assert!(all.contains("\"finish_reason\":\"length\"") && all.contains("[DONE]"), "{all}");
}
