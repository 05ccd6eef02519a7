//! Chats in files.

use super::screen::Screen;
use super::{QUESTION, document};
use crate::support::{needle, run};

#[test]
fn a_saved_chat_goes_on_in_the_next_run() {
    let screen = Screen::new();
    let folder = screen.folder();
    folder.write("book.txt", document(20));
    let (book, chat) = (folder.file("book.txt"), folder.file("chat.lvs"));
    let chat = chat.to_str().unwrap();
    screen.start(200, &["-f", "@book.txt", "-n", "16", "-c", "2048"]);
    screen.wait_for_prompt();
    screen.ask(QUESTION, "48213");
    screen.ask(&format!("/save {}", book.display()), "is there already and is no session");
    screen.ask(&format!("/save {chat}"), " written to ");
    screen.line(&format!("/save {chat}"));
    screen.wait_for("is a saved session; replace it? [y/N]");
    screen.line("n");
    screen.wait_for("is there already and stays as it is");
    screen.wait_for_prompt();
    screen.ask("/clear", "the chat begins anew; the document's ");
    screen.ask("/stats", "turns: 0");
    screen.ask(&format!("/load {chat}"), "tokens, turns: 1");
    screen.ask("/load nothing.lvs", "error: /load nothing.lvs: cannot be read");
    screen.ask("/undo", "taken back: What is the pass key?");
    screen.line("/bye");
    assert_eq!(screen.code(), 0);

    screen.start(200, &["--session", chat, "-n", "16", "-c", "2048"]);
    screen.wait_for("tokens opened, 1 turn; /help lists the commands");
    screen.wait_for_prompt();
    screen.line("And again?");
    screen.wait_for_prompt();
    screen.ask("/stats", "turns: 2");
    let shown = screen.shown();
    let prefill = shown.lines().find_map(|line| line.strip_prefix("prefill  ")).unwrap();
    let n: usize = prefill.split_whitespace().next().unwrap().parse().unwrap();
    assert!(n < 40, "what was said is not read again: {prefill}");
    screen.keys(&["C-d"]);
    assert_eq!(screen.code(), 0);

    let words = ["--device", "cpu", "-n", "16", "-c", "2048", "--session", chat];
    let once = run(&needle(), &[&words[..], &["-p", "And again?"]].concat());
    assert_eq!(once.code, Some(0), "one question goes on too: {}", once.stderr);
}
