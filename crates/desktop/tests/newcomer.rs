//! What somebody does who has just installed the program: wrong files, many files, half a question.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};

use eframe::egui::Key;
use eframe::egui::accesskit::Role;
use egui_kittest::kittest::{NodeT as _, Queryable as _};
use longview_desktop::document::{Document, Stage};
use longview_desktop::engine::{Attention, Failure, FailureKind, OpenEngine};
use longview_desktop::strings;
use longview_library::documents::{Documents, NewDocument};

use crate::support::flow::{QUESTION, answered, planned, read};
use crate::support::script::Script;
use crate::support::{Setup, WIDE, Window};

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("longview-new-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn documents(window: &Window) -> &[Document] {
    &window.0.state().state().documents
}

#[test]
fn the_same_text_under_another_name_is_the_document_that_is_open() {
    let folder = folder("same");
    let (_script, mut window) = planned();
    let text = "It is about a harbour. ".repeat(20);
    let files = ["first.txt", "copy.txt"].map(|name| file(&folder, name, &text));
    window.drop_files(&files[..1]);
    window.until("the first", |window| documents(window).len() == 2);
    window.click_part(&format!("{}, ", strings::SAMPLE_TITLE));
    window.drop_files(&files[1..]);
    window.wait_for(&strings::same_text("copy", "first"));
    assert_eq!(documents(&window).len(), 2, "one text has one conversation in the library");
    let current = window.0.state().state().current;
    assert_eq!(current, Some(documents(&window)[1].id), "and it is shown");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_empty_file_is_refused_by_its_name() {
    let folder = folder("empty");
    let (_script, mut window) = planned();
    window.drop_files(&[file(&folder, "nothing.txt", " \n")]);
    window.wait_for_part(strings::EMPTY_FILE);
    assert!(window.sees(strings::failure(FailureKind::File).0));
    assert_eq!(documents(&window).len(), 1, "there is nothing to read in it");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn many_messages_leave_the_document_in_sight_and_go_at_once() {
    let (_script, mut window) = planned();
    let missing: Vec<PathBuf> = (0..9).map(|i| format!("/nowhere/{i}.txt").into()).collect();
    window.drop_files(&missing);
    window.until("nine messages", |window| window.0.state().state().notices.len() == 9);
    window.0.run_ok();
    let read = window.0.get_by_label(strings::READ).rect();
    assert!(read.bottom() < WIDE.y, "{read:?}");
    window.picture("messages");
    window.click(strings::DISMISS_ALL);
    assert!(window.0.state().state().notices.is_empty());
}

#[test]
fn escape_closes_a_menu_and_reading_goes_on() {
    let (script, mut window) = planned();
    window.click(strings::READ);
    script.read(2);
    window.wait_for_part("512 of");
    window.click(&strings::more(strings::SAMPLE_TITLE));
    window.wait_for(strings::CLOSE_DOCUMENT);
    window.0.key_press(Key::Escape);
    window.0.run_ok();
    assert!(!window.sees(strings::CLOSE_DOCUMENT), "the menu is closed");
    let is_stopping = |window: &Window| match &documents(window)[0].stage {
        Stage::Reading(reading) => reading.is_stopping,
        other => panic!("{other:?}"),
    };
    assert!(!is_stopping(&window), "and nothing else");
    window.0.key_press(Key::Escape);
    window.0.run_ok();
    assert!(is_stopping(&window), "the next one ends reading");
    script.read(1);
    window.wait_for(strings::READ_ON);
}

#[test]
fn files_that_come_while_others_are_ordered_stand_behind_them() {
    let folder = folder("ordered");
    let names = ["a.txt", "b.txt", "c.txt", "a very long name of a file, ".repeat(6).as_str()]
        .map(|name| file(&folder, name, &format!("The text of {name}.")));
    let (_script, mut window) = planned();
    window.drop_files(&names[..2]);
    window.wait_for(&strings::file_of_order(1, "b.txt"));
    window.drop_files(&names[2..]);
    window.wait_for(&strings::file_of_order(2, "c.txt"));
    assert!(window.sees(&strings::file_of_order(0, "a.txt")), "the first two are still there");
    window.0.run_ok();
    let title = window.0.get_by_label_contains("4. a very long name").rect();
    let up = window.0.get_by_label_contains("Move up: a very long name").rect();
    assert!(title.right() < up.left(), "{title:?} runs under {up:?}");
    window.click(strings::OPEN_AS_ONE);
    window.wait_for("a and 3 more");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_engine_that_starts_is_not_called_stopped() {
    let (go, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let open: OpenEngine = Arc::new(move || {
        let _ = gate.lock().unwrap().recv();
        Err(Failure { kind: FailureKind::Other, message: "the test is over".into() })
    });
    let mut window = Setup::new(open).window();
    window.click(strings::ABOUT);
    window.wait_for(strings::CLOSE_DIALOG);
    assert!(window.sees(strings::ENGINE_OPENING) && !window.sees(strings::ENGINE_GONE));
    drop(go);
}

#[test]
fn pages_are_counted_in_letters_of_any_script() {
    let folder = folder("letters");
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.files = vec![file(&folder, "tale.txt", &"жила была ".repeat(360))];
    let mut window = setup.window();
    window.wait_for(strings::PLAN_PAGES);
    assert!(window.sees("about 2"), "3,600 letters are two pages of 1,800");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_question_that_cannot_be_asked_yet_says_why() {
    let (script, mut window) = planned();
    window.click(strings::READ);
    script.read(1);
    window.wait_for_part("256 of");
    assert!(!window.sees(strings::ASK_ONCE_READ));
    window.type_question("Who is Anna?");
    window.wait_for(strings::ASK_ONCE_READ);
    window.0.key_press(Key::Enter);
    window.0.run_ok();
    assert!(script.asked().is_empty() && documents(&window)[0].draft == "Who is Anna?");
    script.read(16);
    window.wait_for_part("read in");
    assert!(!window.sees(strings::ASK_ONCE_READ));
    window.click(strings::ASK);
    script.say(1);
    window.wait_for("The special");
    window.type_question("And who is Bert?");
    window.wait_for(strings::ASK_ONCE_ANSWERED);
    script.say(3);
    window.wait_for(strings::ASK_AGAIN);
    assert!(!window.sees(strings::ASK_ONCE_ANSWERED));
}

#[test]
fn half_a_question_comes_back_behind_one_that_is_changed() {
    let (script, mut window) = answered();
    window.type_question("Half a");
    window.click(strings::EDIT);
    assert!(documents(&window)[0].draft.starts_with("What is the special"));
    window.click(strings::LEAVE_EDIT);
    assert_eq!(documents(&window)[0].draft, "Half a");
    window.click(strings::EDIT);
    window.click(strings::ASK);
    script.say(4);
    window.wait_for(strings::ASK_AGAIN);
    assert_eq!(documents(&window)[0].draft, "Half a");
}

/// A window whose library has the sample, which is open, and these documents.
fn with_library(folder: &Path, names: &[&str]) -> Window {
    let library = Documents::open(&folder.join("library")).unwrap();
    for name in names {
        let text = format!("{name}, and what is told there.");
        library.add(NewDocument { text: &text, name: Some(name), sources: Vec::new() }).unwrap();
    }
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.library = Some(library);
    let mut window = setup.window();
    if !names.is_empty() {
        window.click(strings::OPEN_SAMPLE);
    }
    let n = names.len() + 1;
    window.until("the library", |window| window.0.state().state().kept.len() == n);
    window.wait_for(strings::READ);
    window
}

fn replace(window: &mut Window, label: &str, text: &str) {
    window.0.get_by_role_and_label(Role::TextInput, label).focus();
    window.0.run_ok();
    window.0.key_press_modifiers(eframe::egui::Modifiers::COMMAND, Key::A);
    window.0.run_ok();
    window.0.get_by_role_and_label(Role::TextInput, label).type_text(text);
    window.0.run_ok();
}

#[test]
fn a_name_that_another_document_has_cannot_be_given() {
    let folder = folder("taken");
    let mut window = with_library(&folder, &["Letters"]);
    window.click(&strings::more(strings::SAMPLE_TITLE));
    window.click(strings::RENAME);
    replace(&mut window, strings::NEW_NAME, "Letters");
    window.wait_for(strings::NAME_TAKEN);
    let buttons: Vec<_> = window.0.query_all_by_label(strings::RENAME).collect();
    let is_button = |node: &&egui_kittest::Node<'_>| node.accesskit_node().role() == Role::Button;
    let button = buttons.iter().find(is_button).expect("a button");
    assert!(button.accesskit_node().is_disabled());
    replace(&mut window, strings::NEW_NAME, "-x");
    window.wait_for_part("cannot be a name: it begins with a dash.");
    replace(&mut window, strings::NEW_NAME, "A sample");
    assert!(!window.sees(strings::NAME_TAKEN) && !window.sees_part("cannot be a name"));
    window.click_last(strings::RENAME);
    window.until("the new name", |window| documents(window)[0].title == "A sample");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn words_that_hide_documents_stay_in_sight() {
    let folder = folder("find");
    let mut window = with_library(&folder, &[]);
    replace(&mut window, strings::FIND, "sample");
    window.click(&strings::more(strings::SAMPLE_TITLE));
    window.click(strings::DELETE);
    window.click_last(strings::DELETE);
    window.until("an empty library", |window| window.0.state().state().kept.is_empty());
    window.0.run_ok();
    assert!(window.sees(strings::FIND), "or nobody could take them away");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_budget_that_is_changed_while_an_answer_is_written_asks_again() {
    let (script, mut window) = read();
    window.click_part(QUESTION);
    script.say(1);
    window.wait_for("The special");
    let slider = window.0.get_by_role(Role::Slider);
    slider.set_value_accesskit(1024.0);
    window.0.run_ok();
    // The step that was under way, and the whole new answer.
    script.say(5);
    window.wait_for_part("Looked at 1,024 of");
    assert_eq!(script.asked()[1].attention, Attention::Budget(1024));
    assert_eq!((script.asked().len(), documents(&window)[0].conversation.len()), (2, 1));
}
