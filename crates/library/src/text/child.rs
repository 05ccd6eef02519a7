//! The process that reads one file: limits first, then the bytes from stdin, the text on stdout.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::panic;
use std::process::ExitCode;
use std::thread;

use super::convert::convert;
use super::error::TextError;
use super::kind::Kind;

/// The first word of a child's command line. No command of a user has this name.
pub(super) const WORD: &str = "__read-text";
/// Pages of HTML and PDFs nest; this is the same on every system.
const STACK_BYTES: usize = 64 << 20;
/// An answer begins with one of these: a text follows, or an error as JSON.
const TEXT: u8 = b'T';
const ERROR: u8 = b'E';

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
    limit(memory_mib << 20, *cpu_s);
    // The parent says what happened.
    panic::set_hook(Box::new(|_| {}));
    let max_bytes = *max_bytes;
    let worker = thread::Builder::new().stack_size(STACK_BYTES);
    let worker = worker.spawn(move || work(kind, max_bytes));
    let answer = match worker.map(thread::JoinHandle::join) {
        Ok(Ok(answer)) => answer,
        // Crates that read PDFs give up so on files that are not as they expect.
        Ok(Err(_)) => {
            let reason = "it is not made as such files are".to_owned();
            Err(TextError::Broken { kind, reason })
        }
        Err(_) => return ExitCode::FAILURE,
    };
    match write(answer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn work(kind: Kind, max_bytes: u64) -> Result<String, TextError> {
    let mut bytes = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(|error| TextError::Io { reason: error.to_string() })?;
    convert(kind, &bytes, max_bytes)
}

fn write(answer: Result<String, TextError>) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match answer {
        Ok(text) => {
            stdout.write_all(&[TEXT])?;
            stdout.write_all(text.as_bytes())?;
        }
        Err(error) => {
            stdout.write_all(&[ERROR])?;
            serde_json::to_writer(&mut stdout, &error)?;
        }
    }
    stdout.flush()
}

/// What a child wrote; `None` says that it is no answer.
pub(super) fn read_answer(mut answer: Vec<u8>) -> Option<Result<String, TextError>> {
    match *answer.first()? {
        TEXT => {
            answer.remove(0);
            String::from_utf8(answer).ok().map(Ok)
        }
        ERROR => serde_json::from_slice(&answer[1..]).ok().map(Err),
        _ => None,
    }
}

/// Gives this process so much memory and processor time, no file to write, and no file of its
/// memory when it dies.
#[cfg(unix)]
fn limit(memory_bytes: u64, cpu_s: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limits = [
        (Resource::As, memory_bytes),
        (Resource::Cpu, cpu_s),
        (Resource::Fsize, 0),
        (Resource::Core, 0),
    ];
    for (resource, wanted) in limits {
        // A limit can be lowered, never raised. Where the system has none, that of time remains.
        let now = getrlimit(resource).maximum;
        let limit = Some(now.map_or(wanted, |now| now.min(wanted)));
        let _ = setrlimit(resource, Rlimit { current: limit, maximum: limit });
    }
}

#[cfg(not(unix))]
fn limit(_: u64, _: u64) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_texts_or_errors() {
        assert_eq!(read_answer(b"Thi".to_vec()), Some(Ok("hi".to_owned())));
        let error = TextError::Scanned { n_pages: 3 };
        let json = serde_json::to_vec(&error).unwrap();
        assert_eq!(read_answer([&b"E"[..], &json].concat()), Some(Err(error)));
        for bad in [&b""[..], b"x", b"E{", b"T\xff"] {
            assert_eq!(read_answer(bad.to_vec()), None, "{bad:?}");
        }
    }
}
