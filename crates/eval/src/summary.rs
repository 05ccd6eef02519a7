//! What a results file says: mean scores with intervals, where full attention itself fails, and
//! heat maps.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{Answer, PolicyLabel, Question};

/// Under this mean score of `full` a task is marked: what a policy loses cannot be told from what
/// the model cannot do.
pub const LEAST_FULL: f64 = 0.8;

/// z of a two-sided interval of 95 %.
const Z: f64 = 1.96;

/// A task at a length, with policies that either knew the question or did not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Its name on the command line.
    pub task: String,
    /// Tokens of document, question and answer.
    pub length: usize,
    /// What the policies knew.
    pub question: Question,
}

impl Cell {
    /// Whether an answer is one of the cell.
    pub fn has(&self, answer: &Answer) -> bool {
        (&self.task, self.length, self.question) == (&answer.task, answer.length, answer.question)
    }
}

/// A mean of scores from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// Answers.
    pub n: usize,
    /// Arithmetic mean of the scores.
    pub mean: f64,
    /// Ends of Wilson's interval of 95 %. For scores between 0 and 1, which vary less than right
    /// and wrong with the same mean, it is wider than need be; answers about one document depend
    /// on each other, which makes it narrower than it should be.
    pub interval: (f64, f64),
}

impl Mean {
    /// Of these scores; `None` of none.
    pub fn of(scores: &[f64]) -> Option<Self> {
        let n = scores.len();
        if n == 0 {
            return None;
        }
        let mean = scores.iter().sum::<f64>() / n as f64;
        let (count, z2) = (n as f64, Z * Z);
        let middle = (mean + z2 / (2.0 * count)) / (1.0 + z2 / count);
        let inner = mean * (1.0 - mean) / count + z2 / (4.0 * count * count);
        let half = Z * inner.max(0.0).sqrt() / (1.0 + z2 / count);
        let interval = ((middle - half).max(0.0), (middle + half).min(1.0));
        Some(Self { n, mean, interval })
    }

    /// The mean of means, each of which counts alike; `None` of none. The distances of its
    /// interval's ends are the roots of the summed squares of theirs, over their number (Zou and
    /// Donner, 2008), as if what one has did not depend on another.
    pub fn over(means: &[Self]) -> Option<Self> {
        let count = means.len() as f64;
        let mean = means.iter().map(|m| m.mean).sum::<f64>() / count;
        let far = |end: fn(&Self) -> f64| {
            means.iter().map(|m| (m.mean - end(m)).powi(2)).sum::<f64>().sqrt() / count
        };
        let interval =
            ((mean - far(|m| m.interval.0)).max(0.0), (mean + far(|m| m.interval.1)).min(1.0));
        let n = means.iter().map(|m| m.n).sum();
        (!means.is_empty()).then_some(Self { n, mean, interval })
    }
}

/// Two ways to answer the same questions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paired {
    /// Questions that both answered.
    pub n: usize,
    /// Mean of the second score less the first, from -1 to 1.
    pub mean: f64,
    /// Half of its interval of 95 %, by the differences' standard deviation; 0 of fewer than two.
    pub half: f64,
    /// Questions that the second way answered better, and worse.
    pub better: usize,
    /// As `better`.
    pub worse: usize,
}

impl Paired {
    /// Of the answers under two labels, paired by question; `None` where they share none.
    pub fn of(answers: &[&Answer], first: &PolicyLabel, second: &PolicyLabel) -> Option<Self> {
        let scores = |label: &PolicyLabel| -> BTreeMap<_, f64> {
            let own = answers.iter().filter(|answer| answer.policy == *label);
            let key =
                |a: &Answer| (a.task.clone(), a.length, a.question, a.seed, a.sample, a.index);
            own.map(|answer| (key(answer), answer.score)).collect()
        };
        let (first, second) = (scores(first), scores(second));
        let both = first.iter().filter_map(|(key, score)| Some(second.get(key)? - score));
        let differences: Vec<f64> = both.collect();
        let n = differences.len();
        if n == 0 {
            return None;
        }
        let mean = differences.iter().sum::<f64>() / n as f64;
        let squares: f64 = differences.iter().map(|d| (d - mean).powi(2)).sum();
        let half = if n > 1 { Z * (squares / (n - 1) as f64 / n as f64).sqrt() } else { 0.0 };
        let better = differences.iter().filter(|d| **d > 0.0).count();
        let worse = differences.iter().filter(|d| **d < 0.0).count();
        Some(Self { n, mean, half, better, worse })
    }
}

/// Scores of all policies by cell.
#[derive(Clone, Debug, Default)]
pub struct Summary(BTreeMap<Cell, BTreeMap<PolicyLabel, Vec<f64>>>);

impl Summary {
    /// Of these answers.
    pub fn of<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> Self {
        let mut all = Self::default();
        for answer in answers {
            let cell = Cell {
                task: answer.task.clone(),
                length: answer.length,
                question: answer.question,
            };
            let scores = all.0.entry(cell).or_default();
            scores.entry(answer.policy.clone()).or_default().push(answer.score);
        }
        all
    }

    /// The cells, by task and length.
    pub fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.0.keys()
    }

    /// The policies that answered in a cell.
    pub fn policies(&self, cell: &Cell) -> impl Iterator<Item = &PolicyLabel> {
        self.0.get(cell).into_iter().flat_map(BTreeMap::keys)
    }

    /// The mean score of a policy in a cell.
    pub fn mean(&self, cell: &Cell, policy: &PolicyLabel) -> Option<Mean> {
        Mean::of(self.0.get(cell)?.get(policy)?)
    }

    /// The mean score of `full` without options.
    pub fn full(&self, cell: &Cell) -> Option<Mean> {
        let is_full = |label: &&PolicyLabel| label.policy == "full" && label.options.is_empty();
        let label = self.policies(cell).find(is_full)?;
        self.mean(cell, label)
    }

    /// Whether `full` scores under [`LEAST_FULL`]; `None` where it did not answer.
    pub fn is_marked(&self, cell: &Cell) -> Option<bool> {
        self.full(cell).map(|full| full.mean < LEAST_FULL)
    }
}

/// Mean scores by depth and length.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatMap {
    /// Depths from 0 to 1, rising.
    pub depths: Vec<f64>,
    /// Lengths, rising.
    pub lengths: Vec<usize>,
    /// `[depths][lengths]`; `None` where nothing was asked.
    pub scores: Vec<Vec<Option<f64>>>,
}

impl HeatMap {
    /// Of the answers that have a depth, rounded to whole per cent.
    pub fn of<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> Self {
        Self::in_steps(answers, 100)
    }

    /// Of the answers that have a depth, rounded to one of `steps` equal steps.
    pub fn in_steps<'a>(answers: impl IntoIterator<Item = &'a Answer>, steps: u32) -> Self {
        let mut cells: BTreeMap<(u32, usize), Vec<f64>> = BTreeMap::new();
        for answer in answers {
            if let Some(depth) = answer.depth {
                let place = ((f64::from(steps) * depth).round() as u32, answer.length);
                cells.entry(place).or_default().push(answer.score);
            }
        }
        let depths: BTreeSet<u32> = cells.keys().map(|(depth, _)| *depth).collect();
        let lengths: BTreeSet<usize> = cells.keys().map(|(_, length)| *length).collect();
        let mean = |place| {
            let scores: Option<&Vec<f64>> = cells.get(&place);
            scores.map(|scores| scores.iter().sum::<f64>() / scores.len() as f64)
        };
        let row = |depth| lengths.iter().map(|length| mean((depth, *length))).collect();
        Self {
            depths: depths.iter().map(|depth| f64::from(*depth) / f64::from(steps)).collect(),
            scores: depths.iter().map(|depth| row(*depth)).collect(),
            lengths: lengths.iter().copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(policy: &str, length: usize, depth: f64, score: f64) -> Answer {
        let label = PolicyLabel { policy: policy.to_owned(), ..PolicyLabel::default() };
        Answer { policy: label, length, depth: Some(depth), score, ..Answer::default() }
    }

    #[test]
    fn intervals_are_wilsons() {
        // 191 of 200, as in the embedded model's card: 91.7 to 97.6 %.
        let scores: Vec<f64> = (0..200).map(|i| if i < 191 { 1.0 } else { 0.0 }).collect();
        let mean = Mean::of(&scores).unwrap();
        assert_eq!((mean.n, mean.mean), (200, 0.955));
        assert!((mean.interval.0 - 0.917).abs() < 5e-4, "{mean:?}");
        assert!((mean.interval.1 - 0.976).abs() < 5e-4, "{mean:?}");
        assert_eq!(Mean::of(&[1.0; 4]).unwrap().interval.1, 1.0);
        assert_eq!(Mean::of(&[]), None);
    }

    #[test]
    fn tasks_count_alike_however_many_answers_they_have() {
        let many = Mean::of(&[1.0; 300]).unwrap();
        let few = Mean::of(&[0.0, 0.0, 1.0, 1.0]).unwrap();
        let all = Mean::over(&[many, few]).unwrap();
        assert_eq!((all.n, all.mean), (304, 0.75));
        // The few answers are nearly all of the doubt.
        let half = (few.interval.1 - few.interval.0) / 4.0;
        assert!((all.interval.0 - (0.75 - half)).abs() < 1e-3, "{all:?}");
        assert!((all.interval.1 - (0.75 + half)).abs() < 1e-3, "{all:?}");
        assert_eq!(Mean::over(&[few]).unwrap(), few);
        assert_eq!(Mean::over(&[]), None);
    }

    #[test]
    fn differences_are_those_of_the_same_questions() {
        let of = |policy: &str, sample: usize, score: f64| Answer {
            sample,
            ..answer(policy, 10, 0.5, score)
        };
        let all = [
            of("x", 0, 1.0),
            of("x", 1, 1.0),
            of("x", 2, 0.0),
            of("x", 3, 1.0),
            of("y", 1, 0.0),
            of("y", 2, 0.5),
            of("y", 0, 1.0),
            of("y", 9, 1.0),
        ];
        let all: Vec<&Answer> = all.iter().collect();
        let label = |policy: &str| PolicyLabel { policy: policy.into(), ..PolicyLabel::default() };
        let paired = Paired::of(&all, &label("x"), &label("y")).unwrap();
        assert_eq!((paired.n, paired.better, paired.worse), (3, 1, 1));
        assert!((paired.mean + 0.5 / 3.0).abs() < 1e-12, "{paired:?}");
        // Differences 0, -1, 0.5: their standard deviation is the root of 7/12.
        assert!((paired.half - 1.96 * (7.0f64 / 12.0 / 3.0).sqrt()).abs() < 1e-12, "{paired:?}");
        assert_eq!(Paired::of(&all, &label("x"), &label("z")), None);
    }

    #[test]
    fn a_cell_is_marked_where_full_fails() {
        let answers = [
            answer("full", 10, 0.5, 1.0),
            answer("full", 10, 0.5, 0.5),
            answer("quest", 10, 0.5, 1.0),
            answer("full", 20, 0.5, 1.0),
            answer("quest", 30, 0.5, 1.0),
        ];
        let summary = Summary::of(&answers);
        let marks: Vec<Option<bool>> =
            summary.cells().map(|cell| summary.is_marked(cell)).collect();
        assert_eq!(marks, [Some(true), Some(false), None]);
    }

    #[test]
    fn a_heat_map_has_a_mean_at_each_place() {
        let answers =
            [answer("x", 10, 0.0, 1.0), answer("x", 10, 0.001, 0.0), answer("x", 20, 1.0, 1.0)];
        let map = HeatMap::of(&answers);
        assert_eq!(
            (map.depths.as_slice(), map.lengths.as_slice()),
            (&[0.0, 1.0][..], &[10, 20][..])
        );
        assert_eq!(map.scores, [[Some(0.5), None], [None, Some(1.0)]]);
    }
}
