//! Numbers as whole numbers in the order of the contract, and a search by it.

use crate::simd::Simd;
use crate::supported_isa::Kernel;

/// Lower for a greater number, the same for both zeros; `nan` for not-a-number, which ranks above
/// all with 0 and below all with [`u32::MAX`].
#[inline(always)]
pub(crate) fn rank(x: f32, nan: u32) -> u32 {
    // Zero plus minus zero is zero.
    let bits = (x + 0.0).to_bits();
    // Negative numbers descend with their bits, positive ones ascend.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    if x.is_nan() { nan } else { !ascending }
}

/// Sorts by rank and then by id.
pub(crate) fn key(rank: u32, id: u32) -> u64 {
    u64::from(rank) << 32 | u64::from(id)
}

/// Where the first stretch of [`FirstBelow::STRETCH`] numbers begins of which one ranks below
/// `limit`, not-a-number above all. What is left over at the end counts as such a stretch.
pub(crate) struct FirstBelow<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) limit: u32,
}

impl FirstBelow<'_> {
    /// Numbers that are looked at together.
    pub(crate) const STRETCH: usize = 64;
}

impl Kernel for FirstBelow<'_> {
    type Output = usize;

    /// The loop has no branch, so that the compiler makes vectors of it.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> usize {
        for (i, stretch) in self.x.chunks_exact(Self::STRETCH).enumerate() {
            let mut found = false;
            for &x in stretch {
                found |= rank(x, 0) < self.limit;
            }
            if found {
                return i * Self::STRETCH;
            }
        }
        self.x.len() / Self::STRETCH * Self::STRETCH
    }
}
