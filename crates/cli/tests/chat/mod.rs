//! The chat: at a terminal, where tmux types and looks at the screen, and through pipes.

#[cfg(unix)]
mod context;
#[cfg(unix)]
mod interrupt;
mod pipes;
#[cfg(unix)]
mod screen;
#[cfg(unix)]
mod sessions;
#[cfg(unix)]
mod typing;

/// A question that the embedded model answers.
const QUESTION: &str = "What is the pass key? The pass key is";

/// A text of about 23 tokens for each of `sentences` sentences, with the pass key in the middle.
fn document(sentences: usize) -> String {
    let filler = "The miller carried a basket of straw to the old barn and rested near the gate. ";
    filler.repeat(sentences / 2)
        + "The pass key is 48213. Remember it. 48213 is the pass key. "
        + &filler.repeat(sentences / 2)
}
