//! The committed references.

use serde::Deserialize;

use crate::files;

/// The book, in the folder of the checkpoints.
pub(super) const BOOK: &str = "alice29.txt";

/// What `tests/models/reference.py` writes.
#[derive(Deserialize)]
pub(super) struct Reference {
    /// The checkpoint's file.
    pub(super) file: String,
    /// The short prompt.
    pub(super) text: String,
    /// Its tokens.
    pub(super) short: Vec<u32>,
    /// What a text begins with.
    first: Vec<u32>,
    /// Tokens of the book's beginning.
    pub(super) book: Vec<u32>,
    /// Where document and windows begin in the book.
    start: usize,
    /// Tokens of the document.
    document: usize,
    /// Tokens of a window, the first included.
    pub(super) window: usize,
    prompts: Vec<Answer>,
    /// Negative log-likelihood of each window.
    pub(super) window_nll: Vec<f64>,
}

/// What follows a prompt.
#[derive(Deserialize)]
pub(super) struct Answer {
    /// Tokens chosen greedily.
    pub(super) greedy: Vec<u32>,
    /// The two best logits at each step.
    pub(super) best: Vec<[f32; 2]>,
}

impl Reference {
    /// The committed one of a checkpoint.
    ///
    /// # Panics
    /// If it is not as the script writes it.
    pub(super) fn of(model: &str) -> Self {
        let path = files::root().join(format!("tests/models/{model}.json"));
        let text = std::fs::read_to_string(&path).expect("a committed reference");
        serde_json::from_str(&text).expect("a reference as the script writes it")
    }

    /// The tokens of a prompt, and what follows them: 0 is the short one, 1 the document.
    pub(super) fn prompt(&self, index: usize) -> (Vec<u32>, &Answer) {
        let ids = match index {
            0 => self.short.clone(),
            _ => self.passage(&self.book, self.start, self.document),
        };
        (ids, &self.prompts[index])
    }

    /// The first `n` windows, or all if there are fewer.
    pub(super) fn windows(&self, n: usize) -> Vec<Vec<u32>> {
        let step = self.window - self.first.len();
        let starts = (self.start..).step_by(step).take(n.min(self.window_nll.len()));
        starts.map(|at| self.passage(&self.book, at, step)).collect()
    }

    /// As many tokens of the book as the first `n` windows have, in windows of `window` tokens, the
    /// first included: at least one, and as many as there are.
    pub(super) fn long_windows(&self, n: usize, window: usize) -> Vec<Vec<u32>> {
        let step = window - self.first.len();
        let most = (self.book.len() - self.start) / step;
        let n = (n * self.window / window).clamp(1, most);
        (self.start..).step_by(step).take(n).map(|at| self.passage(&self.book, at, step)).collect()
    }

    /// What precedes a text, and the book from `at` on.
    pub(super) fn passage(&self, book: &[u32], at: usize, len: usize) -> Vec<u32> {
        [&self.first[..], &book[at..at + len]].concat()
    }
}
