//! Reference of the ops that say what a selection left of clusters, and which rows it has.

use super::access::{ints, put_ints};
use super::checks::{below, counts_fit};
use super::device::{Ref, ReferenceBackend as R};
use crate::desc::{ClusterRest, ClusterRows};
use crate::error::OpResult;
use crate::op::Op;

/// What each head selected: clusters with the tokens taken of each.
fn selections(
    op: Op,
    [clusters, takes, n_selected]: [&Ref<'_>; 3],
    (room, stride): (u32, u32),
) -> OpResult<Vec<Vec<(usize, usize)>>> {
    let (room, stride) = (room as usize, stride as usize);
    let (clusters, takes, counts) = (ints(clusters), ints(takes), ints(n_selected));
    counts_fit(op, "n_selected", &counts, room)?;
    let mut heads = Vec::new();
    for (head, n) in counts.into_iter().enumerate() {
        let at = head * room;
        let chosen: Vec<_> =
            clusters[at..at + n].iter().copied().zip(takes[at..at + n].iter().copied()).collect();
        chosen.iter().try_for_each(|(cluster, _)| below(op, "cluster", *cluster, stride))?;
        heads.push(chosen);
    }
    Ok(heads)
}

/// Sizes less takes.
pub(super) fn cluster_rest(mut d: ClusterRest<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, op) = (d.p, Op::ClusterRest);
    let (sizes, counts) = (ints(&d.sizes), ints(&d.n_clusters));
    counts_fit(op, "n_clusters", &counts, p.cluster_stride as usize)?;
    let parts = [&d.clusters, &d.takes, &d.n_selected];
    let chosen = selections(op, parts, (p.max_selected, p.cluster_stride))?;
    for (head, n) in counts.into_iter().enumerate() {
        let at = head * p.cluster_stride as usize;
        let mut rest = sizes[at..at + n].to_vec();
        for (cluster, take) in &chosen[head] {
            rest[*cluster] -= take;
        }
        put_ints(&mut d.rest, at, &rest);
    }
    Ok(())
}

/// Runs of rows, one cluster after the other.
pub(super) fn cluster_rows(mut d: ClusterRows<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, starts) = (d.p, ints(&d.starts));
    let parts = [&d.clusters, &d.takes, &d.n_selected];
    let chosen = selections(Op::ClusterRows, parts, (p.max_selected, p.cluster_stride))?;
    let mut counts = Vec::new();
    for (head, chosen) in chosen.into_iter().enumerate() {
        let first = |cluster: usize| {
            starts[head * p.cluster_stride as usize + cluster] - p.first_row as usize
        };
        let rows = chosen.into_iter().flat_map(|(c, take)| first(c)..first(c) + take);
        let rows: Vec<usize> = rows.take(p.list_stride as usize).collect();
        put_ints(&mut d.rows, head * p.list_stride as usize, &rows);
        counts.push(rows.len());
    }
    put_ints(&mut d.n_rows, 0, &counts);
    Ok(())
}
