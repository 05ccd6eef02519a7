//! Means of records, by who they are about.

use std::collections::{BTreeMap, BTreeSet};

use super::chart::Point;
use crate::policies::title;
use crate::record::Answer;
use crate::summary::Mean;

/// The mean score of answers, with Wilson's interval.
pub(super) fn score_at(x: f64, scores: &[f64]) -> Point {
    let mean = Mean::of(scores).expect("groups have members");
    Point { x, y: mean.mean, interval: Some(mean.interval) }
}

/// The mean of a number that each head has, with the 95 % interval of the mean: 1.96 standard
/// errors over heads.
pub(super) fn over_heads(x: f64, values: &[f64]) -> Point {
    let (y, n) = (mean(values), values.len() as f64);
    let variance = values.iter().map(|v| (v - y).powi(2)).sum::<f64>() / (n - 1.0);
    let error = 1.96 * (variance / n).sqrt();
    Point { x, y, interval: (n > 1.0).then_some((y - error, y + error)) }
}

/// Numbers in groups, in the order of the groups' keys.
pub(super) fn grouped<'a, T: 'a, K: Ord>(
    records: impl IntoIterator<Item = &'a T>,
    key: impl Fn(&T) -> K,
    value: impl Fn(&T) -> f64,
) -> BTreeMap<K, Vec<f64>> {
    let mut groups: BTreeMap<K, Vec<f64>> = BTreeMap::new();
    for record in records {
        groups.entry(key(record)).or_default().push(value(record));
    }
    groups
}

/// The scores of a policy, by its name, at a budget in a task.
pub(super) fn scores_of(answers: &[&Answer], task: &str, policy: (&str, usize)) -> Vec<f64> {
    let of = |a: &&&Answer| {
        a.task == task && a.policy.budget == policy.1 && title(&a.policy) == policy.0
    };
    answers.iter().filter(of).map(|a| a.score).collect()
}

/// The mean of a policy's mean scores in each of `tasks`; `None` where it lacks one, since the mean
/// of the others could not be put beside that of other policies.
pub(super) fn over_tasks(
    answers: &[&Answer],
    tasks: &BTreeSet<&str>,
    policy: (&str, usize),
) -> Option<Mean> {
    let means = tasks.iter().map(|task| Mean::of(&scores_of(answers, task, policy)));
    Mean::over(&means.collect::<Option<Vec<_>>>()?)
}

/// The arithmetic mean.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_over_heads_are_of_the_mean() {
        let point = over_heads(2.0, &[1.0, 2.0, 3.0, 4.0]);
        let (low, high) = point.interval.unwrap();
        // The variance is 5 / 3, so the error of the mean 0.6455.
        assert!((low - (2.5 - 1.2652)).abs() < 1e-3 && (high - (2.5 + 1.2652)).abs() < 1e-3);
        assert_eq!(over_heads(1.0, &[3.0]).interval, None);
    }
}
