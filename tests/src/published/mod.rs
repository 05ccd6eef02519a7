//! Published checkpoints against what other programs compute of them.
//!
//! The golden fixtures are tiny and random; these are real models with real tokenizers, quantised
//! as people download them. The references (`tests/models`) are computed by transformers from the
//! same weights, dequantised. Activations stay f32 where tokens and probabilities must be those of
//! the reference; on the way that users take, activations are rounded to 16 bits, and what that
//! costs is a perplexity and a divergence.
//!
//! A checkpoint that is not there is a row `NOT RUN` for each of its checks.

mod checkpoint;
mod greedy;
mod likelihood;
mod needle;
mod reference;
mod tokens;

use std::fmt;
use std::path::Path;

use self::checkpoint::{Checked, Checkpoint};
use self::reference::{BOOK, Reference};

/// How a check went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// As it should be; with the figures.
    Passed(String),
    /// What is wrong.
    Failed(String),
    /// Why not.
    NotRun(String),
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Of which checkpoint.
    pub model: &'static str,
    /// What was checked.
    pub check: &'static str,
    /// How it went.
    pub status: Status,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, about) = match &self.status {
            Status::Passed(about) => ("ok", about),
            Status::Failed(about) => ("FAILED", about),
            Status::NotRun(about) => ("NOT RUN", about),
        };
        write!(f, "{:<8} {:<22} {word:<8} {about}", self.model, self.check)
    }
}

/// Windows of the book that are enough to see that something is wrong.
const N_WINDOWS: usize = 8;

const LIKELIHOOD: &str = "likelihood of a book";

/// Holds a checkpoint against its reference.
type Check = fn(&Checkpoint<'_>) -> Checked;

/// What is promised of a checkpoint.
struct Promise {
    model: &'static str,
    checks: &'static [(&'static str, Check)],
}

const PROMISES: &[Promise] = &[
    Promise {
        model: "smollm2",
        checks: &[
            ("tokens", tokens::same_tokens),
            ("greedy, chat", |checkpoint| greedy::same_answer(checkpoint, 0)),
            ("greedy, 1.5K tokens", |checkpoint| greedy::same_answer(checkpoint, 1)),
            (LIKELIHOOD, |checkpoint| likelihood::as_reference(checkpoint, N_WINDOWS)),
        ],
    },
    Promise {
        model: "gemma3",
        checks: &[
            ("tokens", tokens::same_tokens),
            ("greedy, question", |checkpoint| greedy::same_answer(checkpoint, 0)),
            ("greedy, 1.5K tokens", |checkpoint| greedy::same_answer(checkpoint, 1)),
            (LIKELIHOOD, |checkpoint| likelihood::as_reference(checkpoint, N_WINDOWS)),
            ("needle in 3K tokens", |checkpoint| needle::found(checkpoint, 3000)),
            ("needle in 7K tokens", |checkpoint| needle::found(checkpoint, 7000)),
        ],
    },
];

/// Runs every check of every checkpoint in `folder`.
pub fn check(folder: &Path, sink: &mut dyn FnMut(Row)) {
    for Promise { model, checks } in PROMISES {
        for (check, run) in *checks {
            sink(row(folder, model, check, run));
        }
    }
}

/// As [`check`] of the likelihood alone, of more windows of the book.
pub fn measure(folder: &Path, n_windows: usize, sink: &mut dyn FnMut(Row)) {
    for Promise { model, .. } in PROMISES {
        let run = |checkpoint: &Checkpoint<'_>| likelihood::as_reference(checkpoint, n_windows);
        sink(row(folder, model, LIKELIHOOD, &run));
        let rows =
            |checkpoint: &Checkpoint<'_>| likelihood::with_rows_of_8_bits(checkpoint, n_windows);
        sink(row(folder, model, "rows of 8 bits", &rows));
    }
}

fn row(
    folder: &Path,
    model: &'static str,
    check: &'static str,
    run: &dyn Fn(&Checkpoint<'_>) -> Checked,
) -> Row {
    let checkpoint = Checkpoint { folder, reference: Reference::of(model) };
    let files = [checkpoint.reference.file.as_str(), BOOK];
    let missing = files.into_iter().find(|file| !folder.join(file).exists());
    let status = match missing {
        Some(file) => {
            Status::NotRun(format!("{file} is not there; `cargo xtask models` fetches it"))
        }
        None => run(&checkpoint).map_or_else(Status::Failed, Status::Passed),
    };
    Row { model, check, status }
}
