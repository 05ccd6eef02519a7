//! Means of records, by who they are about.

use std::collections::BTreeMap;

use super::chart::Point;
use crate::summary::Mean;

/// A mean as a point of a chart.
pub(super) fn point_at(x: f64, mean: &Mean) -> Point {
    Point { x, y: mean.mean, interval: Some(mean.interval) }
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

/// The arithmetic mean.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}
