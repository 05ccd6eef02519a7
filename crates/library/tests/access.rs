//! Tokens, redirects, and models that the hub does not show to everybody.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use crate::support::server::TestHub;
use crate::support::{TestCache, add_folder, pull, pull_told};

const REPO: &str = "org/model";
const TOKEN: &str = "hf_local_secret";

#[test]
fn the_token_goes_to_the_hub_alone() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    hub.private(REPO, TOKEN, false);
    pull(&cache.library(&hub, &[("HF_TOKEN", TOKEN)]), REPO).unwrap();
    let seen = hub.seen();
    let (store, own): (Vec<_>, Vec<_>) = seen.iter().partition(|seen| seen.is_store);
    assert_eq!(store.len(), 2, "the large files");
    for seen in &store {
        assert!(!seen.headers.contains_key("authorization"), "{seen:?}");
        assert!(!seen.headers.values().any(|value| value.contains(TOKEN)), "{seen:?}");
    }
    let bearer = format!("Bearer {TOKEN}");
    assert!(own.iter().all(|seen| seen.headers.get("authorization") == Some(&bearer)));
}

#[test]
fn without_a_token_none_is_sent() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    pull(&cache.library(&hub, &[]), REPO).unwrap();
    assert!(hub.seen().iter().all(|seen| !seen.headers.contains_key("authorization")));
}

#[test]
fn models_that_are_not_shown_say_what_to_do() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    for (repo, is_gated) in [("org/gated", true), ("org/private", false)] {
        add_folder(&hub, repo);
        hub.private(repo, TOKEN, is_gated);
    }
    let error = |repo: &str, more: &[(&str, &str)]| {
        let error = pull(&cache.library(&hub, more), repo).unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
        error
    };
    let page = format!("accept its terms at {}/org/gated", hub.endpoint());
    let (none, other) = (&[][..], &[("HF_TOKEN", "hf_other")][..]);
    let text = error("org/gated", none);
    assert!(text.contains(&page) && text.contains("then set HF_TOKEN"), "{text}");
    let text = error("org/gated", other);
    assert!(text.contains(&page) && text.contains("with the account of the token"), "{text}");
    for repo in ["org/private", "org/nowhere"] {
        let text = error(repo, none);
        assert!(text.contains("there is no such model") && text.contains("or set HF_TOKEN"));
        let text = error(repo, other);
        assert!(text.contains("whether the token in HF_TOKEN may read it"), "{text}");
    }
    let text = error("org/gated", &[("HF_TOKEN", "hf_bad")]);
    assert!(text.contains("refuses the token; set HF_TOKEN to one that is valid"), "{text}");
    assert!(cache.all().is_empty(), "{:?}", cache.all());
    pull(&cache.library(&hub, &[("HF_TOKEN", TOKEN)]), "org/gated").unwrap();
}

#[test]
fn redirects_that_lead_nowhere_end() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    let library = cache.library(&hub, &[]);
    let circle = format!("/{REPO}/resolve/{}/model.safetensors", "c".repeat(40));
    for (location, reason) in [
        (circle.as_str(), "in a circle"),
        ("ftp://127.0.0.1/x", "nowhere"),
        ("file:///etc/passwd", "nowhere"),
        ("http://user:pass@127.0.0.1/x", "nowhere"),
        ("", "nowhere"),
    ] {
        hub.redirect(location);
        let error = pull(&library, REPO).unwrap_err().to_string();
        assert!(error.contains(&format!("redirects {reason}")), "{location}: {error}");
    }
    assert!(hub.seen().len() < 40, "no circle is followed for long");
}

#[test]
fn a_hub_that_is_none_is_said_to_be_none() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    // Nobody listens at this port: it was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = pull(&cache.library_at(&format!("http://{free}"), &[]), REPO).unwrap_err();
    assert!(error.to_string().contains("4 attempts in a row failed"), "{error}");
    assert!(error.to_string().contains(&free.to_string()), "the host is named: {error}");
    let elsewhere = format!("{}/other/path", hub.endpoint());
    let error = pull(&cache.library_at(&elsewhere, &[]), REPO).unwrap_err();
    assert!(error.to_string().contains("there is no such model"), "{error}");
}

#[test]
fn a_server_without_tls_is_told_at_once() {
    let cache = TestCache::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("https://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let (error, told) = pull_told(&cache.library_at(&endpoint, &[]), REPO);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("cannot be reached (") && told.is_empty(), "{error} {told:?}");
}
