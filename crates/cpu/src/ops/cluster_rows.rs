//! The rows of selected clusters.

use longview_ops::{ClusterRows, Op, OpResult};

use crate::backend::CpuBackend;
use crate::indices::{ensure_at_most, ensure_below};
use crate::views::{slice, slice_mut};

/// Heads one after the other: a head takes time of the order of its rows.
pub(crate) fn run(d: ClusterRows<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (op, stride, room) =
        (Op::ClusterRows, d.p.cluster_stride as usize, d.p.max_selected as usize);
    let (starts, n_selected) = (slice::<u32>(&d.starts), slice::<u32>(&d.n_selected));
    let (clusters, takes) = (slice::<u32>(&d.clusters), slice::<u32>(&d.takes));
    ensure_at_most(op, "number of selected clusters", n_selected, room)?;
    for (head, n) in n_selected.iter().enumerate() {
        ensure_below(op, "cluster", &clusters[head * room..][..*n as usize], stride)?;
    }
    let list = d.p.list_stride as usize;
    let behind = d.behind.as_ref().map(slice::<u32>);
    ensure_at_most(op, "number of entries", behind.unwrap_or_default(), list)?;
    let (rows, n_rows) = (slice_mut::<u32>(d.rows), slice_mut::<u32>(d.n_rows));
    for head in 0..d.p.n_kv_heads as usize {
        let chosen = head * room..head * room + n_selected[head] as usize;
        let chosen = clusters[chosen.clone()].iter().zip(&takes[chosen]);
        let first =
            |cluster: u32| starts[head * stride + cluster as usize].saturating_sub(d.p.first_row);
        let rows = &mut rows[head * list..][..list];
        let mut n = behind.map_or(0, |behind| behind[head] as usize);
        for (cluster, take) in chosen {
            let own = &mut rows[n..list.min(n + *take as usize)];
            own.iter_mut().zip(first(*cluster)..).for_each(|(to, row)| *to = row);
            n += own.len();
        }
        n_rows[head] = n as u32;
    }
    Ok(())
}
