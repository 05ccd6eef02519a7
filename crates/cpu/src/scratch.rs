//! Work memory that only grows: after warm-up, taking a piece of it allocates nothing.

use crate::buffer::AlignedBytes;

/// A grow-only arena, cut anew by every use.
#[derive(Default)]
pub(crate) struct Scratch {
    bytes: AlignedBytes,
    /// Rows that an item lists for itself, and how many keys each stands for.
    pub(crate) rows: Vec<u32>,
    pub(crate) weights: Vec<u32>,
}

/// Pieces start on cache lines.
const ALIGN_ELEMENTS: usize = 16;

impl Scratch {
    /// Bytes that it can give without allocating.
    pub(crate) fn size(&self) -> usize {
        self.bytes.as_ref().len()
    }

    /// Makes room for `bytes`, and as much again: an index that grows by a few clusters during
    /// decode then stays within what warm-up took. Untouched pages cost nothing.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        if bytes > self.size() {
            self.bytes.grow(2 * bytes);
        }
    }

    /// Cuts `N` arrays of f32 with the given lengths. What they hold is left over from earlier
    /// uses.
    pub(crate) fn floats<const N: usize>(&mut self, lens: [usize; N]) -> [&mut [f32]; N] {
        let round = |n: usize| n.next_multiple_of(ALIGN_ELEMENTS);
        let total: usize = lens.iter().map(|&n| round(n)).sum();
        self.reserve(total * size_of::<f32>());
        let mut rest: &mut [f32] = bytemuck::cast_slice_mut(self.bytes.as_mut());
        lens.map(|n| {
            let (piece, tail) = std::mem::take(&mut rest).split_at_mut(round(n));
            rest = tail;
            &mut piece[..n]
        })
    }
}
