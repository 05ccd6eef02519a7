//! A context that runs full.

use super::screen::Screen;

#[test]
fn a_full_context_is_announced_and_the_chat_goes_on() {
    let screen = Screen::new();
    // The answers become tokens again when they are read, and these may be fewer.
    let long = "What now? ".repeat(25) + "Really?";
    screen.start(400, &["-c", "600", "--ignore-eos", "-n", "400"]);
    screen.wait_for_prompt();
    let lines = screen.ask("Hello", "tokens of the context are left");
    assert!(!lines[0].contains("are left"), "an empty context has room: {lines:?}");
    screen.ask("And then?", "the answer ends here: the context of 600 tokens is full; /clear");
    screen.wait_for("0 of 600 tokens of the context are left; /clear forgets the turns so far");
    screen.ask(&long, "error: no room for this turn: ");
    screen.keys(&["Up"]);
    screen.wait("the text", |lines| lines.last().unwrap().ends_with("Really?"));
    screen.keys(&["C-u"]);
    screen.ask("/clear", "the chat begins anew");
    screen.ask("/set n 4", "\nn 4");
    screen.line("What now?");
    screen.wait_for_prompt();
    screen.ask("/stats", "turns: 1");
}
