//! Chat templates, run in a process of their own.
//!
//! A template is a program from a stranger. The library bounds its source, its steps and what it
//! writes, but not the memory that it takes on the way: a text that is doubled thirty times has a
//! gigabyte. So this program starts itself as a child that limits its own memory before it reads
//! anything, and its time for each rendering. Whatever ends the child is one error here. To start
//! it costs a few milliseconds, so it is kept for the next rendering. A system without such limits
//! (Windows) still has that of time.

mod child;

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longview_library::asked::Asked;
use longview_library::child::{self as limited, Ended, Limits};
use longview_model::chat::{ChatError, TemplateJob, TemplateRunner};
use longview_model::folder::{FolderError, ModelFolder};

/// The first word of a child's command line. No command of a user has this name.
const WORD: &str = "__render-template";

/// Memory of a child, in MiB: code, stacks, and texts. For a conversation that is longer than usual
/// it has a multiple of that besides.
const MEMORY_MIB: u64 = 512;
/// Bytes of memory for each byte of the conversation, which is there as JSON, as values and as the
/// text that comes out.
const MEMORY_FACTOR: usize = 24;
/// Bytes of a conversation up to which the children that are kept have memory. A longer one has a
/// child of its own.
const USUAL_BYTES: usize = 2 << 20;
/// Children that are kept.
const KEPT: usize = 2;
/// Processor time of a rendering, in seconds.
const CPU_S: u64 = 5;
/// Seconds from start to end of a rendering; the processor may be busy with something else.
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
    folder.chat = folder.chat.map(|chat| chat.with_runner(Arc::new(InChild::default())));
    Ok(folder)
}

/// Runs a template in a child.
#[derive(Default)]
struct InChild {
    /// Children that have answered, and wait.
    kept: Mutex<Vec<Asked>>,
}

impl TemplateRunner for InChild {
    fn run(&self, job: &TemplateJob) -> Result<String, ChatError> {
        let stopped = |reason| ChatError::Stopped { origin: job.origin().to_owned(), reason };
        self.converse(job).map_err(stopped)?
    }
}

impl InChild {
    /// Sends `job` to a child and returns its text.
    fn converse(&self, job: &TemplateJob) -> Result<Result<String, ChatError>, String> {
        let request = serde_json::to_vec(job).map_err(|error| error.to_string())?;
        let answer = self.answer(job, request.into()).and_then(limited::read_answer);
        answer.map_err(|ended| match ended {
            Ended::TooLong(bytes) => format!("it writes more than {} MiB", bytes >> 20),
            ended => ended.to_string(),
        })
    }

    fn answer(&self, job: &TemplateJob, request: Arc<[u8]>) -> Result<Vec<u8>, Ended> {
        let limits = limits(job);
        let is_usual = job.input_bytes() <= USUAL_BYTES;
        // A statement of its own, so that nobody waits for the list while a child answers.
        let kept = self.kept().pop_if(|_| is_usual);
        if let Some(kept) = kept {
            match kept.ask(Arc::clone(&request), &limits) {
                Ok(answered) => return Ok(self.keep(answered)),
                // What it did before may be why, so a new one has the last word.
                Err(Ended::Silent(_) | Ended::TooLarge(_) | Ended::NotStarted(_)) => {}
                Err(ended) => return Err(ended),
            }
        }
        let child = Asked::start(&[WORD.to_owned(), limits.memory_mib.to_string()])?;
        let answered = child.ask(request, &limits)?;
        Ok(if is_usual { self.keep(answered) } else { answered.1 })
    }

    fn keep(&self, (child, answer): (Asked, Vec<u8>)) -> Vec<u8> {
        let mut kept = self.kept();
        if kept.len() < KEPT {
            kept.push(child);
        }
        answer
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the child of a conversation may take.
fn limits(job: &TemplateJob) -> Limits {
    let input = job.input_bytes();
    let more_s = (input / BYTES_PER_S) as u64;
    let long = if input > USUAL_BYTES { input } else { 0 };
    Limits {
        memory_mib: MEMORY_MIB + (long.saturating_mul(MEMORY_FACTOR) >> 20) as u64,
        cpu_s: CPU_S + more_s,
        wall: Duration::from_secs(WALL_S + more_s),
        // The text, and the letter before it.
        answer_bytes: job.max_output_bytes() as u64 + 1,
    }
}
