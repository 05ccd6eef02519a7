//! Many rows of activations, rounded to 16 bits, times tiles of quantised weights: both as words.
//!
//! [`super::quant`] multiplies codes where they lie, as bytes, and an activation of 16 bits is two
//! of them. With many rows it pays to widen codes once: two products of words are one instruction.
//! With AVX2 those of bytes take up to six; with VNNI one is four of them, of one plane, and each
//! row's planes are put together for each unit. Sums of a unit are the same whole numbers, and
//! units are added by the same steps in the same order, so outputs have the same bits.

use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::Range;

use longview_core::quant::{Scales, TILE_ROWS, UNIT};

use crate::simd::words::{WordKernel, WordSimd};
use crate::simd::{Kernel, Simd};
use crate::team::Shared;

use super::quant::{
    Format, QuantTiles, Rounding, ask_for, signed_codes, unit_code, unit_codes, unit_scale,
    unit_scales, with_format,
};

/// Columns that are widened at a time: 16 KiB of words, which stay in L1 while all rows pass.
const COLUMNS: usize = 512;

/// Units of these.
const UNITS: usize = COLUMNS / UNIT;

/// Vectors of a tile's rows, at most.
const MAX_PARTS: usize = 2;

/// Vectors of a tile's rows.
const fn parts<S: Simd>() -> usize {
    TILE_ROWS / S::LANES
}

/// Words that a unit of a tile becomes: of each pair of columns all rows.
const WORDS: usize = UNIT * TILE_ROWS;

/// Scales of a unit: of both halves, and smallest values.
const SCALES: usize = 3 * TILE_ROWS;

/// Rows that pass the words of a run of tiles, block by block: a block of so many, 256 KiB, stays
/// in L2 while they meet all tiles.
const ROWS: usize = 256;

/// Floats that [`WordTiles`] needs for `n_rows` rows and `n_tiles` tiles: words, scales, sums that
/// wait.
pub(crate) fn scratch_lens(n_rows: usize, n_tiles: usize) -> [usize; 3] {
    [UNITS * WORDS / 2, UNITS * SCALES, n_rows.min(ROWS) * n_tiles * TILE_ROWS]
}

/// How the columns of all rows are cut into blocks of as many units. Of each block all rows lie
/// side by side, so that they are read as one stream, and as far apart whatever a row's length is,
/// so that a kernel knows where. (Whole rows of 8,192 words fall into the same sets of L1.)
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    n_rows: usize,
    /// Units of a row.
    units: usize,
    /// Units of a block, but for the last.
    len: usize,
}

impl Blocks {
    /// Of `n_rows` rows of `k` columns.
    pub(crate) fn of(n_rows: usize, k: usize) -> Self {
        let units = k / UNIT;
        Self { n_rows, units, len: units.div_ceil(units.div_ceil(UNITS)) }
    }

    fn count(self) -> usize {
        self.units.div_ceil(self.len)
    }

    /// The units of block `block`.
    fn range(self, block: usize) -> Range<usize> {
        block * self.len..self.units.min((block + 1) * self.len)
    }

    /// Where row `r` of block `block` stands among all rows of all blocks.
    fn row(self, block: usize, r: usize) -> usize {
        block * self.n_rows + r
    }

    /// Lengths in words of 4 bytes of what rows become: codes, scales, and what smallest values are
    /// multiplied by.
    pub(crate) fn lens(self) -> [usize; 3] {
        let n = self.row(self.count(), 0);
        [n * COLUMNS / 2, n * UNITS, n * UNITS]
    }
}

/// Rounds row `r` to words, block by block.
pub(crate) struct RoundToWords<'a> {
    pub(crate) rounding: Rounding,
    pub(crate) x: &'a [f32],
    pub(crate) r: usize,
    pub(crate) blocks: Blocks,
    /// As [`Blocks::lens`] says; only what is this row's is touched, here and below.
    pub(crate) words: Shared<'a, i16>,
    pub(crate) scales: Shared<'a, f32>,
    pub(crate) sums: Shared<'a, f32>,
}

impl Kernel for RoundToWords<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { rounding, x, r, blocks, words, scales, sums } = self;
        assert!(x.len() == blocks.units * UNIT && r < blocks.n_rows && rounding.fills_words());
        for block in 0..blocks.count() {
            let (row, units) = (blocks.row(block, r), blocks.range(block));
            let words = words.slice(row * COLUMNS, units.len() * UNIT).as_mut_ptr();
            let scales = scales.slice(row * UNITS, units.len());
            let sums = sums.slice(row * UNITS, units.len());
            let x = x.as_ptr().add(units.start * UNIT);
            for u in 0..units.len() {
                let to = words.add(u * UNIT).cast::<[i16; UNIT]>();
                let x = &*x.add(u * UNIT).cast::<[f32; UNIT]>();
                let (scale, total) = round_unit(x, rounding.largest(), &mut *to);
                scales[u] = scale;
                sums[u] = rounding.sum_with_min(scale, total);
            }
        }
    }
}

/// Rounds a unit; returns its scale and the sum of its codes.
#[inline(always)]
unsafe fn round_unit(x: &[f32; UNIT], largest: f32, words: &mut [i16; UNIT]) -> (f32, i32) {
    let (scale, inverse) = unit_scale(x, largest);
    let mut codes = [0i32; UNIT];
    for i in 0..UNIT {
        codes[i] = unit_code(x[i], inverse, largest);
    }
    for i in 0..UNIT {
        words[i] = codes[i] as i16;
    }
    let mut half = UNIT / 2;
    while half > 0 {
        for i in 0..half {
            codes[i] += codes[i + half];
        }
        half /= 2;
    }
    (scale, codes[0])
}

/// The same outputs as of [`QuantTiles`], by words.
pub(crate) struct WordTiles<'a> {
    /// With rows that are rounded to words, in blocks.
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
        const { assert!(parts::<S>() * S::LANES == TILE_ROWS && parts::<S>() <= MAX_PARTS) };
        let QuantTiles { tiles, x, n_rows, .. } = self.of;
        let blocks = Blocks::of(n_rows, tiles.n_cols);
        let n = blocks.row(blocks.count(), 0);
        assert!(x.words.len() >= n * COLUMNS);
        assert!(x.scales.len() >= n * UNITS && x.sums_with_min.len() >= n * UNITS);
        let n_tiles = self.of.check();
        let need = scratch_lens(n_rows, n_tiles);
        assert!(self.words.len() >= 2 * need[0] && self.scales.len() >= need[1]);
        assert!(self.waiting.len() >= need[2]);
        for start in (0..n_rows).step_by(ROWS) {
            let rows = start..n_rows.min(start + ROWS);
            for block in 0..blocks.count() {
                for tile in 0..n_tiles {
                    self.widen::<S>(tile, blocks.range(block));
                    self.multiply::<S>(tile, rows.clone(), blocks, block);
                }
            }
            self.write::<S>(n_tiles, rows);
        }
    }
}

impl WordTiles<'_> {
    /// Makes words of units of tile `tile` of the run.
    #[inline(always)]
    unsafe fn widen<S: WordSimd>(&mut self, tile: usize, range: Range<usize>) {
        let QuantTiles { tiles, bytes, .. } = self.of;
        let len = tiles.tile_bytes();
        let tile = &bytes[tile * len..(tile + 1) * len];
        let (first, n) = (range.start, range.len());
        let (words, scales) = (self.words.as_mut_ptr(), self.scales.as_mut_ptr());
        with_format!(tiles.ty, F => {
            S::call_words(Widen::<F> { tile, first, n, words, scales, format: PhantomData });
        });
        // The same of the next tile come from memory, and no loop above reads ahead.
        let part = |units: usize| units * len / tiles.n_units();
        ask_for::<S>(tile.as_ptr().wrapping_add(len + part(first)), part(n));
    }

    /// The sums of row `r` of a chunk with a tile.
    #[inline(always)]
    unsafe fn sums_of(&mut self, tile: usize, r: usize) -> *mut f32 {
        let at = (tile * self.of.n_rows.min(ROWS) + r) * TILE_ROWS;
        self.waiting.as_mut_ptr().add(at)
    }

    /// Adds the products of a block of a tile to the sums of some rows.
    #[inline(always)]
    unsafe fn multiply<S: WordSimd>(
        &mut self,
        tile: usize,
        rows: Range<usize>,
        blocks: Blocks,
        block: usize,
    ) {
        let (x, scales) = (self.of.x, self.of.tiles.ty.scales());
        let mut r = rows.start;
        while r < rows.end {
            let row = blocks.row(block, r);
            let units = AddUnits {
                n: blocks.range(block).len(),
                is_first: block == 0,
                words: self.words.as_ptr(),
                scales: self.scales.as_ptr(),
                x: x.words.as_ptr().add(row * COLUMNS),
                x_scales: x.scales.as_ptr().add(row * UNITS),
                x_sums: x.sums_with_min.as_ptr().add(row * UNITS),
                y: self.sums_of(tile, r - rows.start),
            };
            r += match rows.end - r {
                12.. if const { S::ROWS_OF_WORDS >= 12 } => units.add::<S, 12>(scales),
                4.. => units.add::<S, 4>(scales),
                _ => units.add::<S, 1>(scales),
            };
        }
    }

    /// Writes the outputs of some rows, row by row, as they lie in memory.
    #[inline(always)]
    unsafe fn write<S: WordSimd>(&mut self, n_tiles: usize, rows: Range<usize>) {
        for r in rows.clone() {
            for tile in 0..n_tiles {
                let sums = self.sums_of(tile, r - rows.start);
                for lane in (0..TILE_ROWS).step_by(S::LANES) {
                    let column = (self.of.first + tile) * TILE_ROWS + lane;
                    self.of.outputs.write::<S>(r, column, S::load(sums.add(lane)));
                }
            }
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
            for part in 0..parts::<S>() {
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
    /// Words of the first row; those of the others follow, [`COLUMNS`] apart.
    x: *const i16,
    /// The same, [`UNITS`] apart.
    x_scales: *const f32,
    x_sums: *const f32,
    /// `[R, TILE_ROWS]`
    y: *mut f32,
}

impl AddUnits {
    /// For R rows; returns R.
    #[inline(always)]
    unsafe fn add<S: WordSimd, const R: usize>(self, scales: Scales) -> usize {
        match scales {
            Scales::SuperHalves => S::call_words(AddRows::<R, 2, false>(self)),
            Scales::WithMin | Scales::SuperMin => S::call_words(AddRows::<R, 1, true>(self)),
            Scales::F16 | Scales::Bf16 => S::call_words(AddRows::<R, 1, false>(self)),
        }
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
        let mut y = [[S::zero(); MAX_PARTS]; R];
        for i in 0..R {
            for part in 0..parts::<S>() {
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
                let mut dots = [[S::zero_int(); MAX_PARTS]; R];
                // The compiler must not know how many there are: where it writes a short loop out,
                // it takes dot products apart (Q6_K, Sapphire Rapids: 300 GFLOP/s, not 420).
                let pairs = black_box(UNIT / 2 / HALVES);
                for pair in h * pairs..(h + 1) * pairs {
                    let at = words.add(pair * 2 * TILE_ROWS);
                    let mut w = [S::load_words(at); MAX_PARTS];
                    for part in 1..parts::<S>() {
                        w[part] = S::load_words(at.add(part * 2 * S::LANES));
                    }
                    for i in 0..R {
                        let x = S::splat_words(x.add(i * COLUMNS + 2 * pair));
                        for part in 0..parts::<S>() {
                            dots[i][part] = S::dot_words(dots[i][part], w[part], x);
                        }
                    }
                }
                // As `add_unit` of bytes has it.
                for i in 0..R {
                    let s = S::splat(*rows.x_scales.add(i * UNITS + u));
                    for part in 0..parts::<S>() {
                        let d = S::load(scales.add(h * TILE_ROWS + part * S::LANES));
                        y[i][part] = S::fma(S::mul(d, s), S::to_float(dots[i][part]), y[i][part]);
                    }
                }
            }
            if HAS_MIN {
                for i in 0..R {
                    let sum = S::splat(*rows.x_sums.add(i * UNITS + u));
                    for part in 0..parts::<S>() {
                        let m = S::load(scales.add(2 * TILE_ROWS + part * S::LANES));
                        y[i][part] = S::fma(m, sum, y[i][part]);
                    }
                }
            }
        }
        for i in 0..R {
            for part in 0..parts::<S>() {
                S::store(rows.y.add(i * TILE_ROWS + part * S::LANES), y[i][part]);
            }
        }
    }
}
