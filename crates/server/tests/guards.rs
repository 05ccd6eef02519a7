//! Who may ask: every route of the table, with and without a key.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Answer, Library, PATIENCE, read_answer, serve};
use longview_server::{ApiKey, Limits, Origin, ROUTES, ServeError, Server, ServerOptions};

#[test]
fn every_route_but_the_open_ones_wants_the_key() {
    let library = Library::new();
    let options = ServerOptions {
        api_keys: vec![ApiKey::parse("secret").expect("a key")],
        ..library.options()
    };
    let served = serve(options);
    for route in ROUTES {
        let path = route.path.replace("{id}", "nothing");
        let status =
            |headers: &[(&str, &str)]| served.ask(route.method, &path, headers, "{}").status;
        let refused = if route.is_open { 200 } else { 401 };
        assert_eq!(status(&[]), refused, "{path}");
        assert_eq!(status(&[("authorization", "Bearer wrong")]), refused, "{path}");
        assert_eq!(status(&[("authorization", "Bearer secre")]), refused, "{path}");
        assert_eq!(status(&[("authorization", "Basic secret")]), refused, "{path}");
        for scheme in ["Bearer secret", "bearer secret", "BEARER   secret "] {
            assert_ne!(status(&[("authorization", scheme)]), 401, "{path} {scheme}");
        }
        for scheme in ["Bearersecret", "Bearer", "secret", "Bearer secret secret"] {
            assert_eq!(status(&[("authorization", scheme)]), refused, "{path} {scheme}");
        }
        assert_ne!(status(&[("x-api-key", "secret")]), 401, "{path}");
    }
    for path in ["/v1", "/v1/contexts/a/b", "/health/", "/../metrics", "/assets", "/assets/x.js"] {
        assert_eq!(served.get(path).status, 401, "{path}");
    }
    // Beside `/health` only files of the page, which are the same everywhere.
    let open = || ROUTES.iter().filter(|route| route.is_open);
    let health: Vec<_> = open().filter(|route| !route.is_page).map(|route| route.path).collect();
    assert_eq!(health, ["/health", "/v1/health"]);
    assert_eq!(open().filter(|route| route.is_page).count(), 4);
    let without_page = ServerOptions {
        api_keys: vec![ApiKey::parse("secret").expect("a key")],
        has_page: false,
        ..ServerOptions::default()
    };
    let served = serve(without_page);
    for route in open().filter(|route| route.is_page) {
        assert_eq!(served.get(route.path).status, 401, "{}", route.path);
        let known = served.ask("GET", route.path, &[("x-api-key", "secret")], "");
        assert_eq!(known.status, 404, "{}", route.path);
    }
}

#[test]
fn a_wrong_method_hears_the_right_ones() {
    let library = Library::new();
    let served = serve(library.options());
    for (method, path, allowed) in [
        ("GET", "/v1/chat/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PUT", "/v1/contexts/a", "GET, POST, DELETE, HEAD"),
        ("OPTIONS", "/health", "GET, HEAD"),
    ] {
        let answer = served.ask(method, path, &[], "");
        assert_eq!((answer.status, answer.code().as_str()), (405, "method_not_allowed"));
        let head = answer.head.to_lowercase();
        assert!(head.contains(&format!("allow: {}\r", allowed.to_lowercase())), "{answer:?}");
    }
    assert!(!served.get("/v1/nothing").head.to_lowercase().contains("\nallow:"));
}

#[test]
fn other_hosts_and_pages_of_other_sites_are_refused() {
    let served = serve(ServerOptions {
        allowed_hosts: ["box.lan".to_owned()].into(),
        ..ServerOptions::default()
    });
    let port = served.address.port();
    let status =
        |name: &str, value: &str| served.ask("GET", "/v1/models", &[(name, value)], "").status;
    assert_eq!(status("host", "evil.example"), 403);
    assert_eq!(status("host", &format!("localhost.evil.example:{port}")), 403);
    assert_eq!(status("host", ""), 403);
    for own in ["localhost", "127.0.0.1", "[::1]", "box.lan", "BOX.lan:80"] {
        assert_eq!(status("host", own), 200, "{own}");
    }
    assert_eq!(status("origin", "http://evil.example"), 403);
    assert_eq!(status("origin", "null"), 403);
    assert_eq!(status("origin", &format!("http://{}", served.address)), 200);
    let asked = served.ask("OPTIONS", "/v1/models", &[("origin", "http://evil.example")], "");
    assert!(asked.status == 403 && !asked.head.contains("access-control"), "{asked:?}");
    assert!(!served.get("/v1/models").head.to_lowercase().contains("vary"));
}

#[test]
fn pages_of_an_allowed_origin_may_ask_and_no_others() {
    let allowed = "https://chat.example";
    let served = serve(ServerOptions {
        api_keys: vec![ApiKey::parse("secret").expect("a key")],
        allowed_origins: [Origin::parse(allowed).expect("an origin")].into(),
        ..ServerOptions::default()
    });
    let preflight = |origin: &str, path: &str| {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,content-type,x-stainless-os"),
        ];
        served.ask("OPTIONS", path, &headers, "")
    };
    let header = |answer: &Answer, name: &str| {
        let lines = answer.head.lines().filter_map(|line| line.split_once(": "));
        let mut found = lines.filter(|(found, _)| found.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.to_owned())
    };
    // It says the same of every path, and needs no key.
    for path in ["/v1/chat/completions", "/health", "/nothing"] {
        let answer = preflight(allowed, path);
        assert_eq!((answer.status, answer.body.as_str()), (204, ""), "{answer:?}");
        let said = |name: &str| header(&answer, name);
        assert_eq!(said("access-control-allow-origin").as_deref(), Some(allowed));
        assert_eq!(
            said("access-control-allow-methods").as_deref(),
            Some("GET, HEAD, POST, DELETE")
        );
        let headers = said("access-control-allow-headers");
        assert_eq!(headers.as_deref(), Some("authorization,content-type,x-stainless-os"));
        assert_eq!(said("vary").as_deref(), Some("origin"));
        assert_eq!(said("access-control-allow-credentials"), None, "no cookies");
    }
    for origin in [
        "https://chat.example.evil",
        "https://evil.chat.example",
        "http://chat.example",
        "https://chat.example:444",
        "https://chat.exampl",
        "null",
        "*",
    ] {
        let answer = preflight(origin, "/v1/models");
        assert_eq!((answer.status, answer.code().as_str()), (403, "wrong_origin"), "{origin}");
        assert_eq!(header(&answer, "access-control-allow-origin"), None, "{origin}");
        assert_eq!(header(&answer, "vary").as_deref(), Some("origin"), "{origin}");
    }
    // The page reads answers and errors alike, and needs the key for what it asks.
    let ask = |key: &str, path: &str| {
        served.ask("GET", path, &[("origin", allowed), ("authorization", key)], "")
    };
    for (key, path, status) in [
        ("Bearer secret", "/v1/models", 200),
        ("Bearer wrong", "/v1/models", 401),
        ("Bearer secret", "/nothing", 404),
    ] {
        let answer = ask(key, path);
        assert_eq!(answer.status, status, "{answer:?}");
        let origin = header(&answer, "access-control-allow-origin");
        assert_eq!(origin.as_deref(), Some(allowed), "{answer:?}");
    }
    // Whom no page sent is served as ever.
    let plain = served.ask("GET", "/v1/models", &[("x-api-key", "secret")], "");
    assert_eq!(plain.status, 200);
    assert_eq!(header(&plain, "access-control-allow-origin"), None);
    assert_eq!(served.ask("OPTIONS", "/health", &[("origin", allowed)], "").status, 405);
    let elsewhere = [("host", "evil.example"), ("origin", allowed)];
    assert_eq!(served.ask("GET", "/health", &elsewhere, "").status, 403, "the host counts too");
}

#[test]
fn an_address_for_others_needs_a_key() {
    // Refused before anything is loaded or bound, so any engine will do.
    let options =
        ServerOptions { host: IpAddr::V4(Ipv4Addr::UNSPECIFIED), ..ServerOptions::default() };
    let model = crate::support::facts_of_model();
    let load = || Err::<longview_engine::Engine<longview_cpu::CpuBackend>, _>("not reached".into());
    let error = Server::start(options, model, load).err().expect("it is refused");
    assert!(matches!(error, ServeError::OpenWithoutKey(_)), "{error}");
    assert!(error.to_string().contains("--api-key"), "{error}");
}

#[test]
fn a_model_that_does_not_load_ends_the_server() {
    let model = crate::support::facts_of_model();
    let load = || Err::<longview_engine::Engine<longview_cpu::CpuBackend>, _>("no memory".into());
    let options = ServerOptions { port: 0, ..ServerOptions::default() };
    let error =
        Server::start(options, model, load).expect("it starts").wait().expect_err("it ends");
    assert_eq!(error.to_string(), "no memory");
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let served = serve(ServerOptions { n_slots: 1, max_waiting: 1, ..ServerOptions::default() });
    let body =
        json!({ "prompt": "It was", "max_tokens": 4000, "ignore_eos": true, "stream": true });
    let first = served.send("POST", "/v1/completions", &[], &body.to_string());
    served.wait_for("llamacpp:requests_processing", 1.0);
    let second = served.send("POST", "/v1/completions", &[], &body.to_string());
    served.wait_for("llamacpp:requests_deferred", 1.0);
    let third = served.post("/v1/completions", &body);
    assert_eq!((third.status, third.code().as_str()), (429, "queue_full"), "{third:?}");
    assert!(third.head.contains("retry-after: 1"), "{third:?}");
    assert_eq!(served.metric("longview:requests_refused_total"), 1.0);
    // Nobody spends time on what is in it.
    for path in ["/v1/completions", "/completion", "/v1/chat/completions", "/v1/responses"] {
        let unread = served.ask("POST", path, &[], "{ no JSON");
        assert_eq!((unread.status, unread.code().as_str()), (429, "queue_full"), "{path}");
        assert!(unread.head.contains("retry-after: 1"), "{unread:?}");
    }
    // One that waits and whose client leaves never begins.
    drop(second);
    served.wait_for("llamacpp:requests_deferred", 0.0);
    assert_eq!(served.metric("llamacpp:requests_processing"), 1.0);
    drop(first);
    served.wait_for("llamacpp:requests_processing", 0.0);
}

/// One more connection waits, and is served when another one ends.
#[test]
fn connections_have_a_limit() {
    let limits = Limits { connections: 3, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut held: Vec<_> = (0..3).map(|_| served.connect()).collect();
    // Each is served, and stays.
    let ask = format!("GET /health HTTP/1.1\r\nhost: {}\r\n\r\n", served.address);
    for stream in &mut held {
        stream.write_all(ask.as_bytes()).expect("it is taken");
        assert!(stream.read(&mut [0; 1000]).expect("an answer") > 0);
    }
    let mut waits = served.send("GET", "/health", &[], "");
    waits.set_read_timeout(Some(Duration::from_millis(300))).expect("a time");
    let error = waits.read(&mut [0; 1]).expect_err("it waits");
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    // Those that are there are served meanwhile.
    held[1].write_all(ask.as_bytes()).expect("it is taken");
    assert!(held[1].read(&mut [0; 1000]).expect("an answer") > 0);
    held.pop();
    waits.set_read_timeout(Some(PATIENCE)).expect("a time");
    assert_eq!(read_answer(&mut waits).status, 200);
}

/// A connection that is kept has longer for its next request than that has for its head.
#[test]
fn a_connection_that_is_not_used_any_more_is_closed() {
    let (header, idle) = (Duration::from_millis(400), Duration::from_millis(1600));
    let limits = Limits { header, idle, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let ask = format!("GET /health HTTP/1.1\r\nhost: {}\r\n\r\n", served.address);
    let mut stream = served.connect();
    for pause in [Duration::ZERO, Duration::from_millis(900)] {
        std::thread::sleep(pause);
        stream.write_all(ask.as_bytes()).expect("it is there");
        let mut answer = [0; 1000];
        let n = stream.read(&mut answer).expect("an answer");
        assert!(answer[..n].starts_with(b"HTTP/1.1 200"), "after {pause:?}");
    }
    let closes_after = |stream: &mut TcpStream| {
        let began = Instant::now();
        assert!(matches!(stream.read(&mut [0; 100]), Ok(0) | Err(_)), "it is closed");
        began.elapsed()
    };
    let took = closes_after(&mut stream);
    assert!(took > Duration::from_millis(1200) && took < PATIENCE / 2, "{took:?}");
    // The head of the next request has no more time than that of the first one, which need not
    // have begun.
    for first in [&b""[..], b"GET /health HTT"] {
        let mut stream = served.connect();
        stream.write_all(first).expect("it is taken");
        let took = closes_after(&mut stream);
        assert!(took > Duration::from_millis(200) && took < PATIENCE / 2, "{took:?}");
    }
    let mut stream = served.connect();
    stream.write_all(ask.as_bytes()).expect("it is there");
    assert!(stream.read(&mut [0; 1000]).expect("an answer") > 0);
    stream.write_all(b"GET /hea").expect("it is there");
    let took = closes_after(&mut stream);
    assert!(took > Duration::from_millis(200) && took < Duration::from_millis(1400), "{took:?}");
}

#[test]
fn heads_and_bodies_have_limits() {
    let limits = Limits { body_bytes: 2000, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let long = "x".repeat(20_000);
    assert_eq!(served.ask("GET", "/health", &[("x-long", &long)], "").status, 431);
    let names: Vec<String> = (0..80).map(|i| format!("x-{i}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    assert_eq!(served.ask("GET", "/health", &many, "").status, 431);
    let large = served.post("/tokenize", &json!({ "content": "a".repeat(3000) }));
    assert_eq!((large.status, large.code().as_str()), (413, "body_too_large"));
    assert_eq!(served.get("/health").status, 200);
}
