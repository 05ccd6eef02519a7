//! Which figures a results file gives.

use std::collections::{BTreeMap, BTreeSet};

use super::chart::{Axis, Chart, Point, Series, Unit};
use super::data::Data;
use super::figure::{Figure, at_budget, lines_of};
use super::numbers::{grouped, mean, over_heads, over_tasks, score_at};
use super::speeds;
use crate::policies::title as policy_name;
use crate::record::{Answer, Cache, PolicyLabel, Probe, Question, Spectrum};
use crate::summary::{HeatMap, Mean};

impl Data {
    /// Every figure that the data suffices for.
    pub fn figures(&self) -> Vec<Figure> {
        let mut all = Vec::new();
        scores(self, &mut all);
        heat_maps(self, &mut all);
        probes(self, &mut all);
        recency(self, &mut all);
        perplexity(self, &mut all);
        caches(self, &mut all);
        spectra(self, &mut all);
        speeds::figures(self, &mut all);
        all
    }
}

fn question_name(question: Question) -> &'static str {
    match question {
        Question::Aware => "question in the prompt",
        Question::Agnostic => "question after the choice",
    }
}

/// Lines of something by budget, one for each policy, and a dashed one for full attention.
fn by_budget<'a, T: 'a>(
    records: impl IntoIterator<Item = &'a T>,
    label: impl Fn(&T) -> &PolicyLabel,
    value: impl Fn(&T) -> f64,
    point: fn(f64, &[f64]) -> Point,
) -> Vec<Series> {
    let key = |r: &T| (policy_name(label(r)), label(r).budget);
    let groups = grouped(records, key, value);
    budget_lines(groups.into_iter().map(|((name, b), values)| (name, point(b as f64, &values))))
}

/// The same of points over budgets, each with a policy's name; 0 is the budget of full attention.
fn budget_lines(points: impl IntoIterator<Item = (String, Point)>) -> Vec<Series> {
    let mut lines: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    let (mut budgets, mut full) = (Vec::new(), Vec::new());
    for (name, point) in points {
        if point.x == 0.0 {
            full.push(point.y);
        } else {
            budgets.push(point.x);
            lines.entry(name).or_default().push(point);
        }
    }
    budgets.sort_by(f64::total_cmp);
    budgets.dedup();
    let everywhere = |y: f64| budgets.iter().map(move |x| Point { x: *x, y, interval: None });
    let reference: Vec<Point> = full.into_iter().flat_map(everywhere).collect();
    let line = |(name, points)| Series { name, points, is_reference: false };
    let mut series: Vec<Series> = lines.into_iter().map(line).collect();
    if !reference.is_empty() {
        series.push(Series { name: "full".into(), points: reference, is_reference: true });
    }
    series
}

fn scores(data: &Data, all: &mut Vec<Figure>) {
    let keys: BTreeSet<(Question, usize, &str)> =
        data.answers.iter().map(|a| (a.question, a.length, a.task.as_str())).collect();
    let lengths: BTreeSet<(Question, usize)> = keys.iter().map(|(q, n, _)| (*q, *n)).collect();
    let chart = |series: Vec<Series>| Chart::Lines {
        x: Axis::tokens("budget B, tokens that a KV head attends in a step"),
        y: Axis::percent("score"),
        series,
    };
    for (question, length) in lengths {
        let of = |a: &&Answer| a.question == question && a.length == length;
        let able = |a: &&Answer| data.is_able(&a.task, length, question);
        let answers: Vec<&Answer> = data.answers.iter().filter(of).filter(able).collect();
        let tasks: BTreeSet<&str> = answers.iter().map(|a| a.task.as_str()).collect();
        let policies: BTreeSet<(usize, String)> =
            answers.iter().map(|a| (a.policy.budget, policy_name(&a.policy))).collect();
        let points = policies.into_iter().filter_map(|(budget, name)| {
            let Mean { mean: y, interval, .. } =
                over_tasks(&answers, &tasks, (name.as_str(), budget))?;
            Some((name, Point { x: budget as f64, y, interval: Some(interval) }))
        });
        let series = budget_lines(points);
        // Full attention alone has no budget to draw it at; the table has its scores.
        if tasks.len() > 1 && !series.is_empty() {
            all.push(Figure {
                name: format!("score-all-{length}-{}", slug(question)),
                title: format!("All {} tasks at {}", tasks.len(), Unit::Tokens.text(length as f64)),
                caption: format!(
                    "Mean of the scores in the tasks that full attention can do (at least 80 %), \
                     each of which counts alike: {}; {}. Policies that lack one are not shown. \
                     Bars are 95 % intervals of that mean, made of those of the tasks.",
                    tasks.into_iter().collect::<Vec<_>>().join(", "),
                    question_name(question),
                ),
                chart: chart(series),
            });
        }
    }
    by_length(data, all);
    for (question, length, task) in keys {
        let of = |a: &&Answer| a.question == question && a.length == length && a.task == task;
        let answers = data.answers.iter().filter(of);
        let series = by_budget(answers, |a| &a.policy, |a| a.score, score_at);
        if series.is_empty() {
            continue;
        }
        let mark = if data.is_able(task, length, question) {
            ""
        } else {
            " Full attention scores under 80 %: the model cannot do this task."
        };
        all.push(Figure {
            name: format!("score-{task}-{length}-{}", slug(question)),
            title: format!("{task} at {}", Unit::Tokens.text(length as f64)),
            caption: format!(
                "Score against budget, {}. Bars are 95 % intervals.{mark}",
                question_name(question)
            ),
            chart: chart(series),
        });
    }
}

/// Score against length, where there are several.
fn by_length(data: &Data, all: &mut Vec<Figure>) {
    let keys: BTreeSet<(Question, &str)> =
        data.answers.iter().map(|a| (a.question, a.task.as_str())).collect();
    for (question, task) in keys {
        let of = |a: &&Answer| a.question == question && a.task == task;
        let name = |a: &Answer| at_budget(&a.policy);
        let groups = grouped(data.answers.iter().filter(of), |a| (name(a), a.length), |a| a.score);
        let lengths: BTreeSet<usize> = groups.keys().map(|(_, length)| *length).collect();
        if lengths.len() < 2 {
            continue;
        }
        let points = groups
            .into_iter()
            .map(|((name, length), scores)| (name, score_at(length as f64, &scores)));
        all.push(Figure {
            name: format!("length-{task}-{}", slug(question)),
            title: format!("{task} against length"),
            caption: format!(
                "Score by tokens of document, question and answer, {}. Bars are 95 % intervals.",
                question_name(question)
            ),
            chart: Chart::Lines {
                x: Axis::tokens("length"),
                y: Axis::percent("score"),
                series: lines_of(points),
            },
        });
    }
}

fn slug(question: Question) -> &'static str {
    match question {
        Question::Aware => "aware",
        Question::Agnostic => "agnostic",
    }
}

/// Rows of a heat map; of more depths it has tenths.
const MOST_DEPTHS: usize = 20;

/// Depth against length, for tasks with one needle.
fn heat_maps(data: &Data, all: &mut Vec<Figure>) {
    let deep = || data.answers.iter().filter(|a| a.depth.is_some());
    let key = |a: &Answer| (a.question, policy_name(&a.policy), a.policy.budget);
    let keys: BTreeSet<(&str, (Question, String, usize))> =
        deep().map(|a| (a.task.as_str(), key(a))).collect();
    let questions: BTreeSet<Question> = deep().map(|a| a.question).collect();
    for (task, policy) in keys {
        let of = |a: &&Answer| a.task == task && key(a) == policy;
        let mut map = HeatMap::of(deep().filter(of));
        if map.depths.len() > MOST_DEPTHS {
            map = HeatMap::in_steps(deep().filter(of), 10);
        }
        if map.lengths.len() < 2 || map.depths.len() < 2 {
            continue;
        }
        let (question, policy, budget) = policy;
        let at = if budget == 0 { String::new() } else { format!(" at B = {budget}") };
        let name = format!("depth-{task}-{}-{budget}", policy.replace([':', '='], "-"));
        all.push(Figure {
            name: match questions.len() {
                1 => name,
                _ => format!("{name}-{}", slug(question)),
            },
            title: format!("{task}: {policy}{at}"),
            caption: format!(
                "Score in percent by where the needle lies (0 % is the start) and by length, {}.",
                question_name(question)
            ),
            chart: Chart::Heat {
                x: "length".into(),
                y: "depth".into(),
                columns: map.lengths.iter().map(|n| Unit::Tokens.text(*n as f64)).collect(),
                rows: map.depths.iter().map(|d| Unit::Percent.text(*d)).collect(),
                values: map.scores,
            },
        });
    }
}

fn probes(data: &Data, all: &mut Vec<Figure>) {
    let keys: BTreeSet<(&str, usize)> =
        data.probes.iter().map(|p| (p.text.as_str(), p.length)).collect();
    for (text, length) in keys {
        let of = || data.probes.iter().filter(|p| p.text == text && p.length == length);
        let at = Unit::Tokens.text(length as f64);
        let mut add = |name: &str, title: &str, caption: &str, y: Axis, series: Vec<Series>| {
            all.push(Figure {
                name: format!("{name}-{text}-{length}"),
                title: format!("{title}, {text} at {at}"),
                caption: caption.into(),
                chart: Chart::Lines { x: Axis::tokens("budget B"), y, series },
            });
        };
        let mut recall = by_budget(of(), |p| &p.policy, |p| p.recall, over_heads);
        let oracle = grouped(of(), |p| p.policy.budget, |p| p.recall_group);
        recall.push(Series {
            name: "best for the group".into(),
            points: oracle
                .iter()
                .map(|(b, v)| Point { x: *b as f64, y: mean(v), interval: None })
                .collect(),
            is_reference: true,
        });
        add(
            "recall",
            "Recall of the true top B",
            "Share of a query head's true top B tokens that were attended, mean over layers, heads \
             and steps; bars are 95 % intervals over heads. Dashed: what the best B tokens shared \
             by the query heads of a group reach.",
            Axis::percent("recall"),
            recall,
        );
        let mut kept = by_budget(of(), |p| &p.policy, |p| p.mass, over_heads);
        let best = grouped(of(), |p| p.policy.budget, |p| p.mass_best);
        kept.push(Series {
            name: "true top B".into(),
            points: best
                .iter()
                .map(|(b, v)| Point { x: *b as f64, y: mean(v), interval: None })
                .collect(),
            is_reference: true,
        });
        add(
            "mass",
            "Attention kept",
            "Share of the attention that the attended tokens hold. Dashed: what the true top B \
             tokens hold.",
            Axis::percent("attention kept"),
            kept,
        );
        add(
            "error",
            "Error of the attention's output",
            "|out - full| / |full|, mean over layers, heads and steps.",
            Axis { label: "relative error".into(), is_log: false, range: None, unit: Unit::Plain },
            by_budget(of(), |p| &p.policy, |p| p.error, over_heads),
        );
        bounds(data, text, length, all);
        layers(data, text, length, all);
        steps(data, text, length, all);
    }
}

/// What is known without looking: bounds of the loss beside what it is.
fn bounds(data: &Data, text: &str, length: usize, all: &mut Vec<Figure>) {
    let of = || data.probes.iter().filter(|p| p.text == text && p.length == length);
    let loss = by_budget(of(), |p| &p.policy, |p| p.loss_bound, over_heads);
    all.push(Figure {
        name: format!("loss-bound-{text}-{length}"),
        title: format!(
            "Ada-KV's bound of the loss, {text} at {}",
            Unit::Tokens.text(length as f64)
        ),
        caption: "2 (1 - attention kept) times the largest norm of a value row; mean over layers, \
                  heads and steps."
            .into(),
        chart: Chart::Lines {
            x: Axis::tokens("budget B"),
            y: Axis { label: "bound".into(), is_log: false, range: None, unit: Unit::Plain },
            series: loss,
        },
    });
    let certified = || of().filter(|p| p.certified.is_some());
    if certified().next().is_none() {
        return;
    }
    let certain = |p: &Probe| p.certified.unwrap_or(1.0);
    let mut series = by_budget(certified(), |p| &p.policy, certain, over_heads);
    series.iter_mut().for_each(|s| s.name.push_str(", certified"));
    let mut left = by_budget(certified(), |p| &p.policy, |p| 1.0 - p.mass, over_heads);
    left.iter_mut().for_each(|s| s.name.push_str(", left out"));
    series.extend(left);
    all.push(Figure {
        name: format!("certificate-{text}-{length}"),
        title: format!("Certified and true loss of attention, {text}"),
        caption:
            "The median upper bound that an index gives of the attention left out, beside the \
                  mean of what was left out."
                .into(),
        chart: Chart::Lines {
            x: Axis::tokens("budget B"),
            y: Axis::percent("attention left out"),
            series,
        },
    });
}

/// Recall step by step, at the middle budget.
fn steps(data: &Data, text: &str, length: usize, all: &mut Vec<Figure>) {
    let of = || data.probes.iter().filter(|p| p.text == text && p.length == length);
    let Some(budget) = middle_budget(of()) else { return };
    let mut sums: BTreeMap<(String, usize), Vec<f64>> = BTreeMap::new();
    for probe in of().filter(|p| p.policy.budget == budget) {
        for (i, recall) in probe.recall_steps.iter().enumerate() {
            let key = (policy_name(&probe.policy), i * probe.stride.max(1));
            sums.entry(key).or_default().push(f64::from(*recall));
        }
    }
    if sums.is_empty() {
        return;
    }
    let points = sums.into_iter().map(|((name, step), recalls)| {
        (name, Point { x: step as f64, y: mean(&recalls), interval: None })
    });
    all.push(Figure {
        name: format!("recall-steps-{text}-{length}"),
        title: format!("Recall step by step at B = {budget}, {text}"),
        caption: "Mean over layers and query heads.".into(),
        chart: Chart::Lines {
            x: Axis {
                label: "decoded tokens".into(),
                is_log: false,
                range: None,
                unit: Unit::Plain,
            },
            y: Axis::percent("recall"),
            series: lines_of(points),
        },
    });
}

/// The middle of the budgets that there are.
fn middle_budget<'a>(probes: impl Iterator<Item = &'a Probe>) -> Option<usize> {
    let budgets: BTreeSet<usize> = probes.map(|p| p.policy.budget).collect();
    budgets.iter().nth(budgets.len() / 2).copied()
}

/// Recall by layer, at the middle budget.
fn layers(data: &Data, text: &str, length: usize, all: &mut Vec<Figure>) {
    let of = || data.probes.iter().filter(|p| p.text == text && p.length == length);
    let Some(budget) = middle_budget(of()) else { return };
    let at = of().filter(|p| p.policy.budget == budget);
    let groups = grouped(at, |p| (policy_name(&p.policy), p.layer), |p| p.recall);
    let mut lines: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for ((name, layer), values) in groups {
        let point = Point { x: layer as f64, y: mean(&values), interval: None };
        lines.entry(name).or_default().push(point);
    }
    all.push(Figure {
        name: format!("recall-layers-{text}-{length}"),
        title: format!("Recall by layer at B = {budget}, {text}"),
        caption: "Mean over query heads and steps.".into(),
        chart: Chart::Lines {
            x: Axis { label: "layer".into(), is_log: false, range: None, unit: Unit::Plain },
            y: Axis::percent("recall"),
            series: lines
                .into_iter()
                .map(|(name, points)| Series { name, points, is_reference: false })
                .collect(),
        },
    });
}

/// Recall by the age of tokens.
fn recency(data: &Data, all: &mut Vec<Figure>) {
    let keys: BTreeSet<(&str, usize, usize)> = data
        .probes
        .iter()
        .filter(|p| !p.recency.is_empty())
        .map(|p| (p.text.as_str(), p.length, p.policy.budget))
        .collect();
    let budgets: BTreeSet<usize> = keys.iter().map(|(_, _, b)| *b).collect();
    let middle = budgets.iter().nth(budgets.len() / 2).copied();
    for (text, length, budget) in keys.into_iter().filter(|(_, _, b)| Some(*b) == middle) {
        let of = |p: &&Probe| p.text == text && p.length == length && p.policy.budget == budget;
        let mut lines: BTreeMap<String, Vec<Vec<f64>>> = BTreeMap::new();
        for probe in data.probes.iter().filter(of) {
            let line = lines.entry(policy_name(&probe.policy)).or_default();
            line.resize(probe.recency.len(), Vec::new());
            line.iter_mut().zip(&probe.recency).for_each(|(all, one)| all.extend(*one));
        }
        let line = |(name, parts): (String, Vec<Vec<f64>>)| {
            let n = parts.len() as f64;
            let point = |(i, values): (usize, &Vec<f64>)| Point {
                x: (i as f64 + 0.5) / n,
                y: mean(values),
                interval: None,
            };
            let parts = parts.iter().enumerate().filter(|(_, values)| !values.is_empty());
            let points = parts.map(point).collect();
            Series { name, points, is_reference: false }
        };
        all.push(Figure {
            name: format!("recency-{text}-{length}"),
            title: format!("Recall by place in the context, B = {budget}, {text}"),
            caption:
                "Recall of the true top B tokens that lie in each eighth of the context, mean \
                      over the heads that have some there; the newest are at the right."
                    .into(),
            chart: Chart::Lines {
                x: Axis { range: Some(0.0..1.0), ..Axis::percent("place in the context") },
                y: Axis::percent("recall"),
                series: lines.into_iter().map(line).collect(),
            },
        });
    }
}

/// Perplexity over the text up to a position, relative to that under full attention.
fn perplexity(data: &Data, all: &mut Vec<Figure>) {
    let texts: BTreeSet<&str> = data.perplexities.iter().map(|p| p.text.as_str()).collect();
    for text in texts {
        let points = data.perplexities.iter().filter(|p| p.text == text).map(|p| {
            let value = (p.nll / p.tokens.max(1) as f64).exp();
            let at = p.position.max(1) as f64;
            (at_budget(&p.policy), Point { x: at, y: value, interval: None })
        });
        let series = lines_of(points);
        all.push(Figure {
            name: format!("perplexity-{text}"),
            title: format!("Perplexity by position, {text}"),
            caption: "Of the tokens that follow each position, decoded one by one through the \
                      policy."
                .into(),
            chart: Chart::Lines {
                x: Axis::tokens("tokens before"),
                y: Axis {
                    label: "perplexity".into(),
                    is_log: false,
                    range: None,
                    unit: Unit::Plain,
                },
                series,
            },
        });
    }
}

/// Hit rates by R, over heads.
fn caches(data: &Data, all: &mut Vec<Figure>) {
    let key = |c: &Cache| (c.length, c.policy.budget);
    let keys: BTreeSet<(&str, (usize, usize))> =
        data.caches.iter().map(|c| (c.text.as_str(), key(c))).collect();
    let texts: BTreeSet<&str> = keys.iter().map(|(text, _)| *text).collect();
    for (text, (length, budget)) in keys {
        // Older files do not say which text it was.
        let (file, about) = match (texts.len(), text) {
            (1, "") => (String::new(), String::new()),
            (1, _) => (String::new(), format!(", {text}")),
            (_, "") => ("-unnamed".to_owned(), ", a text without name".to_owned()),
            _ => (format!("-{text}"), format!(", {text}")),
        };
        let of = data.caches.iter().filter(|c| c.text == text && key(c) == (length, budget));
        let rate = |c: &Cache| c.hits as f64 / (c.hits + c.misses).max(1) as f64;
        let groups = grouped(of, |c| (policy_name(&c.policy), c.cache_steps), rate);
        let mut lines: BTreeMap<String, Vec<Point>> = BTreeMap::new();
        for ((name, steps), mut rates) in groups {
            rates.sort_by(f64::total_cmp);
            let interval = Some((rates[0], rates[rates.len() - 1]));
            let point = Point { x: steps as f64, y: mean(&rates), interval };
            lines.entry(name).or_default().push(point);
        }
        all.push(Figure {
            name: format!("hits{file}-{length}-{budget}"),
            title: format!(
                "Hits of the device cache at {}, B = {budget}{about}",
                Unit::Tokens.text(length as f64)
            ),
            caption: "Share of recalled rows that were on the device already, by the steps R for \
                      which rows stay. Bars go from the head with fewest hits to that with most."
                .into(),
            chart: Chart::Lines {
                x: Axis { label: "R".into(), is_log: false, range: None, unit: Unit::Plain },
                y: Axis::percent("hits"),
                series: lines
                    .into_iter()
                    .map(|(name, points)| Series { name, points, is_reference: false })
                    .collect(),
            },
        });
    }
}

/// Singular values, relative to the largest.
fn spectra(data: &Data, all: &mut Vec<Figure>) {
    let keys: BTreeSet<(&str, usize)> =
        data.spectra.iter().map(|s| (s.text.as_str(), s.length)).collect();
    for (text, length) in keys {
        let series = ["q", "k"].into_iter().filter_map(|side| {
            let of = |s: &&Spectrum| s.text == text && s.length == length && s.side == side;
            let heads: Vec<_> = data.spectra.iter().filter(of).collect();
            let n = heads.iter().map(|s| s.values.len()).min().filter(|n| *n > 0)?;
            let share = |i: usize| -> Vec<f64> {
                heads.iter().map(|s| s.values[i] / s.values[0].max(1e-30)).collect()
            };
            let point = |i: usize| {
                let shares = share(i);
                let low = shares.iter().copied().fold(f64::INFINITY, f64::min);
                let high = shares.iter().copied().fold(0.0, f64::max);
                Point { x: (i + 1) as f64, y: mean(&shares), interval: Some((low, high)) }
            };
            let name = if side == "q" { "queries" } else { "keys" };
            let points = (0..n).map(point).collect();
            Some(Series { name: name.into(), points, is_reference: false })
        });
        all.push(Figure {
            name: format!("spectrum-{text}-{length}"),
            title: format!("Singular values of queries and keys, {text}"),
            caption: "Relative to the largest; mean over KV heads and layers, bars from the least \
                      to the most."
                .into(),
            chart: Chart::Lines {
                x: Axis { label: "number".into(), is_log: false, range: None, unit: Unit::Plain },
                y: Axis::percent("relative singular value"),
                series: series.collect(),
            },
        });
    }
}
