//! Starts the process that reads a file, and waits for its text no longer than it may take.

use std::io::{self, Cursor, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::child::{WORD, read_answer};
use super::detect::kind_of;
use super::error::TextError;
use super::kind::Kind;

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Memory of a child beside a multiple of the file, in MiB: code and stacks.
const MEMORY_MIB: u64 = 768;
/// Bytes of memory for each byte of the file. Streams of a PDF are deflated.
const MEMORY_FACTOR: u64 = 24;
/// Memory of a child, whatever the file has, in MiB.
const MAX_MEMORY_MIB: u64 = 8192;
/// Processor time of a child in seconds, and bytes for which it gets a second more.
const CPU_S: u64 = 20;
const BYTES_PER_S: u64 = 1 << 18;
/// What is read of a child's last words, which only tell one cause from another.
const STDERR_BYTES: u64 = 4096;
/// Bytes that tell what a file is.
const HEAD_BYTES: u64 = 4096;

/// A text that came out of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extracted {
    /// The text, with `\n` at the end of lines.
    pub text: String,
    /// What the file is.
    pub kind: Kind,
    /// Its bytes.
    pub file_bytes: u64,
}

/// What a child may take.
struct Limits {
    memory_mib: u64,
    cpu_s: u64,
    wall: Duration,
    text_bytes: u64,
}

/// The text of a file, read by a process with limits of memory and time. `name` says by its ending
/// what the file is where its bytes do not. At most `max_bytes` of text come.
///
/// # Errors
/// Why there is no text, by name; the caller says of which file.
pub fn extract(mut file: impl Read, name: &str, max_bytes: u64) -> Result<Extracted, TextError> {
    let system = |error: io::Error| TextError::Io { reason: error.to_string() };
    let mut bytes = Vec::new();
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut bytes).map_err(system)?;
    let kind = kind_of(name, &bytes)?;
    // A text is as long as its file at most, but for encodings of one or two bytes a letter.
    let max_file_bytes = match kind {
        Kind::Txt | Kind::Md => max_bytes.saturating_mul(2),
        Kind::Html | Kind::Pdf | Kind::Docx => MAX_FILE_BYTES,
    };
    file.take(max_file_bytes).read_to_end(&mut bytes).map_err(system)?;
    let file_bytes = bytes.len() as u64;
    if file_bytes > max_file_bytes {
        return Err(TextError::TooLarge { bytes: file_bytes, max_bytes: max_file_bytes });
    }
    let text = converse(kind, bytes, &Limits::of(file_bytes, max_bytes))?;
    Ok(Extracted { text, kind, file_bytes })
}

impl Limits {
    fn of(file_bytes: u64, text_bytes: u64) -> Self {
        let memory_mib = MEMORY_MIB + (file_bytes.saturating_mul(MEMORY_FACTOR) >> 20);
        let cpu_s = CPU_S + file_bytes / BYTES_PER_S;
        // The processor may be busy with something else.
        let wall = Duration::from_secs(2 * cpu_s);
        Self { memory_mib: memory_mib.min(MAX_MEMORY_MIB), cpu_s, wall, text_bytes }
    }
}

/// Sends the bytes to a child and returns its text.
fn converse(kind: Kind, bytes: Vec<u8>, limits: &Limits) -> Result<String, TextError> {
    let failed = |error: io::Error| TextError::Io {
        reason: format!("no process could be started for it ({error})"),
    };
    let ended = |reason: String| TextError::Limits { kind, reason };
    let mut child = start(kind, limits).map_err(failed)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err(ended("its process has no pipes".to_owned()));
    };
    let limit = limits.text_bytes + 1;
    let (send, receive) = mpsc::channel();
    // A child that ends early closes its pipes, and then both threads end.
    thread::spawn(move || io::copy(&mut Cursor::new(bytes), &mut stdin));
    thread::spawn(move || {
        let (mut answer, mut words) = (Vec::new(), Vec::new());
        let read = stdout.take(limit + 1).read_to_end(&mut answer);
        let _ = stderr.take(STDERR_BYTES).read_to_end(&mut words);
        let _ = send.send((read.map(|_| answer), words));
    });
    let received = receive.recv_timeout(limits.wall);
    if received.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed)?;
    match received {
        Ok((Ok(answer), _)) if answer.len() as u64 > limit => {
            Err(TextError::TooLong { max_bytes: limits.text_bytes })
        }
        Ok((Ok(answer), _)) if status.success() => {
            read_answer(answer).unwrap_or_else(|| Err(ended("its answer is broken".to_owned())))
        }
        Ok((_, words)) => Err(ended(cause(&String::from_utf8_lossy(&words), status, limits))),
        Err(_) => Err(ended(took_longer(limits.wall.as_secs()))),
    }
}

/// A child in a group of its own, so that Ctrl-C is this program's alone.
fn start(kind: Kind, limits: &Limits) -> io::Result<Child> {
    // The file may have been replaced since this program started; this name always is the program.
    let always = Path::new("/proc/self/exe");
    let program = if always.exists() { always.to_owned() } else { std::env::current_exe()? };
    let mut command = Command::new(program);
    let numbers = [limits.text_bytes, limits.memory_mib, limits.cpu_s];
    command.args([WORD, kind.name()]).args(numbers.map(|number| number.to_string()));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn()
}

/// Why a child ended without an answer, by its last words.
fn cause(words: &str, status: ExitStatus, limits: &Limits) -> String {
    if words.contains("overflowed its stack") {
        return "its parts are nested too deep".to_owned();
    }
    if is_cpu_spent(status) {
        return took_longer(limits.cpu_s);
    }
    if words.contains("memory allocation") {
        return format!("it needs more than {} MiB of memory", limits.memory_mib);
    }
    format!("its process ended without an answer ({status})")
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

fn took_longer(seconds: u64) -> String {
    format!("it took longer than {seconds} s")
}
