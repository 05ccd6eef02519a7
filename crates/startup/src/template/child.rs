//! The process that runs templates: limits first, then one job after the other.

use std::ffi::OsString;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::thread;

use longview_library::asked::answer_all;
use longview_library::child;
use longview_model::chat::TemplateJob;

/// The stack of the thread that renders: the same on every system, and enough for what the limits
/// of a source allow in a build without optimisation.
const STACK_BYTES: usize = 32 << 20;

/// Does the jobs of a child. Its argument are MiB of memory.
pub(super) fn main(words: impl Iterator<Item = OsString>) -> ExitCode {
    let numbers: Vec<u64> = words.filter_map(|word| word.to_str()?.parse().ok()).collect();
    let [memory_mib] = numbers[..] else { return ExitCode::FAILURE };
    child::limit_memory(memory_mib);
    // The parent says what happened.
    panic::set_hook(Box::new(|_| {}));
    let worker = thread::Builder::new().stack_size(STACK_BYTES).spawn(work);
    let Ok(worker) = worker else { return ExitCode::FAILURE };
    match panic::catch_unwind(AssertUnwindSafe(|| worker.join())) {
        Ok(Ok(Ok(()))) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        // A thread without a result: Wine ends a thread whose stack is full, and not the process.
        Err(_) => {
            let _ = writeln!(io::stderr(), "a thread has overflowed its stack");
            ExitCode::FAILURE
        }
    }
}

fn work() -> io::Result<()> {
    answer_all(|request| {
        let job: TemplateJob = serde_json::from_slice(request)?;
        child::answer_bytes(job.run())
    })
}
