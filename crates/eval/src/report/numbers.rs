//! Means and intervals of records, by who they are about.

use std::collections::BTreeMap;

use super::chart::Point;
use crate::record::{Answer, PolicyLabel};

/// Name of a policy in legends and tables, without its budget.
pub(super) fn policy_name(label: &PolicyLabel) -> String {
    let options = label.options.iter().map(|(name, value)| format!(" {name}={value}"));
    std::iter::once(label.policy.clone()).chain(options).collect()
}

/// A mean with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Lower and upper end.
    pub interval: (f64, f64),
    /// Of how many.
    pub n: usize,
}

impl Mean {
    /// Of scores in 0..=1: Wilson's interval, which is right for shares and, since the variance of
    /// a score in 0..=1 is at most that of a share, never too narrow for others.
    pub fn of_shares(scores: &[f64]) -> Option<Self> {
        let n = scores.len() as f64;
        if scores.is_empty() {
            return None;
        }
        let (z, p) = (1.96, scores.iter().sum::<f64>() / n);
        let middle = (p + z * z / (2.0 * n)) / (1.0 + z * z / n);
        let half = z / (1.0 + z * z / n) * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
        // Rounding must not put the mean outside.
        let interval = ((middle - half).clamp(0.0, p), (middle + half).clamp(p, 1.0));
        Some(Self { mean: p, interval, n: scores.len() })
    }

    /// As a point of a chart.
    pub fn at(&self, x: f64) -> Point {
        Point { x, y: self.mean, interval: Some(self.interval) }
    }
}

/// Numbers in groups, in the order of the groups' keys.
pub(super) fn grouped<'a, T, K: Ord>(
    records: impl IntoIterator<Item = &'a T>,
    key: impl Fn(&T) -> K,
    value: impl Fn(&T) -> f64,
) -> BTreeMap<K, Vec<f64>>
where
    T: 'a,
{
    let mut groups: BTreeMap<K, Vec<f64>> = BTreeMap::new();
    for record in records {
        groups.entry(key(record)).or_default().push(value(record));
    }
    groups
}

/// The arithmetic mean.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Full attention's mean score of a task at a length.
pub(super) fn full_score(answers: &[&Answer], task: &str, length: usize) -> Option<f64> {
    let scores: Vec<f64> = answers
        .iter()
        .filter(|a| a.policy.policy == "full" && a.task == task && a.length == length)
        .map(|a| a.score)
        .collect();
    Mean::of_shares(&scores).map(|mean| mean.mean)
}

/// Below this score of full attention a task says nothing about policies: the model cannot do it.
pub const ABLE: f64 = 0.8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_of_shares_is_wilsons() {
        // 9 of 10: (0.9 + 0.19208) / 1.38416 = 0.78898, half 0.19329 by hand.
        let mut scores = vec![1.0; 9];
        scores.push(0.0);
        let mean = Mean::of_shares(&scores).expect("scores");
        assert!((mean.mean - 0.9).abs() < 1e-12);
        assert!((mean.interval.0 - 0.5958).abs() < 1e-3, "{mean:?}");
        assert!((mean.interval.1 - 0.9821).abs() < 1e-3, "{mean:?}");
        assert_eq!(Mean::of_shares(&[]), None);
        let all = Mean::of_shares(&[1.0; 20]).expect("scores");
        assert!(all.interval.1 >= 1.0 && all.interval.0 < 0.9, "{all:?}");
    }

    #[test]
    fn a_name_has_what_differs() {
        let mut label = PolicyLabel { policy: "clusterkv".into(), budget: 512, ..Default::default() };
        assert_eq!(policy_name(&label), "clusterkv");
        label.options.insert("tail".into(), "estimate".into());
        assert_eq!(policy_name(&label), "clusterkv tail=estimate");
    }
}
