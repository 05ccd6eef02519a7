//! The best centroid of each of a block of points: a product with the running best kept per lane.

use crate::simd::{Kernel, MAX_LANES, Simd};

use super::{pack, tile};

/// Packs NR centroids and the two numbers that turn a dot product into a score: `score = dot * mul
/// + add`.
pub(crate) struct PackCentroids<'a> {
    /// `[n, k]`, n at most NR.
    pub(crate) centroids: &'a [f32],
    pub(crate) k: usize,
    /// `k * NR`, then NR factors, then NR terms.
    pub(crate) panel: &'a mut [f32],
    /// [`longview_ops::Distance`] as a number.
    pub(crate) distance: u32,
}

impl Kernel for PackCentroids<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let k = self.k;
        let n = self.centroids.len() / k;
        assert!(n <= S::NR && self.panel.len() == (k + 2) * S::NR);
        let places = pack::Places::in_order::<S>();
        let row = |i: usize| self.centroids.as_ptr().add(i * k);
        pack::panel::<S, _>(row, n, k, 1.0, S::NR, &places, self.panel.as_mut_ptr());
        let (mul, add) = self.panel[k * S::NR..].split_at_mut(S::NR);
        // Columns without a centroid can never win.
        mul.fill(0.0);
        add.fill(f32::NEG_INFINITY);
        for (i, c) in self.centroids.chunks_exact(k).enumerate() {
            let norm2 = super::vector::dot::<S>(c, c);
            (mul[i], add[i]) = match self.distance {
                0 if norm2 > 0.0 => (1.0 / norm2.sqrt(), 0.0),
                0 if norm2 == 0.0 => (0.0, 0.0),
                0 => (f32::NAN, 0.0),
                1 => (1.0, -0.5 * norm2),
                _ => (1.0, 0.0),
            };
        }
    }
}

/// Points against all panels.
pub(crate) struct Nearest<'a> {
    /// `[n, k]`.
    pub(crate) points: &'a [f32],
    pub(crate) k: usize,
    /// Panels of [`PackCentroids`].
    pub(crate) panels: &'a [f32],
    /// `[n]`, compared and replaced.
    pub(crate) labels: &'a mut [u32],
    /// `[n]`.
    pub(crate) scores: &'a mut [f32],
    /// Strips of points, MR x k each.
    pub(crate) strips: &'a mut [f32],
    /// For each point LANES scores, then LANES panel vectors.
    pub(crate) best: &'a mut [f32],
    /// MR x NR.
    pub(crate) dots: &'a mut [f32],
}

impl Kernel for Nearest<'_> {
    /// How many labels changed.
    type Output = u32;

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) -> u32 {
        let n = self.labels.len();
        assert!(self.scores.len() == n && self.points.len() == n * self.k);
        assert!(self.strips.len() >= n.next_multiple_of(S::MR) * self.k);
        assert!(self.best.len() >= n * 2 * S::LANES && self.dots.len() >= S::MR * S::NR);
        self.start::<S>(n);
        let size = (self.k + 2) * S::NR;
        // Centroids outside, points inside: a panel is read from memory once for all points of the
        // block, and the running best of a point waits in `best` until the next panel.
        for (j, panel) in self.panels.chunks_exact(size).enumerate() {
            let mut i = 0;
            while i < n {
                self.strip::<S>(i, (n - i).min(S::MR), j, panel);
                i += S::MR;
            }
        }
        (0..n).map(|i| self.finish::<S>(i)).sum()
    }
}

impl Nearest<'_> {
    #[inline(always)]
    unsafe fn start<S: Simd>(&mut self, n: usize) {
        let k = self.k;
        let places = pack::Places::in_order::<S>();
        let mut i = 0;
        while i < n {
            let row = |r: usize| self.points.as_ptr().add((i + r) * k);
            let strip = self.strips.as_mut_ptr().add(i * k);
            pack::panel::<S, _>(row, (n - i).min(S::MR), k, 1.0, S::MR, &places, strip);
            i += S::MR;
        }
        for state in self.best[..n * 2 * S::LANES].chunks_exact_mut(2 * S::LANES) {
            state[..S::LANES].fill(f32::NEG_INFINITY);
            state[S::LANES..].fill(f32::from_bits(u32::MAX));
        }
    }

    #[inline(always)]
    unsafe fn strip<S: Simd>(&mut self, i: usize, m: usize, j: usize, panel: &[f32]) {
        tile::full::<S>(tile::Tile {
            k: self.k,
            a: self.strips.as_ptr().add(i * self.k),
            a_row: 1,
            a_col: S::MR,
            b: panel.as_ptr(),
            b_row: S::NR,
            c: self.dots.as_mut_ptr(),
            c_row: S::NR,
            m,
            n: S::NR,
            add: false,
        });
        let tail = panel.as_ptr().add(self.k * S::NR);
        for r in 0..m {
            let state = self.best.as_mut_ptr().add((i + r) * 2 * S::LANES);
            let (mut best, mut id) = (S::load(state), S::load(state.add(S::LANES)));
            // Each lane keeps the best of its own columns, with no meeting of lanes until `finish`.
            // Only a greater score replaces, and columns ascend: ties stay with the lowest cluster.
            for v in 0..S::NV {
                let at = v * S::LANES;
                let (mul, add) = (S::load(tail.add(at)), S::load(tail.add(S::NR + at)));
                let dot = S::load(self.dots.as_ptr().add(r * S::NR + at));
                let score = S::fma(dot, mul, add);
                // The number of the vector, as bits: never calculated with, so any count will do.
                let number = S::splat(f32::from_bits((j * S::NV + v) as u32));
                id = S::select_gt(score, best, number, id);
                best = S::select_gt(score, best, score, best);
            }
            S::store(state, best);
            S::store(state.add(S::LANES), id);
        }
    }

    /// The best lane of point i: greatest score, lowest cluster.
    #[inline(always)]
    unsafe fn finish<S: Simd>(&mut self, i: usize) -> u32 {
        let state = &self.best[i * 2 * S::LANES..(i + 1) * 2 * S::LANES];
        let mut best = (f32::NEG_INFINITY, usize::MAX);
        for lane in 0..S::LANES.min(MAX_LANES) {
            let number = state[S::LANES + lane].to_bits();
            if number == u32::MAX {
                continue;
            }
            let (score, id) = (state[lane], number as usize * S::LANES + lane);
            if score > best.0 || (score == best.0 && id < best.1) {
                best = (score, id);
            }
        }
        // Nothing was greater than minus infinity: the point holds something that is not a number.
        let (score, id) = if best.1 == usize::MAX { (f32::NAN, 0) } else { best };
        self.scores[i] = score;
        let changed = self.labels[i] != id as u32;
        self.labels[i] = id as u32;
        changed as u32
    }
}
