//! What a choice of single tokens left of their clusters.

use longview_ops::{Op, OpResult, OwnerCounts, RestLists};

use crate::backend::CpuBackend;
use crate::indices::{ensure_at_most, ensure_below};
use crate::views::{slice, slice_mut};

/// Heads one after the other: an addition for each chosen token.
pub(crate) fn owner_counts(d: OwnerCounts<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (op, p) = (Op::OwnerCounts, d.p);
    let (tokens, stride, room) =
        (p.owner_stride as usize, p.cluster_stride as usize, p.max_selected as usize);
    let (owners, chosen) = (slice::<u32>(&d.owners), slice::<u32>(&d.chosen));
    let (n_selected, n_clusters) = (slice::<u32>(&d.n_selected), slice::<u32>(&d.n_clusters));
    ensure_at_most(op, "number of tokens", n_selected, room)?;
    ensure_at_most(op, "number of clusters", n_clusters, stride)?;
    let of = |head: usize| &chosen[head * room..][..n_selected[head] as usize];
    for head in 0..p.n_kv_heads as usize {
        ensure_below(op, "token", of(head), tokens)?;
    }
    let all = slice_mut::<u32>(d.counts);
    for (head, in_use) in n_clusters.iter().enumerate() {
        let counts = &mut all[head * stride..][..*in_use as usize];
        counts.fill(0);
        for token in of(head) {
            let owner = owners[head * tokens + *token as usize];
            ensure_below(op, "cluster", &[owner], counts.len())?;
            counts[owner as usize] += 1;
        }
    }
    Ok(())
}

/// Heads one after the other: a look at each cluster.
pub(crate) fn rest_lists(d: RestLists<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (op, p) = (Op::RestLists, d.p);
    let (stride, room, groups) =
        (p.cluster_stride as usize, p.list_stride as usize, p.group_stride as usize);
    let (lost, sizes) = (slice::<u32>(&d.lost), slice::<u32>(&d.sizes));
    let (group_of, tokens) = (slice::<u32>(&d.group_of), slice::<u32>(&d.group_tokens));
    let (n_clusters, n_groups) = (slice::<u32>(&d.n_clusters), slice::<u32>(&d.n_groups));
    ensure_at_most(op, "number of clusters", n_clusters, stride)?;
    ensure_at_most(op, "number of groups", n_groups, groups)?;
    for (head, (n, n_groups)) in n_clusters.iter().zip(n_groups).enumerate() {
        ensure_below(op, "group", &group_of[head * stride..][..*n as usize], *n_groups as usize)?;
    }
    let (clusters, left) = (slice_mut::<u32>(d.listed), slice_mut::<u32>(d.left));
    let (n_listed, rest) = (slice_mut::<u32>(d.n_listed), slice_mut::<u32>(d.rest_of_groups));
    for head in 0..p.n_kv_heads as usize {
        let (own, n_groups) = (head * stride, n_groups[head] as usize);
        let lost = &lost[own..][..n_clusters[head] as usize];
        let (clusters, left) = (&mut clusters[head * room..], &mut left[head * room..]);
        let rest = &mut rest[head * groups..][..n_groups];
        rest.copy_from_slice(&tokens[head * groups..][..n_groups]);
        let mut n = 0;
        for (cluster, lost) in lost.iter().enumerate().filter(|(_, lost)| **lost > 0).take(room) {
            let size = sizes[own + cluster];
            (clusters[n], left[n]) = (cluster as u32, size.saturating_sub(*lost));
            let group = &mut rest[group_of[own + cluster] as usize];
            *group = group.saturating_sub(size);
            n += 1;
        }
        n_listed[head] = n as u32;
    }
    Ok(())
}
