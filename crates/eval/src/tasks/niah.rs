//! One needle at every depth and length, for a heat map: Kamradt's (2023) in plain English, and one
//! in the words of the embedded model.

use super::files::TaskFiles;
use super::native::{self, hide};
use super::task::{Setting, Task};
use crate::error::EvalError;
use crate::facts;
use crate::haystack::split_sentences;
use crate::sample::{Question, Sample};
use crate::score::Metric;

/// Depths unless the user says how many.
const DEPTHS: usize = 10;
const NEEDLE: &str = "The best thing to do in San Francisco is eat a sandwich and sit in Dolores \
    Park on a sunny day.";
/// What of the needle answers the question.
const ANSWER: &str = "eat a sandwich and sit in Dolores Park on a sunny day";
const QUESTION: &str = "What is the best thing to do in San Francisco?";
const MAX_NEW: usize = 64;

/// A grid of depths; sample i has depth i modulo their number.
struct Grid {
    is_native: bool,
    n_depths: usize,
}

pub(super) fn tasks(files: &TaskFiles) -> Vec<Box<dyn Task>> {
    let n_depths = if files.depths == 0 { DEPTHS } else { files.depths };
    vec![
        Box::new(Grid { is_native: true, n_depths }),
        Box::new(Grid { is_native: false, n_depths }),
    ]
}

impl Grid {
    /// 0 for the start, 1 for the end.
    fn depth(&self, sample: usize) -> f64 {
        match self.n_depths {
            1 => 0.5,
            n => (sample % n) as f64 / (n - 1) as f64,
        }
    }

    fn native(&self, setting: &Setting<'_>) -> Result<Sample, EvalError> {
        let mut rng = setting.rng(self.name());
        let fact = facts::magic_numbers(1, &mut rng);
        let depth = self.depth(setting.sample);
        let question = native::question(setting, &fact[0], depth)?;
        let seed = rng.next_u64();
        setting.largest(self.name(), 0, usize::MAX, &|n| {
            let filler: Vec<String> = setting.text.sentences(seed).take(n).collect();
            let document = hide(&filler, &fact, &[depth]);
            Sample { document, questions: vec![question.clone()], chat: false }
        })
    }

    fn english(&self, setting: &Setting<'_>) -> Result<Sample, EvalError> {
        let seed = setting.rng(self.name()).next_u64();
        let depth = self.depth(setting.sample);
        setting.largest(self.name(), 1, usize::MAX, &|n_words| {
            let essay = setting.text.essay(seed, n_words).join(" ");
            let context = insert(&essay, depth);
            let document = format!("This is a very long story book: <book> {context} </book>.\n");
            let question = Question {
                ask: format!("Based on the content of the book, question: {QUESTION}\nAnswer:"),
                references: vec![ANSWER.to_owned()],
                max_new: MAX_NEW,
                metric: Metric::WordRecall,
                depth: Some(depth),
                ..Question::default()
            };
            Sample { document, questions: vec![question], chat: true }
        })
    }
}

/// The text with the needle at a depth, moved back to the end of a sentence.
fn insert(text: &str, depth: f64) -> String {
    let sentences = split_sentences(text);
    let at = depth * text.len() as f64;
    let mut parts = Vec::with_capacity(sentences.len() + 1);
    let (mut end, mut is_in) = (0, false);
    for sentence in sentences {
        end += sentence.len() + 1;
        if !is_in && end as f64 > at && depth < 1.0 {
            parts.push(NEEDLE);
            is_in = true;
        }
        parts.push(sentence);
    }
    if !is_in {
        parts.push(NEEDLE);
    }
    parts.join(" ")
}

impl Task for Grid {
    fn name(&self) -> &str {
        if self.is_native { "niah-native" } else { "niah-english" }
    }

    fn about(&self) -> String {
        let n = self.n_depths;
        if self.is_native {
            format!("a magic number at {n} depths, in the embedded model's words")
        } else {
            format!("Kamradt's sandwich in San Francisco at {n} depths, by recall of words")
        }
    }

    fn n_documents(&self, samples: usize) -> usize {
        samples * self.n_depths
    }

    fn sample(&self, setting: &Setting<'_>) -> Result<Sample, EvalError> {
        if self.is_native { self.native(setting) } else { self.english(setting) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_needle_stands_at_the_end_of_a_sentence() {
        let text = "One two three. Four five six. Seven eight nine.";
        assert!(insert(text, 0.0).starts_with(NEEDLE));
        assert!(insert(text, 1.0).ends_with(NEEDLE));
        assert_eq!(insert(text, 0.5), format!("One two three. {NEEDLE} {}", &text[15..]));
        let grid = Grid { is_native: true, n_depths: 5 };
        let depths: Vec<f64> = (0..6).map(|i| grid.depth(i)).collect();
        assert_eq!(depths, [0.0, 0.25, 0.5, 0.75, 1.0, 0.0]);
    }
}
