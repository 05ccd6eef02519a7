//! The comparator: what makes a result right.
//!
//! Lengths first, then guards, then every element. Numbers pass where `|got - reference| <= atol +
//! rtol * |reference|`, so not-a-number fails unless it is the declared answer, and infinities must
//! agree in sign. Indices must be equal where the f64 scores differ by more than the tolerance;
//! within it any index is right and is counted as a tie.

use crate::corpus::plan::{Outcome, Output, Plan, Values};
use crate::tolerance::Tolerance;

/// Mismatches that are printed; the others are only counted.
const SHOWN: usize = 4;

/// From how many elements on the mean square error says something.
const NMSE_MIN_ELEMENTS: usize = 64;

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Elements looked at.
    pub compared: usize,
    /// What is wrong, guards and lengths included.
    pub mismatched: usize,
    /// The first of them, each with index, got and expected.
    pub messages: Vec<String>,
    /// The largest `|got - reference| / (atol + rtol * |reference|)` of all numbers; above 1 is a
    /// mismatch.
    pub worst: f64,
    /// The largest NMSE of all outputs.
    pub nmse: f64,
    /// Indices that differ within the tolerance.
    pub ties: usize,
}

impl Comparison {
    /// Whether nothing is wrong.
    pub fn passed(&self) -> bool {
        self.mismatched == 0
    }

    /// Counts a mismatch and keeps its message if it is among the first.
    pub fn fail(&mut self, message: impl Into<String>) {
        self.mismatched += 1;
        if self.messages.len() < SHOWN {
            self.messages.push(message.into());
        }
    }

    /// Fails unless the lengths agree.
    fn same_len(&mut self, name: &str, got: usize, want: usize) -> bool {
        if got != want {
            self.fail(format!("{name}: {got} elements, expected {want}"));
        }
        got == want
    }
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} wrong", self.mismatched, self.compared)?;
        self.messages.iter().try_for_each(|m| write!(f, "; {m}"))
    }
}

/// Compares all outputs of a case, numbers by `tol` and indices exactly.
pub fn compare_outcomes(plan: &Plan, got: &Outcome, want: &Outcome, tol: &Tolerance) -> Comparison {
    let mut c = Comparison::default();
    if !c.same_len("outputs", got.outputs.len(), want.outputs.len()) {
        return c;
    }
    for ((plan, got), want) in plan.outputs.iter().zip(&got.outputs).zip(&want.outputs) {
        compare_guards(&mut c, got);
        match (&got.values, &want.values) {
            (Values::Floats(g), Values::Floats(w)) => {
                compare_floats(&mut c, plan.name, g, w, tol, plan.may_be_nan);
            }
            (Values::Ints(g), Values::Ints(w)) => compare_exact(&mut c, plan.name, g, w),
            _ => c.fail(format!("{}: indices against numbers", plan.name)),
        }
    }
    c
}

/// Nothing outside the written elements may have changed.
pub fn compare_guards(c: &mut Comparison, output: &Output) {
    for guard in &output.overwritten {
        let (name, index, bits) = (output.name, guard.index, guard.bits);
        c.fail(format!("{name}[{index}]: written outside ({bits:#x})"));
    }
}

/// Numbers, element by element.
pub fn compare_floats(
    c: &mut Comparison,
    name: &str,
    got: &[f32],
    want: &[f32],
    tol: &Tolerance,
    may_be_nan: bool,
) {
    c.compared += want.len();
    if !c.same_len(name, got.len(), want.len()) {
        return;
    }
    let mut errors = Errors::default();
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let (g, w) = (f64::from(*g), f64::from(*w));
        let share = share_of_tolerance(g, w, tol, may_be_nan);
        if share > 1.0 {
            c.fail(format!("{name}[{i}]: got {g:e}, expected {w:e}"));
        } else {
            c.worst = c.worst.max(share);
        }
        errors.add(g, w);
    }
    let nmse = errors.nmse(tol);
    c.nmse = c.nmse.max(nmse);
    if nmse > tol.nmse && errors.n >= NMSE_MIN_ELEMENTS {
        c.fail(format!("{name}: NMSE {nmse:.1e} above {:.1e}", tol.nmse));
    }
}

/// Indices or counts that have one right value.
pub fn compare_exact(c: &mut Comparison, name: &str, got: &[u32], want: &[u32]) {
    c.compared += want.len();
    if !c.same_len(name, got.len(), want.len()) {
        return;
    }
    for (i, (g, w)) in got.iter().zip(want).enumerate().filter(|(_, (g, w))| g != w) {
        c.fail(format!("{name}[{i}]: got {g}, expected {w}"));
    }
}

/// Indices that are each the best of a row. `score(row, index)` is the f64 score, `None` for no
/// index at all.
pub fn compare_ranked(
    c: &mut Comparison,
    name: &str,
    got: &[u32],
    want: &[u32],
    tol: &Tolerance,
    score: impl Fn(usize, usize) -> Option<f64>,
) {
    c.compared += want.len();
    if !c.same_len(name, got.len(), want.len()) {
        return;
    }
    for (i, (g, w)) in got.iter().zip(want).enumerate().filter(|(_, (g, w))| g != w) {
        match (score(i, *g as usize), score(i, *w as usize)) {
            (Some(s), Some(best)) if !tol.is_exact() && best - s <= tol.allows(best) => c.ties += 1,
            (s, best) => c.fail(format!(
                "{name}[{i}]: got {g} (score {}), expected {w} (score {})",
                shown(s),
                shown(best)
            )),
        }
    }
}

/// What one head chose: clusters, best first, and the tokens taken of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked<'a> {
    /// Cluster ids.
    pub clusters: &'a [u32],
    /// Tokens taken of each.
    pub takes: &'a [u32],
}

impl<'a> Picked<'a> {
    /// The selection of entry `head` of an outcome with `room` places a head; `None` if it says
    /// that it has more.
    pub fn of(outcome: &'a Outcome, head: usize, room: usize) -> Option<Self> {
        let ints = |name: &str| outcome.output(name).values.ints();
        let n = *ints("n_selected").get(head)? as usize;
        let part = |name: &str| ints(name).get(head * room..head * room + n);
        let (clusters, takes) = (part("clusters")?, part("takes")?);
        (n <= room).then_some(Self { clusters, takes })
    }
}

/// What one head chose from.
#[derive(Clone, Copy, Debug)]
pub struct Ranking<'a> {
    /// Score of each cluster.
    pub scores: &'a [f32],
    /// Tokens of each cluster.
    pub sizes: &'a [u32],
    /// Tokens that may be taken.
    pub budget: u32,
}

/// Selections: equal, or as good within the tolerance (then every place that differs is a tie).
pub fn compare_selection(
    c: &mut Comparison,
    name: &str,
    got: Picked<'_>,
    want: Picked<'_>,
    from: &Ranking<'_>,
    tol: &Tolerance,
) {
    c.compared += want.clusters.len();
    if got == want {
        return;
    }
    match unsound(got, from, tol) {
        None if !tol.is_exact() => c.ties += differences(got, want),
        None => c.fail(first_difference(name, got, want)),
        Some(why) => c.fail(format!("{name}: {why}; {}", first_difference("order", got, want))),
    }
}

/// Why a selection is wrong even if scores may be off by the tolerance.
fn unsound(got: Picked<'_>, from: &Ranking<'_>, tol: &Tolerance) -> Option<String> {
    let mut taken = vec![false; from.scores.len()];
    let mut left = u64::from(from.budget);
    for (i, (cluster, take)) in got.clusters.iter().zip(got.takes).enumerate() {
        let at = *cluster as usize;
        if at >= taken.len() || taken[at] {
            return Some(format!("cluster {cluster} does not exist or is taken twice"));
        }
        taken[at] = true;
        let expected = u64::from(from.sizes[at]).min(left);
        if u64::from(*take) != expected || *take == 0 {
            return Some(format!(
                "takes {take} tokens of cluster {cluster} at {i}, not {expected}"
            ));
        }
        left -= expected;
    }
    let score = |cluster: &u32| f64::from(from.scores[*cluster as usize]);
    let scores: Vec<f64> = got.clusters.iter().map(score).collect();
    let rises = |w: &[f64]| w[1] - w[0] > tol.allows(w[1]);
    if let Some(i) = scores.windows(2).position(rises) {
        return Some(format!("scores rise at {}: {} then {}", i + 1, scores[i], scores[i + 1]));
    }
    let worst = scores.last().copied().unwrap_or(f64::INFINITY);
    let mut passed_over = (0..taken.len()).filter(|i| !taken[*i] && from.sizes[*i] > 0);
    let better = |i: &usize| {
        let score = f64::from(from.scores[*i]);
        left > 0 || score - worst > tol.allows(score)
    };
    passed_over.find(better).map(|i| format!("passes over cluster {i} of score {}", from.scores[i]))
}

fn differences(got: Picked<'_>, want: Picked<'_>) -> usize {
    let n = got.clusters.len().max(want.clusters.len());
    (0..n).filter(|i| got.clusters.get(*i) != want.clusters.get(*i)).count()
}

fn first_difference(name: &str, got: Picked<'_>, want: Picked<'_>) -> String {
    let entry = |p: &Picked<'_>, i: usize| match (p.clusters.get(i), p.takes.get(i)) {
        (Some(cluster), Some(take)) => format!("{take} tokens of cluster {cluster}"),
        _ => "nothing".to_owned(),
    };
    let n = got.clusters.len().max(want.clusters.len());
    let at = (0..n).find(|i| entry(&got, *i) != entry(&want, *i)).unwrap_or(0);
    format!("{name}[{at}]: got {}, expected {}", entry(&got, at), entry(&want, at))
}

/// The error as a share of what is allowed; infinite where no tolerance helps.
fn share_of_tolerance(got: f64, want: f64, tol: &Tolerance, may_be_nan: bool) -> f64 {
    if got.is_nan() || want.is_nan() {
        let declared = may_be_nan && got.is_nan() && want.is_nan();
        return if declared { 0.0 } else { f64::INFINITY };
    }
    let diff = if got == want { 0.0 } else { (got - want).abs() };
    if diff == 0.0 || !got.is_finite() || !want.is_finite() {
        return diff;
    }
    diff / tol.allows(want)
}

/// Sums of the mean square error.
#[derive(Default)]
struct Errors {
    n: usize,
    error: f64,
    signal: f64,
}

impl Errors {
    fn add(&mut self, got: f64, want: f64) {
        if got.is_finite() && want.is_finite() {
            self.n += 1;
            self.error += (got - want) * (got - want);
            self.signal += want * want;
        }
    }

    /// 0 where the signal itself is below the absolute tolerance: a ratio of two roundings says
    /// nothing.
    fn nmse(&self, tol: &Tolerance) -> f64 {
        if self.error == 0.0 || self.signal <= self.n as f64 * tol.atol * tol.atol {
            return 0.0;
        }
        self.error / self.signal
    }
}

fn shown(score: Option<f64>) -> String {
    score.map_or("none".to_owned(), |s| format!("{s:e}"))
}
