//! Measures the times of one worker on this machine.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use longview_core::SplitMix64;

use crate::real::{self, Folder, Serving, Start};
use crate::sim::quantile;
use crate::times::{Asked, Opened, Prefill, Step, Times};

/// Answers that a step is measured with.
const RUNNING: [u64; 3] = [1, 2, 4];
/// Tokens of an answer.
const ANSWER: u64 = 33;
/// Repetitions of short measurements.
const TIMES: usize = 7;
/// Before a question, as questions come: one at once after another finds all in the processor's
/// caches.
const PAUSE: Duration = Duration::from_millis(300);

/// What is measured where.
pub struct Plan {
    /// How the server is started.
    pub start: Start,
    /// Number of the processor it is pinned to.
    pub core: usize,
    /// Words of the documents.
    pub words: Vec<u64>,
    /// Documents of each length.
    pub n_docs: usize,
    /// Where the numbers hold.
    pub machine: String,
    /// The command that does this.
    pub command: String,
}

/// Measures, says what it finds, and writes it.
pub fn measure(plan: &Plan, to: &Path, say: &mut dyn FnMut(String)) -> Result<()> {
    let library = Folder::new("longview-scale-measure")?;
    let mut serving = Serving::start(&plan.start, plan.core, library.path())?;
    let mut times = Times {
        machine: plan.machine.clone(),
        model: model_name(&plan.start),
        command: plan.command.clone(),
        server: plan.start.line(),
        disk_bytes_per_token: 0.0,
        host_bytes_per_token: 0.0,
        end: 0.0,
        prefill: Vec::new(),
        question: Vec::new(),
        step: Vec::new(),
        open: Vec::new(),
    };
    let mut rng = SplitMix64::new(1);
    let mut ends = Vec::new();
    for words in &plan.words {
        let mut reads = Vec::new();
        for _ in 0..plan.n_docs {
            reads.push(real::read(&serving.address, &real::text(*words, rng.next_u64() >> 40))?);
        }
        let seconds: Vec<_> = reads.iter().map(|read| read.seconds).collect();
        let last = reads.last().context("no documents")?;
        let tokens = last.tokens;
        times.prefill.push(Prefill { tokens, seconds: quantile(&seconds, 0.5) });
        say(format!("{tokens} tokens are read in {seconds:.3?} s"));

        let warm = alone(&serving, &last.id, TIMES)?;
        let question_tokens = warm[0].prompt_tokens - tokens.min(warm[0].prompt_tokens);
        let first = median(warm.iter().map(|answer| answer.ttft));
        times.question.push(Asked { tokens, question_tokens, seconds: first });
        let end = |answer: &real::Answer| answer.end - answer.tokens.last().unwrap_or(&answer.end);
        ends.extend(warm.iter().map(end));
        say(format!("  first token after {first:.4} s"));
        for running in RUNNING {
            let seconds = step(&serving, &last.id, running)?;
            times.step.push(Step { tokens, running, seconds });
            say(format!("  a step of {running}: {seconds:.5} s"));
        }
        let (on_disk, in_memory) = real::bytes(&serving.address, &last.id)?;
        times.disk_bytes_per_token = on_disk as f64 / tokens as f64;
        times.host_bytes_per_token = in_memory as f64 / tokens as f64;
        let mut cold = Vec::new();
        for _ in 0..TIMES {
            drop(serving);
            serving = Serving::start(&plan.start, plan.core, library.path())?;
            // The first request of a server pays for more than opening a document.
            real::read(&serving.address, &real::text(40, 7))?;
            thread::sleep(PAUSE);
            cold.push(real::ask(&serving.address, &last.id, 2)?.ttft);
        }
        let seconds = (median(cold.iter().copied()) - first).max(0.0);
        times.open.push(Opened { tokens, bytes: on_disk, seconds });
        say(format!("  opened in {seconds:.4} s more: {on_disk} bytes, {in_memory} in memory"));
    }
    times.end = median(ends.into_iter());
    fs::write(to, serde_json::to_string_pretty(&times)? + "\n")
        .with_context(|| to.display().to_string())?;
    Ok(())
}

/// Some answers, one after the other.
fn alone(serving: &Serving, id: &str, n: usize) -> Result<Vec<real::Answer>> {
    // The first one also keeps where prompts part. Questions differ, so that each is read.
    real::ask(&serving.address, id, ANSWER)?;
    let ask = |_| {
        thread::sleep(PAUSE);
        real::ask(&serving.address, id, ANSWER)
    };
    (0..n).map(ask).collect()
}

/// The mean time of a token while so many answers are generated together.
fn step(serving: &Serving, id: &str, running: u64) -> Result<f64> {
    let answers = thread::scope(|scope| {
        let ask = || real::ask(&serving.address, id, 8 * ANSWER);
        let all: Vec<_> = (0..running).map(|_| scope.spawn(ask)).collect();
        let ended = all.into_iter().map(|one| one.join());
        ended
            .map(|one| one.unwrap_or_else(|_| anyhow::bail!("a client failed")))
            .collect::<Result<Vec<_>>>()
    })?;
    // While all of them run: the latest first token to the earliest last one, by their own clocks,
    // which began together.
    let begin = answers.iter().map(|answer| answer.ttft).fold(0.0, f64::max);
    let last = |answer: &real::Answer| answer.tokens.last().copied().unwrap_or(f64::INFINITY);
    let end = answers.iter().map(last).fold(f64::INFINITY, f64::min);
    let gaps = answers.iter().flat_map(|answer| answer.tokens.windows(2));
    let within = gaps.filter(|gap| gap[0] >= begin && gap[1] <= end);
    let gaps: Vec<f64> = within.map(|gap| gap[1] - gap[0]).collect();
    ensure!(!gaps.is_empty(), "{running} answers never ran together");
    // Tokens can arrive in twos; the mean does not mind.
    Ok(gaps.iter().sum::<f64>() / gaps.len() as f64)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(&values.collect::<Vec<_>>(), 0.5)
}

fn model_name(start: &Start) -> String {
    let name = start.model.as_ref().and_then(|path| path.file_name());
    name.map_or("the embedded model".to_owned(), |name| name.to_string_lossy().into_owned())
}
