//! What a step left out, bounded from some of it: an upper limit, with a confidence of 95 %, of the
//! attention mass of rows that a recalling head did not choose.
//!
//! The index guesses how much each of these rows may weigh: between the score of its cluster's mean
//! and the largest that the cluster allows, halfway. Rows whose guess is so large that they would
//! be drawn at least once are read for certain. The others are drawn with chances in proportion to
//! their guesses, one in each of equal parts of all guesses, so that the mean of mass over guess,
//! times all guesses, is their mass on average. A row that is heavy by its cluster cannot be missed
//! then, which draws without guesses do: they held in 60 to 80 % of true cases alone.

use std::ops::Range;

use longview_core::{HeadId, SplitMix64, decode_f32};
use longview_ops::{Backend, BlockSummary};

use super::bound::log_sum;
use super::confidence::Terms;
use super::draw::Purpose;
use super::host_attention::dot;
use super::sampled::Choice;
use crate::index::{HeadIndex, LayerIndex};
use crate::policy::IndexKind;

/// Rows that each query head reads to bound what it left out.
const BOUND_DRAWS: usize = 768;

/// Unchosen rows of one cluster, side by side.
struct Part {
    rows: Range<usize>,
    /// The cluster among the head's.
    cluster: usize,
    /// The logarithm of what each row may weigh.
    guess: f64,
}

/// Rows that were picked by their guesses.
#[derive(Default)]
struct Picked {
    sure: Vec<usize>,
    /// With the logarithm of their guesses.
    drawn: Vec<(usize, f64)>,
    /// The logarithm of the sum of all guesses from which rows were drawn.
    log_total: f64,
}

/// Picks `n` rows, or all if there are no more; `parts` are in the order of their rows.
fn pick(parts: &[Part], n: usize, rng: &mut SplitMix64) -> Picked {
    let largest = parts.iter().map(|part| part.guess).fold(f64::NEG_INFINITY, f64::max);
    let weight = |part: &Part| (part.guess - largest).exp();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by(|a, b| parts[*b].guess.total_cmp(&parts[*a].guess));
    // From the lightest on: the sum without those before.
    let mut rest = vec![0.0; order.len() + 1];
    for (i, part) in order.iter().enumerate().rev() {
        rest[i] = rest[i + 1] + weight(&parts[*part]) * parts[*part].rows.len() as f64;
    }
    let (mut n_sure, mut left) = (0, n);
    let is_all = parts.iter().map(|part| part.rows.len()).sum::<usize>() <= n;
    for (i, part) in order.iter().enumerate() {
        let len = parts[*part].rows.len();
        let is_sure = len < left && weight(&parts[*part]) * left as f64 >= rest[i];
        if !is_all && !is_sure {
            break;
        }
        (n_sure, left) = (i + 1, left.saturating_sub(len));
    }
    let mut is_sure = vec![false; parts.len()];
    order[..n_sure].iter().for_each(|part| is_sure[*part] = true);
    let total = rest[n_sure];
    let mut picked = Picked { log_total: largest + total.ln(), ..Picked::default() };
    let sure = parts.iter().zip(&is_sure).filter(|(_, is_sure)| **is_sure);
    picked.sure.extend(sure.flat_map(|(part, _)| part.rows.clone()));
    if is_all {
        return picked;
    }
    let step = total / left as f64;
    let place = |i: usize, rng: &mut SplitMix64| (i as f64 + f64::from(rng.next_f32())) * step;
    let (mut before, mut i) = (0.0, 0);
    let mut next = place(0, rng);
    for (part, _) in parts.iter().zip(&is_sure).filter(|(_, is_sure)| !**is_sure) {
        let (each, len) = (weight(part), part.rows.len());
        while i < left && next < before + each * len as f64 {
            let row = ((next - before) / each) as usize;
            picked.drawn.push((part.rows.start + row.min(len - 1), part.guess));
            i += 1;
            next = place(i, rng);
        }
        before += each * len as f64;
    }
    picked
}

/// A layer's choice, and the clusters or blocks by which rows are guessed.
pub(crate) struct SampledBound<'a, B: Backend> {
    pub choice: Choice<'a, B>,
    pub kind: IndexKind,
    pub index: &'a LayerIndex<B>,
}

impl<B: Backend> SampledBound<'_, B> {
    /// For each query head, an upper limit of U / Z that holds with a confidence of 95 %: of the
    /// mass of what it did not choose over the mass of what it attended. `q` is the step's query
    /// `[Hq, Dh]`, `lse` the log-sum-exp of what it attended `[Hq]`.
    pub fn ratios(&self, backend: &B, q: &[f32], lse: &[f32]) -> Vec<f64> {
        let shape = self.choice.rows.shape;
        let d = shape.head_dim;
        let mut all = Vec::with_capacity(shape.n_q_heads);
        for head in shape.heads() {
            let units = &self.index.heads()[head];
            let landmarks = self.index.landmarks(backend, head.index());
            let landmarks = decode_f32(shape.kv_dtype, &landmarks.get(0..units.sizes.len()));
            let mut parts = self.parts(head, units);
            let mut rng = self.choice.place.rng(head, Purpose::Bound);
            for h in shape.query_heads(head) {
                let q = &q[h * d..(h + 1) * d];
                for part in &mut parts {
                    part.guess = self.guess(q, units, &landmarks, part.cluster);
                }
                let picked = pick(&parts, BOUND_DRAWS, &mut rng);
                all.push((self.log_limit(head, q, &picked) - f64::from(lse[h])).exp());
            }
        }
        all
    }

    /// The rows that `head` did not choose, by clusters.
    fn parts(&self, head: HeadId, units: &HeadIndex) -> Vec<Part> {
        let (mut parts, mut cluster) = (Vec::new(), 0);
        for run in self.choice.unchosen(head) {
            let mut start = run.start;
            // Clusters lie side by side, in their order.
            while start < run.end && cluster < units.starts.len() {
                let end = (units.starts[cluster] + units.sizes[cluster]) as usize;
                let rows = start..end.min(run.end);
                if !rows.is_empty() {
                    start = rows.end;
                    parts.push(Part { rows, cluster, guess: 0.0 });
                }
                if end <= start {
                    cluster += 1;
                }
            }
        }
        parts
    }

    /// What a row of a cluster may weigh, as a logarithm.
    fn guess(&self, q: &[f32], units: &HeadIndex, landmarks: &[f32], cluster: usize) -> f64 {
        let d = q.len();
        let is_range = matches!(
            self.kind,
            IndexKind::Blocks(blocks) if blocks.summary == BlockSummary::MinMax
        );
        let guess = if is_range {
            let (most, least) = landmarks[cluster * 2 * d..(cluster + 1) * 2 * d].split_at(d);
            // Halfway between the middle of a channel and the better end of it.
            let channel = |(q, (most, least)): (&f32, (&f32, &f32))| {
                q * (most + least) / 2.0 + (q * (most - least)).abs() / 4.0
            };
            q.iter().zip(most.iter().zip(least)).map(channel).sum::<f32>()
        } else {
            let radius = units.radius.get(cluster).copied().unwrap_or(0.0);
            dot(q, &landmarks[cluster * d..(cluster + 1) * d]) + dot(q, q).sqrt() * radius / 2.0
        };
        f64::from(self.choice.rows.shape.scale * guess)
    }

    /// The logarithm of the limit of the mass of all rows of which some were picked.
    fn log_limit(&self, head: HeadId, q: &[f32], picked: &Picked) -> f64 {
        let rows = self.choice.rows;
        let (mut bytes, mut key) = (Vec::new(), vec![0.0; q.len()]);
        let mut score = |row: usize| {
            rows.keys(head, row..row + 1, &mut bytes, &mut key);
            f64::from(rows.shape.scale * dot(q, &key))
        };
        let sure: Vec<f64> = picked.sure.iter().map(|row| score(*row)).collect();
        let logs: Vec<f64> = picked.drawn.iter().map(|(row, guess)| score(*row) - guess).collect();
        let drawn = Terms::new(&logs).map(|terms| terms.log_limit() + picked.log_total);
        log_sum(sure.into_iter().chain(drawn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(parts: &[(Range<usize>, f64)]) -> Vec<Part> {
        let part = |(rows, weight): &(Range<usize>, f64)| Part {
            rows: rows.clone(),
            cluster: 0,
            guess: weight.ln(),
        };
        parts.iter().map(part).collect()
    }

    #[test]
    fn few_rows_are_read_for_certain() {
        let all = parts(&[(3..5, 1e9), (7..9, 1e-9)]);
        for n in [4, 5, 100] {
            let picked = pick(&all, n, &mut SplitMix64::new(1));
            assert_eq!((picked.sure, picked.drawn.len()), (vec![3, 4, 7, 8], 0), "{n}");
        }
        let nothing = pick(&[], 5, &mut SplitMix64::new(1));
        assert!(nothing.sure.is_empty() && nothing.drawn.is_empty());
    }

    #[test]
    fn heavy_rows_are_read_for_certain_and_others_drawn_by_their_guesses() {
        let all = parts(&[(0..10, 1.0), (10..12, 1000.0), (20..60, 3.0), (90..91, 40.0)]);
        // Without the three heavy rows there is 130 left for 13 draws: 10 each.
        let n = 16;
        let (rounds, mut seen) = (4_000, [0usize; 2]);
        for seed in 0..rounds {
            let picked = pick(&all, n, &mut SplitMix64::new(seed));
            assert_eq!(picked.sure, [10, 11, 90]);
            assert_eq!(picked.drawn.len(), 13);
            assert!((picked.log_total.exp() - 130.0).abs() < 1e-9);
            for (row, guess) in picked.drawn {
                let light = (0..10).contains(&row);
                assert!(light || (20..60).contains(&row), "{row}");
                assert!((guess.exp() - if light { 1.0 } else { 3.0 }).abs() < 1e-9);
                seen[usize::from(!light)] += 1;
            }
        }
        // One part of 130 in 13 draws each: 1 of 13 light ones, within a draw's rounding.
        assert_eq!(seen, [rounds as usize, 12 * rounds as usize]);
    }

    /// Mass over guess, times all guesses: right on average for any masses.
    #[test]
    fn what_is_picked_stands_for_all_on_average() {
        let all = parts(&[(0..6, 1.0), (8..11, 9.0), (11..30, 2.0), (30..31, 90.0)]);
        let mass = |row: usize| 0.5 + (row * row % 7) as f64;
        let truth: f64 = all.iter().flat_map(|part| part.rows.clone()).map(mass).sum();
        let (rounds, mut sum, mut squares) = (20_000, 0.0, 0.0);
        for seed in 0..rounds {
            let picked = pick(&all, 6, &mut SplitMix64::new(seed));
            let each = picked.log_total.exp() / picked.drawn.len() as f64;
            let drawn = picked.drawn.iter().map(|(row, guess)| each * mass(*row) / guess.exp());
            let found = picked.sure.iter().map(|row| mass(*row)).sum::<f64>() + drawn.sum::<f64>();
            sum += found;
            squares += found * found;
        }
        let n = f64::from(rounds as u32);
        let (mean, deviation) = (sum / n, (squares / n - (sum / n).powi(2)).sqrt() / n.sqrt());
        assert!((mean - truth).abs() <= 5.0 * deviation && deviation > 0.0, "{mean} for {truth}");
    }
}
