//! Chat templates, run in a process of their own.
//!
//! A template is a program from a stranger. The library bounds its source, its steps and what it
//! writes, but not the memory that it takes on the way: a text that is doubled thirty times has a
//! gigabyte. So this program starts itself once for each rendering, as a child that limits its own
//! memory and time before it reads anything. Whatever ends the child is one error here. It costs a
//! few milliseconds; a system without such limits (Windows) still has that of time.

mod child;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use longview_library::child::{self as limited, Ended, Limits};
use longview_model::chat::{ChatError, TemplateJob, TemplateRunner};
use longview_model::folder::{FolderError, ModelFolder};

/// The first word of a child's command line. No command of a user has this name.
const WORD: &str = "__render-template";

/// Memory of a child beyond a multiple of the conversation, in MiB: code, stacks, and texts.
const MEMORY_MIB: u64 = 512;
/// Bytes of memory for each byte of the conversation, which is there as JSON, as values and as the
/// text that comes out.
const MEMORY_FACTOR: usize = 24;
/// Processor time of a child, in seconds.
const CPU_S: u64 = 5;
/// Seconds from start to end of a child; the processor may be busy with something else.
const WALL_S: u64 = 10;
/// Bytes of a conversation for which a child gets a second more.
const BYTES_PER_S: usize = 4 << 20;

/// Becomes the child, if that is what the command line says. First of all in `main`.
pub fn serve() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    (words.next()? == WORD).then(|| child::main(words))
}

/// Opens the folder or the GGUF file of a model whose template will run in a child. Only for
/// programs that call [`serve`]: the child is this program, started again.
///
/// # Errors
/// As [`ModelFolder::open`].
pub fn open_folder(path: &Path) -> Result<ModelFolder, FolderError> {
    let mut folder = ModelFolder::open(path)?;
    folder.chat = folder.chat.map(|chat| chat.with_runner(Arc::new(InChild)));
    Ok(folder)
}

/// Runs a template in a child.
struct InChild;

impl TemplateRunner for InChild {
    fn run(&self, job: &TemplateJob) -> Result<String, ChatError> {
        let stopped = |reason| ChatError::Stopped { origin: job.origin().to_owned(), reason };
        converse(job).map_err(stopped)?
    }
}

/// What the child of a conversation may take.
fn limits(job: &TemplateJob) -> Limits {
    let input = job.input_bytes();
    let more_s = (input / BYTES_PER_S) as u64;
    Limits {
        memory_mib: MEMORY_MIB + (input.saturating_mul(MEMORY_FACTOR) >> 20) as u64,
        cpu_s: CPU_S + more_s,
        wall: Duration::from_secs(WALL_S + more_s),
        // The text, and the letter before it.
        answer_bytes: job.max_output_bytes() as u64 + 1,
    }
}

/// Sends `job` to a child and returns its text.
fn converse(job: &TemplateJob) -> Result<Result<String, ChatError>, String> {
    let request = serde_json::to_vec(job).map_err(|error| error.to_string())?;
    let limits = limits(job);
    let words = [WORD.to_owned(), limits.memory_mib.to_string(), limits.cpu_s.to_string()];
    let answer = limited::run(&words, request, &limits).and_then(limited::read_answer);
    answer.map_err(|ended| match ended {
        Ended::TooLong(bytes) => format!("it writes more than {} MiB", bytes >> 20),
        ended => ended.to_string(),
    })
}
