//! What chosen tokens left of their clusters, and of groups of the others.

use longview_ops::{Op, OpResult, RestLists};

use crate::backend::CpuBackend;
use crate::indices::{ensure_at_most, ensure_below};
use crate::views::{slice, slice_mut};

/// Heads one after the other: a look at each cluster.
pub(crate) fn run(d: RestLists<'_, CpuBackend>) -> OpResult<()> {
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
