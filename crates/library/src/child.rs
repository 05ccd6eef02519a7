//! A process of this same program with limits of memory and time, for work on what strangers made.
//!
//! The parent starts the program once more with a first word that no user types, sends the input
//! and waits for the answer ([`crate::asked`]). The child limits itself before it reads anything
//! ([`limit`]), then answers with a text or an error ([`answer_bytes`], [`read_answer`]). Whatever
//! ends the child is one error in the parent. Windows has no such limits; there the time bounds it.

use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// An answer begins with one of these: a text follows, or an error as JSON.
const TEXT: u8 = b'T';
const ERROR: u8 = b'E';

/// What a child may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Address space, in MiB.
    pub memory_mib: u64,
    /// Processor time, in seconds.
    pub cpu_s: u64,
    /// Time from start to end; the processor may be busy with something else.
    pub wall: Duration,
    /// Bytes of the answer.
    pub answer_bytes: u64,
}

/// Why a child gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The system starts no process, or gives it no pipes.
    #[error("no process could be started for it ({0})")]
    NotStarted(String),
    /// The answer is longer than it may be.
    #[error("it writes more than {0} bytes")]
    TooLong(u64),
    /// The stack is full.
    #[error("its parts are nested too deep")]
    TooDeep,
    /// The time is over.
    #[error("it took longer than {0} s")]
    TooSlow(u64),
    /// The memory is full.
    #[error("it needs more than {0} MiB of memory")]
    TooLarge(u64),
    /// Something else ended it, or its answer is none.
    #[error("its process ended without an answer ({0})")]
    Silent(String),
}

/// A child in a group of its own, so that Ctrl-C is this program's alone.
pub(crate) fn start(words: &[String]) -> io::Result<Child> {
    // The file may have been replaced since this program started; this name always is the program.
    // (Wine shows Linux's /proc to programs for Windows, which cannot start what is in it.)
    let always = Path::new("/proc/self/exe");
    let is_there = cfg!(target_os = "linux") && always.exists();
    let program = if is_there { always.to_owned() } else { std::env::current_exe()? };
    let mut command = Command::new(program);
    command.args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn()
}

/// Why a child ended without an answer, by its last words.
pub(crate) fn cause(words: &str, status: ExitStatus, limits: &Limits) -> Ended {
    if words.contains("overflowed its stack") {
        return Ended::TooDeep;
    }
    if is_cpu_spent(status) {
        return Ended::TooSlow(limits.cpu_s);
    }
    if words.contains("memory allocation") {
        return Ended::TooLarge(limits.memory_mib);
    }
    Ended::Silent(status.to_string())
}

/// Whether the system ended the child for its time.
#[cfg(unix)]
fn is_cpu_spent(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    let signal = status.signal();
    let ended_by = |wanted: rustix::process::Signal| signal == Some(wanted.as_raw());
    ended_by(rustix::process::Signal::XCPU) || ended_by(rustix::process::Signal::KILL)
}

#[cfg(not(unix))]
fn is_cpu_spent(_: ExitStatus) -> bool {
    false
}

/// Gives this process so much memory and processor time, no file to write, and no file of its
/// memory when it dies.
#[cfg(unix)]
pub fn limit(memory_mib: u64, cpu_s: u64) {
    limit_memory(memory_mib);
    limit_to(&[(rustix::process::Resource::Cpu, cpu_s)]);
}

/// [`limit`] but for processor time.
#[cfg(unix)]
pub fn limit_memory(memory_mib: u64) {
    use rustix::process::Resource;
    limit_to(&[(Resource::As, memory_mib << 20), (Resource::Fsize, 0), (Resource::Core, 0)]);
}

#[cfg(unix)]
fn limit_to(limits: &[(rustix::process::Resource, u64)]) {
    use rustix::process::{Rlimit, getrlimit, setrlimit};
    for &(resource, wanted) in limits {
        // A limit can be lowered, never raised. Where the system has none, that of time remains.
        let now = getrlimit(resource).maximum;
        let limit = Some(now.map_or(wanted, |now| now.min(wanted)));
        let _ = setrlimit(resource, Rlimit { current: limit, maximum: limit });
    }
}

/// Does nothing: this system has no such limits.
#[cfg(not(unix))]
pub fn limit(_: u64, _: u64) {}

/// Does nothing: this system has no such limits.
#[cfg(not(unix))]
pub fn limit_memory(_: u64) {}

/// A child's answer as it is sent.
///
/// # Errors
/// If the error cannot be written as JSON.
pub fn answer_bytes<E: Serialize>(answer: Result<String, E>) -> io::Result<Vec<u8>> {
    match answer {
        Ok(mut text) => {
            text.insert(0, char::from(TEXT));
            Ok(text.into_bytes())
        }
        Err(error) => {
            let mut bytes = vec![ERROR];
            serde_json::to_writer(&mut bytes, &error)?;
            Ok(bytes)
        }
    }
}

/// What a child wrote.
///
/// # Errors
/// [`Ended::Silent`] where that is no answer.
pub fn read_answer<E: DeserializeOwned>(mut answer: Vec<u8>) -> Result<Result<String, E>, Ended> {
    let broken = || Ended::Silent("its answer is broken".to_owned());
    match answer.first() {
        Some(&TEXT) => {
            answer.remove(0);
            String::from_utf8(answer).map(Ok).map_err(|_| broken())
        }
        Some(&ERROR) => serde_json::from_slice(&answer[1..]).map(Err).map_err(|_| broken()),
        _ => Err(broken()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_texts_or_errors() {
        let read = |bytes: &[u8]| read_answer::<Vec<u32>>(bytes.to_vec());
        for answer in [Ok("hi".to_owned()), Err(vec![3, 4])] {
            assert_eq!(read(&answer_bytes(answer.clone()).unwrap()), Ok(answer));
        }
        assert_eq!(read(b"Thi"), Ok(Ok("hi".to_owned())));
        assert_eq!(read(b"E[3,4]"), Ok(Err(vec![3, 4])));
        for bad in [&b""[..], b"x", b"E{", b"T\xff"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn last_words_and_signals_tell_the_cause() {
        use std::os::unix::process::ExitStatusExt;
        let wall = Duration::from_secs(10);
        let limits = Limits { memory_mib: 512, cpu_s: 5, wall, answer_bytes: 1 };
        let cause = |words: &str, signal| cause(words, ExitStatus::from_raw(signal), &limits);
        assert_eq!(cause("thread 'main' has overflowed its stack", 6), Ended::TooDeep);
        assert_eq!(cause("memory allocation of 9 bytes failed", 6), Ended::TooLarge(512));
        let cpu = rustix::process::Signal::XCPU.as_raw();
        assert_eq!(cause("", cpu), Ended::TooSlow(5));
        assert!(matches!(cause("", 6), Ended::Silent(_)));
    }
}
