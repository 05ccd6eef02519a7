//! The library for other programs: the switch, the address, and both sides at once.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use egui_kittest::kittest::Queryable as _;
use longview_desktop::engine::local::{self, LocalOptions};
use longview_desktop::engine::{Engines, Host, Served, Serving};
use longview_desktop::store::Places;
use longview_desktop::strings;
use longview_library::documents::Documents;
use serde_json::{Value, json};

use crate::real::document;
use crate::support::{Folder, Setup, Window, http};

/// The document, as a file in `folder`.
fn text(folder: &Folder) -> PathBuf {
    folder.file("harbours.txt", &document())
}

fn engines(library: &Documents, host: &Host) -> Engines {
    local::engines(LocalOptions {
        library: Some(library.clone()),
        host: Some(host.clone()),
        ..LocalOptions::default()
    })
}

/// A window over the embedded model and the library in `folder`; another start of it finds the
/// settings again.
fn window(folder: &Path, file: Option<PathBuf>, change: impl FnOnce(&mut Setup)) -> Window {
    let library = Documents::open(&folder.join("library")).unwrap();
    let host = Host::default();
    let mut setup = Setup::over(engines(&library, &host));
    let places = Places::below(folder);
    setup.settings = places.settings().0;
    setup.settings.device = "cpu".into();
    // One that is free: tests run beside each other.
    setup.settings.serve.port = 0;
    (setup.library, setup.host, setup.places) = (Some(library), Some(host), Some(places));
    setup.files = file.into_iter().collect();
    change(&mut setup);
    setup.window()
}

fn serving(window: &Window) -> Serving {
    window.0.state().state().serving.clone().expect("there is a library")
}

fn served(window: &mut Window) -> Served {
    let begin = Instant::now();
    window.until("a server", |window| {
        let serving = serving(window);
        assert!(begin.elapsed() < Duration::from_secs(50), "{serving:?}");
        matches!(serving, Serving::On(_))
    });
    match serving(window) {
        Serving::On(served) => served,
        other => panic!("{other:?}"),
    }
}

fn read(window: &mut Window) {
    window.click(strings::READ);
    window.wait_for_part("read in");
}

fn switch(window: &mut Window) {
    window.click(strings::SETTINGS);
    window.click(strings::SERVE);
}

/// A button that may be scrolled away.
fn press(window: &mut Window, label: &str) {
    window.wait_for(label);
    window.0.get_by_label(label).click_accesskit();
    window.0.run_ok();
}

fn question(name: &str) -> String {
    format!("What is the special magic number for {name} mentioned in the provided text?")
}

/// What the model says of a document of the library, and how many tokens of the prompt were known,
/// of how many.
fn ask(address: SocketAddr, id: &str, key: &str, name: &str) -> (String, u64, u64) {
    let body = json!({
        "context_id": id, "messages": [{ "role": "user", "content": question(name) }],
        "max_tokens": 40,
    });
    let path = "/v1/chat/completions";
    let (status, answer) = http::ask(address, "POST", path, key, &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let said = answer["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
    let usage = &answer["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    (said, cached, usage["prompt_tokens"].as_u64().expect("a number"))
}

fn contexts(address: SocketAddr, key: &str) -> Vec<Value> {
    let (status, list) = http::ask(address, "GET", "/v1/contexts", key, "");
    assert_eq!(status, 200, "{list}");
    list["data"].as_array().expect("a list").clone()
}

fn id_of(address: SocketAddr, key: &str, name: &str) -> String {
    let list = contexts(address, key);
    let found = list.iter().find(|context| context["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {list:?}"))["id"].as_str().expect("an id").to_owned()
}

fn metric(address: SocketAddr, name: &str) -> f64 {
    let (_, page) = http::ask(address, "GET", "/metrics", "", "");
    let page = page.as_str().expect("a text");
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{name}: {page}")).parse().expect("a number")
}

#[test]
fn another_program_asks_about_what_the_window_has_read() {
    let folder = Folder::new("asks");
    let mut window = window(&folder.0, Some(text(&folder)), |_| {});
    read(&mut window);
    assert_eq!(serving(&window), Serving::Off, "nobody has asked for it");
    switch(&mut window);
    let served = served(&mut window);
    let address = served.address;
    assert!(address.ip().is_loopback());
    assert_eq!(served.context, 32_768, "for more than the document");
    // Where it is, and a line that can be copied.
    window.wait_for(&strings::serving(&served));
    window.wait_for_part(&format!("curl http://{address}/v1/"));
    press(&mut window, strings::COPY_LINE);
    window.wait_for(strings::COPIED);
    window.click(strings::CANCEL);
    window.wait_for(&strings::serving_short(&served));
    // The document is opened again, with the longer context.
    window.wait_for_part("opened in");
    let id = id_of(address, "", "harbours");
    let (said, cached, n_prompt) = ask(address, &id, "", "quiet-harbour");
    assert!(said.contains("2019860"), "{said}");
    assert!(n_prompt > 800 && n_prompt - cached < 60, "{cached} of {n_prompt}");
    assert_eq!(metric(address, "longview:contexts_restored_total"), 0.0, "it has the window's");
    // Both at once.
    let other = std::thread::spawn(move || ask(address, &id, "", "velvet-comet").0);
    window.click(&question("amber-lantern"));
    window.wait_for(strings::ASK_AGAIN);
    assert!(window.sees_part("5828235."), "the right number");
    assert!(other.join().unwrap().contains("2003322"));
    switch(&mut window);
    let begin = Instant::now();
    window.until("a closed port", |_| TcpStream::connect(address).is_err());
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    window.until("its end", |window| serving(window) == Serving::Off);
    assert!(!window.sees(&strings::serving_short(&served)));
}

#[test]
fn a_port_of_another_program_is_told_with_what_to_do() {
    let folder = Folder::new("port");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let mut window = window(&folder.0, None, |setup| setup.settings.serve.port = port);
    window.wait_for(strings::READ);
    switch(&mut window);
    // Above the document and in the settings.
    let told = format!("Another program has port {port}.");
    window.until(&told, |window| window.0.query_all_by_label(&told).count() == 2);
    assert!(window.sees(strings::TRY_AGAIN) && window.sees_part("Choose another port"));
    drop(other);
    press(&mut window, strings::TRY_AGAIN);
    assert_eq!(served(&mut window).address.port(), port);
    window.until("no message any more", |window| !window.sees(&told));
}

#[test]
fn the_switch_is_remembered_and_a_key_is_needed_where_there_is_one() {
    let folder = Folder::new("key");
    let mut first = window(&folder.0, Some(text(&folder)), |_| {});
    read(&mut first);
    switch(&mut first);
    served(&mut first);
    drop(first);
    let mut second = window(&folder.0, None, |setup| {
        assert!(setup.settings.serve.on, "it was on");
        setup.settings.serve.key = "s3cret".into();
    });
    let served = served(&mut second);
    second.wait_for(&strings::serving_short(&served));
    let address = served.address;
    for key in ["", "s3cre", "harbours:s3cret"] {
        let (status, refused) = http::ask(address, "GET", "/v1/contexts", key, "");
        assert_eq!(status, 401, "{key}: {refused}");
    }
    // It is the whole library that the key opens, and no other one.
    let id = id_of(address, "s3cret", "harbours");
    let (said, cached, n_prompt) = ask(address, &id, "s3cret", "amber-lantern");
    assert!(said.contains("5828235") && n_prompt - cached < 60, "{said} {cached}/{n_prompt}");
    // What another program adds is in the library of the window.
    let body = json!({ "text": "The harbour was quiet.", "name": "note" }).to_string();
    let (status, added) = http::ask(address, "POST", "/v1/contexts", "s3cret", &body);
    assert_eq!(status, 200, "{added}");
    let library = Documents::open(&folder.0.join("library")).unwrap();
    assert!(library.list().unwrap().iter().any(|document| document.name == "note"));
    // A key that would name another library is refused.
    let mut third = window(&folder.0, None, |setup| setup.settings.serve.key = "a:b".into());
    third.until("a failure", |window| matches!(serving(window), Serving::Failed(_)));
    third.wait_for("The API key must have no colon.");
}

#[test]
fn what_runs_when_it_is_switched_off_is_told() {
    let folder = Folder::new("off");
    let mut window = window(&folder.0, None, |setup| setup.settings.serve.on = true);
    let address = served(&mut window).address;
    let body = json!({ "prompt": "The harbour", "max_tokens": 20_000, "ignore_eos": true });
    let path = "/v1/completions";
    let running = http::begin(address, "POST", path, "", &body.to_string());
    window.until("a request", |_| metric(address, "llamacpp:requests_processing") == 1.0);
    switch(&mut window);
    let begin = Instant::now();
    window.until("a closed port", |_| TcpStream::connect(address).is_err());
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    window.until("its end", |window| serving(window) == Serving::Off);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    let (status, told) = http::read(running);
    assert_eq!((status, &told["error"]["code"]), (503, &json!("stopping")), "{told}");
}
