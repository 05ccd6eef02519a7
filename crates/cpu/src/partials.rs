//! Attention split over keys: parts on their own, then one merge in a fixed order.

use crate::kernels::attend::merge_weights;
use crate::kernels::vector::Blend;
use crate::team::{Cost, Pieces, Shared, Team};

/// Where items write what they attended, each its own tokens and heads.
#[derive(Clone, Copy)]
pub(crate) struct Targets<'a> {
    /// `[T, Hq, Dh]`.
    pub(crate) out: Shared<'a, f32>,
    /// `[T, Hq]`.
    pub(crate) lse: Shared<'a, f32>,
}

impl<'a> Targets<'a> {
    pub(crate) fn new(out: &'a mut [f32], lse: &'a mut [f32]) -> Self {
        Self { out: Shared::new(out), lse: Shared::new(lse) }
    }
}

/// `n_parts` attentions of the same `n_heads` rows.
pub(crate) struct Partials<'a> {
    /// `[n_parts, n_heads, Dh]`.
    pub(crate) out: &'a [f32],
    /// `[n_parts, n_heads]`.
    pub(crate) lse: &'a [f32],
    pub(crate) n_parts: usize,
    pub(crate) head_dim: usize,
    /// Merge into what the result holds.
    pub(crate) accumulate: bool,
}

impl Partials<'_> {
    /// Merges all parts into `out` (`[n_heads, Dh]`) and `lse`.
    pub(crate) fn merge(&self, team: &mut Team, out: &mut [f32], lse: &mut [f32]) {
        let (n, dh, isa) = (lse.len(), self.head_dim, team.isa());
        let cost = Cost::bytes(self.n_parts * (n * dh * 4 + n * 400));
        team.for_chunks2(Pieces::of(lse, 1), Pieces::of(out, dh), cost, |_, head, lse, out| {
            if !self.accumulate {
                lse[0] = f32::NEG_INFINITY;
                out.fill(0.0);
            }
            for part in 0..self.n_parts {
                let row = part * n + head;
                let (keep, add, merged) = merge_weights(lse[0], self.lse[row]);
                if add != 0.0 {
                    let x = &self.out[row * dh..(row + 1) * dh];
                    isa.run(Blend { x, add, keep, out });
                    lse[0] = merged;
                }
            }
        });
    }
}
