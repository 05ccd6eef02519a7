//! Rank, prefix sum, trim: without sorting all clusters.
//!
//! A head takes at most `min(C, budget)` clusters, since each has a token. So the best that many
//! are split off by quickselect (linear in C), and only these are sorted. Each cluster is one
//! 64-bit key whose order is the contract's: greater score first, then lower id; not-a-number comes
//! last.

use longview_ops::{Op, OpError, OpResult, SelectClusters};

use crate::backend::CpuBackend;
use crate::indices::ensure_at_most;
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
            let sizes =
                &slice::<u32>(&span.sizes)[head * span.cluster_stride as usize..][..n_clusters];
            let scores = &scores[i * stride..][..n_clusters];
            let budget = slice::<u32>(&span.budgets)[head];
            let [keys] = scratch.floats([4 * n_clusters]);
            let keys: &mut [u64] = bytemuck::cast_slice_mut(keys);
            n[0] = if by_id {
                select_by_id(scores, sizes, budget, keys, ids, takes)
            } else {
                select(scores, sizes, budget, keys, ids, takes)
            } as u32;
        },
    );
    Ok(())
}

fn check_counts(d: &SelectClusters<'_, CpuBackend>) -> OpResult<()> {
    let (op, max) = (Op::SelectClusters, d.p.max_selected);
    for span in d.spans {
        let limit = span.cluster_stride.min(d.p.score_stride) as usize;
        let (counts, budgets) = (slice::<u32>(&span.n_clusters), slice::<u32>(&span.budgets));
        ensure_at_most(op, "number of clusters", counts, limit)?;
        for (&n, &budget) in counts.iter().zip(budgets) {
            if n.min(budget) > max {
                let what = format!("{n} clusters and a budget of {budget}, but room for {max}");
                return Err(OpError::shape(op, what));
            }
        }
    }
    Ok(())
}

/// Fills `ids` and `takes`; returns how many.
fn select(
    scores: &[f32],
    sizes: &[u32],
    budget: u32,
    keys: &mut [u64],
    ids: &mut [u32],
    takes: &mut [u32],
) -> usize {
    let mut n = 0;
    for (id, (&score, &size)) in scores.iter().zip(sizes).enumerate() {
        keys[n] = key(rank(score, u32::MAX), id as u32);
        n += usize::from(size > 0);
    }
    let most = n.min(budget as usize);
    if most == 0 {
        return 0;
    }
    let keys = &mut keys[..n];
    if most < n {
        keys.select_nth_unstable(most - 1);
    }
    let best = &mut keys[..most];
    best.sort_unstable();
    let mut left = budget;
    let mut taken = 0;
    for &key in best.iter() {
        let id = key as u32;
        let take = sizes[id as usize].min(left);
        (ids[taken], takes[taken]) = (id, take);
        taken += 1;
        left -= take;
        if left == 0 {
            break;
        }
    }
    taken
}

/// The same of clusters of one token, in the order of their ids: the last key that is taken says
/// which others are.
fn select_by_id(
    scores: &[f32],
    sizes: &[u32],
    budget: u32,
    keys: &mut [u64],
    ids: &mut [u32],
    takes: &mut [u32],
) -> usize {
    let (n, all) = (scores.len(), scores.iter().zip(sizes).enumerate());
    let (by_id, sorted) = keys.split_at_mut(n);
    let mut n_open = 0;
    for (id, (&score, &size)) in all {
        // No cluster that may be taken has the largest key: its id would have to be the largest.
        let key = if size > 0 { key(rank(score, u32::MAX), id as u32) } else { u64::MAX };
        (by_id[id], sorted[n_open]) = (key, key);
        n_open += usize::from(size > 0);
    }
    let most = n_open.min(budget as usize);
    if most == 0 {
        return 0;
    }
    let last = if most < n_open {
        *sorted[..n_open].select_nth_unstable(most - 1).1
    } else {
        u64::MAX - 1
    };
    let mut taken = 0;
    for (id, key) in by_id.iter().enumerate() {
        if *key <= last {
            (ids[taken], takes[taken]) = (id as u32, 1);
            taken += 1;
        }
    }
    taken
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

    /// Of the clusters that are not empty, with a token each.
    fn compare_by_id(scores: &[f32], sizes: &[u32], budget: u32) {
        let n = scores.len();
        let sizes: Vec<u32> = sizes.iter().map(|size| (*size).min(1)).collect();
        let (mut keys, mut ids, mut takes) = (vec![0; 2 * n], vec![0; n], vec![0; n]);
        let taken = select_by_id(scores, &sizes, budget, &mut keys, &mut ids, &mut takes);
        let found: Vec<_> = ids.into_iter().zip(takes).take(taken).collect();
        let mut want = oracle(scores, &sizes, budget);
        want.sort_unstable();
        assert_eq!(found, want, "{n} tokens, budget {budget}");
    }

    fn compare(scores: &[f32], sizes: &[u32], budget: u32) {
        compare_by_id(scores, sizes, budget);
        let n = scores.len();
        let (mut keys, mut ids, mut takes) = (vec![0; n], vec![0; n], vec![0; n]);
        let taken = select(scores, sizes, budget, &mut keys, &mut ids, &mut takes);
        let found: Vec<_> = ids.into_iter().zip(takes).take(taken).collect();
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
