//! Tasks by name, and groups of them.

use super::files::TaskFiles;
use super::task::Task;
use super::{infinitebench, longbench, many, native, niah, ruler};
use crate::error::EvalError;

/// Names that stand for several tasks: those whose names begin so.
pub const GROUPS: &[(&str, &str)] = &[
    ("needle", "needle-*: what the embedded model was trained to do"),
    ("many", "many-*: 10 to 50 answers in one document"),
    ("niah", "niah-*: one needle at every depth, for a heat map"),
    ("ruler", "ruler-*: the 13 tasks of RULER (QA where its file is given)"),
    ("infinitebench", "infinitebench-*: the four that need no download"),
    ("longbench", "longbench-*: those of the 21 data sets whose file is in --longbench DIR"),
];

/// Every task.
pub fn all(files: &TaskFiles) -> Vec<Box<dyn Task>> {
    let mut tasks: Vec<Box<dyn Task>> = Vec::new();
    tasks.extend(native::tasks());
    tasks.extend(many::tasks());
    tasks.extend(niah::tasks(files));
    tasks.extend(ruler::tasks(files));
    tasks.extend(infinitebench::tasks());
    tasks.extend(longbench::tasks(files));
    tasks
}

/// The tasks that `names` name, each once, in the order of the names.
///
/// # Errors
/// [`EvalError::UnknownTask`]; [`EvalError::NoFile`] where a task that is named by itself has no
/// file (a group leaves it out).
pub fn select(names: &[String], files: &TaskFiles) -> Result<Vec<Box<dyn Task>>, EvalError> {
    let mut chosen: Vec<Box<dyn Task>> = Vec::new();
    for name in names {
        let is_group = GROUPS.iter().any(|(group, _)| group == name);
        let matches = |task: &dyn Task| {
            if is_group {
                task.name().split_once('-').is_some_and(|(group, _)| group == name)
            } else {
                task.name() == name
            }
        };
        let before = chosen.len();
        let mut missing = None;
        let mut known = false;
        for task in all(files) {
            if !matches(&*task) {
                continue;
            }
            known = true;
            match task.check() {
                Ok(()) if chosen.iter().any(|other| other.name() == task.name()) => {}
                Ok(()) => chosen.push(task),
                Err(error @ EvalError::NoFile { .. }) if is_group => missing = Some(error),
                Err(error) => return Err(error),
            }
        }
        if !known {
            let groups = GROUPS.iter().map(|(group, _)| (*group).to_owned());
            let names = all(files).into_iter().map(|task| task.name().to_owned());
            let known = groups.chain(names).collect::<Vec<_>>().join(", ");
            return Err(EvalError::UnknownTask { name: name.clone(), known });
        }
        // A group of nothing but tasks without files.
        if let (true, Some(error)) = (chosen.len() == before, missing) {
            return Err(error);
        }
    }
    Ok(chosen)
}
