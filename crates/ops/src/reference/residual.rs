//! Reference of the ops that say what a selection left of clusters, and which rows it has.

use super::access::{ints, put_ints};
use super::checks::{below, counts_fit};
use super::device::{Ref, ReferenceBackend as R};
use crate::desc::{ClusterRest, ClusterRows};
use crate::error::OpResult;
use crate::op::Op;

/// What a selection kernel wrote, and how much room it has.
struct Selection<'a> {
    clusters: &'a Ref<'a>,
    takes: &'a Ref<'a>,
    n_selected: &'a Ref<'a>,
    /// Places of a head.
    max_selected: u32,
    /// Clusters of a head, at most.
    cluster_stride: u32,
}

/// What each head selected: clusters with the tokens taken of each.
fn selections(op: Op, s: &Selection<'_>) -> OpResult<Vec<Vec<(usize, usize)>>> {
    let (room, stride) = (s.max_selected as usize, s.cluster_stride as usize);
    let (clusters, takes, counts) = (ints(s.clusters), ints(s.takes), ints(s.n_selected));
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
    let selection = Selection {
        clusters: &d.clusters,
        takes: &d.takes,
        n_selected: &d.n_selected,
        max_selected: p.max_selected,
        cluster_stride: p.cluster_stride,
    };
    let chosen = selections(op, &selection)?;
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
    let selection = Selection {
        clusters: &d.clusters,
        takes: &d.takes,
        n_selected: &d.n_selected,
        max_selected: p.max_selected,
        cluster_stride: p.cluster_stride,
    };
    let chosen = selections(Op::ClusterRows, &selection)?;
    let stride = p.list_stride as usize;
    let behind = d.behind.as_ref().map(ints);
    let behind = behind.unwrap_or_else(|| vec![0; p.n_kv_heads as usize]);
    counts_fit(Op::ClusterRows, "number of entries", &behind, stride)?;
    let mut counts = Vec::new();
    for (head, chosen) in chosen.into_iter().enumerate() {
        let first = |cluster: usize| {
            starts[head * p.cluster_stride as usize + cluster] - p.first_row as usize
        };
        let rows = chosen.into_iter().flat_map(|(c, take)| first(c)..first(c) + take);
        let rows: Vec<usize> = rows.take(stride - behind[head]).collect();
        put_ints(&mut d.rows, head * stride + behind[head], &rows);
        counts.push(behind[head] + rows.len());
    }
    put_ints(&mut d.n_rows, 0, &counts);
    Ok(())
}
