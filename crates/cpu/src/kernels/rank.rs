//! Numbers as whole numbers in the order of the contract, and a search by it.

use crate::simd::{Kernel, MAX_LANES, Simd};

/// Lower for a greater number, the same for both zeros; `nan` for not-a-number, which ranks above
/// all with 0 and below all with [`u32::MAX`].
#[inline(always)]
pub(crate) fn rank(x: f32, nan: u32) -> u32 {
    // Zero plus minus zero is zero.
    let bits = (x + 0.0).to_bits();
    // Negative numbers descend with their bits, positive ones ascend. All bits of a number's sign:
    // as a condition it becomes a branch, and no vectors are made of a loop with one.
    let is_negative = (bits.cast_signed() >> 31).cast_unsigned();
    let descending = bits ^ (!is_negative & !SIGN);
    if x.is_nan() { nan } else { descending }
}

/// The bit of an f32's sign.
const SIGN: u32 = 1 << 31;

/// Sorts by rank and then by id.
pub(crate) fn key(rank: u32, id: u32) -> u64 {
    u64::from(rank) << 32 | u64::from(id)
}

/// Ranks of scores: `to`, with [`u32::MAX`] for an entry of size 0, and just below it for
/// not-a-number. Returns the least and the greatest rank below [`u32::MAX`], and the sum of all
/// sizes; the three have equal lengths.
pub(crate) struct Ranks<'a> {
    pub(crate) scores: &'a [f32],
    pub(crate) sizes: &'a [u32],
    pub(crate) to: &'a mut [u32],
}

/// What [`Ranks`] returns.
pub(crate) struct Ranked {
    pub(crate) least: u32,
    pub(crate) greatest: u32,
    pub(crate) tokens: u64,
}

impl Kernel for Ranks<'_> {
    type Output = Ranked;

    /// The loop has no branch, so that the compiler makes vectors of it.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Ranked {
        let n = self.scores.len();
        assert!(self.sizes.len() == n && self.to.len() == n);
        let (mut least, mut behind, mut tokens) = (u32::MAX, 0, 0);
        let entries = self.scores.iter().zip(self.sizes);
        for ((score, size), to) in entries.zip(self.to) {
            // That the score counts for nothing is said last: said first, it is a branch around it.
            let mut own = rank(*score, u32::MAX - 1);
            own = if *size == 0 { u32::MAX } else { own };
            *to = own;
            least = least.min(own);
            // Nothing is behind an entry of no size.
            behind = behind.max(own.wrapping_add(1));
            tokens = u64::wrapping_add(tokens, u64::from(*size));
        }
        Ranked { least, greatest: behind.saturating_sub(1), tokens }
    }
}

/// `to[i] = from[ids[i]]`.
///
/// # Panics
/// If an id is no place in `from`, or lengths differ.
pub(crate) struct Gather<'a> {
    pub(crate) from: &'a [u32],
    pub(crate) ids: &'a [u32],
    pub(crate) to: &'a mut [u32],
}

impl Kernel for Gather<'_> {
    type Output = ();

    /// Two loops without a branch: many reads wait for memory at once.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { from, ids, to } = self;
        assert_eq!(ids.len(), to.len());
        let mut are_places = true;
        for id in ids {
            are_places &= (*id as usize) < from.len();
        }
        assert!(are_places);
        for i in 0..ids.len() {
            *to.get_unchecked_mut(i) = *from.get_unchecked(*ids.get_unchecked(i) as usize);
        }
    }
}

/// The sum of the sizes of entries whose rank is `limit` at most; equal lengths.
pub(crate) struct SizesUpTo<'a> {
    pub(crate) ranks: &'a [u32],
    pub(crate) sizes: &'a [u32],
    pub(crate) limit: u32,
}

impl Kernel for SizesUpTo<'_> {
    type Output = u64;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> u64 {
        assert_eq!(self.ranks.len(), self.sizes.len());
        let mut tokens = 0;
        // Sums of 32 bits are twice as fast. They do not wrap: tokens are numbered in as many.
        let (ranks, sizes) = (self.ranks.as_ptr(), self.sizes.as_ptr());
        for i in 0..self.ranks.len() {
            let own = if *ranks.add(i) <= self.limit { *sizes.add(i) } else { 0 };
            tokens = u32::wrapping_add(tokens, own);
        }
        u64::from(tokens)
    }
}

/// Lists the entries whose rank is in `from..=from + span`: `first` and their places in `ranks`, in
/// their order. Returns how many.
///
/// # Panics
/// If `to` has no room for them.
pub(crate) struct ListRanks<'a> {
    pub(crate) ranks: &'a [u32],
    pub(crate) from: u32,
    pub(crate) span: u32,
    pub(crate) first: u32,
    pub(crate) to: &'a mut [u32],
}

impl Kernel for ListRanks<'_> {
    type Output = usize;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> usize {
        let Self { ranks, from, span, first, to } = self;
        let (mut i, mut n) = (0, 0);
        while i + S::LANES <= ranks.len() {
            let (at, number) = (ranks.as_ptr().add(i), first + i as u32);
            if n + S::LANES <= to.len() {
                n += S::list_words(at, [from, span], number, to.as_mut_ptr().add(n));
            } else {
                let mut own = [0; MAX_LANES];
                let found = S::list_words(at, [from, span], number, own.as_mut_ptr());
                to[n..n + found].copy_from_slice(&own[..found]);
                n += found;
            }
            i += S::LANES;
        }
        while i < ranks.len() {
            if ranks[i].wrapping_sub(from) <= span {
                to[n] = first + i as u32;
                n += 1;
            }
            i += 1;
        }
        n
    }
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
