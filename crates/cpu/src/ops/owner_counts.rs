//! How many of the chosen tokens each cluster owns.

use longview_ops::{Op, OpResult, OwnerCounts};

use crate::backend::CpuBackend;
use crate::indices::{ensure_at_most, ensure_below};
use crate::views::{slice, slice_mut};

/// Heads one after the other: an addition for each chosen token.
pub(crate) fn run(d: OwnerCounts<'_, CpuBackend>) -> OpResult<()> {
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
