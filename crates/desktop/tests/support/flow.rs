//! Windows in which the scripted engine has come some way with the sample document.

use longview_desktop::strings;

use super::script::Script;
use super::{Setup, Window};

/// How a question begins that the sample suggests.
pub const QUESTION: &str = "What is the special magic number";

/// What reading takes is known.
pub fn planned() -> (Script, Window) {
    let (script, open) = Script::new();
    let mut window = Setup::new(open).window();
    window.wait_for(strings::READ);
    (script, window)
}

/// The document is read.
pub fn read() -> (Script, Window) {
    let (script, mut window) = planned();
    window.click(strings::READ);
    script.read(16);
    window.wait_for_part("read in");
    (script, window)
}

/// A question is answered.
pub fn answered() -> (Script, Window) {
    let (script, mut window) = read();
    window.click_part(QUESTION);
    script.say(4);
    window.wait_for(strings::ASK_AGAIN);
    (script, window)
}
