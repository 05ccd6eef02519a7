//! The process that runs one template: limits first, then the job from stdin, the answer on stdout.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::panic;
use std::process::ExitCode;
use std::thread;

use longview_model::chat::{ChatError, TemplateJob};

/// The stack of the thread that renders: the same on every system, and enough for what the limits
/// of a source allow in a build without optimisation.
const STACK_BYTES: usize = 32 << 20;

/// An answer begins with one of these: a text follows, or an error as JSON.
const TEXT: u8 = b'T';
const ERROR: u8 = b'E';

/// Does the one job of a child. Its arguments are MiB of memory and seconds of processor time.
pub(super) fn main(words: impl Iterator<Item = OsString>) -> ExitCode {
    let numbers: Vec<u64> = words.filter_map(|word| word.to_str()?.parse().ok()).collect();
    let [memory_mib, cpu_s] = numbers[..] else { return ExitCode::FAILURE };
    limit(memory_mib << 20, cpu_s);
    // The parent says what happened.
    panic::set_hook(Box::new(|_| {}));
    let worker = thread::Builder::new().stack_size(STACK_BYTES).spawn(work);
    match worker.map(thread::JoinHandle::join) {
        Ok(Ok(Ok(()))) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn work() -> io::Result<()> {
    let mut request = Vec::new();
    io::stdin().lock().read_to_end(&mut request)?;
    let job: TemplateJob = serde_json::from_slice(&request)?;
    drop(request);
    let mut stdout = io::stdout().lock();
    match job.run() {
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

/// What a child wrote; the outer error says that it is no answer.
pub(super) fn read_answer(mut answer: Vec<u8>) -> Result<Result<String, ChatError>, String> {
    let broken = || "its answer is broken".to_owned();
    match answer.first() {
        Some(&TEXT) => {
            answer.remove(0);
            String::from_utf8(answer).map(Ok).map_err(|_| broken())
        }
        Some(&ERROR) => serde_json::from_slice(&answer[1..]).map(Err).map_err(|_| broken()),
        _ => Err(broken()),
    }
}

/// Gives this process so much memory and processor time, and no file of its memory when it dies.
#[cfg(unix)]
fn limit(memory_bytes: u64, cpu_s: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    for (resource, wanted) in
        [(Resource::As, memory_bytes), (Resource::Cpu, cpu_s), (Resource::Core, 0)]
    {
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
        assert_eq!(read_answer(b"Thi".to_vec()), Ok(Ok("hi".to_owned())));
        let error = ChatError::Endless { origin: "t.jinja".to_owned() };
        let json = serde_json::to_vec(&error).unwrap();
        assert_eq!(read_answer([&b"E"[..], &json].concat()), Ok(Err(error)));
        for bad in [&b""[..], b"x", b"E{", b"T\xff"] {
            assert!(read_answer(bad.to_vec()).is_err(), "{bad:?}");
        }
    }
}
