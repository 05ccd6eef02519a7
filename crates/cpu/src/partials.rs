//! Attention split over keys: parts on their own, then one merge in their order.

use crate::kernels::state::{Mass, MergeParts, Parts, Results};
use crate::scratch::Scratch;
use crate::team::{Cost, Shared, Team};

/// `n_parts` attentions of the same `n_heads` rows.
pub(crate) struct Partials<'a> {
    /// `[n_parts, n_heads, Dh]`.
    o: &'a mut [f32],
    /// `[n_parts, n_heads]`.
    max: &'a mut [f32],
    /// `[n_parts, n_heads]`.
    sum: &'a mut [f32],
    n_parts: usize,
    n_heads: usize,
    head_dim: usize,
}

impl<'a> Partials<'a> {
    pub(crate) fn new(
        scratch: &'a mut Scratch,
        n_parts: usize,
        n_heads: usize,
        head_dim: usize,
    ) -> Self {
        let n = n_parts * n_heads;
        let [o, max, sum] = scratch.floats([n * head_dim, n, n]);
        // No item writes a part that a window or a mask hides from all rows.
        max.fill(Mass::NONE.max);
        sum.fill(Mass::NONE.sum);
        Self { o, max, sum, n_parts, n_heads, head_dim }
    }

    /// Where items write their parts.
    pub(crate) fn parts(&mut self) -> Parts<'_> {
        Parts {
            o: Shared::new(self.o),
            max: Shared::new(self.max),
            sum: Shared::new(self.sum),
            n_heads: self.n_heads,
            first: 0,
        }
    }

    /// Merges all parts into `results`, of as many rows.
    pub(crate) fn merge(&self, team: &mut Team, results: Results<'_>) {
        let Self { o, max, sum, n_parts, n_heads, head_dim: dh } = self;
        let isa = team.isa();
        let cost = Cost::bytes(n_parts * n_heads * (dh * 4 + 100));
        team.for_each(*n_heads, cost, |scratch, at| {
            let [total] = scratch.floats([*dh]);
            let parts = (0..*n_parts).map(|part| {
                let row = part * n_heads + at;
                (Mass { max: max[row], sum: sum[row] }, &o[row * dh..(row + 1) * dh])
            });
            isa.run(MergeParts { parts, o: total, results, at });
        });
    }
}
