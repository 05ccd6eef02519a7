//! The page at `/`: its files, and what browsers are told about them.

use std::io::Read;

use flate2::read::GzDecoder;

use crate::support::{Served, serve};
use longview_server::{ROUTES, ServerOptions};

const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", "<!doctype html>"),
    ("/assets/page.js", "text/javascript; charset=utf-8", "v1/chat/completions"),
    ("/assets/page.css", "text/css; charset=utf-8", ":root"),
    ("/assets/icon.svg", "image/svg+xml", "<svg"),
];

#[test]
fn its_files_are_there_with_their_types_and_a_strict_policy() {
    let served = serve(ServerOptions::default());
    for (path, kind, content) in FILES {
        let answer = served.get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.body.contains(content), "{path}: {}", answer.body);
        let has = |line: &str| answer.head.lines().any(|found| found == line);
        assert!(has(&format!("content-type: {kind}")), "{path}: {}", answer.head);
        assert!(has("x-content-type-options: nosniff"), "{path}");
        assert!(has("referrer-policy: no-referrer"), "{path}");
        assert!(has("cache-control: no-cache"), "{path}");
        let policy = answer.head.lines().find_map(|l| l.strip_prefix("content-security-policy: "));
        let policy = policy.unwrap_or_default();
        let parts: Vec<&str> = policy.split("; ").collect();
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(parts.contains(&part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
    }
    assert_eq!(ROUTES.iter().filter(|route| route.is_page).count(), FILES.len());
    // The page says nothing of its own that the policy would refuse.
    let page = served.get("/").body;
    assert!(!page.contains("<style") && !page.contains(" style="), "{page}");
    assert_eq!(page.matches("<script").count(), page.matches("src=\"./assets/page.js\"").count());
}

#[test]
fn other_paths_and_methods_are_refused() {
    let served = serve(ServerOptions::default());
    for path in ["/index.html", "/assets", "/assets/", "/assets/x.js", "/assets/../props", "//"] {
        assert_eq!(served.get(path).status, 404, "{path}");
    }
    for (path, ..) in FILES {
        assert_eq!(served.ask("POST", path, &[], "{}").status, 405, "{path}");
        assert_eq!(served.ask("DELETE", path, &[], "").status, 405, "{path}");
    }
    let foreign = served.ask("GET", "/", &[("host", "evil.example")], "");
    assert_eq!((foreign.status, foreign.code().as_str()), (403, "wrong_host"));
}

#[test]
fn what_a_browser_has_is_not_sent_again() {
    let served = serve(ServerOptions::default());
    let answer = served.get("/assets/page.js");
    let tag = answer.head.lines().find_map(|line| line.strip_prefix("etag: "));
    let again = |tag: &str| served.ask("GET", "/assets/page.js", &[("if-none-match", tag)], "");
    let same = again(tag.expect("a tag"));
    assert_eq!((same.status, same.body.as_str()), (304, ""));
    assert_eq!(again("\"another\"").body, answer.body);
}

#[test]
fn compressed_it_is_the_same() {
    let served = serve(ServerOptions::default());
    for (path, ..) in FILES {
        let bytes = compressed(&served, path);
        let mut text = String::new();
        GzDecoder::new(&bytes[..]).read_to_string(&mut text).expect("gzip");
        assert_eq!(text, served.get(path).body, "{path}");
    }
}

fn compressed(served: &Served, path: &str) -> Vec<u8> {
    let mut stream = served.send("GET", path, &[("accept-encoding", "br, gzip;q=0.9")], "");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    assert!(head.contains("content-encoding: gzip"), "{head}");
    bytes.split_off(end)
}
