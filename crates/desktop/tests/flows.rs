//! What a person does, against the script.

use std::path::{Path, PathBuf};

use eframe::egui::{Key, Modifiers, OutputCommand};
use egui_kittest::kittest::{NodeT as _, Queryable as _};
use longview_desktop::document::Document;
use longview_desktop::engine::{Attention, FailureKind};
use longview_desktop::strings;

use crate::support::flow::{QUESTION, answered, planned, read};
use crate::support::script::{MARKDOWN, Script, Then};
use crate::support::{Setup, Window};

fn document(window: &Window) -> &Document {
    let state = window.0.state().state();
    state.documents.iter().find(|d| Some(d.id) == state.current).expect("one is open")
}

fn temporary(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("longview-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn the_first_start_shows_a_sample_and_says_what_the_model_knows() {
    let (_script, mut window) = planned();
    assert!(window.sees(strings::EMBEDDED_NOTE));
    assert!(window.sees(strings::TRY_THESE));
    for fact in [strings::PLAN_TOKENS, strings::PLAN_HOST, strings::PLAN_DEVICE] {
        assert!(window.sees(fact), "{fact}");
    }
    window.wait_for("9.0 MiB");
    let ask = window.0.get_by_label(strings::ASK);
    assert!(ask.accesskit_node().is_disabled(), "nothing is read yet");
}

#[test]
fn reading_pauses_goes_on_stops_and_is_finished_later() {
    let (script, mut window) = planned();
    window.click(strings::READ);
    script.read(2);
    window.wait_for_part("512 of");
    window.click(strings::PAUSE);
    // It pauses after a chunk: the next one is the last for now.
    script.read(3);
    window.wait_for(strings::PAUSED);
    std::thread::sleep(std::time::Duration::from_millis(100));
    window.0.run_steps(3);
    let paused_at = document(&window).clone_progress();
    window.0.run_steps(3);
    assert_eq!(document(&window).clone_progress(), paused_at, "it waits");
    window.click(strings::RESUME);
    window.wait_for_part("1,280 of");
    window.click(strings::STOP_READING);
    script.read(1);
    window.wait_for(strings::READ_ON);
    assert!(document(&window).read_state().is_some_and(|s| s.tokens == 1536), "it is kept");
    assert!(window.sees(strings::ASK_SOMETHING), "and can be asked");
    window.click(strings::READ_ON);
    script.read(16);
    window.wait_for_part("read in");
}

#[test]
fn an_answer_streams_and_names_its_passages() {
    let (script, mut window) = read();
    window.click_part(QUESTION);
    script.say(1);
    window.wait_for("The special");
    script.say(1);
    window.wait_for("The special magic number");
    script.say(2);
    window.wait_for_part("Looked at 512 of");
    assert!(window.sees_part("left out"));
    let before = document(&window).page.offset;
    window.click_part("Passage 4");
    window.0.run_ok();
    assert_eq!(document(&window).mark, Some(3));
    assert!(document(&window).page.offset > before + 100.0, "the document is scrolled there");
    window.0.key_press(Key::F3);
    window.0.run_ok();
    assert_eq!(document(&window).mark, Some(0), "and round to the first");
}

#[test]
fn a_stop_ends_an_answer_within_one_step() {
    let (script, mut window) = read();
    window.click_part(QUESTION);
    script.say(1);
    window.wait_for("The special");
    window.click(strings::STOP);
    // The one step that was under way, and no other.
    script.say(1);
    window.wait_for_part(strings::STOPPED);
    assert!(window.sees("The special magic number"), "what was said stays");
}

#[test]
fn questions_are_typed_asked_by_enter_and_again_with_another_budget() {
    let (script, mut window) = read();
    window.0.key_press_modifiers(Modifiers::COMMAND, Key::L);
    window.0.run_ok();
    window.type_question("Who is Anna?");
    window.0.key_press(Key::Enter);
    window.0.run_ok();
    script.say(4);
    window.wait_for(strings::ASK_AGAIN);
    assert_eq!(script.asked()[0].text, "Who is Anna?");
    assert_eq!(script.asked()[0].attention, Attention::Budget(512));
    let slider = window.0.get_by_role(eframe::egui::accesskit::Role::Slider);
    slider.set_value_accesskit(1024.0);
    window.0.run_ok();
    script.say(4);
    window.until("a second question", |_| script.asked().len() == 2);
    assert_eq!(script.asked()[1].text, "Who is Anna?");
    assert_eq!(script.asked()[1].attention, Attention::Budget(1024));
    window.wait_for_part("Looked at 1,024 of");
}

#[test]
fn full_attention_answers_beside() {
    let (script, mut window) = answered();
    window.click(strings::COMPARE);
    script.say(4);
    window.wait_for(strings::SAME_ANSWER);
    assert!(window.sees_part("Looked at all"));
    assert_eq!(script.asked()[1].attention, Attention::Full);
    window.click(strings::ASK_AGAIN);
    script.say(4);
    window.until("a third question", |_| script.asked().len() == 3);
}

#[test]
fn answers_are_copied_and_exported() {
    let (script, open) = Script::new();
    let saved = temporary("answers.md", b"");
    let mut setup = Setup::new(open);
    setup.chosen.save = Some(saved.clone());
    let mut window = setup.window();
    window.click(strings::READ);
    script.read(16);
    window.click_part(QUESTION);
    script.say(4);
    window.click(strings::COPY);
    window.wait_for(strings::COPIED);
    window.click(strings::EXPORT);
    window.wait_for_part("Saved as");
    let text = std::fs::read_to_string(&saved).unwrap();
    assert!(text.starts_with("# Sample document\n\n## What is the special magic number"), "{text}");
    assert!(text.contains("\n> The special magic number is 2003322.\n"), "{text}");
    assert!(text.contains("1. > One of the special magic numbers"), "{text}");
    std::fs::remove_file(saved).unwrap();
}

#[test]
fn files_come_by_argument_dialog_and_errors_say_what_to_do() {
    let (_script, open) = Script::new();
    let good = temporary("東京.txt", "終わり 😀 text of a file. ".repeat(20).as_bytes());
    let bad = temporary("bad.txt", &[0xff, 0xfe, 0x00]);
    let mut setup = Setup::new(open);
    setup.allows_missing_glyphs = true;
    setup.files = vec![good.clone()];
    setup.chosen.open = vec![bad.clone()];
    let mut window = setup.window();
    window.wait_for_part("text of a file");
    window.click(strings::OPEN_FILE);
    window.wait_for(strings::failure(FailureKind::File).0);
    assert!(window.sees_part("is no text in UTF-8"));
    window.click(strings::DISMISS);
    assert!(!window.sees_part("is no text in UTF-8"));
    for path in [&good, &bad] {
        std::fs::remove_file(path).unwrap();
    }
    let missing = longview_desktop::files::read(Path::new("/nowhere/at/all.txt"));
    assert!(format!("{missing:?}").contains("/nowhere/at/all.txt"), "{missing:?}");
}

#[test]
fn a_file_is_dropped_and_a_document_is_shown_again_from_the_list() {
    let (_script, mut window) = planned();
    let path = temporary("dropped.txt", b"It was dropped. ".repeat(20).as_slice());
    window.drop_files(std::slice::from_ref(&path));
    window.wait_for_part("It was dropped.");
    window.click_part(&format!("{}, ", strings::SAMPLE_TITLE));
    assert_eq!(document(&window).title, strings::SAMPLE_TITLE);
    assert_eq!(window.0.state().state().documents.len(), 2);
    window.close_document(strings::SAMPLE_TITLE);
    assert_ne!(document(&window).title, strings::SAMPLE_TITLE);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_theme_is_chosen() {
    let (_script, mut window) = planned();
    window.click(strings::THEME_DARK);
    assert!(window.0.ctx.global_style().visuals.dark_mode);
    window.click(strings::THEME_LIGHT);
    assert!(!window.0.ctx.global_style().visuals.dark_mode);
}

#[test]
fn an_engine_that_panics_is_started_again_and_the_conversation_stays() {
    let (script, mut window) = answered();
    window.click(strings::ASK_AGAIN);
    script.say_then(Then::Panic);
    window.click(strings::START_AGAIN);
    script.read(16);
    window.wait_for_part("read in");
    assert_eq!(script.opened(), 2);
    assert!(window.sees_part(QUESTION), "the question is still there");
    window.click(strings::ASK_AGAIN);
    script.say(4);
    window.wait_for_part("The special magic number is 2003322.");
}

#[test]
fn a_call_that_fails_is_told_and_can_be_asked_again() {
    let (script, mut window) = read();
    window.click_part(QUESTION);
    script.say_then(Then::Fail);
    window.wait_for(strings::failure(FailureKind::DeviceLost).0);
    window.click(strings::ASK_AGAIN);
    script.say(4);
    window.wait_for_part("The special magic number is 2003322.");
    assert_eq!(script.opened(), 1);
}

#[test]
fn everything_has_a_key() {
    let (script, mut window) = planned();
    let press = |window: &mut Window, modifiers, key| {
        window.0.key_press_modifiers(modifiers, key);
        window.0.run_ok();
    };
    press(&mut window, Modifiers::NONE, Key::F1);
    assert!(window.sees(strings::CLOSE));
    press(&mut window, Modifiers::NONE, Key::Escape);
    assert!(!window.sees(strings::CLOSE));
    press(&mut window, Modifiers::COMMAND, Key::R);
    script.read(2);
    window.wait_for_part("512 of");
    press(&mut window, Modifiers::COMMAND, Key::P);
    window.wait_for(strings::PAUSED);
    press(&mut window, Modifiers::NONE, Key::Escape);
    script.read(1);
    window.wait_for(strings::READ_ON);
    press(&mut window, Modifiers::NONE, Key::PageDown);
    assert!(document(&window).page.offset > 100.0, "{}", document(&window).page.offset);
    window.click_part(QUESTION);
    script.say(4);
    window.wait_for(strings::ASK_AGAIN);
    press(&mut window, Modifiers::COMMAND, Key::D);
    script.say(4);
    window.wait_for(strings::SAME_ANSWER);
    press(&mut window, Modifiers::COMMAND | Modifiers::SHIFT, Key::C);
    window.wait_for(strings::COPIED);
}

/// For comparisons in tests.
trait CloneProgress {
    fn clone_progress(&self) -> String;
}

impl CloneProgress for Document {
    fn clone_progress(&self) -> String {
        format!("{:?}", self.stage)
    }
}

/// What the system is asked to do after a click.
fn done(
    window: &mut Window,
    label: &str,
    find: impl Fn(&OutputCommand) -> Option<String>,
) -> String {
    // It may lie above what is in sight.
    window.0.get_by_label(label).click_accesskit();
    let mut found = None;
    window.until(label, |window| {
        let commands = &window.0.output().platform_output.commands;
        found = commands.iter().find_map(&find);
        found.is_some()
    });
    found.expect("it was waited for")
}

fn ask_for(window: &mut Window, script: &Script, question: &str, n_words: usize) {
    window.type_question(question);
    window.click(strings::ASK);
    script.say(n_words);
    window.wait_for(strings::ASK_AGAIN);
}

#[test]
fn an_answer_in_markdown_is_shown_as_it_is_meant_and_copied_as_it_is() {
    let (script, mut window) = read();
    ask_for(&mut window, &script, "Tell me in Markdown", MARKDOWN.split_inclusive(' ').count());
    for text in ["The lantern", "2.", "the quiet one", "And once more.", "2003322", "☑ done"] {
        assert!(window.sees(text), "{text}");
    }
    for (what, part) in [
        ("neither a star nor a mark of code", "above the door of the old mill, never always lit"),
        ("HTML is text", "<script>alert(1)</script>"),
        ("a picture is its description", "See a map."),
        ("an address that is not opened is text", "and in a file."),
        ("code", "fn light(hours: u32)"),
    ] {
        assert!(window.sees_part(part), "{what}");
    }
    let address = done(&mut window, "his letter", |command| match command {
        OutputCommand::OpenUrl(open) => Some(open.url.clone()),
        _ => None,
    });
    assert_eq!(address, "https://letters.example/7");
    let copied = |command: &OutputCommand| match command {
        OutputCommand::CopyText(text) => Some(text.clone()),
        _ => None,
    };
    let code = done(&mut window, strings::COPY_CODE, copied);
    assert!(code.starts_with("fn light(") && code.ends_with("is wide"), "{code}");
    assert_eq!(done(&mut window, strings::COPY, copied), MARKDOWN);
}
