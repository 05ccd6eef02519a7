//! Typing: editing, history, pastes, blocks, commands.

use std::os::unix::fs::PermissionsExt;

use super::screen::Screen;
use super::{QUESTION, document};

/// A chat that answers in a few tokens.
const SHORT: [&str; 4] = ["-n", "16", "-c", "2048"];

fn with<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&SHORT[..], words].concat()
}

#[test]
fn a_document_is_read_once_and_asked_with_an_edited_line() {
    let screen = Screen::new();
    screen.folder().write("book.txt", document(20));
    screen.start(100, &with(&["-f", "@book.txt"]));
    screen.wait_for("tokens/s; ask about it, /help lists the commands");
    screen.wait_for_prompt();
    // The letters that are wrong are mended by arrows, Home, Delete and End.
    screen.text("XWhat is the pass key? The pass key s");
    screen.keys(&["Left"]);
    screen.text("i");
    screen.keys(&["Home", "DC", "End", "Enter"]);
    screen.wait_for("48213");
    let lines = screen.wait_for_prompt();
    assert!(lines.contains(&format!("> {QUESTION}")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("^[")), "{lines:?}");
    screen.ask("/stats", "turns: 1");
    let shown = screen.shown();
    let prefill = shown.lines().find_map(|line| line.strip_prefix("prefill  ")).unwrap();
    let n: usize = prefill.split_whitespace().next().unwrap().parse().unwrap();
    assert!(n < 40, "the document was read before: {prefill}");
    screen.keys(&["C-d"]);
    assert_eq!(screen.code(), 0);
}

#[test]
fn the_history_is_there_in_the_next_run() {
    let screen = Screen::new();
    screen.start(100, &SHORT);
    screen.wait_for_prompt();
    screen.ask("/set seed 4321", "seed 4321");
    screen.ask("/stats", "turns: 0");
    screen.line("/bye");
    assert_eq!(screen.code(), 0);
    let file = screen.folder().file("state/longview/history");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    screen.start(100, &SHORT);
    screen.wait_for_prompt();
    screen.keys(&["Up", "Up", "Up"]);
    screen.wait("the line of the run before", |lines| lines.last().unwrap() == "> /set seed 4321");
    screen.keys(&["Enter"]);
    screen.wait_for("\nseed 4321");
}

#[test]
fn a_paste_and_a_block_are_one_message_each() {
    let screen = Screen::new();
    screen.start(100, &SHORT);
    screen.wait_for_prompt();
    screen.paste("first line\nsecond line\nthird line");
    screen.wait("the paste", |lines| lines.last().unwrap().ends_with("third line"));
    screen.keys(&["Enter"]);
    screen.wait_for_prompt();
    screen.ask("/stats", "turns: 1");
    for line in ["\"\"\"one", "two", "/bye\"\"\""] {
        screen.line(line);
    }
    screen.wait_for_prompt();
    screen.ask("/stats", "turns: 2");
    screen.ask("/undo", "taken back: one...");
    screen.ask("/undo", "taken back: first line...");
}

#[test]
fn commands_are_listed_completed_and_never_sent() {
    let screen = Screen::new();
    screen.start(100, &SHORT);
    screen.wait_for_prompt();
    let help = screen.ask("/help", "begins and ends a text of several lines").join("\n");
    for name in ["/clear", "/undo", "/retry", "/save", "/load", "/set", "/system", "/bye"] {
        assert!(help.contains(&format!("\n{name} ")), "{name}: {help}");
    }
    screen.ask("/halp", "error: /halp: no such command; /help lists them");
    let reason = "error: invalid value '2' for '--top-p <P>': must be a number above 0, at most 1";
    screen.ask("/set top-p 2", reason);
    screen.text("/st");
    screen.keys(&["Tab"]);
    screen.wait("the completed command", |lines| lines.last().unwrap() == "> /stats");
    screen.keys(&["Enter"]);
    screen.wait_for("turns: 0");
    screen.ask("/system Be brief.", "the system message is set");
    screen.ask("//slash", "> //slash");
    screen.ask("/stats", "turns: 1");
    screen.ask("/retry", "the temperature is 0, so the answer is the same");
    screen.ask("/clear", "the chat begins anew");
    screen.line("/quit");
    assert_eq!(screen.code(), 0);
}

#[test]
fn what_is_typed_ahead_waits_for_the_prompt() {
    let screen = Screen::new();
    screen.start(100, &["-c", "8192", "--ignore-eos", "-n", "600"]);
    screen.wait_for_prompt();
    screen.line("Hello");
    screen.wait("an answer", |lines| lines.len() > 4);
    screen.line("/stats");
    screen.wait_for("turns: 1");
    let shown = screen.shown();
    assert_eq!(shown.matches("/stats").count(), 1, "{shown}");
    assert!(shown.contains("\n> /stats\n"), "{shown}");
}
