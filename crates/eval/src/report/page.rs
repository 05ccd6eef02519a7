//! The page and the table.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::chart::{Chart, Point, Series, Unit};
use super::data::Data;
use super::figure::{Figure, at_budget};
use super::numbers::{over_tasks, scores_of};
use crate::policies::title as policy_name;
use crate::record::{Answer, Failure, Question};
use crate::summary::Mean;

/// The page's looks: readable without a network, in the dark, on a phone and on paper.
const STYLE: &str = "
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
figure { margin: 2rem 0 } figure svg { max-width: 100%; height: auto; background: #fff }
figcaption { font-size: 0.9rem } table { border-collapse: collapse; font-size: 0.85rem }
th, td { border: 1px solid #8886; padding: 0.2rem 0.5rem; text-align: right }
th:first-child, td:first-child { text-align: left } .scroll { overflow-x: auto }
";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// One table of scores: columns are tasks.
struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<(String, Vec<String>)>,
}

/// Tables by kind of question and length. A task that full attention scores under 80 % in has a
/// star.
fn tables(data: &Data) -> Vec<Table> {
    let keys: BTreeSet<(Question, usize)> =
        data.answers.iter().map(|a| (a.question, a.length)).collect();
    keys.into_iter().map(|(question, length)| table(data, question, length)).collect()
}

fn table(data: &Data, question: Question, length: usize) -> Table {
    let of: Vec<&Answer> =
        data.answers.iter().filter(|a| a.question == question && a.length == length).collect();
    let tasks: BTreeSet<&str> = of.iter().map(|a| a.task.as_str()).collect();
    let policies: BTreeSet<(bool, String, usize)> = of
        .iter()
        .map(|a| (a.policy.budget != 0, policy_name(&a.policy), a.policy.budget))
        .collect();
    let n_of = |task: &str| {
        let own =
            policies.iter().map(|(_, name, b)| scores_of(&of, task, (name.as_str(), *b)).len());
        own.max().unwrap_or(0)
    };
    let able: BTreeSet<&str> =
        tasks.iter().copied().filter(|task| data.is_able(task, length, question)).collect();
    let columns: Vec<(&str, usize)> = tasks.iter().map(|task| (*task, n_of(task))).collect();
    let n_able = columns.iter().filter(|(task, _)| able.contains(task)).map(|(_, n)| n).sum();
    let rows = policies.iter().map(|(_, name, budget)| {
        let policy = (name.as_str(), *budget);
        let own = |(task, n): &(&str, usize)| cell(Mean::of(&scores_of(&of, task, policy)), *n);
        let all = cell(over_tasks(&of, &able, policy), n_able);
        let at = if *budget == 0 { String::new() } else { format!(", B = {budget}") };
        (format!("{name}{at}"), columns.iter().map(own).chain([all]).collect())
    });
    let head = |(task, n): &(&str, usize)| {
        if able.contains(task) { format!("{task}, n = {n}") } else { format!("{task} *, n = {n}") }
    };
    let how = match question {
        Question::Aware => "question in the prompt",
        Question::Agnostic => "question after the choice",
    };
    Table {
        title: format!("{} tokens, {how}", Unit::Tokens.text(length as f64)),
        columns: columns.iter().map(head).chain([format!("all, n = {n_able}")]).collect(),
        rows: rows.collect(),
    }
}

/// A mean with its interval, and its answers where they are not `n`.
fn cell(mean: Option<Mean>, n: usize) -> String {
    let Some(Mean { n: own, mean, interval: (low, high) }) = mean else { return "-".into() };
    let count = if own == n { String::new() } else { format!(", n = {own}") };
    format!("{:.1} ({:.0}-{:.0}){count}", 100.0 * mean, 100.0 * low, 100.0 * high)
}

const STAR: &str = "Percent right, with the 95 % interval; n answers. * Full attention scores \
                    under 80 %: the model cannot do this task, which does not count for `all`, \
                    where each task counts alike. - where a policy did not answer, or lacks a task \
                    for `all`.";

impl Data {
    /// Scores as Markdown: a row for each policy and budget, a column for each task.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for table in tables(self) {
            let _ =
                writeln!(text, "### {}\n\n| policy | {} |", table.title, table.columns.join(" | "));
            let _ = writeln!(text, "|---|{}", "---:|".repeat(table.columns.len()));
            for (name, cells) in table.rows {
                let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
            }
            text.push('\n');
        }
        text + STAR + "\n"
    }
}

/// The whole page: nothing else has to be fetched.
/// `names` are the files beside it: with the mark of who made it, they tell a later report what it
/// may replace.
pub(super) fn html(data: &Data, figures: &[(Figure, String)], names: &[&str]) -> String {
    let mut text = String::from("<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n");
    text.push_str("<meta name=\"generator\" content=\"longview report\">\n");
    let _ = writeln!(text, "<meta name=\"files\" content=\"{}\">", escape(&names.join(" ")));
    text.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    let _ = write!(text, "<title>Longview: evaluation</title>\n<style>{STYLE}</style>\n<main>\n");
    text.push_str("<h1>Evaluation</h1>\n<h2>Runs</h2>\n<div class=\"scroll\"><table>\n");
    text.push_str("<tr><th>command</th><th>model</th><th>device</th><th>KV</th><th>seed</th>");
    text.push_str("<th>machine</th><th>version</th></tr>\n");
    for run in &data.runs {
        let seed = run.seed.to_string();
        let cells = [
            &run.command,
            &run.model,
            &run.device,
            &run.kv_type,
            &seed,
            &run.machine,
            &run.version,
        ];
        let cells = cells.map(|cell| format!("<td>{}</td>", escape(cell)));
        let _ = writeln!(text, "<tr>{}</tr>", cells.concat());
    }
    text.push_str("</table></div>\n");
    if !data.failures.is_empty() {
        let samples = data.failures.iter().filter(|failure| failure.policy.is_none()).count();
        let answers = data.failures.len() - samples;
        let counts = [(answers, "answer", ""), (samples, "sample", " for all policies")];
        let counts = counts.into_iter().filter(|(n, ..)| *n > 0).map(|(n, what, whom)| {
            let plural = if n == 1 { "" } else { "s" };
            format!("{n} {what}{plural} failed{whom}")
        });
        let _ = writeln!(text, "<p>{}:</p><ul>", counts.collect::<Vec<_>>().join(", "));
        for failure in &data.failures {
            let _ = writeln!(text, "<li>{}</li>", escape(&failure_line(failure)));
        }
        text.push_str("</ul>\n");
    }
    if !data.answers.is_empty() {
        let _ = writeln!(text, "<h2>Scores</h2>\n<p>{}</p>", escape(STAR));
        for table in tables(data) {
            let title = escape(&table.title);
            let _ = writeln!(text, "<h3>{title}</h3>\n<div class=\"scroll\"><table>");
            let heads = table.columns.iter().map(|c| format!("<th>{}</th>", escape(c)));
            let _ = writeln!(text, "<tr><th>policy</th>{}</tr>", heads.collect::<String>());
            for (name, cells) in &table.rows {
                let cells = cells.iter().map(|c| format!("<td>{}</td>", escape(c)));
                let (name, cells) = (escape(name), cells.collect::<String>());
                let _ = writeln!(text, "<tr><td>{name}</td>{cells}</tr>");
            }
            text.push_str("</table></div>\n");
        }
    }
    text.push_str("<h2>Figures</h2>\n");
    for (figure, svg) in figures {
        let (title, caption) = (escape(&figure.title), escape(&figure.caption));
        let _ = writeln!(text, "<figure id=\"{}\" aria-label=\"{title}\">", escape(&figure.name));
        let _ = writeln!(text, "{svg}\n<figcaption>{caption}</figcaption>");
        let _ = writeln!(text, "{}</figure>", numbers(&figure.chart));
    }
    text + "</main>\n</html>\n"
}

/// Who failed at what, and why.
fn failure_line(failure: &Failure) -> String {
    let who = failure.policy.as_ref().map_or_else(|| "all policies".to_owned(), at_budget);
    let question = failure.index.map_or_else(String::new, |index| format!(", question {index}"));
    let Failure { task, length, sample, error, .. } = failure;
    format!("{task}, {length} tokens, document {sample}{question}: {who}: {error}")
}

/// The numbers behind a chart, for those who cannot see it or want to compute with them.
fn numbers(chart: &Chart) -> String {
    let (head, rows) = match chart {
        Chart::Lines { x, y, series } => {
            let head = ["", &x.label, &y.label, "interval"].map(str::to_owned).to_vec();
            let row = |name: &str, point: &Point| {
                let ends = |(low, high)| format!("{low:.4} to {high:.4}");
                let interval = point.interval.map_or_else(String::new, ends);
                let Point { x, y, .. } = point;
                vec![name.to_owned(), x.to_string(), format!("{y:.6}"), interval]
            };
            let of = |line: &Series| {
                line.points.iter().map(|point| row(&line.name, point)).collect::<Vec<_>>()
            };
            (head, series.iter().flat_map(of).collect::<Vec<_>>())
        }
        Chart::Stack { bars, parts, .. } => {
            let head = parts.iter().map(|(name, _)| format!("{name}, s"));
            let row = |(i, bar): (usize, &String)| {
                let own = parts.iter().map(|(_, values)| format!("{:.6}", values[i]));
                [bar.clone()].into_iter().chain(own).collect()
            };
            let head = [String::new()].into_iter().chain(head).collect();
            (head, bars.iter().enumerate().map(row).collect())
        }
        Chart::Heat { x, y, columns, rows, values } => {
            let number =
                |value: &Option<f64>| value.map_or_else(String::new, |v| format!("{v:.4}"));
            let row = |(name, values): (&String, &Vec<Option<f64>>)| {
                [name.clone()].into_iter().chain(values.iter().map(number)).collect()
            };
            let head = [format!("{y}, by {x}")].into_iter().chain(columns.iter().cloned());
            (head.collect(), rows.iter().zip(values).map(row).collect())
        }
    };
    let cells = |tag: &str, cells: &[String]| -> String {
        cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
    };
    let mut text = String::from("<details><summary>Numbers</summary><div class=\"scroll\"><table>");
    let _ = write!(text, "<tr>{}</tr>", cells("th", &head));
    for row in &rows {
        let _ = write!(text, "<tr>{}</tr>", cells("td", row));
    }
    text + "</table></div></details>\n"
}
