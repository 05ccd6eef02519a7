//! RULER (Hsieh et al., 2024, arXiv 2404.06654): the 13 tasks with their published templates and
//! parameters. Random streams, the list of words and the cut into sentences are ours, so numbers
//! are comparable, and prompts are not the same.

mod aggregate;
mod niah;
mod qa;
mod variables;

use super::registry::TaskFiles;
use super::{Question, Sample, Task};
use crate::score::Metric;

/// All 13.
pub(super) fn tasks(files: &TaskFiles) -> Vec<Box<dyn Task>> {
    let mut tasks = niah::tasks();
    tasks.push(Box::new(variables::Variables));
    tasks.push(Box::new(aggregate::CommonWords));
    tasks.push(Box::new(aggregate::FrequentWords));
    tasks.extend(qa::tasks(files));
    tasks
}

/// A document with one question, as RULER's templates have it.
fn sample(document: String, ask: String, lead: String, answer: Answer) -> Sample {
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
struct Answer {
    references: Vec<String>,
    max_new: usize,
    metric: Metric,
    depth: Option<f64>,
}
