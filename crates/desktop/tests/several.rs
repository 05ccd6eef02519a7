//! Several documents in line, and several files as one.

use std::path::PathBuf;

use longview_desktop::document::{Document, Stage};
use longview_desktop::engine::EngineSetup;
use longview_desktop::engine::local::{self, LocalOptions};
use longview_desktop::strings;
use longview_library::documents::Documents;
use longview_startup::DeviceChoice;

use crate::support::script::Script;
use crate::support::{Setup, Window};

fn folder(name: &str, files: &[(&str, String)]) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("longview-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
    folder
}

fn documents(window: &Window) -> &[Document] {
    &window.0.state().state().documents
}

fn stage(window: &Window, title: &str) -> String {
    let document = documents(window).iter().find(|d| d.title == title).unwrap();
    match &document.stage {
        Stage::Reading(_) => "reading".to_owned(),
        Stage::Read(_) => "read".to_owned(),
        Stage::Planned => "planned".to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_second_document_waits_in_line_and_stops_nobody() {
    let text = |word: &str| format!("{word} went to the harbour. ").repeat(60);
    let files = [("a.txt", text("Anna")), ("b.txt", text("Bert")), ("c.txt", text("Cora"))];
    let folder = folder("line", &files);
    let (script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.files = vec![folder.clone()];
    let mut window = setup.window();
    window.click(strings::OPEN_EACH);
    for name in ["a", "b", "c"] {
        window.until(name, |w| documents(w).iter().any(|d| d.title == name && d.plan.is_some()));
    }
    window.click_part("a, ");
    window.click(strings::READ);
    assert_eq!(stage(&window, "a"), "reading");
    window.click_part("b, ");
    window.click(strings::READ);
    window.wait_for(&strings::in_line(0));
    window.click_part("c, ");
    window.click(strings::READ);
    window.wait_for(&strings::in_line(1));
    assert_eq!(window.0.state().state().line.len(), 2);
    window.close_document("b");
    assert_eq!(stage(&window, "a"), "reading", "closing another one does not stop it");
    window.wait_for(&strings::in_line(0));
    script.read(2);
    window.until("the next one", |window| stage(window, "c") == "reading");
    script.read(2);
    window.until("the end", |window| stage(window, "c") == "read");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn files_become_one_document_in_the_order_that_is_chosen() {
    let files = [("1.txt", "First part.".to_owned()), ("2.txt", "Second part.".to_owned())];
    let folder = folder("order", &files);
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.chosen.folder = Some(folder.clone());
    let mut window = setup.window();
    window.click(strings::OPEN_FOLDER);
    window.click(&format!("{}: 1.txt", strings::DOWN));
    window.wait_for(&strings::file_of_order(0, "2.txt"));
    window.click(strings::OPEN_AS_ONE);
    window.wait_for("2 and 1 more");
    let document = documents(&window).last().unwrap();
    assert_eq!(&*document.text, "Second part.\n\nFirst part.");
    assert_eq!(document.sources.len(), 2);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_file_that_is_added_later_is_read_alone() {
    let text = "Once upon a time there was a harbour, and nobody spoke. ".repeat(120);
    let fact = "One of the special magic numbers for green-tower is: 7310264.".to_owned();
    let folder = folder("added", &[("story.txt", text), ("end.txt", fact)]);
    let library = Documents::open(&folder.join("library")).unwrap();
    let options = LocalOptions { library: Some(library.clone()), ..LocalOptions::default() };
    let setup = EngineSetup { device: DeviceChoice::Cpu, ..EngineSetup::default() };
    let mut window = Setup::new(local::engines(options)(&setup));
    window.library = Some(library.clone());
    window.files = vec![folder.join("story.txt")];
    window.chosen.open = vec![folder.join("end.txt")];
    let mut window = window.window();
    window.click(strings::READ);
    window.wait_for_part("read in");
    let before = documents(&window)[0].read_state().unwrap().tokens;
    window.click(&strings::more("story"));
    window.click(strings::ADD_FILES);
    window.until("the longer one", |window| documents(window)[0].text.ends_with("7310264."));
    window.click(strings::READ);
    window.wait_for_part("read in");
    let state = documents(&window)[0].read_state().unwrap().clone();
    assert!(state.is_complete() && state.tokens > before, "{state:?}");
    window.until("one entry, under the old name", |_| {
        let list = library.list().unwrap();
        list.len() == 1 && list[0].name == "story" && list[0].sources.len() == 2
    });
    window.click_part("What is the special magic number for green-tower");
    window.wait_for(strings::ASK_AGAIN);
    assert!(window.sees_part("7310264."));
    assert!(window.sees_part("of the attention was left out"), "and how sure that is");
    std::fs::remove_dir_all(folder).unwrap();
}
