//! Many rows of activations, rounded to 16 bits, times tiles of quantised weights: both as words.
//!
//! [`super::quant`] multiplies codes where they lie, as bytes, and an activation of 16 bits is two
//! of them. With many rows it pays to widen codes once: two products of words are one instruction,
//! where products of bytes take up to six. Sums of a unit are the same whole numbers, and units are
//! added by the same steps in the same order, so outputs have the same bits.

use std::marker::PhantomData;

use longview_core::quant::{Scales, TILE_ROWS, UNIT};

use crate::simd::words::{WordKernel, WordSimd};
use crate::simd::{Kernel, Simd};
use crate::team::Shared;

use super::quant::{
    Codes, Format, QuantTiles, RoundRow, Rounding, ask_for, signed_codes, unit_codes, unit_scales,
    with_format,
};

/// Rows from which on widening is worth it.
pub(crate) const LEAST_ROWS: usize = 8;

/// Columns that are widened at a time: 16 KiB of words, which stay in L1 while all rows pass.
const COLUMNS: usize = 512;

/// Units of these.
const UNITS: usize = COLUMNS / UNIT;

/// Vectors of a tile's rows.
const PARTS: usize = 2;

/// Words that a unit of a tile becomes: of each pair of columns all rows.
const WORDS: usize = UNIT * TILE_ROWS;

/// Scales of a unit: of both halves, and smallest values.
const SCALES: usize = 3 * TILE_ROWS;

/// Floats that [`WordTiles`] needs for `n_rows` rows: words, scales, sums that wait.
pub(crate) fn scratch_lens(n_rows: usize) -> [usize; 3] {
    [UNITS * WORDS / 2, UNITS * SCALES, n_rows * TILE_ROWS]
}

/// Where `n` words of row `r` of `n_rows` lie, from column `first` on, a multiple of [`COLUMNS`]:
/// as many columns of all rows side by side, so that they are read as one stream. (Rows of 8,192
/// words where they are fall into the same sets of L1.)
fn place(n_rows: usize, r: usize, first: usize, n: usize) -> usize {
    first * n_rows + r * n
}

/// Rounds row `r` of `n_rows` to words, and writes them to their [`place`]s.
pub(crate) struct RoundToWords<'a> {
    pub(crate) rounding: Rounding,
    pub(crate) x: &'a [f32],
    pub(crate) r: usize,
    pub(crate) n_rows: usize,
    /// `[n_rows, k]`; only words of this row are touched.
    pub(crate) words: Shared<'a, i16>,
    /// As of [`RoundRow`].
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums: &'a mut [u32],
}

impl Kernel for RoundToWords<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { rounding, x, r, n_rows, words, scales, sums } = self;
        let n_sums = sums.len() / (x.len() / UNIT);
        let (x, scales) = (x.chunks(COLUMNS), scales.chunks_mut(UNITS));
        let sums = sums.chunks_mut(UNITS * n_sums);
        for (i, ((x, scales), sums)) in x.zip(scales).zip(sums).enumerate() {
            let codes = words.slice(place(n_rows, r, i * COLUMNS, x.len()), x.len());
            S::call(RoundRow { rounding, x, codes: Codes::Words(codes), scales, sums });
        }
    }
}

/// The same outputs as of [`QuantTiles`], by words.
pub(crate) struct WordTiles<'a> {
    /// With rows that are rounded to words.
    pub(crate) of: QuantTiles<'a>,
    /// As [`scratch_lens`] says.
    pub(crate) words: &'a mut [i16],
    pub(crate) scales: &'a mut [f32],
    pub(crate) waiting: &'a mut [f32],
}

impl WordKernel for WordTiles<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: WordSimd>(mut self) {
        const { assert!(PARTS * S::LANES == TILE_ROWS) };
        let QuantTiles { tiles, x, n_rows, .. } = self.of;
        let n_units = n_rows * tiles.n_units();
        assert!(x.words.len() >= n_rows * tiles.n_cols);
        assert!(x.scales.len() >= n_units && x.sums.len() >= n_units);
        let need = scratch_lens(n_rows);
        assert!(self.words.len() >= 2 * need[0] && self.scales.len() >= need[1]);
        assert!(self.waiting.len() >= need[2]);
        let n_tiles = self.of.check();
        for tile in 0..n_tiles {
            self.tile::<S>(tile);
        }
    }
}

impl WordTiles<'_> {
    /// Tile `index` of the run.
    #[inline(always)]
    unsafe fn tile<S: WordSimd>(&mut self, index: usize) {
        let QuantTiles { tiles, bytes, outputs, .. } = self.of;
        let (units, len) = (tiles.n_units(), tiles.tile_bytes());
        let tile = &bytes[index * len..(index + 1) * len];
        let mut first = 0;
        while first < units {
            let n = UNITS.min(units - first);
            let (words, scales) = (self.words.as_mut_ptr(), self.scales.as_mut_ptr());
            with_format!(tiles.ty, F => {
                S::call_words(Widen::<F> { tile, first, n, words, scales, format: PhantomData });
            });
            // What is widened next comes from memory, and no loop above reads ahead.
            let next = bytes.as_ptr().wrapping_add(index * len + (first + n) * len / units);
            ask_for::<S>(next, n * len / units);
            self.multiply::<S>(first, n);
            first += n;
        }
        for r in 0..self.of.n_rows {
            for part in 0..PARTS {
                let column = (self.of.first + index) * TILE_ROWS + part * S::LANES;
                let y = S::load(self.waiting.as_ptr().add(r * TILE_ROWS + part * S::LANES));
                outputs.write::<S>(r, column, y);
            }
        }
    }

    /// Adds `n` units from `first` on to all rows.
    #[inline(always)]
    unsafe fn multiply<S: WordSimd>(&mut self, first: usize, n: usize) {
        let (n_rows, scales) = (self.of.n_rows, self.of.tiles.ty.scales());
        let mut r = 0;
        while r < n_rows {
            let rows = self.rows(r, first, n);
            r += match (scales, n_rows - r) {
                (Scales::SuperHalves, 4..) => rows.add::<S, 4, 2, false>(),
                (Scales::SuperHalves, _) => rows.add::<S, 1, 2, false>(),
                (Scales::WithMin | Scales::SuperMin, 4..) => rows.add::<S, 4, 1, true>(),
                (Scales::WithMin | Scales::SuperMin, _) => rows.add::<S, 1, 1, true>(),
                (Scales::F16 | Scales::Bf16, 4..) => rows.add::<S, 4, 1, false>(),
                (Scales::F16 | Scales::Bf16, _) => rows.add::<S, 1, 1, false>(),
            };
        }
    }

    /// Rows from `r` on, and `n` units of them from `first` on.
    #[inline(always)]
    unsafe fn rows(&mut self, r: usize, first: usize, n: usize) -> AddUnits {
        let QuantTiles { tiles, x, n_rows, .. } = self.of;
        let units = tiles.n_units();
        let start = place(n_rows, r, first * UNIT, n * UNIT);
        AddUnits {
            n,
            is_first: first == 0,
            words: self.words.as_ptr(),
            scales: self.scales.as_ptr(),
            x: x.words.as_ptr().add(start),
            x_scales: x.scales.as_ptr().add(r * units + first),
            // Nothing reads it in a format without smallest values.
            x_sums: x.sums.as_ptr().wrapping_add(r * units + first),
            units,
            y: self.waiting.as_mut_ptr().add(r * TILE_ROWS),
        }
    }
}

/// Makes words and scales of `n` units of a tile, from `first` on.
struct Widen<'a, F> {
    tile: &'a [u8],
    first: usize,
    n: usize,
    /// Of each unit, of each pair of columns, the pairs of all rows.
    words: *mut i16,
    /// Of each unit the scales of both halves, and the smallest values, of all rows.
    scales: *mut f32,
    format: PhantomData<F>,
}

impl<F: Format> WordKernel for Widen<'_, F> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: WordSimd>(self) {
        for i in 0..self.n {
            let u = self.first + i;
            let in_chunk = u % F::CHUNK.units;
            let chunk = self.tile.as_ptr().add(u / F::CHUNK.units * F::CHUNK.bytes);
            let at = chunk.add(F::CHUNK.scale_bytes + in_chunk * F::TY.plane_bytes());
            let words = self.words.add(i * WORDS);
            let scales = self.scales.add(i * SCALES);
            for part in 0..PARTS {
                let lane = part * S::LANES;
                let codes = signed_codes::<S, F>(unit_codes::<S, F>(at.add(4 * lane)));
                for j in 0..UNIT / 4 {
                    let [first, last] = S::widen(codes[j], F::OFFSET as i16);
                    let to = words.add(2 * (2 * j * TILE_ROWS + lane));
                    S::store_words(to, first);
                    S::store_words(to.add(2 * TILE_ROWS), last);
                }
                let (d, m) = unit_scales::<S, F>(chunk, in_chunk, lane);
                S::store(scales.add(lane), d[0]);
                S::store(scales.add(TILE_ROWS + lane), d[1]);
                S::store(scales.add(2 * TILE_ROWS + lane), m);
            }
        }
    }
}

/// A few rows, and the units of them that meet those that were widened.
struct AddUnits {
    n: usize,
    /// Whether sums begin here.
    is_first: bool,
    words: *const i16,
    scales: *const f32,
    /// Words of the first row; those of the others follow.
    x: *const i16,
    x_scales: *const f32,
    x_sums: *const u32,
    /// Units of a row.
    units: usize,
    /// `[R, TILE_ROWS]`
    y: *mut f32,
}

impl AddUnits {
    /// For R rows; returns R.
    #[inline(always)]
    unsafe fn add<S: WordSimd, const R: usize, const HALVES: usize, const HAS_MIN: bool>(
        self,
    ) -> usize {
        S::call_words(AddRows::<R, HALVES, HAS_MIN>(self));
        R
    }
}

/// [`AddUnits`] of R rows and a kind of scales.
struct AddRows<const R: usize, const HALVES: usize, const HAS_MIN: bool>(AddUnits);

impl<const R: usize, const HALVES: usize, const HAS_MIN: bool> WordKernel
    for AddRows<R, HALVES, HAS_MIN>
{
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: WordSimd>(self) {
        let Self(rows) = self;
        let mut y = [[S::zero(); PARTS]; R];
        for i in 0..R {
            for part in 0..PARTS {
                if !rows.is_first {
                    y[i][part] = S::load(rows.y.add(i * TILE_ROWS + part * S::LANES));
                }
            }
        }
        for u in 0..rows.n {
            let words = rows.words.add(u * WORDS);
            let scales = rows.scales.add(u * SCALES);
            let x = rows.x.add(u * UNIT);
            for h in 0..HALVES {
                let mut dots = [[S::zero_int(); PARTS]; R];
                let pairs = UNIT / 2 / HALVES;
                for pair in h * pairs..(h + 1) * pairs {
                    let at = words.add(pair * 2 * TILE_ROWS);
                    let w = [S::load_words(at), S::load_words(at.add(TILE_ROWS))];
                    for i in 0..R {
                        let x = S::splat_words(x.add(i * rows.n * UNIT + 2 * pair));
                        for part in 0..PARTS {
                            dots[i][part] = S::dot_words(dots[i][part], w[part], x);
                        }
                    }
                }
                // As `add_unit` of bytes has it.
                for i in 0..R {
                    let s = S::splat(*rows.x_scales.add(i * rows.units + u));
                    for part in 0..PARTS {
                        let d = S::load(scales.add(h * TILE_ROWS + part * S::LANES));
                        y[i][part] = S::fma(S::mul(d, s), S::to_float(dots[i][part]), y[i][part]);
                    }
                }
            }
            if HAS_MIN {
                for i in 0..R {
                    let sum = S::splat(f32::from_bits(*rows.x_sums.add(i * rows.units + u)));
                    for part in 0..PARTS {
                        let m = S::load(scales.add(2 * TILE_ROWS + part * S::LANES));
                        y[i][part] = S::fma(m, sum, y[i][part]);
                    }
                }
            }
        }
        for i in 0..R {
            for part in 0..PARTS {
                S::store(rows.y.add(i * TILE_ROWS + part * S::LANES), y[i][part]);
            }
        }
    }
}
