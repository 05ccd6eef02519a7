//! What a sequence shows of its last decode step to those who inspect it.

use longview_core::{HeadId, LayerId};
use longview_ops::Backend;

use super::kv_sequence::Sequence;
use super::layer_state::LayerState;
use crate::inspect::{AttendedHead, TokenPlace, TracedLayer, TrackedHead, mark};
use crate::layout::{KvShape, SelectionId};
use crate::recall::{Bounded, RecallPath};

impl<B: Backend> Sequence<B> {
    /// The rows that each KV head attended in the last decoded layer, in the numbering of the place
    /// that was read.
    pub fn last_attended(&self, head: HeadId) -> &[u32] {
        self.lists.head(head)
    }

    /// The selection that `layer` attends: its own, or that of the first of the layers that share
    /// one.
    pub(super) fn attended_selection(&self, own: SelectionId) -> SelectionId {
        own.shared(self.policy.index.map_or(1, |index| index.schedule.layer_step))
    }

    /// The rows that a KV head recalled in the last decode step, cluster by cluster, best first.
    fn last_recalled_rows(&self, layer: LayerId, head: HeadId) -> impl Iterator<Item = u32> + '_ {
        let state = self.layers[layer].recall().zip(self.recall.as_ref());
        let state = state.filter(|_| !self.attends_all(layer, self.n_tokens));
        state.into_iter().flat_map(move |(state, path)| {
            let selection = self.attended_selection(state.selection);
            let starts = &state.selected_index().heads()[head].starts;
            path.selector
                .selected(selection, head)
                .flat_map(move |(cluster, take)| starts[cluster]..starts[cluster] + take as u32)
        })
    }

    /// The tokens that a KV head recalled in the last decode step, cluster by cluster, best first:
    /// beside these it attended sinks and recent tokens. Nothing in a layer that does not recall,
    /// and nothing where the device looks rows up while no step is traced and no head followed: its
    /// selection stays there.
    pub fn last_recalled(&self, layer: LayerId, head: HeadId) -> impl Iterator<Item = u32> + '_ {
        let positions = &self.layers[layer].positions[head];
        self.last_recalled_rows(layer, head).map(|row| positions[row as usize])
    }

    /// The tokens that a KV head attended in the last decode step, in no order; without what it
    /// recalled where [`Sequence::last_recalled`] does not have it.
    pub fn attended_tokens(&self, layer: LayerId, head: HeadId) -> Vec<u32> {
        let (state, n) = (&self.layers[layer], self.n_tokens);
        if self.attends_all(layer, n) {
            return state.positions[head][..n].to_vec();
        }
        let start = self.window_start(layer, n);
        let positions = &state.positions[head];
        let sinks = self.sinks(layer).min(n).min(start);
        let mut tokens = positions[..sinks].to_vec();
        tokens.extend(&positions[start..n]);
        tokens.extend(self.last_recalled(layer, head));
        if let Some(kept) = state.kept() {
            let room = (kept.capacity[head] + self.policy.recent).saturating_sub(n - start);
            tokens.extend(kept.rows[head].iter().take(room).map(|kept| kept.row));
        }
        tokens
    }

    /// The tokens that each KV head of a layer keeps beside the recent ones, best first.
    pub fn kept_tokens(&self, layer: LayerId, head: HeadId) -> impl Iterator<Item = u32> + '_ {
        let kept = self.layers[layer].kept();
        kept.into_iter().flat_map(move |kept| kept.rows[head].iter().map(|kept| kept.row))
    }

    /// For each query head of a layer, an upper bound of U / Z after a decode step: of the mass
    /// that it did not attend over the mass that it did. `q` is the step's query `[Hq, Dh]`, `lse`
    /// the log-sum-exp of what it attended `[Hq]`. `None` where the index bounds nothing: indexes
    /// of tokens, blocks stood for by some of their keys, policies that evict, and where the device
    /// looks rows up.
    pub fn bounds(&self, layer: LayerId, q: &[f32], lse: &[f32]) -> Option<Vec<f64>> {
        let (state, path) = (self.layers[layer].recall()?, self.recall.as_ref()?);
        if path.is_on_device() {
            return None;
        }
        let bounded = Bounded {
            shape: &self.shape,
            kind: self.policy.index?.kind,
            index: &state.index,
            selector: &path.selector,
            selection: self.attended_selection(state.selection),
        };
        bounded.ratios(&*self.backend, q, lse)
    }

    /// Follows a layer and a KV head of it from the next decode step on, or none.
    ///
    /// # Panics
    /// If there is no such layer or head.
    pub fn track_head(&mut self, place: Option<(LayerId, HeadId)>) {
        self.tracked = place.map(|(layer, head)| {
            let KvShape { n_layers, n_kv_heads, .. } = self.shape;
            assert!(layer.index() < n_layers && head.index() < n_kv_heads, "no such KV head");
            TrackedHead::new(layer, head)
        });
    }

    /// Whether somebody looks at each decode step.
    pub(super) fn is_looked_at(&self) -> bool {
        !self.trace.layers().is_empty() || self.tracked.is_some()
    }

    pub(super) fn forget_tracked(&mut self) {
        if let Some(tracked) = &mut self.tracked {
            tracked.clear();
        }
    }

    /// Where each token stood for the head that is followed, in the last decode step; `out` gets
    /// one entry for each token of the sequence, or none if no head is followed.
    ///
    /// Rows that are read where they lie count as hits, and so does everything that a head attends
    /// which attends to all or to what was kept, and what the device itself looks up.
    pub fn token_places(&self, out: &mut Vec<TokenPlace>) {
        out.clear();
        let Some(tracked) = &self.tracked else { return };
        let (layer, head, n) = (tracked.layer, tracked.head, self.n_tokens);
        let state = &self.layers[layer];
        let positions = &state.positions[head];
        let attends_all = self.attends_all(layer, n);
        if attends_all {
            out.resize(n, TokenPlace::Hit);
        } else {
            out.resize(n, TokenPlace::Skipped);
        }
        if let LayerState::Recall(recall) = &state.state
            && let Some(cache) = recall.caches.get(head.index())
        {
            let starts = &recall.selected_index().heads()[head].starts;
            for (cluster, held) in cache.held() {
                let first = starts[cluster.index()] as usize;
                mark(out, positions[first..first + held].iter().copied(), TokenPlace::Held);
            }
        }
        mark(out, self.last_recalled(layer, head), TokenPlace::Hit);
        let missed = tracked.missed().iter().filter_map(|row| positions.get(*row as usize));
        mark(out, missed.copied(), TokenPlace::Missed);
        let drawn = self.drawn_tokens(layer, head).into_iter().map(|(token, _)| token);
        mark(out, drawn, TokenPlace::Drawn);
        mark(out, self.kept_tokens(layer, head), TokenPlace::Hit);
        if !attends_all {
            let sinks = self.sinks(layer).min(n);
            out[..sinks].fill(TokenPlace::Sink);
            out[self.window_start(layer, n)..].fill(TokenPlace::Recent);
        }
    }

    /// Copies queries and attention of every decode step to the host from now on, or no longer.
    /// Each layer then waits for the device.
    pub fn trace(&mut self, on: bool) {
        self.trace.set(on, &self.shape);
    }

    /// What each layer computed for the last decoded token; empty while steps are not traced.
    pub fn traced(&self) -> &[TracedLayer] {
        self.trace.layers()
    }

    /// Adds what each token received from the last decoded one to `mass[token]`: of every query
    /// head of every layer the probability above that of a head which gives all tokens that it
    /// attends the same. First tokens are left out, because heads leave there what they have no use
    /// for.
    ///
    /// Computed on the host in f32 from the traced queries and the host store's keys; nothing
    /// while steps are not traced. Returns the rows that were read.
    pub fn add_attention(&self, mass: &mut [f32]) -> usize {
        let mut attended = Vec::new();
        let mut n_read = 0;
        let shape = &self.shape;
        for (layer, traced) in shape.layers().zip(self.traced()) {
            let queries = traced.q.chunks_exact(traced.q.len() / shape.n_kv_heads);
            for (head, q) in shape.heads().zip(queries) {
                self.list_attended_rows(layer, head, &mut attended);
                n_read += attended.len();
                let head = AttendedHead {
                    rows: self.rows(layer),
                    head,
                    positions: &self.layers[layer].positions[head],
                    attended: &attended,
                    sinks: self.policy.sinks.max(1),
                };
                head.add_attention(q, mass);
            }
        }
        n_read
    }

    /// The rows of the host store that a head attended in the last decode step, ascending.
    fn list_attended_rows(&self, layer: LayerId, head: HeadId, rows: &mut Vec<u32>) {
        rows.clear();
        let n = self.n_tokens;
        if self.attends_all(layer, n) {
            return rows.extend(0..n as u32);
        }
        let start = self.window_start(layer, n);
        rows.extend((0..self.sinks(layer).min(start)).chain(start..n).map(|row| row as u32));
        rows.extend(self.last_recalled_rows(layer, head));
        rows.extend(self.kept_tokens(layer, head));
        rows.sort_unstable();
        rows.dedup();
    }

    /// Whether the step in progress goes by the last step's selections.
    pub(super) fn speculates(&self) -> bool {
        self.recall.as_ref().is_some_and(RecallPath::is_speculative)
    }
}
