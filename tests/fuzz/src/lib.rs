//! What reads the files and requests of strangers, called with any bytes: models, tokenizers,
//! templates, sessions, bodies over HTTP.
//!
//! Each target takes a file as a user could name it, opens it through the public API and uses all
//! that it holds. It must end in a use or in an error, whatever the bytes: no panic, no abort, no
//! ten seconds, no half gigabyte. `cargo xtask fuzz` looks for bytes that do otherwise, led by the
//! code that they reach. `tests/corpus.rs` runs those that it kept, which take seconds, with every
//! `cargo test`.

#![cfg_attr(fuzzing, feature(alloc_error_hook))]

mod chat;
mod config;
mod gguf;
mod input;
pub mod memory;
mod outcome;
mod request;
mod safetensors;
mod session;
mod tokenizer;

pub use outcome::Outcome;

/// A kind of file.
pub struct Target {
    /// Its name on command lines, and of its corpus and its dictionary.
    pub name: &'static str,
    /// Reads such a file.
    pub run: fn(&[u8]) -> Outcome,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "gguf", run: gguf::run },
    Target { name: "safetensors", run: safetensors::run },
    Target { name: "config", run: config::run },
    Target { name: "tokenizer", run: tokenizer::run },
    Target { name: "chat", run: chat::run },
    Target { name: "session", run: session::run },
    Target { name: "request", run: request::run },
];

/// The target `name`, or an error with all names.
pub fn target(name: &str) -> Result<&'static Target, String> {
    TARGETS.iter().find(|target| target.name == name).ok_or_else(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        format!("unknown target {name:?}: one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_found_by_name() {
        assert!(TARGETS.iter().all(|one| target(one.name).is_ok_and(|it| it.name == one.name)));
        let message = target("x").err().unwrap();
        assert!(message.contains("one of gguf, safetensors"), "{message}");
    }
}
