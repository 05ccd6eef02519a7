//! Tokens drawn evenly from those that a step did not choose.
//!
//! The n rows that a KV head did not choose, in the order of the host store, are cut into as many
//! runs as are to be drawn, each as long as the next or one longer, and one row of each run is
//! drawn. It stands for its run: weights are whole numbers whose sum is n, every row is drawn with
//! the chance 1 / weight, and so a sum over drawn rows times their weights is right on average.
//! Rows of a cluster lie together, so that a run holds similar keys, and the sum varies less than
//! it would with rows drawn anywhere.

use std::ops::Range;

use longview_core::{HeadId, LayerId, SplitMix64};

/// What drawn rows are for: each purpose has draws of its own, so that what is reported changes
/// nothing that is attended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// They are attended.
    Attend = 1,
    /// They say how many are to be attended.
    Pilot = 2,
    /// They bound what was left out.
    Bound = 3,
}

/// Where draws are made: the same place has the same draws.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawPlace {
    /// Of the sequence.
    pub seed: u64,
    pub layer: LayerId,
    /// Of the token whose query attends.
    pub position: usize,
}

impl DrawPlace {
    /// The generator of a KV head's draws.
    pub fn rng(&self, head: HeadId, purpose: Purpose) -> SplitMix64 {
        let parts = [self.layer.index(), head.index(), self.position, purpose as usize];
        let fold = |seed: u64, part: usize| SplitMix64::new(seed ^ part as u64).next_u64();
        SplitMix64::new(parts.into_iter().fold(SplitMix64::new(self.seed).next_u64(), fold))
    }
}

/// A row that was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drawn {
    /// Of the KV head, in the host store.
    pub row: usize,
    /// Rows that it stands for, itself included.
    pub weight: usize,
}

/// The rows of one KV head that a step did not choose: memory to reuse.
#[derive(Debug, Default)]
pub(crate) struct UnchosenRows {
    chosen: Vec<Range<usize>>,
    /// In order, none empty.
    runs: Vec<Range<usize>>,
    n_rows: usize,
}

impl UnchosenRows {
    /// Those of `rows` without `chosen`, which lie in them and have no row twice.
    pub fn set(&mut self, rows: Range<usize>, chosen: impl Iterator<Item = Range<usize>>) {
        let Self { chosen: sorted, runs, n_rows } = self;
        sorted.clear();
        sorted.extend(chosen.filter(|run| !run.is_empty()));
        sorted.sort_unstable_by_key(|run| run.start);
        runs.clear();
        let mut next = rows.start;
        for run in sorted.iter() {
            if run.start > next {
                runs.push(next..run.start);
            }
            next = run.end;
        }
        if rows.end > next {
            runs.push(next..rows.end);
        }
        *n_rows = runs.iter().map(Range::len).sum();
    }

    /// Them, in order.
    pub fn into_runs(self) -> Vec<Range<usize>> {
        self.runs
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.n_rows
    }

    /// Draws `n` of them, or takes all if there are no more, in their order.
    pub fn draw(&self, n: usize, rng: &mut SplitMix64, drawn: &mut Vec<Drawn>) {
        drawn.clear();
        let n = n.min(self.n_rows);
        let edge = |i: usize| i * self.n_rows / n;
        let (mut runs, mut before) = (self.runs.iter(), 0);
        let mut run = runs.next();
        for i in 0..n {
            let weight = edge(i + 1) - edge(i);
            let place = edge(i) + rng.below(weight);
            while let Some(past) = run.filter(|run| place - before >= run.len()) {
                before += past.len();
                run = runs.next();
            }
            // There are as many rows as all runs have.
            let Some(run) = run else { break };
            drawn.push(Drawn { row: run.start + place - before, weight });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unchosen(rows: Range<usize>, chosen: &[[usize; 2]]) -> UnchosenRows {
        let mut unchosen = UnchosenRows::default();
        // What was there before does not count.
        unchosen.set(0..100, std::iter::once(3..50));
        unchosen.set(rows, chosen.iter().map(|[start, end]| *start..*end));
        unchosen
    }

    fn drawn(unchosen: &UnchosenRows, n: usize, seed: u64) -> Vec<Drawn> {
        let mut drawn = vec![Drawn { row: 7, weight: 7 }];
        unchosen.draw(n, &mut SplitMix64::new(seed), &mut drawn);
        drawn
    }

    #[test]
    fn rows_are_those_between_what_was_chosen() {
        for (chosen, runs) in [
            (vec![], vec![[2, 20]]),
            (vec![[4, 6], [9, 10]], vec![[2, 4], [6, 9], [10, 20]]),
            (vec![[18, 20], [2, 3], [5, 5], [3, 7]], vec![[7, 18]]),
            (vec![[10, 20], [2, 10]], vec![]),
        ] {
            let found = unchosen(2..20, &chosen);
            assert_eq!(found.len(), runs.iter().map(|[start, end]| end - start).sum::<usize>());
            let found = found.into_runs().into_iter().map(|run| [run.start, run.end]);
            assert_eq!(found.collect::<Vec<_>>(), runs, "{chosen:?}");
        }
        assert_eq!(unchosen(4..4, &[]).len(), 0);
    }

    #[test]
    fn one_row_of_each_run_stands_for_it_and_all_of_them_for_all() {
        let unchosen = unchosen(3..60, &[[5, 9], [20, 21], [22, 30]]);
        let mut all = (3..60).filter(|r| !(5..9).contains(r) && !(22..30).contains(r));
        let all: Vec<usize> = all.by_ref().filter(|r| *r != 20).collect();
        assert_eq!(unchosen.len(), all.len());
        for n in [1, 2, 7, 43, 44] {
            let drawn = drawn(&unchosen, n, n as u64);
            assert_eq!(drawn.len(), n);
            let mut before = 0;
            for Drawn { row, weight } in drawn {
                assert!(all[before..before + weight].contains(&row), "{n}: {row}");
                assert!([all.len() / n, all.len().div_ceil(n)].contains(&weight), "{n}: {weight}");
                before += weight;
            }
            assert_eq!(before, all.len(), "weights of {n}");
        }
        let rows: Vec<usize> = drawn(&unchosen, 99, 1).iter().map(|drawn| drawn.row).collect();
        assert_eq!(rows, all, "there are no more");
        assert_eq!(drawn(&self::unchosen(3..9, &[[3, 9]]), 5, 1), [], "nothing is left");
    }

    /// Each of 22 rows should be drawn in 5 of 22 cases: within 5 standard deviations of that.
    #[test]
    fn every_row_is_drawn_as_often_as_it_should() {
        let unchosen = unchosen(0..25, &[[6, 9]]);
        let (mut weights, rounds) = (vec![0usize; 25], 20_000);
        for seed in 0..rounds {
            drawn(&unchosen, 5, seed).iter().for_each(|drawn| weights[drawn.row] += drawn.weight);
        }
        let deviation = (4.4f64 - 1.0).sqrt() * (rounds as f64).sqrt();
        for (row, weight) in weights.into_iter().enumerate() {
            let want = if (6..9).contains(&row) { 0.0 } else { rounds as f64 };
            let off = (weight as f64 - want).abs();
            assert!(off <= 5.0 * deviation && (want > 0.0 || off == 0.0), "{row}: {weight}");
        }
    }

    #[test]
    fn places_have_draws_of_their_own_and_the_same_ones_again() {
        let place = DrawPlace { seed: 5, layer: LayerId(1), position: 9 };
        let first =
            |place: DrawPlace, head, purpose| place.rng(HeadId::new(head), purpose).next_u64();
        let same = first(place, 2, Purpose::Attend);
        assert_eq!(same, first(place, 2, Purpose::Attend));
        let others = [
            first(DrawPlace { seed: 6, ..place }, 2, Purpose::Attend),
            first(DrawPlace { layer: LayerId(2), ..place }, 2, Purpose::Attend),
            first(DrawPlace { layer: LayerId(2), ..place }, 1, Purpose::Attend),
            first(DrawPlace { position: 10, ..place }, 2, Purpose::Attend),
            first(place, 3, Purpose::Attend),
            first(place, 2, Purpose::Pilot),
            first(place, 2, Purpose::Bound),
        ];
        for (i, other) in others.iter().enumerate() {
            assert!(*other != same && !others[..i].contains(other), "{i}");
        }
    }
}
