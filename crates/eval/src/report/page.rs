//! The page and the table.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::Data;
use super::chart::{Chart, Unit};
use super::figures::Figure;
use crate::policies::title as policy_name;
use crate::record::{Answer, Question};
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
    let cell = |scores: &[f64]| match Mean::of(scores) {
        Some(m) => format!(
            "{:.1} ({:.0}-{:.0})",
            100.0 * m.mean,
            100.0 * m.interval.0,
            100.0 * m.interval.1
        ),
        None => "-".into(),
    };
    let rows = policies.iter().map(|(_, name, budget)| {
        let own = |task: &str| -> Vec<f64> {
            of.iter()
                .filter(|a| a.task == task)
                .filter(|a| policy_name(&a.policy) == *name && a.policy.budget == *budget)
                .map(|a| a.score)
                .collect()
        };
        let mut cells: Vec<String> = tasks.iter().map(|task| cell(&own(task))).collect();
        let able = tasks.iter().filter(|task| data.is_able(task, length, question));
        let all: Vec<f64> = able.flat_map(|task| own(task)).collect();
        cells.push(cell(&all));
        let at = if *budget == 0 { String::new() } else { format!(", B = {budget}") };
        (format!("{name}{at}"), cells)
    });
    let star = |task: &&str| match data.is_able(task, length, question) {
        true => (*task).to_owned(),
        false => format!("{task} *"),
    };
    let how = match question {
        Question::Aware => "question in the prompt",
        Question::Agnostic => "question after the choice",
    };
    Table {
        title: format!("{} tokens, {how}", Unit::Tokens.text(length as f64)),
        columns: tasks.iter().map(star).chain(["all".to_owned()]).collect(),
        rows: rows.collect(),
    }
}

const STAR: &str = "Percent right, with the 95 % interval. * Full attention scores under 80 %: the \
                    model cannot do this task, which does not count for `all`.";

/// Scores as Markdown.
pub(super) fn markdown(data: &Data) -> String {
    let mut text = String::new();
    for table in tables(data) {
        let _ = writeln!(text, "### {}\n\n| policy | {} |", table.title, table.columns.join(" | "));
        let _ = writeln!(text, "|---|{}", "---:|".repeat(table.columns.len()));
        for (name, cells) in table.rows {
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        }
        text.push('\n');
    }
    text + STAR + "\n"
}

/// The whole page: nothing else has to be fetched.
pub(super) fn html(data: &Data, figures: &[(Figure, String)]) -> String {
    let mut text = String::from("<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n");
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
        let _ = writeln!(text, "<p>{} samples failed:</p><ul>", data.failures.len());
        for failure in &data.failures {
            let (task, error) = (escape(&failure.task), escape(&failure.error));
            let _ = writeln!(text, "<li>{task}, {} tokens: {error}</li>", failure.length);
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

/// The numbers behind a chart, for those who cannot see it or want to compute with them.
fn numbers(chart: &Chart) -> String {
    let Chart::Lines { x, y, series } = chart else { return String::new() };
    let mut text = String::from("<details><summary>Numbers</summary><div class=\"scroll\"><table>");
    let _ = write!(text, "<tr><th></th><th>{}</th><th>{}</th>", escape(&x.label), escape(&y.label));
    text.push_str("<th>interval</th></tr>");
    for line in series {
        for point in &line.points {
            let interval = point
                .interval
                .map_or(String::new(), |(low, high)| format!("{low:.4} to {high:.4}"));
            let name = escape(&line.name);
            let _ = write!(
                text,
                "<tr><td>{name}</td><td>{}</td><td>{:.6}</td><td>{interval}</td></tr>",
                point.x, point.y
            );
        }
    }
    text + "</table></div></details>\n"
}
