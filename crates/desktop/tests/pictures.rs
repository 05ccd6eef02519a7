//! Every state as a picture, compared with the one that was looked at.

use eframe::egui::{Theme, Vec2};
use longview_desktop::strings;
use longview_library::documents::{Documents, NewDocument};

use crate::support::script::{Script, Then};
use crate::support::{NARROW, Setup, WIDE, Window};

/// A window in which the sample is planned.
fn planned(size: Vec2, theme: Theme) -> (Script, Window) {
    let (script, open) = Script::new();
    let mut setup = Setup::new(open);
    (setup.size, setup.theme) = (size, theme);
    let mut window = setup.window();
    window.wait_for(strings::READ);
    (script, window)
}

/// One in which it is read and its first question answered.
fn answered(size: Vec2, theme: Theme) -> (Script, Window) {
    let (script, mut window) = planned(size, theme);
    window.click(strings::READ);
    script.read(16);
    window.wait_for_part("read in");
    if size.x < 920.0 {
        window.click(strings::QUESTIONS);
    }
    window.click_part("What is the special magic number");
    script.say(4);
    window.wait_for(strings::ASK_AGAIN);
    (script, window)
}

#[test]
fn a_document_before_it_is_read() {
    let (_script, mut window) = planned(WIDE, Theme::Light);
    window.picture("planned");
}

#[test]
fn nothing_open() {
    let (_script, mut window) = planned(WIDE, Theme::Light);
    window.close_document(strings::SAMPLE_TITLE);
    window.wait_for(strings::EMPTY_TITLE);
    window.picture("empty");
}

#[test]
fn reading() {
    let (script, mut window) = planned(WIDE, Theme::Light);
    window.click(strings::READ);
    script.read(6);
    window.wait_for_part("1,536 of");
    window.picture("reading");
}

#[test]
fn asking() {
    let (script, mut window) = planned(WIDE, Theme::Light);
    window.click(strings::READ);
    script.read(16);
    window.wait_for_part("read in");
    window.click_part("What is the special magic number");
    script.say(2);
    window.wait_for_part("2 tokens at");
    window.picture("asking");
}

#[test]
fn settings_models_and_the_about_page() {
    let (_script, mut window) = planned(WIDE, Theme::Light);
    window.click(strings::SETTINGS);
    window.wait_for(strings::SAVE);
    window.picture("settings");
    window.click(strings::CANCEL);
    window.click(strings::MODELS);
    window.wait_for(strings::SUGGESTED_MODELS);
    window.picture("models");
    window.click(strings::CLOSE_DIALOG);
    window.click(strings::ABOUT);
    window.wait_for(strings::CLOSE_DIALOG);
    window.picture("about");
}

#[test]
fn an_answer() {
    let (_script, mut window) = answered(WIDE, Theme::Light);
    window.picture("answered");
}

#[test]
fn an_answer_in_the_dark() {
    let (_script, mut window) = answered(WIDE, Theme::Dark);
    window.picture("answered_dark");
}

#[test]
fn two_answers() {
    let (script, mut window) = answered(WIDE, Theme::Light);
    window.click(strings::COMPARE);
    script.say(4);
    window.wait_for(strings::SAME_ANSWER);
    window.picture("compared");
}

#[test]
fn what_was_recalled() {
    let (_script, mut window) = answered(WIDE, Theme::Light);
    window.click(strings::RECALL);
    window.picture("recall");
}

#[test]
fn a_narrow_window() {
    let (_script, mut window) = answered(NARROW, Theme::Light);
    window.picture("narrow_questions");
    window.click(strings::DOCUMENT);
    window.picture("narrow_document");
    window.click(strings::DOCUMENTS);
    window.picture("narrow_list");
}

#[test]
fn an_engine_that_stopped() {
    let (script, mut window) = answered(WIDE, Theme::Light);
    window.click(strings::ASK_AGAIN);
    script.say_then(Then::Panic);
    window.wait_for(strings::START_AGAIN);
    window.picture("stopped");
}

#[test]
fn shortcuts() {
    let (_script, mut window) = planned(WIDE, Theme::Light);
    window.click(strings::SHORTCUTS);
    window.picture("shortcuts");
}

#[test]
fn a_library() {
    let folder = std::env::temp_dir().join(format!("longview-shelf-{}", std::process::id()));
    let library = Documents::open(&folder).unwrap();
    for name in ["Letters from the harbour", "A history of lanterns", "Log of the brig Amber"] {
        let (text, sources) = (format!("{name}. It was long."), Vec::new());
        library.add(NewDocument { text: &text, name: Some(name), sources }).unwrap();
    }
    let pinned = library.find("A history of lanterns").unwrap();
    library.set_pinned(pinned.id, true).unwrap();
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.library = Some(library);
    let mut window = setup.window();
    window.wait_for(&strings::more("Log of the brig Amber"));
    window.until("the sample in the library", |window| {
        let sample = &window.0.state().state().documents[0];
        sample.kept.is_some() && window.sees(strings::READ)
    });
    window.picture("library");
    window.click(&strings::more("A history of lanterns"));
    window.click(strings::DELETE);
    window.wait_for(strings::REALLY_DELETE);
    window.picture("delete");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_document_that_is_too_long() {
    let (_script, open) = Script::new();
    let file = std::env::temp_dir().join(format!("longview-long-{}.txt", std::process::id()));
    std::fs::write(&file, "words and ".repeat(50_000)).unwrap();
    let mut setup = Setup::new(open);
    setup.files = vec![file.clone()];
    let mut window = setup.window();
    // The name of the file is another one each time: what is wrong is what matters.
    window.wait_for(strings::failure(longview_desktop::engine::FailureKind::TooLong).0);
    let _ = std::fs::remove_file(file);
}
