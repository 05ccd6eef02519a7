//! Launches a selection with its scores: the logits of `centroid_scores.wgsl`, then
//! `select_clusters.wgsl`, which makes scores of them. As single calls it is a dispatch more.

use longview_ops::{CentroidScores, OpResult, Pooling, ScoreSelect, SelectClusters, View, ViewMut};

use crate::backend::WgpuBackend;
use crate::ops::{centroid_scores, select_clusters};

/// Logits of a KV head that its one workgroup makes scores of, at most: with more of them as many
/// workgroups as the device has are worth a dispatch of their own.
const MOST_LOGITS: usize = 1 << 16;

pub(crate) fn run(backend: &WgpuBackend, mut d: ScoreSelect<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    if !fits(&d) {
        return d.unfused(backend);
    }
    let n_scores = d.p.n_kv_heads as usize * d.p.score_stride as usize;
    let ViewMut { buffer, offset, .. } = &mut d.scratch;
    let scores = ViewMut { buffer: &mut **buffer, offset: *offset, len: n_scores };
    let scoring = CentroidScores { p: d.p, q: d.q, spans: d.score_spans, scores };
    let logits = centroid_scores::logits(backend, &scoring)?;
    let selection = SelectClusters {
        p: d.select,
        scores: View { buffer: &*d.scratch.buffer, offset: d.scratch.offset, len: n_scores },
        spans: d.select_spans,
        clusters: d.clusters,
        takes: d.takes,
        n_selected: d.n_selected,
    };
    select_clusters::with_scores(backend, &selection, &logits.of(d.p))
}

/// One sequence, a softmax, and both halves of the call about the same clusters.
fn fits(d: &ScoreSelect<'_, WgpuBackend>) -> bool {
    let ([scored], [selected]) = (d.score_spans, d.select_spans) else { return false };
    let group = d.p.n_q_heads as usize / (d.p.n_kv_heads as usize).max(1);
    let room = scored.room(d.p.score_stride);
    let is_softmax =
        ![Pooling::SumScores, Pooling::SharedScores].iter().any(|p| *p as u32 == d.p.pooling);
    is_softmax
        && group * room <= MOST_LOGITS
        && d.select.score_stride == d.p.score_stride
        && d.select.n_kv_heads == d.p.n_kv_heads
        && scored.listed.is_some() == selected.listed.is_some()
        && scored.cluster_stride == selected.cluster_stride
        && selected.room(d.p.score_stride) == room
}
