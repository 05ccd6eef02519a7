//! Reference of clustering, scoring and selection.

use std::cmp::Ordering;

use super::access::{floats, ints, present, present_ints, put, put_ints};
use super::checks::{below, counts_fit, dot};
use super::dense::first_largest;
use super::device::{Ref, ReferenceBackend as R};
use crate::desc::{
    CentroidScores, CentroidScoresParams, ClusterStats, Distance, KmeansAssign, KmeansParams,
    KmeansUpdate, Listed, LookUpRows, LookUpRowsParams, Placed, Pooling, QueryGate, ScoreSpan,
    SelectClusters,
};
use crate::error::OpResult;
use crate::op::Op;

/// The label of each point is the centroid of the largest score.
pub(super) fn kmeans_assign(mut d: KmeansAssign<'_, R>) -> OpResult<()> {
    d.check()?;
    let (n, c, width) = sizes(&d.p);
    let (points, centroids) = (floats(&d.points), floats(&d.centroids));
    let before = present_ints(&d.labels);
    for head in 0..d.p.n_kv_heads as usize {
        let mut n_changed = 0;
        for i in head * n..(head + 1) * n {
            let point = &points[i * width..][..width];
            let own = centroids[head * c * width..][..c * width].chunks_exact(width);
            let scores: Vec<f64> = own.map(|m| assign_score(d.p.distance, point, m)).collect();
            let best = first_largest(&scores);
            n_changed += usize::from(best != before[i]);
            put_ints(&mut d.labels, i, &[best]);
            put(&mut d.scores, i, &[scores[best]]);
        }
        put_ints(&mut d.n_changed, head, &[n_changed]);
    }
    Ok(())
}

/// What k-means maximises: for cosine and L2 the terms that do not depend on the centroid are left
/// out.
pub(crate) fn assign_score(distance: u32, point: &[f64], centroid: &[f64]) -> f64 {
    let product = dot(point, centroid);
    let square = dot(centroid, centroid);
    match distance {
        0 if square == 0.0 => 0.0,
        0 => product / square.sqrt(),
        1 => product - square / 2.0,
        _ => product,
    }
}

/// Each centroid becomes the mean of its points.
pub(super) fn kmeans_update(mut d: KmeansUpdate<'_, R>) -> OpResult<()> {
    d.check()?;
    let (n, c, width) = sizes(&d.p);
    let (points, labels) = (floats(&d.points), checked_labels(Op::KmeansUpdate, &d.labels, c)?);
    for head in 0..d.p.n_kv_heads as usize {
        for cluster in 0..c {
            let members = (head * n..(head + 1) * n).filter(|i| labels[*i] == cluster);
            let mut sum = vec![0.0; width];
            let mut count = 0;
            for i in members {
                count += 1;
                sum.iter_mut().zip(&points[i * width..]).for_each(|(s, x)| *s += x);
            }
            let at = head * c + cluster;
            put_ints(&mut d.counts, at, &[count]);
            if count > 0 {
                sum.iter_mut().for_each(|s| *s /= count as f64);
                put(&mut d.centroids, at * width, &sum);
            }
        }
    }
    Ok(())
}

/// Closeness of each point to its centroid, and the radius of each cluster.
pub(super) fn cluster_stats(mut d: ClusterStats<'_, R>) -> OpResult<()> {
    d.check()?;
    let (n, c, width) = sizes(&d.p);
    let (points, centroids) = (floats(&d.points), floats(&d.centroids));
    let labels = checked_labels(Op::ClusterStats, &d.labels, c)?;
    let mut radius = vec![0.0f64; d.radius.len];
    for (i, label) in labels.into_iter().enumerate() {
        let cluster = i / n * c + label;
        let point = &points[i * width..][..width];
        let centroid = &centroids[cluster * width..][..width];
        put(&mut d.closeness, i, &[closeness(d.p.distance, point, centroid)]);
        radius[cluster] = radius[cluster].max(gap(point, centroid));
    }
    put(&mut d.radius, 0, &radius);
    Ok(())
}

fn closeness(distance: u32, point: &[f64], centroid: &[f64]) -> f64 {
    let lengths = (dot(point, point) * dot(centroid, centroid)).sqrt();
    match distance {
        0 if lengths == 0.0 => 0.0,
        0 => dot(point, centroid) / lengths,
        1 => -gap(point, centroid),
        _ => dot(point, centroid),
    }
}

/// `|a - b|`.
fn gap(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum::<f64>().sqrt()
}

/// Softmax over the clusters for each query head, pooled over the group.
pub(super) fn centroid_scores(mut d: CentroidScores<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, q) = (d.p, floats(&d.q));
    let n_kv_heads = p.n_kv_heads as usize;
    for s in d.spans {
        let (op, counts) = (Op::CentroidScores, ints(&s.n_clusters));
        counts_fit(op, "n_clusters", &counts, s.room(p.score_stride))?;
        let Some(Listed { ids, stride }) = s.listed else { continue };
        let (ids, limit) = (ints(&ids), s.placed.limit(s.cluster_stride) as usize);
        for (head, n) in counts.into_iter().enumerate() {
            let ids = &ids[head * stride as usize..][..n];
            ids.iter().try_for_each(|id| below(op, "cluster", *id, limit))?;
        }
    }
    for (i, span) in d.spans.iter().enumerate() {
        let heads = (0..n_kv_heads).map(|head| pooled_scores(&p, &q, span, head));
        let mut heads: Vec<Vec<f64>> = heads.collect();
        if p.pooling == Pooling::SharedScores as u32 {
            let sum = |c: usize| heads.iter().filter_map(|head| head.get(c)).sum();
            let shared: Vec<f64> = (0..heads[0].len()).map(sum).collect();
            heads.iter_mut().for_each(|head| head.copy_from_slice(&shared));
        }
        for (head, pooled) in heads.iter().enumerate() {
            put(&mut d.scores, (i * n_kv_heads + head) * p.score_stride as usize, pooled);
        }
    }
    Ok(())
}

fn pooled_scores(
    p: &CentroidScoresParams,
    q: &[f64],
    span: &ScoreSpan<'_, R>,
    kv_head: usize,
) -> Vec<f64> {
    let (width, group) = (p.head_dim as usize, (p.n_q_heads / p.n_kv_heads) as usize);
    let first = kv_head * span.cluster_stride as usize;
    let n = ints(&span.n_clusters)[kv_head];
    let all = floats(&span.centroids);
    let ids = listed(span.listed, kv_head, n);
    let sizes = ints(&span.sizes);
    let mut pooled = vec![0.0f64; n];
    for g in 0..group {
        let head = span.q_index as usize * p.n_q_heads as usize + kv_head * group + g;
        let query = &q[head * width..][..width];
        let Placed { first: first_placed, step } = span.placed;
        let place = |id: usize| first_placed as usize + id * step as usize;
        let centroid = |id: usize| &all[(first + place(id)) * width..][..width];
        let scores: Vec<f64> =
            ids.iter().map(|id| f64::from(p.scale) * dot(query, centroid(*id))).collect();
        if p.pooling >= Pooling::SumScores as u32 {
            pooled.iter_mut().zip(scores).for_each(|(pool, s)| *pool += s);
            continue;
        }
        let mass =
            softmax(&scores, |c| if p.pooling == 2 { sizes[first + ids[c]] as f64 } else { 1.0 });
        for (pool, m) in pooled.iter_mut().zip(mass) {
            *pool = if p.pooling == 1 { pool.max(m) } else { *pool + m };
        }
    }
    pooled
}

/// The clusters of a head's first `n` entries.
fn listed(listed: Option<Listed<'_, R>>, head: usize, n: usize) -> Vec<usize> {
    match listed {
        Some(Listed { ids, stride }) => ints(&ids)[head * stride as usize..][..n].to_vec(),
        None => (0..n).collect(),
    }
}

/// `w_c e^(s_c) / sum_i w_i e^(s_i)`; all 0 where every weight is 0.
fn softmax(scores: &[f64], weight: impl Fn(usize) -> f64) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let terms: Vec<f64> =
        scores.iter().enumerate().map(|(c, s)| weight(c) * (s - max).exp()).collect();
    let sum: f64 = terms.iter().sum();
    terms.iter().map(|t| if sum == 0.0 { 0.0 } else { t / sum }).collect()
}

/// The clusters of each head, best first, until their sizes fill the budget.
pub(super) fn select_clusters(mut d: SelectClusters<'_, R>) -> OpResult<()> {
    d.check()?;
    let room = d.p.max_selected as usize;
    let picks = picks(&d)?;
    for pick in &picks {
        below(Op::SelectClusters, "number of selected clusters", pick.len(), room + 1)?;
    }
    for (i, pick) in picks.iter().enumerate() {
        let (clusters, takes): (Vec<usize>, Vec<usize>) = pick.iter().copied().unzip();
        put_ints(&mut d.clusters, i * room, &clusters);
        put_ints(&mut d.takes, i * room, &takes);
        put_ints(&mut d.n_selected, i, &[pick.len()]);
    }
    Ok(())
}

/// Per sequence and head the (cluster, tokens taken) pairs.
fn picks(d: &SelectClusters<'_, R>) -> OpResult<Vec<Vec<(usize, usize)>>> {
    let (scores, stride) = (floats(&d.scores), d.p.score_stride as usize);
    let n_kv_heads = d.p.n_kv_heads as usize;
    let mut picks = Vec::new();
    for (i, span) in d.spans.iter().enumerate() {
        let (counts, budgets, sizes) =
            (ints(&span.n_clusters), ints(&span.budgets), ints(&span.sizes));
        let clusters = span.cluster_stride as usize;
        counts_fit(Op::SelectClusters, "n_clusters", &counts, span.room(d.p.score_stride))?;
        for head in 0..n_kv_heads {
            let own = &scores[(i * n_kv_heads + head) * stride..][..counts[head]];
            let ids = listed(span.listed, head, counts[head]);
            ids.iter().try_for_each(|id| below(Op::SelectClusters, "cluster", *id, clusters))?;
            let sizes: Vec<usize> = ids.iter().map(|id| sizes[head * clusters + id]).collect();
            let mut picked = pick(own, &sizes, budgets[head]);
            if d.p.by_id != 0 {
                picked.sort_unstable();
            }
            picks.push(picked.into_iter().map(|(entry, take)| (ids[entry], take)).collect());
        }
    }
    Ok(picks)
}

/// One head's selection. Not-a-number ranks last.
fn pick(scores: &[f64], sizes: &[usize], budget: usize) -> Vec<(usize, usize)> {
    let mut order: Vec<usize> = (0..scores.len()).filter(|c| sizes[*c] > 0).collect();
    order.sort_by(|a, b| descending(scores[*a], scores[*b]).then(a.cmp(b)));
    let mut left = budget;
    let mut picked = Vec::new();
    for cluster in order {
        if left == 0 {
            break;
        }
        let take = sizes[cluster].min(left);
        left -= take;
        picked.push((cluster, take));
    }
    picked
}

fn descending(a: f64, b: f64) -> Ordering {
    b.partial_cmp(&a).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// The mean cosine of each group's queries with the last ones; then the last ones are these.
pub(super) fn query_gate(mut d: QueryGate<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, width) = (d.p, d.p.head_dim as usize);
    let (group, token) = ((p.n_q_heads / p.n_kv_heads) as usize, p.n_q_heads as usize * width);
    let (q, last) = (floats(&d.q), present(&d.last));
    let q = &q[p.q_index as usize * token..][..token];
    for kv_head in 0..p.n_kv_heads as usize {
        let mut sum = 0.0;
        for head in kv_head * group..(kv_head + 1) * group {
            let own = head * width..(head + 1) * width;
            sum += closeness(Distance::Cosine as u32, &q[own.clone()], &last[own]);
        }
        put(&mut d.cosines, kv_head, &[sum / group as f64]);
    }
    put(&mut d.last, 0, q);
    Ok(())
}

fn sizes(p: &KmeansParams) -> (usize, usize, usize) {
    (p.n_points as usize, p.n_clusters as usize, p.head_dim as usize)
}

fn checked_labels(op: Op, labels: &Ref<'_>, n_clusters: usize) -> OpResult<Vec<usize>> {
    let labels = ints(labels);
    labels.iter().try_for_each(|label| below(op, "label", *label, n_clusters))?;
    Ok(labels)
}

/// A step of the cache: hits, then what is let go, then misses in the order of the selection.
pub(super) fn look_up_rows(mut d: LookUpRows<'_, R>) -> OpResult<()> {
    d.check()?;
    let p = d.p;
    let (room, stride) = (p.max_selected as usize, p.cluster_stride as usize);
    let (starts, clusters) = (ints(&d.starts), ints(&d.clusters));
    let (takes, n_selected) = (ints(&d.takes), ints(&d.n_selected));
    counts_fit(Op::LookUpRows, "number of selected clusters", &n_selected, room)?;
    let selected = |head: usize| head * room..head * room + n_selected[head];
    for head in 0..p.n_kv_heads as usize {
        let used = &clusters[selected(head)];
        used.iter().try_for_each(|c| below(Op::LookUpRows, "cluster", *c, stride))?;
    }
    let n_slots = p.n_slots as usize;
    for head in 0..p.n_kv_heads as usize {
        let runs = selected(head).map(|i| (starts[head * stride + clusters[i]], takes[i]));
        let wanted: Vec<usize> = runs.flat_map(|(first, n)| first..first + n).collect();
        let at = head * LookUpRowsParams::state_len(n_slots);
        let mut state =
            present_ints(&d.state)[at..][..LookUpRowsParams::kept_len(n_slots)].to_vec();
        let now = state[2 * n_slots] + 1;
        let (present, used) = state[..2 * n_slots].split_at_mut(n_slots);
        for slot in 0..n_slots {
            if present[slot] != 0 && wanted.contains(&(present[slot] - 1)) {
                used[slot] = now;
            }
        }
        for slot in 0..n_slots {
            if used[slot] + p.cache_steps as usize <= now {
                present[slot] = 0;
            }
        }
        let mut moves = Vec::new();
        let mut rows = Vec::new();
        let mut hits = 0;
        for row in wanted {
            let hit = present.iter().position(|present| *present == row + 1);
            let free = present.iter().position(|present| *present == 0);
            let slot = match hit.or(free.filter(|_| moves.len() < p.move_stride as usize)) {
                Some(slot) => slot,
                None => continue,
            };
            if hit.is_none() {
                (present[slot], used[slot]) = (row + 1, now);
                moves.push((row, p.first_slot_row as usize + slot));
            } else {
                hits += 1;
            }
            rows.push(p.first_slot_row as usize + slot);
        }
        state[2 * n_slots] = now;
        put_ints(&mut d.state, at, &state);
        let (h, counts) = (p.n_kv_heads as usize, present_ints(&d.counts));
        let before = counts[head];
        rows.truncate((p.list_stride as usize).saturating_sub(before));
        put_ints(&mut d.rows, head * p.list_stride as usize + before, &rows);
        put_ints(&mut d.counts, head, &[before + rows.len()]);
        put_ints(&mut d.counts, h + head, &[moves.len()]);
        put_ints(&mut d.counts, 2 * h + head, &[counts[2 * h + head] + hits]);
        put_ints(&mut d.counts, 3 * h + head, &[counts[3 * h + head] + moves.len()]);
        let (src, dst): (Vec<usize>, Vec<usize>) = moves.into_iter().unzip();
        put_ints(&mut d.moves, head * p.move_stride as usize, &src);
        put_ints(&mut d.moves, (h + head) * p.move_stride as usize, &dst);
    }
    Ok(())
}
