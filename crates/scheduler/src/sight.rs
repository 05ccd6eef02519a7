//! What somebody sees who looks at one KV head: which tokens its last decode step attended, and
//! where the step found them.

use longview_ops::Backend;

use crate::layer::LayerMode;
use crate::sequence::Sequence;

/// Where a token stood for a KV head in the last decode step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenPlace {
    /// Not attended, and not on the device.
    #[default]
    Skipped = 0,
    /// Attended: one of the first tokens, which always are.
    Sink = 1,
    /// Attended: one of the last tokens, which no index holds yet.
    Recent = 2,
    /// Attended: it was on the device.
    Hit = 3,
    /// Attended: it was fetched for this step.
    Missed = 4,
    /// Not attended, and still on the device from an earlier step.
    Held = 5,
}

/// The KV head that is looked at, and the rows that its last step fetched.
#[derive(Debug)]
pub(crate) struct Sight {
    layer: usize,
    head: usize,
    missed: Vec<u32>,
}

impl Sight {
    /// A step comes to `layer`.
    pub fn begin_layer(&mut self, layer: usize) {
        if layer == self.layer {
            self.missed.clear();
        }
    }

    /// No step stands any more.
    pub fn clear(&mut self) {
        self.missed.clear();
    }

    /// A row of the host tier was not on the device.
    pub fn note_miss(&mut self, layer: usize, head: usize, row: usize) {
        if (layer, head) == (self.layer, self.head) {
            self.missed.push(row as u32);
        }
    }
}

impl<B: Backend> Sequence<B> {
    /// Looks at a layer and a KV head of it from the next decode step on, or at none.
    ///
    /// # Panics
    /// If there is no such layer or head.
    pub fn look_at(&mut self, place: Option<(usize, usize)>) {
        self.sight = place.map(|(layer, head)| {
            assert!(layer < self.shape.n_layers && head < self.shape.n_kv_heads, "no such KV head");
            Sight { layer, head, missed: Vec::new() }
        });
    }

    pub(crate) fn forget_sight(&mut self) {
        if let Some(sight) = &mut self.sight {
            sight.clear();
        }
    }

    /// Where each token stood for the head that is looked at, in the last decode step; `out` gets
    /// one entry for each token of the sequence, or none if nobody looks.
    ///
    /// Rows that are read where they lie count as hits, and so does everything that a head attends
    /// which attends to all or to what was kept. Where the device resolves hits and misses itself
    /// the host does not know its choice.
    pub fn token_places(&self, out: &mut Vec<TokenPlace>) {
        out.clear();
        let Some(Sight { layer, head, missed }) = &self.sight else { return };
        let (layer, head, n) = (*layer, *head, self.n_tokens);
        let state = &self.layers[layer];
        let rest = match state.mode {
            LayerMode::Dense => TokenPlace::Hit,
            LayerMode::Window | LayerMode::Recall | LayerMode::Keep => TokenPlace::Skipped,
        };
        out.resize(n, rest);
        let index = state.fine.as_ref().or(state.index.as_ref());
        if let (Some(index), Some(cache)) = (index, state.caches.get(head)) {
            let starts = &index.heads()[head].starts;
            for (cluster, held) in cache.held() {
                let first = starts[cluster.index()] as usize;
                for token in &state.positions[head][first..first + held] {
                    mark(out, *token, TokenPlace::Held);
                }
            }
        }
        for token in self.last_recalled(layer, head) {
            mark(out, token, TokenPlace::Hit);
        }
        for row in missed {
            if let Some(token) = state.positions[head].get(*row as usize) {
                mark(out, *token, TokenPlace::Missed);
            }
        }
        if let Some(kept) = &state.kept {
            for kept in &kept.rows[head] {
                mark(out, kept.row, TokenPlace::Hit);
            }
        }
        if state.mode != LayerMode::Dense {
            let sinks = self.layout.sinks.min(n);
            out[..sinks].fill(TokenPlace::Sink);
            out[self.window_start(layer, n)..].fill(TokenPlace::Recent);
        }
    }
}

fn mark(out: &mut [TokenPlace], token: u32, place: TokenPlace) {
    if let Some(cell) = out.get_mut(token as usize) {
        *cell = place;
    }
}
