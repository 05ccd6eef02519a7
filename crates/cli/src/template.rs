//! Chat templates, run in a process of their own.
//!
//! A template is a program from a stranger. The library bounds its source, its steps and what it
//! writes, but not the memory that it takes on the way: a text that is doubled thirty times has a
//! gigabyte. So this program starts itself once for each rendering, as a child that limits its own
//! memory and time before it reads anything. Whatever ends the child is one error here. It costs a
//! few milliseconds; a system without such limits (Windows) still has that of time.

mod child;

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use longview_model::chat::{
    ChatError, ChatMessage, ChatTemplate, RenderOptions, TemplateJob, TemplateRunner,
};
use longview_model::folder::ModelFolder;

/// The first word of a child's command line. No command of a user has this name.
const WORD: &str = "__render-template";

/// Memory of a child beyond a multiple of the conversation, in MiB: code, stacks, and texts.
const MEMORY_MIB: usize = 512;
/// Bytes of memory for each byte of the conversation, which is there as JSON, as values and as the
/// text that comes out.
const MEMORY_FACTOR: usize = 24;
/// Processor time of a child, in seconds.
const CPU_S: u64 = 5;
/// Seconds from start to end of a child; the processor may be busy with something else.
const WALL_S: u64 = 10;
/// Bytes of a conversation for which a child gets a second more.
const BYTES_PER_S: usize = 4 << 20;
/// What is read of a child's last words, which only tell one cause from another.
const STDERR_BYTES: u64 = 4096;

/// Becomes the child, if that is what the command line says.
pub fn serve() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    (words.next()? == WORD).then(|| child::main(words))
}

/// Opens the folder or the GGUF file of a model whose template will run in a child.
pub fn open_folder(path: &Path) -> Result<ModelFolder> {
    let mut folder = ModelFolder::open(path)?;
    folder.chat = folder.chat.map(|chat| chat.with_runner(Arc::new(InChild)));
    Ok(folder)
}

/// Finds what is wrong with a template before a model is loaded.
pub fn check(chat: &ChatTemplate) -> Result<()> {
    chat.check().map_err(advise)
}

/// The text of a conversation.
pub fn render(
    chat: &ChatTemplate,
    messages: &[ChatMessage],
    options: &RenderOptions,
) -> Result<String> {
    chat.render(messages, options).map_err(advise)
}

fn advise(error: ChatError) -> anyhow::Error {
    anyhow!("{error}; correct the file, or give --no-chat-template")
}

/// Runs a template in a child.
struct InChild;

impl TemplateRunner for InChild {
    fn run(&self, job: &TemplateJob) -> Result<String, ChatError> {
        let limits = Limits::of(job);
        let stopped = |reason| ChatError::Stopped { origin: job.origin().to_owned(), reason };
        let answer = converse(job, &limits).map_err(stopped)?;
        child::read_answer(answer).unwrap_or_else(|reason| Err(stopped(reason)))
    }
}

/// What a child may take.
struct Limits {
    memory_mib: usize,
    cpu_s: u64,
    wall: Duration,
    output_bytes: u64,
}

impl Limits {
    fn of(job: &TemplateJob) -> Self {
        let input = job.input_bytes();
        let more_s = (input / BYTES_PER_S) as u64;
        Self {
            memory_mib: MEMORY_MIB + (input.saturating_mul(MEMORY_FACTOR) >> 20),
            cpu_s: CPU_S + more_s,
            wall: Duration::from_secs(WALL_S + more_s),
            output_bytes: job.max_output_bytes() as u64 + 1,
        }
    }
}

/// Sends `job` to a child and returns what it writes, or why there is nothing.
fn converse(job: &TemplateJob, limits: &Limits) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| format!("no process could be started to run it in ({error})");
    let request = serde_json::to_vec(job).map_err(|error| error.to_string())?;
    let mut child = start(limits).map_err(failed)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err("its process has no pipes".to_owned());
    };
    let limit = limits.output_bytes;
    let (send, receive) = mpsc::channel();
    // A child that ends early closes its pipes, and then both threads end.
    thread::spawn(move || stdin.write_all(&request));
    thread::spawn(move || {
        let (mut answer, mut words) = (Vec::new(), Vec::new());
        let read = stdout.take(limit + 1).read_to_end(&mut answer);
        let _ = stderr.take(STDERR_BYTES).read_to_end(&mut words);
        let _ = send.send((read.map(|_| answer), words));
    });
    let received = receive.recv_timeout(limits.wall);
    let too_long = matches!(&received, Ok((Ok(answer), _)) if answer.len() as u64 > limit);
    if received.is_err() || too_long {
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed)?;
    match received {
        _ if too_long => Err(format!("it writes more than {} MiB", limit >> 20)),
        Ok((Ok(answer), _)) if status.success() => Ok(answer),
        Ok((_, words)) => {
            Err(cause(&String::from_utf8_lossy(&words), cpu_is_spent(status), limits))
        }
        Err(_) => Err(took_longer(limits.wall.as_secs())),
    }
}

/// A child in a group of its own, so that Ctrl-C is this program's alone.
fn start(limits: &Limits) -> io::Result<Child> {
    // The file may have been replaced since this program started; this name always is the program.
    let always = Path::new("/proc/self/exe");
    let program = if always.exists() { always.to_owned() } else { std::env::current_exe()? };
    let mut command = Command::new(program);
    command.args([WORD, &limits.memory_mib.to_string(), &limits.cpu_s.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn()
}

/// Whether the system ended the child for its time.
#[cfg(unix)]
fn cpu_is_spent(status: std::process::ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    let signal = status.signal();
    let ended_by = |wanted: rustix::process::Signal| signal == Some(wanted.as_raw());
    ended_by(rustix::process::Signal::XCPU) || ended_by(rustix::process::Signal::KILL)
}

#[cfg(not(unix))]
fn cpu_is_spent(_: std::process::ExitStatus) -> bool {
    false
}

/// Why a child ended without an answer, by its last words.
fn cause(words: &str, cpu_is_spent: bool, limits: &Limits) -> String {
    if words.contains("overflowed its stack") {
        return "its calls or values are nested too deep".to_owned();
    }
    if cpu_is_spent {
        return took_longer(limits.cpu_s);
    }
    if words.contains("memory allocation") {
        return format!("it needs more than {} MiB of memory", limits.memory_mib);
    }
    format!("it ended within {} MiB of memory without an answer", limits.memory_mib)
}

fn took_longer(seconds: u64) -> String {
    format!("it took longer than {seconds} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_tell_the_cause() {
        let limits =
            Limits { memory_mib: 512, cpu_s: 5, wall: Duration::from_secs(10), output_bytes: 1 };
        let cause = |words: &str, cpu| cause(words, cpu, &limits);
        assert!(cause("thread 'main' has overflowed its stack", false).contains("nested too deep"));
        assert!(cause("memory allocation of 9 bytes failed", false).contains("more than 512 MiB"));
        assert!(cause("", true).contains("longer than 5 s"));
        assert!(cause("", false).contains("without an answer"));
    }
}
