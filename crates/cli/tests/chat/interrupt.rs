//! Ctrl-C, and windows that change their size.

use std::time::Duration;

use super::screen::Screen;
use super::{QUESTION, document};
use crate::support::{Done, command, needle};

/// `4,992` before `of 5,000 WHAT`.
fn counts(shown: &str, what: &str) -> Option<(usize, usize)> {
    let line = shown.lines().find(|line| line.contains("interrupted: ") && line.contains(what))?;
    let mut words = line.split("interrupted: ").nth(1)?.split(' ');
    let mut number = || words.next()?.replace(',', "").parse().ok();
    let first = number()?;
    number_after_of(line).map(|total| (first, total))
}

fn number_after_of(line: &str) -> Option<usize> {
    line.split(" of ").nth(1)?.split(' ').next()?.replace(',', "").parse().ok()
}

#[test]
fn an_answer_is_stopped_and_the_chat_goes_on() {
    let screen = Screen::new();
    screen.start(100, &["--ignore-eos", "-c", "16384"]);
    screen.wait_for_prompt();
    screen.line("Hello");
    screen.wait("an answer", |lines| lines.len() > 4);
    screen.keys(&["C-c"]);
    screen.wait_for("interrupted: the answer ends after ");
    screen.wait_for_prompt();
    screen.ask("/set n 4", "\nn 4");
    screen.line("And then?");
    screen.wait_for_prompt();
    screen.ask("/stats", "turns: 2");
}

#[test]
fn at_an_empty_prompt_it_asks_once() {
    let screen = Screen::new();
    screen.start(100, &["-n", "4"]);
    screen.wait_for_prompt();
    let hints = |n: usize| {
        screen.wait("a hint", |lines| {
            let n_hints = lines.iter().filter(|line| line.contains("press Ctrl-C again")).count();
            n_hints == n && lines.last().is_some_and(|line| line == ">")
        })
    };
    screen.text("half a line");
    screen.keys(&["C-c"]);
    screen.wait("a new prompt", |lines| {
        lines.iter().any(|line| line == "> half a line") && lines.last().unwrap() == ">"
    });
    hints(0);
    screen.keys(&["C-c"]);
    hints(1);
    screen.ask("/set seed 1", "\nseed 1");
    screen.keys(&["C-c"]);
    hints(2);
    screen.keys(&["C-c"]);
    assert_eq!(screen.code(), 130);
}

#[test]
fn a_prefill_is_stopped_and_goes_on_where_it_stopped() {
    let screen = Screen::new();
    screen.folder().write("book.txt", document(400));
    let words = ["-f", "@book.txt", "-c", "16384", "-n", "16", "--chunk-size", "128"];
    screen.start(100, &words);
    screen.wait("a bar", |lines| lines.iter().any(|line| line.contains("prefill [=")));
    screen.keys(&["C-c"]);
    screen.wait_for("document tokens are computed and kept");
    screen.wait_for_prompt();
    let shown = screen.shown();
    let (done, total) = counts(&shown, "document tokens").expect(&shown);
    assert!(done > 0 && done < total, "{done} of {total}");
    assert_eq!(done % 128, 0, "whole chunks: {done} of {total}");
    screen.ask(QUESTION, "48213");
    screen.ask("/stats", "turns: 1");
    let shown = screen.shown();
    let prefill = shown.lines().find_map(|line| line.strip_prefix("prefill  ")).unwrap();
    let n: usize = prefill.split_whitespace().next().unwrap().replace(',', "").parse().unwrap();
    assert!(n + done > total && n + done < total + 60, "{n} after {done} of {total}");
}

/// A session that was saved while it was read has no index: opening makes one, and one Ctrl-C ends
/// that.
#[test]
fn a_session_that_is_opened_is_given_up_and_the_chat_stays() {
    let screen = Screen::new();
    let folder = screen.folder();
    let (book, file) = (folder.write("book.txt", document(800)), folder.file("book.lvs"));
    let (book, name) = (book.display().to_string(), file.display().to_string());
    let model = needle().display().to_string();
    // As many iterations as are allowed take seconds.
    let slow = ["--policy", "lrqk", "--iterations", "1024", "-c", "32768", "--chunk-size", "128"];
    let words = ["run", "-m", &model, "--device", "cpu", "-f", &book, "--save-session", &name];
    let mut saved = [1500, 4000, 10_000, 30_000].into_iter().map(|ms| {
        let child = command([&words[..], &slow[..]].concat()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(ms));
        let pid = child.id().to_string();
        let sent = std::process::Command::new("kill").args(["-INT", &pid]).status();
        assert!(sent.unwrap().success());
        Done::from(child.wait_with_output().unwrap())
    });
    // A busy machine may not have begun to read.
    saved.find(|_| file.exists()).expect("a part was read");
    screen.start(200, &["-n", "4", "-c", "32768"]);
    screen.wait_for_prompt();
    screen.line(&format!("/load {name}"));
    screen.wait_for("its index is not complete; it is made now, and not kept: /save keeps it");
    screen.keys(&["C-c"]);
    screen.wait_for("book.lvs is not opened; the chat stays as it was");
    screen.wait_for_prompt();
    screen.ask("/stats", "turns: 0");
    screen.line("/bye");
    assert_eq!(screen.code(), 0);
}

#[test]
fn a_bar_stays_on_one_line_of_a_window_that_changes() {
    let screen = Screen::new();
    screen.folder().write("book.txt", document(400));
    screen.start(100, &["-f", "@book.txt", "-c", "16384", "--chunk-size", "64"]);
    screen.wait("a bar", |lines| lines.iter().any(|line| line.contains("prefill [=")));
    for columns in [50, 30, 90] {
        screen.resize(columns);
        // tmux breaks a line that has become too wide, and what it moves out of an empty window's
        // top nobody can erase. So this looks at what is to be seen.
        let is_bar = |_: &[String]| {
            let lines = screen.visible();
            // One line, short of the last column, which grows with the window.
            lines.len() == 1
                && lines[0].starts_with("prefill ")
                && lines[0].contains("tokens")
                && lines[0].len() < columns
                && (columns < 90 || lines[0].len() > 50)
        };
        screen.wait("a bar of one line", is_bar);
    }
    screen.wait_for("tokens/s; ask about it");
    screen.wait_for_prompt();
    let lines = screen.visible();
    assert!(!lines.iter().any(|line| line.contains("prefill")), "nothing is left: {lines:?}");
}
