//! Rank, prefix sum, trim: without sorting all clusters.
//!
//! Scores become whole numbers in the contract's order, greater scores first and not-a-number last.
//! The limit up to which the budget reaches is found by halves, each a sum over all entries without
//! a branch. What is up to it, or a little more, is sorted as 64-bit keys, in which lower ids come
//! first; in the order of ids nothing is sorted, and one is looked for among the last few alone.

use longview_ops::{Listed, Op, OpError, OpResult, SelectClusters, SelectSpan};

use crate::backend::CpuBackend;
use crate::indices::{ensure_at_most, ensure_below};
use crate::kernels::rank::{self, Gather, ListRanks, Ranks, SizesUpTo};
use crate::queue::Queue;
use crate::supported_isa::SupportedIsa;
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
    let (spans, by_id, isa) = (d.spans, d.p.by_id != 0, queue.team.isa());
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
            let [listed, ranks, places, keys] = scratch.floats(scratch_lens(n_clusters));
            let list = list_of(span, head, n_clusters);
            let sizes = match list {
                Some(list) => {
                    let listed: &mut [u32] = bytemuck::cast_slice_mut(listed);
                    isa.run(Gather { from: sizes, ids: list, to: listed });
                    &*listed
                }
                None => &sizes[..n_clusters],
            };
            let work = &mut Work {
                ranks: bytemuck::cast_slice_mut(ranks),
                places: bytemuck::cast_slice_mut(places),
                keys: bytemuck::cast_slice_mut(keys),
            };
            let choice = Choice { scores, sizes, budget, isa };
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

/// Tokens of entries that are looked at one by one though they are not taken, or a share of the
/// budget if that is more: to look for the limit among so few costs more.
const FEW: u64 = 128;
const SHARE: u64 = 8;

/// Entries of a sample, and how far from the place of the limit in it the limit is expected.
const SAMPLE: usize = 64;
const MARGIN: usize = 4;

/// Scratch of a head: words of ranks, places and keys.
pub(crate) fn scratch_lens(n: usize) -> [usize; 4] {
    [n, n, n, 2 * n]
}

/// What a head chooses from.
pub(crate) struct Choice<'a> {
    pub scores: &'a [f32],
    pub sizes: &'a [u32],
    pub budget: u32,
    pub isa: SupportedIsa,
}

/// Work memory of a choice.
pub(crate) struct Work<'a> {
    /// For each entry; [`u32::MAX`] for those that cannot be taken.
    pub ranks: &'a mut [u32],
    pub places: &'a mut [u32],
    pub keys: &'a mut [u64],
}

impl Work<'_> {
    /// The work memory of a choice from `n` entries, of one that is for more.
    pub fn first(&mut self, n: usize) -> Work<'_> {
        Work {
            ranks: &mut self.ranks[..n],
            places: &mut self.places[..n],
            keys: &mut self.keys[..n],
        }
    }
}

/// Ranks among which a budget is reached.
struct Reached {
    from: u32,
    to: u32,
    /// Tokens of ranks below `from`, less than the budget.
    before: u64,
}

impl Choice<'_> {
    /// Ranks all entries, and finds those among which the budget is reached, by halves: a few
    /// tokens more, or entries of one rank. `None` where the budget takes all.
    fn reached(&self, work: &mut Work<'_>) -> Option<Reached> {
        let Self { scores, sizes, isa, .. } = *self;
        let all = isa.run(Ranks { scores, sizes, to: work.ranks });
        let budget = u64::from(self.budget);
        if all.tokens <= budget {
            return None;
        }
        let mut found = Reached { from: all.least, to: all.greatest, before: 0 };
        let (mut up_to, few) = (all.tokens, FEW.max(budget / SHARE));
        let mut probes = self.guess(work.ranks, budget, all.tokens).into_iter();
        while found.from < found.to && up_to - found.before > few {
            let half = found.from + (found.to - found.from) / 2;
            let probe = probes.next().filter(|probe| (found.from..found.to).contains(probe));
            let limit = probe.unwrap_or(half);
            let tokens = isa.run(SizesUpTo { ranks: work.ranks, sizes, limit });
            if tokens >= budget {
                (found.to, up_to) = (limit, tokens);
            } else {
                (found.from, found.before) = (limit + 1, tokens);
            }
        }
        Some(found)
    }

    /// Ranks between which the limit probably is, by a sample: halves of all ranks that there are
    /// would take twice as long to come so near.
    fn guess(&self, ranks: &[u32], budget: u64, tokens: u64) -> [u32; 2] {
        let mut sample = [0; SAMPLE];
        let step = ranks.len() / SAMPLE;
        if step == 0 {
            return [0; 2];
        }
        sample.iter_mut().zip(ranks.iter().step_by(step)).for_each(|(to, rank)| *to = *rank);
        sample.sort_unstable();
        let place = (budget * SAMPLE as u64 / tokens) as usize;
        [place.saturating_sub(MARGIN), (place + MARGIN).min(SAMPLE - 1)].map(|at| sample[at])
    }

    /// Keys of the entries whose rank is in `from..=to`, in their order.
    fn keys<'w>(&self, work: &'w mut Work<'_>, from: u32, to: u32) -> &'w mut [u64] {
        let Work { ranks, places, keys } = work;
        let span = to - from;
        let n = self.isa.run(ListRanks { ranks, from, span, first: 0, to: places });
        for (key, i) in keys.iter_mut().zip(&places[..n]) {
            *key = rank::key(ranks[*i as usize], *i);
        }
        &mut keys[..n]
    }

    /// Fills `ids` and `takes` with entries, best first; returns how many.
    pub fn best_first(&self, work: &mut Work<'_>, ids: &mut [u32], takes: &mut [u32]) -> usize {
        let greatest = self.reached(work).map_or(u32::MAX - 1, |reached| reached.to);
        let best = self.keys(work, 0, greatest);
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

    /// The same of entries of one token, in their order: the last one that is taken says which
    /// others are.
    pub fn in_order(&self, work: &mut Work<'_>, ids: &mut [u32], takes: &mut [u32]) -> usize {
        if self.budget == 0 {
            return 0;
        }
        let (rank, id) = match self.reached(work) {
            // All that may be taken.
            None => (u32::MAX - 1, u32::MAX),
            Some(Reached { from, to, before }) => {
                let most = (u64::from(self.budget) - before) as usize;
                let (_, last, _) = self.keys(work, from, to).select_nth_unstable(most - 1);
                ((*last >> u32::BITS) as u32, *last as u32)
            }
        };
        // Those of the same rank up to the last one, and better ones behind it.
        let (first, behind) =
            work.ranks.split_at((id as usize).saturating_add(1).min(work.ranks.len()));
        let isa = self.isa;
        let mut taken = isa.run(ListRanks { ranks: first, from: 0, span: rank, first: 0, to: ids });
        if let Some(span) = rank.checked_sub(1) {
            let (start, to) = (first.len() as u32, &mut ids[taken..]);
            taken += isa.run(ListRanks { ranks: behind, from: 0, span, first: start, to });
        }
        takes[..taken].fill(1);
        taken
    }
}

#[cfg(test)]
mod tests {
    use longview_core::SplitMix64;

    use super::*;
    use crate::isa::Isa;

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

    /// On every instruction set of this machine.
    fn chosen(scores: &[f32], sizes: &[u32], budget: u32, by_id: bool) -> Vec<(u32, u32)> {
        let n = scores.len();
        let on = |isa| {
            let (mut ranks, mut places, mut keys) = (vec![7; n], vec![7; n], vec![7; n]);
            let (mut ids, mut takes) = (vec![0; n], vec![0; n]);
            let mut work = Work { ranks: &mut ranks, places: &mut places, keys: &mut keys };
            let choice = Choice { scores, sizes, budget, isa };
            let taken = if by_id {
                choice.in_order(&mut work, &mut ids, &mut takes)
            } else {
                choice.best_first(&mut work, &mut ids, &mut takes)
            };
            ids.into_iter().zip(takes).take(taken).collect()
        };
        let sets = Isa::ALL.iter().filter(|isa| isa.is_available());
        let mut found: Vec<Vec<_>> =
            sets.map(|isa| on(SupportedIsa::choose(Some(*isa)).unwrap())).collect();
        assert!(found.windows(2).all(|two| two[0] == two[1]), "sets differ");
        found.pop().unwrap()
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

    /// Room for no more than what is taken, and few scores of many: what a limit divides lies in
    /// one rank.
    #[test]
    fn ties_end_where_the_budget_does() {
        for n in [15, 16, 17, 300] {
            for budget in [1, 2, 15, 16, 100] {
                let scores: Vec<f32> =
                    (0..n).map(|i| [0.25, 0.5][usize::from(i % 5 == 0)]).collect();
                compare(&scores, &vec![1; n], budget);
                compare(&vec![0.125; n], &vec![3; n], budget);
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
