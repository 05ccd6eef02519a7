//! Attention split over keys: parts on their own, then one merge in a fixed order.

use crate::kernels::attend::merge_weights;
use crate::kernels::vector::Blend;
use crate::team::{Cost, Team};

/// `n_parts` attentions of the same `n_heads` rows.
pub(super) struct Partials<'a> {
    /// `[n_parts, n_heads, Dh]`.
    pub(super) out: &'a [f32],
    /// `[n_parts, n_heads]`.
    pub(super) lse: &'a [f32],
    pub(super) n_parts: usize,
    pub(super) head_dim: usize,
    /// Merge into what the result holds.
    pub(super) accumulate: bool,
}

impl Partials<'_> {
    /// Merges all parts into `out` (`[n_heads, Dh]`) and `lse`.
    pub(super) fn merge(&self, team: &mut Team, out: &mut [f32], lse: &mut [f32]) {
        let (n, dh, tier) = (lse.len(), self.head_dim, team.tier());
        let cost = Cost::bytes(self.n_parts * (n * dh * 4 + n * 400));
        team.for_chunks2((lse, 1), (out, dh), cost, |_, head, lse, out| {
            if !self.accumulate {
                lse[0] = f32::NEG_INFINITY;
                out.fill(0.0);
            }
            for part in 0..self.n_parts {
                let row = part * n + head;
                let (keep, add, merged) = merge_weights(lse[0], self.lse[row]);
                if add != 0.0 {
                    let x = &self.out[row * dh..(row + 1) * dh];
                    tier.run(Blend { x, add, keep, out });
                    lse[0] = merged;
                }
            }
        });
    }
}
