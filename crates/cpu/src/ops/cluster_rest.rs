//! What a selection left of clusters.

use longview_ops::{ClusterRest, Op, OpResult};

use crate::backend::CpuBackend;
use crate::indices::{ensure_at_most, ensure_below};
use crate::views::{slice, slice_mut};

/// Heads one after the other: a copy of the sizes and a few differences.
pub(crate) fn run(d: ClusterRest<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (op, stride, room) =
        (Op::ClusterRest, d.p.cluster_stride as usize, d.p.max_selected as usize);
    let (sizes, counts) = (slice::<u32>(&d.sizes), slice::<u32>(&d.n_clusters));
    let (clusters, takes) = (slice::<u32>(&d.clusters), slice::<u32>(&d.takes));
    let n_selected = slice::<u32>(&d.n_selected);
    ensure_at_most(op, "number of clusters", counts, stride)?;
    ensure_at_most(op, "number of selected clusters", n_selected, room)?;
    for (head, (n, in_use)) in n_selected.iter().zip(counts).enumerate() {
        ensure_below(op, "cluster", &clusters[head * room..][..*n as usize], *in_use as usize)?;
    }
    let rest = slice_mut::<u32>(d.rest);
    for head in 0..d.p.n_kv_heads as usize {
        let n = counts[head] as usize;
        let rest = &mut rest[head * stride..][..n];
        rest.copy_from_slice(&sizes[head * stride..][..n]);
        let chosen = head * room..head * room + n_selected[head] as usize;
        for (cluster, take) in clusters[chosen.clone()].iter().zip(&takes[chosen]) {
            let left = &mut rest[*cluster as usize];
            *left = left.saturating_sub(*take);
        }
    }
    Ok(())
}
