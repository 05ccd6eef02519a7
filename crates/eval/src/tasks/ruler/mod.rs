//! RULER (Hsieh et al., 2024, arXiv 2404.06654): the 13 tasks with their published templates and
//! parameters. Random streams, the list of words and the cut into sentences are ours, so numbers
//! are comparable, and prompts are not the same.

mod aggregate;
mod answer;
mod niah;
mod qa;
mod variables;

use super::files::TaskFiles;
use super::task::Task;

/// All 13.
pub(super) fn tasks(files: &TaskFiles) -> Vec<Box<dyn Task>> {
    let mut tasks = niah::tasks();
    tasks.push(Box::new(variables::Variables));
    tasks.push(Box::new(aggregate::CommonWords));
    tasks.push(Box::new(aggregate::FrequentWords));
    tasks.extend(qa::tasks(files));
    tasks
}
