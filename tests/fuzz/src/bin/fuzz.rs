//! The fuzzer, where `cargo xtask fuzz` builds it; else a program that runs files through a target:
//! `cargo run -p longview-fuzz -- gguf FILE..`, to look at what a fuzzer found.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
mod fuzzer {
    use std::sync::OnceLock;

    use libfuzzer_sys::{Corpus, fuzz_target};
    use longview_fuzz::{Outcome, Target, target};

    /// Names the target: libFuzzer reads the arguments.
    const TARGET: &str = "LONGVIEW_FUZZ_TARGET";

    static CHOSEN: OnceLock<&Target> = OnceLock::new();

    fn choose() {
        let name = std::env::var(TARGET).unwrap_or_default();
        let chosen = target(&name).unwrap_or_else(|message| panic!("{TARGET}: {message}"));
        CHOSEN.get_or_init(|| chosen);
    }

    // What a limit ended takes too long to be tried again and again.
    fuzz_target!(init: choose(), |bytes: &[u8]| -> Corpus {
        match (CHOSEN.get().expect("chosen").run)(bytes) {
            Outcome::Limited => Corpus::Reject,
            Outcome::Used | Outcome::Refused => Corpus::Keep,
        }
    });
}

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    use std::process::ExitCode;

    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, files)) = words.split_first().filter(|(_, files)| !files.is_empty()) else {
        say("usage: fuzz TARGET FILE..");
        return ExitCode::from(2);
    };
    let target = match longview_fuzz::target(name) {
        Ok(target) => target,
        Err(message) => {
            say(&message);
            return ExitCode::from(2);
        }
    };
    for file in files {
        match std::fs::read(file) {
            Ok(bytes) => say(&format!("{file}: {:?}", (target.run)(&bytes))),
            Err(error) => {
                say(&format!("{file}: cannot be read ({error})"));
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

#[cfg(not(fuzzing))]
#[expect(clippy::print_stderr, reason = "a program for a terminal")]
fn say(text: &str) {
    eprintln!("{text}");
}
