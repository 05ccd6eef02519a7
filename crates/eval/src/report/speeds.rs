//! Figures of speed: what a decoded token costs, and a prompt with an answer.

use std::collections::BTreeMap;

use super::chart::{Axis, Chart, Point, Unit};
use super::data::Data;
use super::figure::{Figure, at_budget, lines_of};
use crate::record::Speed;

/// Fewest decoded tokens that are an answer rather than a sample of steps.
const ANSWER: usize = 128;

pub(super) fn figures(data: &Data, all: &mut Vec<Figure>) {
    let speeds = longest(data);
    if speeds.is_empty() {
        return;
    }
    let injected = speeds.iter().filter(|s| s.injected).map(|s| s.context).min();
    let note = injected.map_or_else(String::new, |from| {
        let from = Unit::Tokens.text(from as f64);
        format!(" From {from} on, keys and values beyond what was prefilled are injected.")
    });
    let mut add = |name: &str, title: &str, caption: &str, y: Axis, value: &Value| {
        let point = |s: &&Speed| {
            let point = Point { x: s.context as f64, y: value(s)?, interval: None };
            Some((at_budget(&s.policy), point))
        };
        let series = lines_of(speeds.iter().filter_map(point));
        if !series.is_empty() {
            let label = match injected {
                Some(from) => {
                    format!("context (injected from {})", Unit::Tokens.text(from as f64))
                }
                None => "context".to_owned(),
            };
            let x = Axis::tokens(&label);
            let chart = Chart::Lines { x, y, series };
            let caption = format!("{caption}{note}");
            all.push(Figure { name: name.into(), title: title.into(), caption, chart });
        }
    };
    let log = |label: &str, unit| Axis { label: label.into(), is_log: true, range: None, unit };
    add(
        "latency",
        "Time of a decode step against context",
        "Median of the steps, one sequence.",
        log("step", Unit::Seconds),
        &|s| Some(s.step_s),
    );
    add(
        "throughput",
        "Decode speed against context",
        "One sequence, by the median step.",
        log("tokens per second", Unit::Plain),
        &|s| Some(1.0 / s.step_s.max(1e-9)),
    );
    add(
        "prefill-share",
        "Share of prefill spent waiting for the index",
        "What of clustering, or of making another index, other work does not hide.",
        Axis::percent("share of prefill"),
        &|s| Some(s.index_s? / s.prefill_s?),
    );
    add(
        "hits-against-context",
        "Hits of the device cache against context",
        "Share of recalled rows that were on the device.",
        Axis::percent("hits"),
        &|s| s.hit_rate,
    );
    shares(&speeds, all);
    grid(data, all);
}

type Value = dyn Fn(&Speed) -> Option<f64>;

/// Of each policy and context the measurement over most steps; of equal ones the last.
fn longest(data: &Data) -> Vec<&Speed> {
    let mut best: BTreeMap<(String, usize), &Speed> = BTreeMap::new();
    for speed in &data.speeds {
        let kept = best.entry((at_budget(&speed.policy), speed.context)).or_insert(speed);
        if speed.steps >= kept.steps {
            *kept = speed;
        }
    }
    best.into_values().collect()
}

/// What a step's time goes to, at the longest context.
fn shares(speeds: &[&Speed], all: &mut Vec<Figure>) {
    let longest = speeds.iter().map(|s| s.context).max().unwrap_or(0);
    let at: Vec<&Speed> = speeds.iter().copied().filter(|s| s.context == longest).collect();
    let rest = |s: &Speed| (s.step_s - s.select_s - s.fetch_s - s.attend_s).max(0.0);
    let part = |name: &str, of: &dyn Fn(&Speed) -> f64| -> (String, Vec<f64>) {
        (name.into(), at.iter().map(|s| of(s)).collect())
    };
    let injected = if at.iter().any(|s| s.injected) { ", injected" } else { "" };
    all.push(Figure {
        name: "step-shares".into(),
        title: format!("A decode step at {}{injected}", Unit::Tokens.text(longest as f64)),
        caption: "Time of a step by what it was spent on; the rest is the model itself.".into(),
        chart: Chart::Stack {
            y: "step".into(),
            bars: at.iter().map(|s| at_budget(&s.policy)).collect(),
            parts: vec![
                part("select", &|s| s.select_s),
                part("fetch", &|s| s.fetch_s),
                part("attend", &|s| s.attend_s),
                part("rest", &rest),
            ],
        },
    });
}

/// Time of a prompt of P tokens and an answer of D, as in ClusterKV's figure 12.
fn grid(data: &Data, all: &mut Vec<Figure>) {
    let answers = data.speeds.iter().filter(|s| s.steps >= ANSWER && s.prefill_s.is_some());
    let mut prompts: BTreeMap<usize, BTreeMap<(usize, String), &Speed>> = BTreeMap::new();
    for s in answers {
        prompts.entry(s.context).or_default().insert((s.steps, at_budget(&s.policy)), s);
    }
    for (prompt, bars) in prompts {
        let prefill = bars.values().map(|s| s.prefill_s.unwrap_or(0.0)).collect();
        let decode = bars.values().map(|s| s.decode_s).collect();
        all.push(Figure {
            name: format!("latency-grid-{prompt}"),
            title: format!("A prompt of {} and an answer of D", Unit::Tokens.text(prompt as f64)),
            caption: "Time of the prefill and of all D decoded tokens, as measured.".into(),
            chart: Chart::Stack {
                y: "time".into(),
                bars: bars.keys().map(|(d, name)| format!("D={d} {name}")).collect(),
                parts: vec![("prefill".into(), prefill), ("decode".into(), decode)],
            },
        });
    }
}
