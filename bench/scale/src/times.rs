//! Measured times of one worker, and what follows from them for lengths that were not measured.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};

/// A file of measured times, in seconds: medians, but for steps, which are means.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// Where it was measured, and when.
    pub machine: String,
    /// What was served.
    pub model: String,
    /// The command that made this file.
    pub command: String,
    /// How servers were started.
    pub server: String,
    /// Bytes of a token of a kept document, on the disk (`bytes` of `GET /v1/contexts`).
    pub disk_bytes_per_token: f64,
    /// And in the server's memory (growth of resident memory while documents are read).
    pub host_bytes_per_token: f64,
    /// From the last token of an answer to the end of its stream.
    pub end: f64,
    /// `POST /v1/contexts` of a text that is new, until it answers.
    pub prefill: Vec<Prefill>,
    /// Until the first token of an answer about a document in memory.
    pub question: Vec<Asked>,
    /// Time of a token while answers are generated together.
    pub step: Vec<Step>,
    /// Until the first token after a restart, less that of a document in memory.
    pub open: Vec<Opened>,
}

/// Reading a document.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Prefill {
    /// Tokens of the document.
    pub tokens: u64,
    /// What it took.
    pub seconds: f64,
}

/// The first token of an answer about a document in memory.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// Tokens of the document.
    pub tokens: u64,
    /// Tokens of the question behind it.
    pub question_tokens: u64,
    /// What it took.
    pub seconds: f64,
}

/// A step of some answers.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Tokens of the document that each is about.
    pub tokens: u64,
    /// How many there are.
    pub running: u64,
    /// What it took.
    pub seconds: f64,
}

/// Opening a document from the local disk.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Opened {
    /// Tokens of the document.
    pub tokens: u64,
    /// Bytes of its session.
    pub bytes: u64,
    /// What it took.
    pub seconds: f64,
}

impl Times {
    /// Reads a file.
    ///
    /// # Errors
    /// Where it cannot be read, has another form, or has too few values to go on from.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let times: Self =
            serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        for (name, n) in [
            ("prefill", times.prefill.len()),
            ("question", times.question.len()),
            ("step", times.step.len()),
            ("open", times.open.len()),
        ] {
            ensure!(n >= 2, "{}: {name} has {n} values, and needs 2", path.display());
        }
        Ok(times)
    }

    /// What follows for any length.
    pub fn rates(&self) -> Rates {
        let tokens = |n: u64| n as f64;
        let rows = self.prefill.iter();
        let prefill = rows.map(|p| ([tokens(p.tokens), tokens(p.tokens).powi(2), 0.0], p.seconds));
        let rows = self.question.iter();
        let question = rows.map(|q| ([1.0, tokens(q.tokens), 0.0], q.seconds));
        let rows = self.step.iter();
        let step = rows.map(|s| {
            let running = tokens(s.running);
            ([1.0, running, running * tokens(s.tokens)], s.seconds)
        });
        let open = self.open.iter().map(|o| ([1.0, tokens(o.bytes), 0.0], o.seconds));
        let question_tokens = self.question.iter().map(|q| q.question_tokens).max();
        let fitted = |rows: Vec<([f64; 3], f64)>| fit(&rows);
        Rates {
            prefill: fitted(prefill.collect()),
            question: fitted(question.collect()),
            step: fitted(step.collect()),
            open: fitted(open.collect()),
            end: self.end,
            question_tokens: question_tokens.unwrap_or(0),
            disk_bytes_per_token: self.disk_bytes_per_token,
            host_bytes_per_token: self.host_bytes_per_token,
        }
    }
}

/// Times as functions of lengths. Each has three coefficients, none below 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Of a document's tokens n: times n, and n squared.
    pub prefill: [f64; 3],
    /// The first token: fixed, and times the document's tokens.
    pub question: [f64; 3],
    /// A step: fixed, for each answer, and for each answer and token of its document.
    pub step: [f64; 3],
    /// Opening: fixed, and for each byte.
    pub open: [f64; 3],
    /// After the last token of an answer.
    pub end: f64,
    /// Tokens of a question.
    pub question_tokens: u64,
    /// Bytes on the disk.
    pub disk_bytes_per_token: f64,
    /// Bytes in memory.
    pub host_bytes_per_token: f64,
}

impl Rates {
    /// The same for a worker that computes `factor` times as fast. Opening is as before.
    pub fn faster(self, factor: f64) -> Self {
        let divided = |all: [f64; 3]| all.map(|x| x / factor);
        Self {
            prefill: divided(self.prefill),
            question: divided(self.question),
            step: divided(self.step),
            end: self.end / factor,
            ..self
        }
    }

    /// Seconds in which tokens `from..to` of a document are read.
    pub fn read(&self, from: u64, to: u64) -> f64 {
        let up_to = |n: f64| n * (self.prefill[0] + n * self.prefill[1]);
        up_to(to as f64) - up_to(from as f64)
    }

    /// Seconds to the first token of an answer about a document in memory.
    pub fn question(&self, doc_tokens: u64) -> f64 {
        self.question[0] + self.question[1] * doc_tokens as f64
    }

    /// Seconds of a step of answers about documents of so many tokens in all.
    pub fn step(&self, n_running: usize, doc_tokens: u64) -> f64 {
        let [fixed, each, token] = self.step;
        fixed + each * n_running as f64 + token * doc_tokens as f64
    }

    /// Seconds in which a session of so many bytes is opened from the local disk.
    pub fn open(&self, bytes: u64) -> f64 {
        self.open[0] + self.open[1] * bytes as f64
    }
}

/// Least squares of relative errors. What would be below 0 is left out: no work takes less than no
/// time.
fn fit(rows: &[([f64; 3], f64)]) -> [f64; 3] {
    let mut columns: Vec<usize> =
        (0..3).filter(|c| rows.iter().any(|(row, _)| row[*c] != 0.0)).collect();
    while !columns.is_empty() {
        // Columns differ by many orders of magnitude: each is scaled to 1.
        let scale = |c: usize| rows.iter().map(|(row, _)| row[c]).fold(f64::MIN_POSITIVE, f64::max);
        let value = |r: usize, c: usize| {
            let (row, y) = &rows[r];
            row[columns[c]] / scale(columns[c]) / y.max(f64::MIN_POSITIVE)
        };
        let matrix = DMatrix::from_fn(rows.len(), columns.len(), value);
        let ones = DVector::from_element(rows.len(), 1.0);
        let Ok(found) = matrix.svd(true, true).solve(&ones, 1e-12) else { break };
        let (lowest, least) = found.argmin();
        if least < 0.0 {
            columns.remove(lowest);
            continue;
        }
        let mut all = [0.0; 3];
        for (c, x) in columns.iter().zip(found.iter()) {
            all[*c] = x / scale(*c);
        }
        return all;
    }
    [0.0; 3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_law_is_found_again() {
        let rows: Vec<_> = [1e3, 4e3, 3e4, 2e5]
            .map(|n: f64| ([n, n * n, 0.0], 2e-4 * n + 3e-9 * n * n))
            .into_iter()
            .collect();
        let found = fit(&rows);
        assert!((found[0] / 2e-4 - 1.0).abs() < 1e-6 && (found[1] / 3e-9 - 1.0).abs() < 1e-6);
    }

    #[test]
    fn nothing_takes_less_than_no_time() {
        let rows = [([1.0, 10.0, 0.0], 1.0), ([1.0, 20.0, 0.0], 0.9)];
        let found = fit(&rows);
        assert!(found.iter().all(|x| *x >= 0.0) && found[0] > 0.8 && found[1] == 0.0);
    }

    #[test]
    fn reading_in_parts_takes_as_long_as_at_once() {
        let rates = Rates {
            prefill: [1e-3, 1e-7, 0.0],
            question: [0.0; 3],
            step: [1.0, 2.0, 3.0],
            open: [0.0; 3],
            end: 0.0,
            question_tokens: 1,
            disk_bytes_per_token: 1.0,
            host_bytes_per_token: 1.0,
        };
        let parts = rates.read(0, 100) + rates.read(100, 1000);
        assert!((parts - rates.read(0, 1000)).abs() < 1e-12);
        assert!((rates.step(2, 10) - 35.0).abs() < 1e-12);
    }
}
