//! A figure, and the lines that several of them draw.

use std::collections::BTreeMap;

use super::chart::{Chart, Point, Series};
use crate::policies::title as policy_name;
use crate::record::PolicyLabel;

/// A chart with what a reader needs to know about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The name of its files, without an ending.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// How to read it.
    pub caption: String,
    /// What is drawn.
    pub chart: Chart,
}

/// A policy with its budget.
pub(super) fn at_budget(label: &PolicyLabel) -> String {
    match label.budget {
        0 => policy_name(label),
        budget => format!("{} B={budget}", policy_name(label)),
    }
}

/// Lines from named points, each from left to right; full attention dashed.
pub(super) fn lines_of(points: impl IntoIterator<Item = (String, Point)>) -> Vec<Series> {
    let mut lines: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for (name, point) in points {
        lines.entry(name).or_default().push(point);
    }
    let line = |(name, mut points): (String, Vec<Point>)| {
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        let is_reference = name == "full";
        Series { name, points, is_reference }
    };
    lines.into_iter().map(line).collect()
}
