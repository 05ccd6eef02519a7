//! A question of RULER's templates with its answer.

use crate::sample::{Question, Sample};
use crate::score::Metric;

/// A document with one question, as RULER's templates have it.
pub(super) fn sample(document: String, ask: String, lead: String, answer: Answer) -> Sample {
    let question = Question {
        ask,
        lead,
        references: answer.references,
        max_new: answer.max_new,
        metric: answer.metric,
        depth: answer.depth,
        stop: Vec::new(),
    };
    Sample { document, questions: vec![question], chat: true }
}

/// What would be right.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub references: Vec<String>,
    pub max_new: usize,
    pub metric: Metric,
    pub depth: Option<f64>,
}
