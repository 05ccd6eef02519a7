//! The process that reads one file: limits first, then the bytes from stdin, the text on stdout.

use std::ffi::OsString;
use std::io;
use std::panic;
use std::process::ExitCode;
use std::thread;

use super::convert::convert;
use super::error::TextError;
use super::kind::Kind;
use crate::asked::answer_all;
use crate::child;

/// The first word of a child's command line. No command of a user has this name.
pub(super) const WORD: &str = "__read-text";
/// Pages of HTML and PDFs nest; this is the same on every system.
const STACK_BYTES: usize = 64 << 20;

/// Becomes the child, if that is what the command line says. First of all in `main`.
pub fn serve() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    (words.next()? == WORD).then(|| main(words))
}

/// Its arguments are the kind of file, the most bytes of text, MiB of memory and seconds of
/// processor time.
fn main(words: impl Iterator<Item = OsString>) -> ExitCode {
    let words: Vec<String> = words.filter_map(|word| word.into_string().ok()).collect();
    let numbers: Vec<u64> = words.iter().skip(1).filter_map(|word| word.parse().ok()).collect();
    let kind = words.first().and_then(|word| Kind::from_name(word));
    let (Some(kind), [max_bytes, memory_mib, cpu_s]) = (kind, &numbers[..]) else {
        return ExitCode::FAILURE;
    };
    child::limit(*memory_mib, *cpu_s);
    // The parent says what happened.
    panic::set_hook(Box::new(|_| {}));
    match answer_all(|bytes| child::answer_bytes(read(kind, bytes, *max_bytes)?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Reads a file in a thread with a stack of its own.
fn read(kind: Kind, bytes: &[u8], max_bytes: u64) -> io::Result<Result<String, TextError>> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().stack_size(STACK_BYTES);
        let worker = worker.spawn_scoped(scope, || work(kind, bytes, max_bytes))?;
        // Crates that read PDFs give up so on files that are not as they expect.
        let reason = "it is not made as such files are";
        let broken = |_| Err(TextError::Broken { kind, reason: reason.to_owned() });
        Ok(worker.join().unwrap_or_else(broken))
    })
}

/// The number of pages, or 0, on a line of its own, and the text.
fn work(kind: Kind, bytes: &[u8], max_bytes: u64) -> Result<String, TextError> {
    let found = convert(kind, bytes, max_bytes)?;
    Ok(format!("{}\n{}", found.n_pages.unwrap_or(0), found.text))
}
