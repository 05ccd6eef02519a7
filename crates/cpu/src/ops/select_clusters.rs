//! Rank, prefix sum, trim: without sorting all clusters.
//!
//! A histogram of tokens by the upper bits of the scores says in which bin the budget is reached.
//! Better bins are taken whole; of the last one, a second histogram by the next bits leaves little
//! more than what is taken. Only that is sorted; in the order of ids nothing is, and of the last
//! bin alone a part is split off. Each cluster is one 64-bit key whose order is the contract's:
//! greater score first, then lower id; not-a-number comes last.

use longview_ops::{Listed, Op, OpError, OpResult, SelectClusters, SelectSpan};

use crate::backend::CpuBackend;
use crate::indices::{ensure_at_most, ensure_below};
use crate::kernels::rank::{key, rank};
use crate::queue::Queue;
use crate::team::{Cost, Pieces};
use crate::views::{slice, slice_mut};

/// Every (sequence, KV head) is one item.
pub(crate) fn run(queue: &mut Queue, d: SelectClusters<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    check_counts(&d)?;
    let (hkv, stride) = (d.p.n_kv_heads as usize, d.p.score_stride as usize);
    let max = d.p.max_selected as usize;
    let scores = slice::<f32>(&d.scores);
    let counts = slice_mut::<u32>(d.n_selected);
    let cost = Cost::bytes(scores.len() * 64);
    let (clusters, takes) = (slice_mut::<u32>(d.clusters), slice_mut::<u32>(d.takes));
    let (spans, by_id) = (d.spans, d.p.by_id != 0);
    let (clusters, takes) = (Pieces::of(clusters, max), Pieces::of(takes, max));
    queue.team.for_chunks3(
        Pieces::of(counts, 1),
        clusters,
        takes,
        cost,
        |scratch, i, n, ids, takes| {
            let (span, head) = (&spans[i / hkv], i % hkv);
            let n_clusters = slice::<u32>(&span.n_clusters)[head] as usize;
            let sizes = &slice::<u32>(&span.sizes)[head * span.cluster_stride as usize..];
            let scores = &scores[i * stride..][..n_clusters];
            let budget = slice::<u32>(&span.budgets)[head];
            let [listed, ranks, bins, keys] = scratch.floats(scratch_lens(n_clusters));
            let list = list_of(span, head, n_clusters);
            let sizes = match list {
                Some(list) => {
                    let listed: &mut [u32] = bytemuck::cast_slice_mut(listed);
                    let pairs = listed.iter_mut().zip(list);
                    pairs.for_each(|(size, id)| *size = sizes[*id as usize]);
                    &*listed
                }
                None => &sizes[..n_clusters],
            };
            let work = &mut Work {
                ranks: bytemuck::cast_slice_mut(ranks),
                bins: bytemuck::cast_slice_mut(bins),
                keys: bytemuck::cast_slice_mut(keys),
            };
            let choice = Choice { scores, sizes, budget };
            let taken = if by_id {
                choice.in_order(work, ids, takes)
            } else {
                choice.best_first(work, ids, takes)
            };
            if let Some(list) = list {
                ids[..taken].iter_mut().for_each(|id| *id = list[*id as usize]);
            }
            n[0] = taken as u32;
        },
    );
    Ok(())
}

/// The clusters that a head chooses from, where there is a list of them.
fn list_of<'a>(span: &SelectSpan<'a, CpuBackend>, head: usize, n: usize) -> Option<&'a [u32]> {
    let Listed { ids, stride } = span.listed.as_ref()?;
    Some(&slice::<u32>(ids)[head * *stride as usize..][..n])
}

fn check_counts(d: &SelectClusters<'_, CpuBackend>) -> OpResult<()> {
    let (op, max) = (Op::SelectClusters, d.p.max_selected);
    for span in d.spans {
        let (counts, budgets) = (slice::<u32>(&span.n_clusters), slice::<u32>(&span.budgets));
        ensure_at_most(op, "number of clusters", counts, span.room(d.p.score_stride))?;
        for (head, n) in counts.iter().enumerate() {
            if let Some(ids) = list_of(span, head, *n as usize) {
                ensure_below(op, "cluster", ids, span.cluster_stride as usize)?;
            }
        }
        for (&n, &budget) in counts.iter().zip(budgets) {
            if n.min(budget) > max {
                let what = format!("{n} clusters and a budget of {budget}, but room for {max}");
                return Err(OpError::shape(op, what));
            }
        }
    }
    Ok(())
}

/// Bins of ranks: their upper bits, which are those of a number's sign, exponent and mantissa.
const BINS: usize = 1024;
/// Bits of a rank below those of its bin.
const BELOW_BIN: u32 = u32::BITS - BINS.ilog2();
/// Bits of a rank below those of its bin and of its part of that bin.
const BELOW_PART: u32 = BELOW_BIN - BINS.ilog2();
/// Tables of bins: neighbours often share one, and an addition waits for the one before it.
const TABLES: usize = 4;

/// Entries that are looked at together.
const STRETCH: usize = 64;

/// Scratch of a head: words of ranks, bins and keys.
pub(crate) fn scratch_lens(n: usize) -> [usize; 4] {
    [n, n, TABLES * BINS, 2 * n]
}

/// What a head chooses from.
pub(crate) struct Choice<'a> {
    pub scores: &'a [f32],
    pub sizes: &'a [u32],
    pub budget: u32,
}

/// Work memory of a choice.
pub(crate) struct Work<'a> {
    /// For each entry; [`u32::MAX`] for those that cannot be taken.
    pub ranks: &'a mut [u32],
    pub bins: &'a mut [u32],
    pub keys: &'a mut [u64],
}

impl Work<'_> {
    /// The work memory of a choice from `n` entries, of one that is for more.
    pub fn first(&mut self, n: usize) -> Work<'_> {
        let [_, ranks, bins, keys] = scratch_lens(n);
        Work {
            ranks: &mut self.ranks[..ranks],
            bins: &mut self.bins[..bins],
            keys: &mut self.keys[..keys / 2],
        }
    }
}

impl Choice<'_> {
    /// Ranks all entries, and finds the bin in which the budget is reached: better bins are taken
    /// whole. All bins where the budget is not reached. Also what better bins leave of the budget.
    fn last_bin(&self, work: &mut Work<'_>) -> (usize, u64) {
        work.bins.fill(0);
        let all = self.scores.iter().zip(self.sizes).zip(work.ranks.iter_mut()).enumerate();
        for (i, ((score, size), to)) in all {
            *to = if *size > 0 { rank(*score, u32::MAX - 1) } else { u32::MAX };
            work.bins[i % TABLES * BINS + (*to >> BELOW_BIN) as usize] += size;
        }
        let mut left = u64::from(self.budget);
        for bin in 0..BINS {
            let tokens: u64 = (0..TABLES).map(|t| u64::from(work.bins[t * BINS + bin])).sum();
            if tokens >= left {
                return (bin, left);
            }
            left -= tokens;
        }
        (BINS, left)
    }

    /// The greatest rank that may be taken, or a little more: where the budget is reached among the
    /// parts of the last bin, which may hold most of all entries.
    fn greatest_rank(&self, work: &mut Work<'_>) -> u32 {
        let (last, mut left) = self.last_bin(work);
        if last == BINS {
            return u32::MAX - 1;
        }
        // Entries of other bins count for a place behind the parts, so that there is no branch.
        work.bins[..2 * BINS].fill(0);
        for (i, (rank, size)) in work.ranks.iter().zip(self.sizes).enumerate() {
            let part = (*rank >> BELOW_PART) as usize % BINS;
            let is_last = (*rank >> BELOW_BIN) as usize == last;
            work.bins[if is_last { part } else { BINS + i % BINS }] += size;
        }
        let mut parts = work.bins[..BINS].iter();
        let part = parts.position(|tokens| {
            let is_reached = u64::from(*tokens) >= left;
            left = left.saturating_sub(u64::from(*tokens));
            is_reached
        });
        let part = part.expect("the bin has what is left of the budget") as u32;
        let upper = (last as u32) << BELOW_BIN | part << BELOW_PART;
        (upper | ((1 << BELOW_PART) - 1)).min(u32::MAX - 1)
    }

    /// Fills `ids` and `takes` with entries, best first; returns how many.
    pub fn best_first(&self, work: &mut Work<'_>, ids: &mut [u32], takes: &mut [u32]) -> usize {
        let greatest = self.greatest_rank(work);
        let mut n = 0;
        for (i, rank) in work.ranks.iter().enumerate() {
            work.keys[n] = key(*rank, i as u32);
            n += usize::from(*rank <= greatest);
        }
        let best = &mut work.keys[..n];
        best.sort_unstable();
        let (mut left, mut taken) = (self.budget, 0);
        for key in best.iter() {
            if left == 0 {
                break;
            }
            let id = *key as u32;
            let take = self.sizes[id as usize].min(left);
            (ids[taken], takes[taken]) = (id, take);
            taken += 1;
            left -= take;
        }
        taken
    }

    /// The same of entries of one token, in their order: the last key that is taken says which
    /// others are.
    pub fn in_order(&self, work: &mut Work<'_>, ids: &mut [u32], takes: &mut [u32]) -> usize {
        if self.budget == 0 {
            return 0;
        }
        let (last, _) = self.last_bin(work);
        // Entries of the last bin, and how many are better.
        let (mut n, mut better) = (0, 0);
        for (i, rank) in work.ranks.iter().enumerate() {
            let bin = (*rank >> BELOW_BIN) as usize;
            work.keys[n] = key(*rank, i as u32);
            n += usize::from(bin == last && *rank < u32::MAX);
            better += usize::from(bin < last && *rank < u32::MAX);
        }
        // More bins than there are: all that may be taken.
        let limit = if last == BINS {
            key(u32::MAX, 0)
        } else {
            let most = self.budget as usize - better;
            *work.keys[..n].select_nth_unstable(most - 1).1 + 1
        };
        let mut taken = 0;
        for (first, ranks) in (0..).step_by(STRETCH).zip(work.ranks.chunks(STRETCH)) {
            let keys = (first..).zip(ranks).map(|(i, rank)| (i, key(*rank, i)));
            if let Some(places) = ids.get_mut(taken..taken + STRETCH) {
                // Which entries are taken is chance, so there is no branch: each is written where
                // the next one goes, and stays if it is taken.
                let mut n = 0;
                for (i, key) in keys {
                    places[n] = i;
                    n += usize::from(key < limit);
                }
                taken += n;
                continue;
            }
            for (i, _) in keys.filter(|(_, key)| *key < limit) {
                ids[taken] = i;
                taken += 1;
            }
        }
        takes[..taken].fill(1);
        taken
    }
}

#[cfg(test)]
mod tests {
    use longview_core::SplitMix64;

    use super::*;

    fn oracle(scores: &[f32], sizes: &[u32], budget: u32) -> Vec<(u32, u32)> {
        let mut order: Vec<usize> = (0..scores.len()).filter(|&i| sizes[i] > 0).collect();
        let value = |i: usize| if scores[i].is_nan() { f32::NEG_INFINITY } else { scores[i] };
        let rank = |i: usize| (scores[i].is_nan(), i);
        order.sort_by(|&a, &b| {
            value(b).partial_cmp(&value(a)).unwrap().then_with(|| rank(a).cmp(&rank(b)))
        });
        let mut left = budget;
        let mut out = Vec::new();
        for i in order {
            if left == 0 {
                break;
            }
            let take = sizes[i].min(left);
            out.push((i as u32, take));
            left -= take;
        }
        out
    }

    fn chosen(scores: &[f32], sizes: &[u32], budget: u32, by_id: bool) -> Vec<(u32, u32)> {
        let n = scores.len();
        let (mut ranks, mut bins) = (vec![7; n], vec![7; TABLES * BINS]);
        let (mut keys, mut ids, mut takes) = (vec![7; n], vec![0; n], vec![0; n]);
        let mut work = Work { ranks: &mut ranks, bins: &mut bins, keys: &mut keys };
        let choice = Choice { scores, sizes, budget };
        let taken = if by_id {
            choice.in_order(&mut work, &mut ids, &mut takes)
        } else {
            choice.best_first(&mut work, &mut ids, &mut takes)
        };
        ids.into_iter().zip(takes).take(taken).collect()
    }

    /// Of the clusters that are not empty, with a token each.
    fn compare_by_id(scores: &[f32], sizes: &[u32], budget: u32) {
        let n = scores.len();
        let sizes: Vec<u32> = sizes.iter().map(|size| (*size).min(1)).collect();
        let found = chosen(scores, &sizes, budget, true);
        let mut want = oracle(scores, &sizes, budget);
        want.sort_unstable();
        assert_eq!(found, want, "{n} tokens, budget {budget}");
    }

    fn compare(scores: &[f32], sizes: &[u32], budget: u32) {
        compare_by_id(scores, sizes, budget);
        let n = scores.len();
        let found = chosen(scores, sizes, budget, false);
        assert_eq!(found, oracle(scores, sizes, budget), "{n} clusters, budget {budget}");
    }

    #[test]
    fn a_hundred_thousand_clusters_agree_with_a_full_sort() {
        let mut rng = SplitMix64::new(11);
        for n in [0, 1, 2, 17, 1000, 100_000] {
            // Few distinct values: most comparisons are ties.
            let scores: Vec<f32> = (0..n).map(|_| rng.below(50) as f32 / 7.0 - 3.0).collect();
            let sizes: Vec<u32> = (0..n).map(|_| rng.below(40) as u32).collect();
            for budget in [0, 1, 7, 1024, u32::MAX] {
                compare(&scores, &sizes, budget);
            }
        }
    }

    #[test]
    fn odd_scores_have_their_place() {
        let scores =
            [f32::NAN, 0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, -1e-40, 1e-40, -f32::NAN];
        compare(&scores, &[1; 8], 100);
        compare(&scores, &[3; 8], 10);
        compare(&[5.0; 9], &[0, 2, 0, 2, 2, 0, 2, 2, 2], 5);
    }
}
