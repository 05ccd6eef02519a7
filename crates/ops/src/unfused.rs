//! Fused calls as the single calls that they stand for: what a backend does that gains nothing by
//! fusing them.

use crate::backend::Backend;
use crate::buffer::{View, ViewMut};
use crate::desc::{
    Activation, CentroidScores, CentroidScoresParams, ClusterRows, ClusterRowsParams, GeluMul,
    GeluMulParams, LinearGroup, Listed, NormGated, Opened, Placed, Project, ProjectHeads,
    ProjectHeadsParams, Rerank, RmsNorm, RmsNormParams, Rope, RopeParams, ScoreSelect, ScoreSpan,
    SearchLevel, SearchTokens, SearchTokensParams, SelectClusters, SelectClustersParams,
    SelectSpan, SiluMul, SiluMulParams, SplitSigns, SplitSignsParams,
};
use crate::error::OpResult;

impl<B: Backend> Project<'_, B> {
    /// The single calls.
    pub fn unfused(mut self, backend: &B) -> OpResult<()> {
        let (p, out) = (overwriting(self.p), again(&mut self.scratch));
        backend.rms_norm(RmsNorm { p, x: self.x, weight: self.norm, out })?;
        let (n_rows, n_in, x) = (self.p.n_rows, self.p.width, written(&self.scratch));
        backend.linear_group(LinearGroup { n_rows, n_in, x, layers: &mut self.layers })?;
        for i in 0..self.out.len() {
            self.place(backend, i)?;
        }
        Ok(())
    }

    /// Norm per head where there is one, then RoPE, of q or k.
    fn place(&mut self, backend: &B, which: usize) -> OpResult<()> {
        let layer = &self.layers[which];
        let p = RopeParams { n_heads: layer.n_out / self.rope.head_dim.max(1), ..self.rope };
        let mut x = written(&layer.out);
        let mut scratch = again(&mut self.head_scratch);
        if let Some(weight) = self.head_norms[which] {
            scratch.len = x.len;
            let norm = RmsNormParams {
                n_rows: p.n_tokens * p.n_heads,
                width: p.head_dim,
                eps: self.p.eps,
                accumulate: 0,
            };
            backend.rms_norm(RmsNorm { p: norm, x, weight, out: again(&mut scratch) })?;
            x = written(&scratch);
        }
        backend.rope(Rope { p, x, table: self.table, out: again(&mut self.out[which]) })
    }
}

impl<B: Backend> NormGated<'_, B> {
    /// The single calls.
    pub fn unfused(mut self, backend: &B) -> OpResult<()> {
        let (p, out) = (overwriting(self.p), again(&mut self.scratch));
        backend.rms_norm(RmsNorm { p, x: self.x, weight: self.norm, out })?;
        let (n_rows, n_in, x) = (self.p.n_rows, self.p.width, written(&self.scratch));
        let mut layers = [self.gate, self.up];
        backend.linear_group(LinearGroup { n_rows, n_in, x, layers: &mut layers })?;
        let [gate, up] = &layers;
        let (gate, up, out) = (written(&gate.out), written(&up.out), self.out);
        let n = out.len as u32;
        match self.activation {
            Activation::Silu => backend.silu_mul(SiluMul { p: SiluMulParams { n }, gate, up, out }),
            Activation::GeluTanh => {
                backend.gelu_mul(GeluMul { p: GeluMulParams { n }, gate, up, out })
            }
        }
    }
}

impl<B: Backend> ScoreSelect<'_, B> {
    /// The single calls.
    pub fn unfused(mut self, backend: &B) -> OpResult<()> {
        let len =
            self.score_spans.len() * self.p.n_kv_heads as usize * self.p.score_stride as usize;
        let mut scores = again(&mut self.scratch);
        scores.len = len;
        backend.centroid_scores(CentroidScores {
            p: self.p,
            q: self.q,
            spans: self.score_spans,
            scores: again(&mut scores),
        })?;
        backend.select_clusters(SelectClusters {
            p: self.select,
            scores: written(&scores),
            spans: self.select_spans,
            clusters: self.clusters,
            takes: self.takes,
            n_selected: self.n_selected,
        })
    }
}

impl<B: Backend> SearchTokens<'_, B> {
    /// The single calls.
    pub fn unfused(mut self, backend: &B) -> OpResult<()> {
        self.check()?;
        let (p, q) = (self.p, &self.q);
        let own = p.n_q_heads as usize * p.head_dim as usize;
        let x = View { offset: q.offset + p.q_index as usize * own, len: own, ..*q };
        backend.project_heads(ProjectHeads {
            p: ProjectHeadsParams {
                n_tokens: 1,
                n_heads: p.n_q_heads,
                group: p.n_q_heads / p.n_kv_heads,
                head_dim: p.head_dim,
                rank: p.rank,
                head_major: 0,
            },
            x,
            w: self.w_q,
            out: again(&mut self.query),
        })?;
        backend.split_signs(SplitSigns {
            p: SplitSignsParams { n_vectors: p.n_q_heads, width: p.rank },
            x: written(&self.query),
            out: again(&mut self.split_query),
        })?;
        let p = SearchTokensParams { n_tokens: 1, ..p };
        let (q, q_index, scratch) = (&written(&self.split_query), 0, &mut self.scratch);
        let (width, pooling) = (2 * p.rank, p.pooling);
        let by_bounds = LevelQuery { p, q, q_index, width, pooling, by_id: 0 };
        if let Some(groups) = &mut self.groups {
            groups.level.choose(backend, &by_bounds, None, again(scratch))?;
            groups.level.open(backend, p.n_kv_heads, &mut groups.opened)?;
        }
        let members = self.groups.as_ref().map(|groups| &groups.opened);
        self.clusters.choose(backend, &by_bounds, members, again(scratch))?;
        self.clusters.open(backend, p.n_kv_heads, &mut self.opened)?;
        let (q, width, pooling) = (&written(&self.query), p.rank, p.token_pooling);
        let projected = LevelQuery { p, q, q_index, width, pooling, by_id: 1 };
        let Some(rerank) = &mut self.rerank else {
            return self.tokens.choose(backend, &projected, Some(&self.opened), again(scratch));
        };
        let tokens = &mut self.tokens;
        let mut best = SearchLevel {
            centroids: tokens.centroids,
            sizes: tokens.sizes,
            n: tokens.n,
            budgets: rerank.budgets,
            stride: tokens.stride,
            max_selected: rerank.stride,
            chosen: again(&mut rerank.tokens),
            takes: again(&mut rerank.takes),
            n_chosen: again(&mut rerank.n_tokens),
        };
        best.choose(backend, &projected, Some(&self.opened), again(scratch))?;
        self.choose_by_keys(backend)
    }

    /// Chooses by their keys among the tokens that are to be scored again.
    fn choose_by_keys(&mut self, backend: &B) -> OpResult<()> {
        let Some(rerank) = &self.rerank else { return Ok(()) };
        let (p, tokens) = (&self.p, &mut self.tokens);
        let listed = Some(Listed { ids: written(&rerank.tokens), stride: rerank.stride });
        let n_clusters = written(&rerank.n_tokens);
        backend.score_select(ScoreSelect {
            p: CentroidScoresParams {
                n_tokens: p.n_tokens,
                n_q_heads: p.n_q_heads,
                n_kv_heads: p.n_kv_heads,
                head_dim: p.head_dim,
                score_stride: p.score_stride,
                scale: p.scale,
                pooling: p.token_pooling,
            },
            select: SelectClustersParams {
                n_kv_heads: p.n_kv_heads,
                score_stride: p.score_stride,
                max_selected: tokens.max_selected,
                by_id: 1,
            },
            q: self.q,
            score_spans: &[ScoreSpan {
                q_index: p.q_index,
                centroids: rerank.keys(p.n_kv_heads, p.head_dim),
                sizes: tokens.sizes,
                n_clusters,
                cluster_stride: rerank.key_stride(),
                listed,
                placed: Rerank::<B>::placed(self.opened.first_row),
            }],
            select_spans: &[SelectSpan {
                sizes: tokens.sizes,
                n_clusters,
                budgets: tokens.budgets,
                cluster_stride: tokens.stride,
                listed,
            }],
            scratch: again(&mut self.scratch),
            clusters: again(&mut tokens.chosen),
            takes: again(&mut tokens.takes),
            n_selected: again(&mut tokens.n_chosen),
        })
    }
}

/// What the landmarks of a level are compared with.
struct LevelQuery<'a, B: Backend> {
    p: SearchTokensParams,
    q: &'a View<'a, B>,
    q_index: u32,
    width: u32,
    pooling: u32,
    by_id: u32,
}

impl<B: Backend> SearchLevel<'_, B> {
    /// Scores the landmarks, or those that the level before has `opened`, and chooses.
    fn choose(
        &mut self,
        backend: &B,
        query: &LevelQuery<'_, B>,
        opened: Option<&Opened<'_, B>>,
        scratch: ViewMut<'_, B>,
    ) -> OpResult<()> {
        let LevelQuery { p, q, q_index, width, pooling, by_id } = *query;
        let listed = opened.map(|o| Listed { ids: written(&o.rows), stride: o.stride });
        let n_clusters = opened.map_or(self.n, |opened| written(&opened.n_rows));
        backend.score_select(ScoreSelect {
            p: CentroidScoresParams {
                n_tokens: p.n_tokens,
                n_q_heads: p.n_q_heads,
                n_kv_heads: p.n_kv_heads,
                head_dim: width,
                score_stride: p.score_stride,
                scale: p.scale,
                pooling,
            },
            select: SelectClustersParams {
                n_kv_heads: p.n_kv_heads,
                score_stride: p.score_stride,
                max_selected: self.max_selected,
                by_id,
            },
            q: *q,
            score_spans: &[ScoreSpan {
                q_index,
                centroids: self.centroids,
                sizes: self.sizes,
                n_clusters,
                cluster_stride: self.stride,
                listed,
                placed: Placed::DENSE,
            }],
            select_spans: &[SelectSpan {
                sizes: self.sizes,
                n_clusters,
                budgets: self.budgets,
                cluster_stride: self.stride,
                listed,
            }],
            scratch,
            clusters: again(&mut self.chosen),
            takes: again(&mut self.takes),
            n_selected: again(&mut self.n_chosen),
        })
    }

    /// Lists what the choice opens.
    fn open(&self, backend: &B, n_kv_heads: u32, opened: &mut Opened<'_, B>) -> OpResult<()> {
        backend.cluster_rows(ClusterRows {
            p: ClusterRowsParams {
                n_kv_heads,
                cluster_stride: self.stride,
                max_selected: self.max_selected,
                list_stride: opened.stride,
                first_row: opened.first_row,
            },
            starts: opened.starts,
            clusters: written(&self.chosen),
            takes: written(&self.takes),
            n_selected: written(&self.n_chosen),
            behind: None,
            rows: again(&mut opened.rows),
            n_rows: again(&mut opened.n_rows),
        })
    }
}

/// The same part of a buffer, borrowed for less long.
fn again<'b, B: Backend>(view: &'b mut ViewMut<'_, B>) -> ViewMut<'b, B> {
    ViewMut { buffer: view.buffer, offset: view.offset, len: view.len }
}

/// What was written, to be read.
fn written<'b, B: Backend>(view: &'b ViewMut<'_, B>) -> View<'b, B> {
    View { buffer: view.buffer, offset: view.offset, len: view.len }
}

/// The norm into a scratch buffer, whatever that holds.
fn overwriting(p: RmsNormParams) -> RmsNormParams {
    RmsNormParams { accumulate: 0, ..p }
}

impl<B: Backend> LinearGroup<'_, '_, B> {
    /// The single calls.
    pub fn unfused(mut self, backend: &B) -> OpResult<()> {
        let is_vector = self.n_rows as usize <= backend.capabilities().matvec_max_rows;
        for i in 0..self.layers.len() {
            let layer = self.layer(i);
            if is_vector { backend.matvec(layer)? } else { backend.matmul(layer)? }
        }
        Ok(())
    }
}
