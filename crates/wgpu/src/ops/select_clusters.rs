//! Launches `select_clusters.wgsl`: one dispatch per sequence, which may make the scores too.

use std::sync::Arc;

use longview_ops::{OpResult, SelectClusters, SelectClustersParams, SelectSpan};

use crate::backend::WgpuBackend;
use crate::launch::Launch;
use crate::raw_buffer::RawBuffer;

/// Logits of which the kernel makes the scores itself, as `centroid_scores.wgsl` leaves them.
pub(crate) struct Logits<'a> {
    pub scratch: &'a Arc<RawBuffer>,
    /// Where scores go where they are made in `scratch`.
    pub scores_at: usize,
    pub n_q_heads: u32,
    pub pooling: u32,
    /// Clusters of a head that there is room for, and their blocks.
    pub room: usize,
    pub n_blocks: usize,
}

pub(crate) fn run(backend: &WgpuBackend, d: SelectClusters<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    (0..d.spans.len()).try_for_each(|i| launch(backend, &d, i, None))
}

/// The selection of the only sequence, with its scores from `logits`.
pub(crate) fn with_scores(
    backend: &WgpuBackend,
    d: &SelectClusters<'_, WgpuBackend>,
    logits: &Logits<'_>,
) -> OpResult<()> {
    d.check()?;
    launch(backend, d, 0, Some(logits))
}

fn launch(
    backend: &WgpuBackend,
    d: &SelectClusters<'_, WgpuBackend>,
    i: usize,
    logits: Option<&Logits<'_>>,
) -> OpResult<()> {
    let (n_heads, span) = (d.p.n_kv_heads as usize, &d.spans[i]);
    let room = span.room(d.p.score_stride);
    let launch = Launch::new(backend, "select_clusters", "select_clusters")
        .define("LISTED", span.listed.is_some().into())
        .define("POOL", logits.is_some().into());
    let launch = match (logits, &span.listed) {
        (None, _) => with_params(launch, d, i, d.p).view(&d.scores),
        (Some(logits), None) => {
            with_params(launch, d, i, d.p).reads(logits.scratch).u32(d.scores.offset)
        }
        (Some(logits), Some(_)) => {
            let p = SelectClustersParams { score_stride: logits.room as u32, ..d.p };
            with_params(launch, d, i, p).writes(logits.scratch).u32(logits.scores_at)
        }
    };
    let launch = launch
        .view(&span.sizes)
        .view(&span.n_clusters)
        .view(&span.budgets)
        .view_mut(&d.clusters)
        .view_mut(&d.takes)
        .view_mut(&d.n_selected)
        .counts((n_heads * room * 8) as u64);
    let launch = with_list(launch, d, span, logits);
    match logits {
        None => launch,
        Some(l) => launch.params(&[l.n_q_heads, l.pooling]).u32(l.room).u32(l.n_blocks),
    }
    .run(n_heads)
}

fn with_params<'l>(
    launch: Launch<'l>,
    d: &SelectClusters<'_, WgpuBackend>,
    i: usize,
    p: SelectClustersParams,
) -> Launch<'l> {
    let span = &d.spans[i];
    launch.params(&p).u32(i * d.p.n_kv_heads as usize).params(&span.cluster_stride)
}

/// The list, or the scores where these are made elsewhere than in the scratch.
fn with_list<'l>(
    launch: Launch<'l>,
    d: &SelectClusters<'_, WgpuBackend>,
    span: &SelectSpan<'_, WgpuBackend>,
    logits: Option<&Logits<'_>>,
) -> Launch<'l> {
    match (&span.listed, logits) {
        (Some(listed), _) => launch.view(&listed.ids).u32(listed.stride as usize),
        (None, None) => launch.u32(0).u32(0),
        (None, Some(_)) => launch.writes(&d.scores.buffer.raw).u32(0).u32(0),
    }
}
