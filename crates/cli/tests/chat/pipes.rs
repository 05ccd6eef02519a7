//! Chats through pipes.

use std::io::Write;
use std::process::Stdio;

use super::{QUESTION, document};
use crate::support::{Done, TempFolder, command, needle, run};

/// `longview run` on the embedded model with `input` on stdin.
fn chat(words: &[&str], input: &[u8]) -> Done {
    let mut command = command(["run", "--device", "cpu", "-n", "8", "--temp", "0", "-m"]);
    let mut child = command.arg(needle()).args(words).stdin(Stdio::piped()).spawn().unwrap();
    // A program that has ended reads nothing more.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap().into()
}

#[test]
fn the_exit_code_says_whether_turns_failed() {
    let fine = chat(&[], b"Hello\n\n/stats\n\"\"\"two\nlines\n\"\"\"\n/stats\n/bye\nnever read\n");
    assert!(fine.stderr.contains("turns: 2"), "{}", fine.stderr);
    assert_eq!(fine.ok().lines().count(), 2);
    let some = chat(&[], b"Hello\n/halp\ncaf\xe9\n//slash\n\"\"\"open\n");
    assert_eq!(some.code, Some(1), "{}", some.stderr);
    for part in [
        "error: /halp: no such command",
        "error: stdin (one line): not UTF-8: byte 0xe9 at offset 3",
        "error: the text that \"\"\" begins has no end",
        "error: 3 of 5 turns failed",
    ] {
        assert!(some.stderr.contains(part), "{part}: {}", some.stderr);
    }
    assert_eq!(some.stdout.lines().count(), 2, "the others are answered: {}", some.stdout);
}

#[test]
fn an_endless_line_costs_itself_alone() {
    let mut input = vec![b'9'; 30 << 20];
    input.extend(b"\nHello\n/stats\n");
    let done = chat(&["-c", "256"], &input);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("error: the text has more than 1,048,576 bytes"));
    assert!(done.stderr.contains("turns: 1"), "{}", done.stderr);
}

#[test]
fn a_turn_that_does_not_fit_says_what_to_do() {
    let long = "word ".repeat(200);
    let done = chat(&["-c", "128"], format!("Hello\n{long}\n/clear\nHello\n").as_bytes());
    assert_eq!(done.code, Some(1));
    let expected = "the context holds 128; shorten it, /clear forgets the turns so far";
    assert!(done.stderr.contains("error: no room for this turn: with it"), "{}", done.stderr);
    assert!(done.stderr.contains(expected), "{}", done.stderr);
    assert!(done.stderr.contains("error: 1 of 3 turns failed"), "{}", done.stderr);
}

#[test]
fn a_document_alone_is_continued_where_nobody_sits() {
    let folder = TempFolder::new();
    let path = folder.write("book.txt", document(4) + QUESTION);
    let words = ["--device", "cpu", "-n", "8", "--no-chat-template", "-f", path.to_str().unwrap()];
    assert!(run(&needle(), &words).ok().contains("48213"));
    let done = chat(&["-f", path.to_str().unwrap()], b"never read\n");
    assert!(!done.stderr.contains("/help"), "{}", done.stderr);
    done.ok();
}
