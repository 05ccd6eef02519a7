//! Reference of the ops that say what a choice of single tokens left of their clusters.

use super::access::{ints, put_ints};
use super::checks::{below, counts_fit};
use super::device::ReferenceBackend as R;
use crate::desc::{OwnerCounts, RestLists};
use crate::error::OpResult;
use crate::op::Op;

/// A histogram of owners.
pub(super) fn owner_counts(mut d: OwnerCounts<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, op) = (d.p, Op::OwnerCounts);
    let (tokens, clusters, room) =
        (p.owner_stride as usize, p.cluster_stride as usize, p.max_selected as usize);
    let (owners, chosen) = (ints(&d.owners), ints(&d.chosen));
    let (n_selected, n_clusters) = (ints(&d.n_selected), ints(&d.n_clusters));
    counts_fit(op, "n_selected", &n_selected, room)?;
    counts_fit(op, "n_clusters", &n_clusters, clusters)?;
    let mut heads = Vec::new();
    for (head, (n, in_use)) in n_selected.into_iter().zip(n_clusters).enumerate() {
        let mut counts = vec![0; in_use];
        for token in &chosen[head * room..][..n] {
            below(op, "token", *token, tokens)?;
            let owner = owners[head * tokens + token];
            below(op, "cluster", owner, in_use)?;
            counts[owner] += 1;
        }
        heads.push(counts);
    }
    for (head, counts) in heads.iter().enumerate() {
        put_ints(&mut d.counts, head * clusters, counts);
    }
    Ok(())
}

/// What a head has left.
struct Rest {
    clusters: Vec<usize>,
    left: Vec<usize>,
    groups: Vec<usize>,
}

/// Clusters that lost tokens, one after the other, and groups less those.
pub(super) fn rest_lists(mut d: RestLists<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, op) = (d.p, Op::RestLists);
    let (stride, list, groups) =
        (p.cluster_stride as usize, p.list_stride as usize, p.group_stride as usize);
    let (lost, sizes, group_of) = (ints(&d.lost), ints(&d.sizes), ints(&d.group_of));
    let (n_clusters, n_groups) = (ints(&d.n_clusters), ints(&d.n_groups));
    let group_tokens = ints(&d.group_tokens);
    counts_fit(op, "n_clusters", &n_clusters, stride)?;
    counts_fit(op, "n_groups", &n_groups, groups)?;
    let mut heads = Vec::new();
    for (head, (n, n_groups)) in n_clusters.into_iter().zip(n_groups).enumerate() {
        let of_groups = group_tokens[head * groups..][..n_groups].to_vec();
        let mut rest = Rest { clusters: Vec::new(), left: Vec::new(), groups: of_groups };
        for cluster in 0..n {
            let at = head * stride + cluster;
            below(op, "lost tokens", lost[at], sizes[at] + 1)?;
            below(op, "group", group_of[at], n_groups)?;
            if lost[at] == 0 || rest.clusters.len() == list {
                continue;
            }
            rest.clusters.push(cluster);
            rest.left.push(sizes[at] - lost[at]);
            below(op, "tokens of a cluster", sizes[at], rest.groups[group_of[at]] + 1)?;
            rest.groups[group_of[at]] -= sizes[at];
        }
        heads.push(rest);
    }
    for (head, rest) in heads.iter().enumerate() {
        put_ints(&mut d.listed, head * list, &rest.clusters);
        put_ints(&mut d.left, head * list, &rest.left);
        put_ints(&mut d.n_listed, head, &[rest.clusters.len()]);
        put_ints(&mut d.rest_of_groups, head * groups, &rest.groups);
    }
    Ok(())
}
