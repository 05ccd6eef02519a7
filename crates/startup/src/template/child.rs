//! The process that runs one template: limits first, then the job from stdin, the answer on stdout.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::thread;

use longview_library::child;
use longview_model::chat::TemplateJob;

/// The stack of the thread that renders: the same on every system, and enough for what the limits
/// of a source allow in a build without optimisation.
const STACK_BYTES: usize = 32 << 20;

/// Does the one job of a child. Its arguments are MiB of memory and seconds of processor time.
pub(super) fn main(words: impl Iterator<Item = OsString>) -> ExitCode {
    let numbers: Vec<u64> = words.filter_map(|word| word.to_str()?.parse().ok()).collect();
    let [memory_mib, cpu_s] = numbers[..] else { return ExitCode::FAILURE };
    child::limit(memory_mib, cpu_s);
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
    let mut request = Vec::new();
    io::stdin().lock().read_to_end(&mut request)?;
    let job: TemplateJob = serde_json::from_slice(&request)?;
    drop(request);
    child::write_answer(&job.run())
}
