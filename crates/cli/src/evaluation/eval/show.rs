//! What a run says: progress on stderr, tables on stdout.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use anyhow::Result;
use longview_eval::policies::{Candidate, title};
use longview_eval::record::{Answer, PolicyLabel, Question};
use longview_eval::results::ResultsFile;
use longview_eval::runner::Progress;
use longview_eval::summary::{Cell, HeatMap, LEAST_FULL, Mean, Paired, Summary};
use longview_eval::tasks::{self, GROUPS, Task, TaskFiles};

use super::plan::Plan;
use crate::progress::{RunProgress, clock};
use crate::table::Table;
use crate::{out, units};

/// The progress of a run: a bar on a terminal, lines elsewhere.
pub struct Bar(RunProgress);

impl Bar {
    /// An empty bar.
    pub fn new() -> Self {
        Self(RunProgress::new("eval", true))
    }

    /// Shows how far the run is.
    pub fn update(&self, progress: &Progress<'_>) {
        let who = match progress.policy {
            Some(label) if label.budget > 0 => format!("{} at {}", title(label), label.budget),
            Some(label) => title(label),
            None => "reading".to_owned(),
        };
        let (done, total) = (units::count(progress.done), units::count(progress.total));
        let eta = progress.eta.map_or_else(|| "-".to_owned(), clock);
        let (task, length) = (progress.task, units::count(progress.length));
        let words = format!("{done}/{total} answers  {task} {length}: {who}  ETA {eta}");
        self.0.bar(progress.done, progress.total, words);
    }
}

/// Prints tasks and groups.
pub fn list(files: &TaskFiles) -> Result<()> {
    let mut out = out::stdout();
    let tasks = tasks::all(files);
    let names = tasks.iter().map(|task| task.name()).chain(GROUPS.iter().map(|(name, _)| *name));
    let width = names.map(str::len).max().unwrap_or(0);
    for task in &tasks {
        writeln!(out, "{:<width$}  {}", task.name(), task.about())?;
    }
    writeln!(out, "\nGroups:")?;
    for (name, about) in GROUPS {
        writeln!(out, "{name:<width$}  {about}")?;
    }
    Ok(out.flush()?)
}

/// Prints the scores of what was asked for: a table for each task, and heat maps.
pub fn summary(results: &ResultsFile, plan: &Plan, seed: u64) -> Result<()> {
    let is_asked = |answer: &&Answer| {
        answer.seed == seed
            && plan.tasks.iter().any(|task| task.name() == answer.task)
            && plan.lengths.contains(&answer.length)
            && plan.questions.contains(&answer.question)
            && plan.policies.iter().any(|policy| policy.label == answer.policy)
    };
    let answers: Vec<&Answer> = results.answers().iter().filter(is_asked).collect();
    let summary = Summary::of(answers.iter().copied());
    let mut out = out::stdout();
    for cell in summary.cells() {
        table(&summary, cell, plan, &mut out)?;
        if plan.modes.len() > 1 {
            let of_cell = answers.iter().copied().filter(|answer| cell.has(answer));
            by_mode(&of_cell.collect::<Vec<_>>(), plan, &mut out)?;
        }
    }
    for task in plan.tasks.iter().filter(|task| task.name().starts_with("niah-")) {
        for question in &plan.questions {
            for policy in &plan.policies {
                let of_these = answers.iter().copied().filter(|answer| {
                    answer.task == task.name()
                        && answer.question == *question
                        && answer.policy == policy.label
                });
                let map = HeatMap::of(of_these);
                heat_map(&**task, *question, &policy.label, &map, &mut out)?;
            }
        }
    }
    Ok(out.flush()?)
}

fn words(question: Question) -> &'static str {
    match question {
        Question::Aware => "question aware",
        Question::Agnostic => "question agnostic",
    }
}

/// Policies by budgets.
fn table(summary: &Summary, cell: &Cell, plan: &Plan, out: &mut dyn Write) -> Result<()> {
    let budgets: BTreeSet<usize> = summary.policies(cell).map(|label| label.budget).collect();
    let mark = if summary.is_marked(cell) == Some(true) { " *" } else { "" };
    let n = summary.policies(cell).filter_map(|label| summary.mean(cell, label)).map(|m| m.n);
    let n = n.max().unwrap_or(0);
    writeln!(
        out,
        "{}{mark}, {} tokens, {}, {} answer{}",
        cell.task,
        units::count(cell.length),
        words(cell.question),
        units::count(n),
        if n == 1 { "" } else { "s" }
    )?;
    let heads = budgets.iter().map(|budget| match budget {
        0 => "all tokens".to_owned(),
        budget => format!("B = {}", units::count(*budget)),
    });
    let mut table = Table::new("", heads);
    let mut names: Vec<String> = Vec::new();
    for policy in &plan.policies {
        let name = title(&policy.label);
        if names.contains(&name) {
            continue;
        }
        let cells = budgets.iter().map(|budget| {
            let label = PolicyLabel { budget: *budget, ..policy.label.clone() };
            summary.mean(cell, &label).map_or_else(String::new, |mean| score(mean, n))
        });
        table.row(&format!("  {name}"), cells);
        names.push(name);
    }
    table.write(out)?;
    if !mark.is_empty() {
        let least = 100.0 * LEAST_FULL;
        writeln!(out, "  * full scores under {least:.0} %: what policies lose does not show here")?;
    }
    Ok(writeln!(out)?)
}

/// What the other ways of reading change against the first, question by question.
fn by_mode(answers: &[&Answer], plan: &Plan, out: &mut dyn Write) -> Result<()> {
    let (Some(first), n_modes) = (plan.modes.first(), plan.modes.len()) else { return Ok(()) };
    writeln!(
        out,
        "  points against --prefill {first}, question by question (better, worse), and blocks \
         attended"
    )?;
    let others = &plan.modes[1..];
    let mut table = Table::new("", others.iter().map(|mode| format!("{mode}")));
    // All ways of a policy at a budget stand together.
    for ways in plan.policies.chunks(n_modes) {
        let cells = ways[1..].iter().map(|way| {
            let paired = Paired::of(answers, &ways[0].label, &way.label);
            let density = mean_density(answers, &way.label);
            paired.map_or_else(String::new, |paired| difference(paired, density))
        });
        let budget = match ways[0].label.budget {
            0 => String::new(),
            budget => format!(", B = {}", units::count(budget)),
        };
        let base = PolicyLabel { options: shared_options(ways), ..ways[0].label.clone() };
        table.row(&format!("  {}{budget}", title(&base)), cells);
    }
    table.write(out)?;
    Ok(writeln!(out)?)
}

/// Options of a policy that all its ways of reading have: those of the policy itself.
fn shared_options(ways: &[Candidate]) -> BTreeMap<String, String> {
    let is_shared = |(name, value): &(&String, &String)| {
        ways.iter().all(|way| way.label.options.get(*name) == Some(*value))
    };
    let all = ways[0].label.options.iter().filter(is_shared);
    all.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// `-0.3 +- 0.6 (1, 2), 41 %`.
fn difference(paired: Paired, density: Option<f64>) -> String {
    let Paired { mean, half, better, worse, .. } = paired;
    let blocks = density.map(|share| format!(", {:.0} %", 100.0 * share));
    format!(
        "{:+.1} +- {:.1} ({better}, {worse}){}",
        100.0 * mean,
        100.0 * half,
        blocks.unwrap_or_default()
    )
}

/// The mean part of the blocks that prompts under this label attended.
fn mean_density(answers: &[&Answer], label: &PolicyLabel) -> Option<f64> {
    let own = answers.iter().filter(|answer| answer.policy == *label);
    let shares: Vec<f64> = own.filter_map(|answer| answer.prefill_density).collect();
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}

/// `91.7 [80.1, 96.7]`, with the number of answers where it is not the table's.
fn score(mean: Mean, n: usize) -> String {
    let (low, high) = mean.interval;
    let count = if mean.n == n { String::new() } else { format!(" of {}", mean.n) };
    format!("{:.1} [{:.1}, {:.1}]{count}", 100.0 * mean.mean, 100.0 * low, 100.0 * high)
}

fn heat_map(
    task: &dyn Task,
    question: Question,
    label: &PolicyLabel,
    map: &HeatMap,
    out: &mut dyn Write,
) -> Result<()> {
    if map.depths.is_empty() {
        return Ok(());
    }
    let budget = match label.budget {
        0 => String::new(),
        budget => format!(" at {}", units::count(budget)),
    };
    writeln!(
        out,
        "{} under {}{budget}, {}: score by depth and length",
        task.name(),
        title(label),
        words(question)
    )?;
    let mut table = Table::new("", map.lengths.iter().map(|length| units::count(*length)));
    for (depth, scores) in map.depths.iter().zip(&map.scores) {
        let cells = scores
            .iter()
            .map(|score| score.map_or_else(|| "-".to_owned(), |s| format!("{:.0}", 100.0 * s)));
        table.row(&format!("  {:>3.0} %", 100.0 * depth), cells);
    }
    table.write(out)?;
    Ok(writeln!(out)?)
}
