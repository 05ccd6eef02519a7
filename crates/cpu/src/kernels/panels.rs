//! Many rows of activations times a matrix of any plain type, in full f32, as outer products: a
//! column of activations with a row of a panel of weights, both packed.
//!
//! [`super::gemm`] multiplies rows where they lie, and adds the lanes of every sum at the end; that
//! and what it reads from L2 takes a fifth of its time. Here both sides are packed lane by lane, so
//! that [`tile::by_lanes`] makes sums in the same order, and hence of the same bits, without adding
//! across lanes. It pays where there are many rows, each of them long.

use crate::simd::elem::Elem;
use crate::simd::{Kernel, Simd};
use crate::supported_isa::SupportedIsa;
use crate::team::Shared;

use super::pack::{self, Places};
use super::tile::{self, LanePart};

/// Rows of activations from which on packing is worth it.
const LEAST_ROWS: usize = 48;

/// Floats of a tile, and the least elements of a row where packing pays: below it a lane has too
/// few products for its additions. With other tiles it never does. (GFLOP/s of two cores with rows
/// where they lie and with panels. AVX-512, Zen 4: 195 and 177 with 576 elements, 193 and 192 with
/// 1,536, 195 and 205 with 2,048, 175 and 198 with 8,192. AVX2, Zen 3: 127 and 118 with 576, 128
/// and 139 with 1,024, 118 and 136 with 2,048, 112 and 145 with 8,192.)
const LEAST_COLUMNS: [(usize, usize); 2] = [(12 * 32, 2048), (6 * 16, 1024)];

/// Floats of a panel that meet all strips before the next: 16 KiB stay in L1 meanwhile.
const PIECE: usize = 4096;

/// Strips that are multiplied with the same steps: each is read as one stream.
const STRIPS: usize = 8;

/// Whether [`Panels`] is faster than [`super::gemm::Block`].
pub(crate) fn is_faster(isa: SupportedIsa, m: usize, k: usize) -> bool {
    let tile = isa.tile_rows() * isa.tile_cols();
    let pays = |(of, least): &(usize, usize)| *of == tile && k >= *least;
    m >= LEAST_ROWS && LEAST_COLUMNS.iter().any(pays)
}

/// Floats of a strip of packed rows.
pub(crate) fn strip_len(isa: SupportedIsa, k: usize) -> usize {
    isa.tile_rows() * k
}

/// Floats of the sums that wait.
pub(crate) fn waiting_len(isa: SupportedIsa) -> usize {
    STRIPS * isa.run(WaitingLen)
}

struct WaitingLen;

impl Kernel for WaitingLen {
    type Output = usize;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> usize {
        tile::waiting_len::<S>()
    }
}

/// Packs the rows of a strip.
pub(crate) struct PackStrip<'a> {
    /// `[n, k]`, at most as many rows as a tile has; the others become zeros.
    pub(crate) x: &'a [f32],
    pub(crate) k: usize,
    /// As long as [`strip_len`] says.
    pub(crate) to: &'a mut [f32],
}

impl Kernel for PackStrip<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, k, to } = self;
        let n = x.len() / k;
        assert!(n <= S::MR && to.len() == S::MR * k);
        let row = |i: usize| x.as_ptr().add(i * k);
        let places = Places::by_lanes::<S>(k);
        pack::panel::<S, _>(row, n, k, 1.0, S::MR, &places, to.as_mut_ptr());
    }
}

/// A panel of columns of the output.
pub(crate) struct Panels<'a, E> {
    /// Strips of the rows, as [`PackStrip`] makes them.
    pub(crate) x: &'a [f32],
    /// Rows.
    pub(crate) m: usize,
    /// `[n, k]`: at most as many weight rows as a tile has columns.
    pub(crate) weights: &'a [E],
    pub(crate) k: usize,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) add: bool,
    /// `[m, n_out]`; only columns of this panel are touched.
    pub(crate) out: Shared<'a, f32>,
    pub(crate) n_out: usize,
    /// Column of the first weight row.
    pub(crate) first: usize,
    /// A tile's columns times k.
    pub(crate) panel: &'a mut [f32],
    /// As long as [`waiting_len`] says.
    pub(crate) waiting: &'a mut [f32],
}

impl<E: Elem> Kernel for Panels<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, m, weights, k, bias, add, out, n_out, first, panel, waiting } = self;
        let n = weights.len() / k;
        assert!(x.len() >= m.next_multiple_of(S::MR) * k);
        assert!(k >= S::LANES, "a lane without products leaves its sum unwritten");
        assert!(n <= S::NR && panel.len() == S::NR * k);
        assert!(waiting.len() >= STRIPS * tile::waiting_len::<S>());
        assert!(bias.is_none_or(|bias| bias.len() >= first + n));
        let row = |i: usize| weights.as_ptr().add(i * k);
        let places = Places::by_lanes::<S>(k);
        pack::panel::<S, _>(row, n, k, 1.0, S::NR, &places, panel.as_mut_ptr());
        let n_strips = m.div_ceil(S::MR);
        for from in (0..n_strips).step_by(STRIPS) {
            let strips = from..n_strips.min(from + STRIPS);
            let rows = from * S::MR..m.min(strips.end * S::MR);
            let x = x.as_ptr().add(from * S::MR * k);
            by_lanes::<S>(x, panel.as_ptr(), k, strips.len(), waiting.as_mut_ptr());
            for r in rows {
                let strip = r / S::MR - from;
                let last = (strip + 1) * tile::waiting_len::<S>() - S::MR * S::NR;
                let sums = waiting.as_ptr().add(last + r % S::MR * S::NR);
                let out = out.slice(r * n_out + first, n);
                for j in 0..n {
                    let bias = bias.map_or(0.0, |bias| *bias.as_ptr().add(first + j));
                    let old = if add { out[j] } else { 0.0 };
                    out[j] = *sums.add(j) + bias + old;
                }
            }
        }
    }
}

/// The sums of a few strips with a panel. Of each lane the steps that stay in L1 meet all strips
/// before the next.
#[inline(always)]
unsafe fn by_lanes<S: Simd>(
    x: *const f32,
    panel: *const f32,
    k: usize,
    n_strips: usize,
    waiting: *mut f32,
) {
    let mut start = 0;
    for (lane, &number) in S::SUM_ORDER[..S::LANES].iter().enumerate() {
        let end = start + pack::of_lane::<S>(k, number);
        let mut at = start;
        while at < end {
            let steps = (PIECE / S::NR).min(end - at);
            for strip in 0..n_strips {
                // The same steps of the next strip, or the next ones of the first.
                let next = if strip + 1 < n_strips { (strip + 1) * k + at } else { at + steps };
                let ahead = 4 * S::MR as isize * (next as isize - (strip * k + at) as isize);
                tile::part_of_lane::<S>(LanePart {
                    a: x.add((strip * k + at) * S::MR),
                    b: panel.add(at * S::NR),
                    steps,
                    ahead,
                    waiting: waiting.add(strip * tile::waiting_len::<S>()),
                    lane,
                    begins: at == start,
                    ends: at + steps == end,
                });
            }
            at += steps;
        }
        start = end;
    }
}
