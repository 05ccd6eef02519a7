//! Every input that was kept ends in a use or in an error, with each `cargo test`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longview_fuzz::{Outcome, TARGETS, Target};

fn files(folder: &str) -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = fs::read_dir(here.join(folder)).expect("a folder");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

fn corpus(target: &Target) -> Vec<PathBuf> {
    files(&format!("corpus/{}", target.name))
}

/// What was kept, and for sessions the files that other tests have.
fn inputs(target: &Target) -> Vec<PathBuf> {
    let is_session = target.name == "session";
    let fixtures = if is_session { files("../fixtures/session") } else { Vec::new() };
    [corpus(target), fixtures].concat()
}

/// A corpus in which nothing is right, or nothing wrong, reaches half of a parser. (One right file
/// may be the smallest way to all that such files reach.)
#[test]
fn what_was_kept_is_used_or_refused() {
    for target in TARGETS {
        let (mut used, mut refused) = (0, 0);
        for path in inputs(target) {
            let bytes = fs::read(&path).expect("an input");
            let start = Instant::now();
            match (target.run)(&bytes) {
                Outcome::Used => used += 1,
                Outcome::Refused => refused += 1,
                // A template that runs for ever; the limit is what is tried.
                Outcome::Limited => {}
            }
            let took = start.elapsed();
            assert!(took < Duration::from_secs(10), "{}: {took:?}", path.display());
        }
        let name = target.name;
        assert!(used > 0 && refused > 2, "{name}: {used} were used, {refused} refused");
    }
}

#[test]
fn corpora_are_small() {
    for target in TARGETS {
        let sizes =
            corpus(target).into_iter().map(|path| fs::metadata(path).expect("a file").len());
        let bytes: u64 = sizes.sum();
        assert!(bytes < 100 << 10, "{}: {bytes} bytes", target.name);
    }
}
