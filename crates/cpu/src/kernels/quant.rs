//! Rows of activations, rounded to 8 or 16 bits or as they are, times tiles of quantised weights.
//!
//! An activation x of a unit of 32 becomes `round(x / s)` with `s = max |x| / 127`; or, in 16 bits,
//! with 128 * 127, and then two planes of 8 bits, `128 * high + low`. A unit adds
//! `d s (sum of codes * rounded - offset * sum of rounded)` to an output, where products and sums
//! inside the brackets are whole numbers and hence exact, or, in formats with a smallest value m,
//! `d s (sum of codes * rounded) + m s (sum of rounded)`. Units are added in order, so a row's
//! result does not depend on the other rows, nor on how many bytes a vector has.

use std::marker::PhantomData;

use longview_core::quant::{Chunk, Order, QuantType, Scales, TILE_ROWS, Tiles, UNIT, table};
use longview_ops::Activations;

use crate::simd::bytes::{ByteKernel, ByteSimd};
use crate::simd::{Kernel, Simd};
use crate::team::Shared;

/// Below this a unit counts as zeros: the inverse of its scale would not be finite.
const SMALLEST: f32 = 1e-30;

/// How activations are rounded for a type of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounding {
    /// Codes that stand for an activation.
    planes: usize,
    /// What the largest activation of a unit becomes.
    largest: i32,
    /// What the sum of a unit, or of half a unit, is multiplied by.
    kind: SumKind,
    /// Sums of a unit. Dot products start from one for each plane, and for each half of a unit
    /// where scales are of 16 columns.
    n_sums: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SumKind {
    /// By a whole number: what dot products start from.
    Offset(i32),
    /// By s, as f32, with the sign of what m is multiplied by.
    Min { is_negative: bool },
}

impl Rounding {
    /// For weights of type `ty`, on instructions that multiply codes of 8 bits as
    /// [`ByteSimd::BIASED`] says; `None` where activations are not rounded.
    pub(crate) fn of(ty: QuantType, activations: Activations, is_biased: bool) -> Option<Self> {
        let (planes, largest) = (activations.planes(), activations.largest_code()?);
        let offset = match (multiplied_bits(ty), is_biased) {
            (8, false) => 0,
            (bits, _) => -(1 << (bits - 1)),
        };
        let (kind, n_sums) = match ty.scales() {
            Scales::F16 | Scales::Bf16 => (SumKind::Offset(offset), planes),
            Scales::SuperHalves => (SumKind::Offset(offset), 2 * planes),
            Scales::WithMin => (SumKind::Min { is_negative: false }, 1),
            Scales::SuperMin => (SumKind::Min { is_negative: true }, 1),
        };
        Some(Self { planes, largest, kind, n_sums })
    }

    /// Whether codes are of 16 bits.
    pub(crate) fn fills_words(self) -> bool {
        self.planes == 2
    }

    /// What the largest activation of a unit becomes.
    pub(super) fn largest(self) -> f32 {
        self.largest as f32
    }

    /// What the smallest value of a unit of weights is multiplied by, where they have one: a unit's
    /// scale times the sum of its codes.
    #[inline(always)]
    pub(super) fn sum_with_min(self, scale: f32, total: i32) -> f32 {
        let is_negative = matches!(self.kind, SumKind::Min { is_negative: true });
        scale * if is_negative { -total } else { total } as f32
    }

    /// Lengths in words of 4 bytes of what `n_rows` rows of `k` become: codes, scales, sums.
    pub(crate) fn lens(self, n_rows: usize, k: usize) -> [usize; 3] {
        let units = n_rows * k / UNIT;
        [n_rows * k / 4 * self.planes, units, units * self.n_sums]
    }
}

/// Bits of what is multiplied: values of a table are signed bytes.
const fn multiplied_bits(ty: QuantType) -> usize {
    match table(ty) {
        Some(_) => 8,
        None => ty.code_bits(),
    }
}

/// Rounds one row.
pub(crate) struct RoundRow<'a> {
    pub(crate) rounding: Rounding,
    pub(crate) x: &'a [f32],
    /// Of each unit all codes of a plane, the high ones first.
    pub(crate) codes: &'a mut [i8],
    /// One for each unit.
    pub(crate) scales: &'a mut [f32],
    /// Bits of an i32 or an f32; [`Rounding::lens`] says how many.
    pub(crate) sums: &'a mut [u32],
}

impl Kernel for RoundRow<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        match self.rounding.planes {
            1 => self.units::<1>(),
            _ => self.units::<2>(),
        }
    }
}

/// The scale of a unit and its inverse; of an activation this takes to its code.
///
/// Loops here and below are over arrays of [`UNIT`] and halves of them, of which the compiler makes
/// vectors: iterators would be functions of their own, without the instruction set's features, and
/// a sum or a maximum of one number after the other waits for each.
#[inline(always)]
pub(super) fn unit_scale(x: &[f32; UNIT], largest: f32) -> (f32, f32) {
    // Magnitudes as whole numbers have the order of magnitudes, and infinity and not-a-number are
    // the largest. They become not-a-number, and the outputs with them.
    let mut most = [0u32; UNIT];
    for i in 0..UNIT {
        most[i] = x[i].abs().to_bits();
    }
    let mut half = UNIT / 2;
    while half > 0 {
        for i in 0..half {
            most[i] = if most[i + half] > most[i] { most[i + half] } else { most[i] };
        }
        half /= 2;
    }
    let most = f32::from_bits(most[0]);
    if most < SMALLEST {
        (0.0, 0.0)
    } else if most.is_finite() {
        (most / largest, largest / most)
    } else {
        (f32::NAN, 0.0)
    }
}

/// The code of an activation.
#[inline(always)]
pub(super) unsafe fn unit_code(x: f32, inverse: f32, largest: f32) -> i32 {
    let rounded = (x * inverse).round_ties_even();
    if rounded.abs() <= largest { rounded.to_int_unchecked() } else { 0 }
}

impl RoundRow<'_> {
    #[inline(always)]
    unsafe fn units<const PLANES: usize>(self) {
        let Self { rounding: Rounding { planes, largest, kind, n_sums }, x, .. } = self;
        let Self { codes, scales, sums, .. } = self;
        let (units, largest) = (x.len() / UNIT, largest as f32);
        assert!(planes == PLANES && codes.len() >= x.len() * PLANES);
        assert!(scales.len() >= units && sums.len() >= units * n_sums);
        let codes = codes.as_mut_ptr();
        for u in 0..units {
            let x = &*x.as_ptr().add(u * UNIT).cast::<[f32; UNIT]>();
            let (scale, inverse) = unit_scale(x, largest);
            scales[u] = scale;
            // Codes of each plane.
            let mut wide = [[0i32; UNIT]; 2];
            for i in 0..UNIT {
                let code = unit_code(x[i], inverse, largest);
                // The shift rounds down, so what is left is from -64 to 63.
                wide[0][i] = if PLANES == 2 { (code + 64) >> 7 } else { code };
                wide[1][i] = if PLANES == 2 { code - (wide[0][i] << 7) } else { 0 };
            }
            // Of each plane, and of each half of the unit.
            let mut totals = [[0i32; 2]; 2];
            for plane in 0..PLANES {
                let to = codes.add((u * PLANES + plane) * UNIT);
                for i in 0..UNIT {
                    *to.add(i) = wide[plane][i] as i8;
                }
                totals[plane] = half_sums(&wide[plane]);
            }
            let sums = sums.as_mut_ptr().add(u * n_sums);
            match kind {
                SumKind::Offset(offset) => {
                    for i in 0..n_sums {
                        let [first, second] = totals[i * PLANES / n_sums];
                        let halves = [first, second, first + second];
                        let half = if n_sums == PLANES { 2 } else { i % 2 };
                        *sums.add(i) = (offset * halves[half]).cast_unsigned();
                    }
                }
                SumKind::Min { .. } => {
                    let [high, low] = [totals[0][0] + totals[0][1], totals[1][0] + totals[1][1]];
                    let total = if PLANES == 2 { (high << 7) + low } else { high };
                    *sums = self.rounding.sum_with_min(scale, total).to_bits();
                }
            }
        }
    }
}

/// Sums of both halves of a unit.
#[inline(always)]
fn half_sums(codes: &[i32; UNIT]) -> [i32; 2] {
    let mut sums = *codes;
    let mut half = UNIT / 4;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
            sums[UNIT / 2 + i] += sums[UNIT / 2 + i + half];
        }
        half /= 2;
    }
    [sums[0], sums[UNIT / 2]]
}

/// Rows one after the other: rounded, as [`RoundRow`] makes them, or as they are.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rows<'a> {
    /// Codes of an activation; 0 where `floats` has the activations.
    pub(crate) planes: usize,
    pub(crate) floats: &'a [f32],
    pub(crate) codes: &'a [i8],
    /// Codes of 16 bits, where there are no planes, in [`Blocks`](super::words::Blocks).
    pub(crate) words: &'a [i16],
    pub(crate) scales: &'a [f32],
    pub(crate) sums: &'a [u32],
    /// In place of `sums`, where there are words.
    pub(crate) sums_with_min: &'a [f32],
}

/// Outputs of a run of tiles: `out[r, first..] = x_r . w_o (+ bias) (+ out)`.
#[derive(Clone, Copy)]
pub(crate) struct QuantTiles<'a> {
    pub(crate) tiles: Tiles,
    /// The tiles of this run.
    pub(crate) bytes: &'a [u8],
    /// Number of the first one.
    pub(crate) first: usize,
    pub(crate) x: Rows<'a>,
    pub(crate) n_rows: usize,
    /// Only columns of these tiles are touched.
    pub(crate) outputs: Outputs<'a>,
}

/// Where outputs go, and what is added to them.
#[derive(Clone, Copy)]
pub(crate) struct Outputs<'a> {
    /// All biases.
    pub(crate) bias: Option<&'a [f32]>,
    /// Whether what is there is added.
    pub(crate) add: bool,
    /// `[n_rows, n_out]`.
    pub(crate) out: Shared<'a, f32>,
    pub(crate) n_out: usize,
}

impl Outputs<'_> {
    /// Writes LANES outputs of row `r` from column `column` on, as many as there are.
    #[inline(always)]
    pub(super) unsafe fn write<S: Simd>(&self, r: usize, column: usize, mut y: S::V) {
        let n = self.n_out.saturating_sub(column).min(S::LANES);
        if n == 0 {
            return;
        }
        let out = self.out.slice(r * self.n_out + column, n);
        let load = |p: *const f32| if n == S::LANES { S::load(p) } else { S::load_n(p, n) };
        if let Some(bias) = self.bias {
            y = S::add(y, load(bias[column..column + n].as_ptr()));
        }
        if self.add {
            y = S::add(y, load(out.as_ptr()));
        }
        if n == S::LANES {
            S::store(out.as_mut_ptr(), y);
        } else {
            S::store_n(out.as_mut_ptr(), n, y);
        }
    }
}

impl ByteKernel for QuantTiles<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: ByteSimd>(self) {
        let (k, units) = (self.tiles.n_cols, self.tiles.n_units());
        let is_rounded = self.x.planes > 0;
        assert!(is_rounded || self.x.floats.len() >= self.n_rows * k);
        assert!(self.x.codes.len() >= self.n_rows * k * self.x.planes);
        assert!(!is_rounded || self.x.scales.len() >= self.n_rows * units);
        self.check();
        if is_rounded { self.format::<S, true>() } else { self.format::<S, false>() }
    }
}

/// A type of weights, known when a kernel is compiled.
pub(super) trait Format {
    const TY: QuantType;
    /// What a tile is made of.
    const CHUNK: Chunk = Self::TY.chunk();
    /// Halves of a unit with a scale of their own.
    const HALVES: usize = if matches!(Self::TY.scales(), Scales::SuperHalves) { 2 } else { 1 };
    /// What is subtracted from a code, without a smallest value.
    const OFFSET: i32 = if multiplied_bits(Self::TY) == 8 || Self::HAS_MIN {
        0
    } else {
        1 << (multiplied_bits(Self::TY) - 1)
    };
    /// Whether the smallest value is subtracted.
    const SUBTRACTS: bool = matches!(Self::TY.scales(), Scales::SuperMin);
    const HAS_MIN: bool = matches!(Self::TY.scales(), Scales::WithMin | Scales::SuperMin);
}

macro_rules! formats {
    ($($name:ident),*) => {
        $(
            pub(super) enum $name {}
            impl Format for $name {
                const TY: QuantType = QuantType::$name;
            }
        )*
    };
}
formats!(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K, Iq4Nl, Mxfp4);

/// An expression with `$format` the format of a type.
macro_rules! with_format {
    ($ty:expr, $format:ident => $body:expr) => {
        with_format!(
            @ $ty, $format, $body, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K, Iq4Nl, Mxfp4
        )
    };
    (@ $ty:expr, $format:ident, $body:expr, $($name:ident),*) => {
        match $ty {
            $(
                longview_core::quant::QuantType::$name => {
                    type $format = crate::kernels::quant::$name;
                    $body
                }
            )*
        }
    };
}
pub(super) use with_format;

/// As many planes as the rows have.
const ANY: usize = usize::MAX;

/// Bytes that are asked for ahead. (A copy of the loop alone, Zen 4, two cores, Q4_K with 2,048
/// columns: 47 GB/s without, 46 with 4,096, 50 with 8,192; rows of 768 and 8,192: 45 and 44, 45 and
/// 45, 50 and 50.)
const AHEAD: usize = 8192;

/// R rows of activations from row r on with all tiles.
struct RunOfTiles<'a, F, const PLANES: usize, const R: usize> {
    of: &'a QuantTiles<'a>,
    r: usize,
    format: PhantomData<F>,
}

impl<F: Format, const PLANES: usize, const R: usize> ByteKernel for RunOfTiles<'_, F, PLANES, R> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: ByteSimd>(self) {
        let Self { of, r, .. } = self;
        for (i, tile) in of.bytes.chunks_exact(of.tiles.tile_bytes()).enumerate() {
            // A vector has a lane for LANES of the 16 rows. With one row of activations all parts
            // of them go over the tile together: it is read from memory all the time, as one
            // stream. With more, each part goes over it anew: it is in the caches by then, and the
            // sums of one part fit the registers.
            let index = of.first + i;
            match (R, TILE_ROWS / S::LANES) {
                (1, 2) => of.parts::<S, F, PLANES, R, 2>(tile, index, 0, r),
                (1, 4) => of.parts::<S, F, PLANES, R, 4>(tile, index, 0, r),
                _ => {
                    let mut part = 0;
                    while part < TILE_ROWS {
                        of.parts::<S, F, PLANES, R, 1>(tile, index, part, r);
                        part += S::LANES;
                    }
                }
            }
        }
    }
}

impl QuantTiles<'_> {
    /// Checks what does not depend on how rows are rounded; returns how many tiles there are.
    pub(super) fn check(&self) -> usize {
        assert_eq!(self.tiles.order, Order::Together);
        let is_multiple = self.bytes.len().is_multiple_of(self.tiles.tile_bytes());
        let n_tiles = self.bytes.len() / self.tiles.tile_bytes();
        assert!(is_multiple && self.first + n_tiles <= self.tiles.count());
        assert!(self.outputs.bias.is_none_or(|bias| bias.len() == self.tiles.n_rows));
        n_tiles
    }

    #[inline(always)]
    unsafe fn format<S: ByteSimd, const ROUNDED: bool>(&self) {
        with_format!(self.tiles.ty, F => self.rows::<S, F, ROUNDED>());
    }

    #[inline(always)]
    unsafe fn rows<S: ByteSimd, F: Format, const ROUNDED: bool>(&self) {
        let mut r = 0;
        while r < self.n_rows {
            let n = self.n_rows - r;
            r += if ROUNDED { self.rounded::<S, F>(r, n) } else { self.floats::<S, F>(r, n) };
        }
    }

    /// As many of `n` rows from `r` on as a kernel takes. How many planes there are is only known
    /// to kernels of many rows, and of one with two planes: there it counts, and each is a kernel
    /// to compile.
    #[inline(always)]
    unsafe fn rounded<S: ByteSimd, F: Format>(&self, r: usize, n: usize) -> usize {
        // Kernels of so many rows are compiled for those alone that have registers for them.
        if const { S::X_ROWS >= 8 } && n >= 8 {
            return match self.x.planes {
                1 => self.run_of_tiles::<S, F, 1, 8>(r),
                _ => self.run_of_tiles::<S, F, 2, 8>(r),
            };
        }
        match n {
            n if n >= 4 => self.run_of_tiles::<S, F, ANY, 4>(r),
            n if n >= 2 => self.run_of_tiles::<S, F, ANY, 2>(r),
            _ if self.x.planes == 2 => self.run_of_tiles::<S, F, 2, 1>(r),
            _ => self.run_of_tiles::<S, F, ANY, 1>(r),
        }
    }

    /// The same of rows that are not rounded.
    #[inline(always)]
    unsafe fn floats<S: ByteSimd, F: Format>(&self, r: usize, n: usize) -> usize {
        if n >= 4 { self.run_of_tiles::<S, F, 0, 4>(r) } else { self.run_of_tiles::<S, F, 0, 1>(r) }
    }

    /// Rows `r..r + R` with all tiles: they stay in the caches meanwhile.
    #[inline(always)]
    unsafe fn run_of_tiles<S: ByteSimd, F: Format, const PLANES: usize, const R: usize>(
        &self,
        r: usize,
    ) -> usize {
        S::call_bytes(RunOfTiles::<F, PLANES, R> { of: self, r, format: PhantomData });
        R
    }

    /// [`TILE_ROWS`] or fewer columns from `first` on, N times as many as a vector has lanes, of R
    /// rows.
    #[inline(always)]
    unsafe fn parts<S: ByteSimd, F: Format, const PLANES: usize, const R: usize, const N: usize>(
        &self,
        tile: &[u8],
        index: usize,
        first: usize,
        r: usize,
    ) {
        let n_units = self.tiles.n_units();
        let mut scales = tile.as_ptr();
        let floats = self.x.floats.as_ptr().wrapping_add(r * self.tiles.n_cols);
        let n_planes = if PLANES == ANY { self.x.planes } else { PLANES };
        // Without planes these three are empty, and nothing reads them.
        let codes = self.x.codes.as_ptr().wrapping_add(r * self.tiles.n_cols * n_planes);
        let x_scales = self.x.scales.as_ptr().wrapping_add(r * n_units);
        let n_sums = if F::HAS_MIN { 1 } else { n_planes * F::HALVES };
        let sums = self.x.sums.as_ptr().wrapping_add(r * n_units * n_sums);
        // Two sums, because a sum waits for the product before it; only numbers as they are make
        // so many.
        let (mut ys, mut odds) = ([[S::zero(); R]; N], [[S::zero(); R]; N]);
        for u in 0..n_units {
            let in_chunk = u % F::CHUNK.units;
            if in_chunk == 0 && u > 0 {
                scales = scales.add(F::CHUNK.bytes);
            }
            let at = scales.add(F::CHUNK.scale_bytes + in_chunk * F::TY.plane_bytes());
            if first == 0 {
                if in_chunk == 0 {
                    ask_for::<S>(scales.wrapping_add(AHEAD), F::CHUNK.scale_bytes);
                }
                ask_for::<S>(at.wrapping_add(AHEAD), F::TY.plane_bytes());
            }
            for n in 0..N {
                let part = first + n * S::LANES;
                let (y, odd) = (&mut ys[n], &mut odds[n]);
                let w = unit_codes::<S, F>(at.add(4 * part));
                let (d, m) = unit_scales::<S, F>(scales, in_chunk, part);
                if PLANES == 0 {
                    let w = signed_codes::<S, F>(w);
                    for word in 0..UNIT / 4 {
                        let own = d[word * F::HALVES / 8];
                        for byte in 0..4 {
                            let value = value::<S, F>(w[word], byte, own, m);
                            let x = floats.add(u * UNIT + 4 * word + byte);
                            let y = if byte % 2 == 0 { &mut *y } else { &mut *odd };
                            for i in 0..R {
                                let x = S::splat(*x.add(i * self.tiles.n_cols));
                                y[i] = S::fma(value, x, y[i]);
                            }
                        }
                    }
                    continue;
                }
                let code = |i: usize| codes.add((i * self.tiles.n_cols + u * UNIT) * n_planes);
                let start = |i: usize| sums.add((i * n_units + u) * n_sums);
                let scale = |i: usize| *x_scales.add(i * n_units + u);
                let mut i = 0;
                while S::TWO_ROWS && i + 1 < R {
                    let (a, from) = ([code(i), code(i + 1)], [start(i), start(i + 1)]);
                    let dots = unit_dots_of_two::<S, F>(&w, a, from, n_planes);
                    y[i] = add_unit::<S, F>(y[i], dots[0], d, m, scale(i), from[0]);
                    y[i + 1] = add_unit::<S, F>(y[i + 1], dots[1], d, m, scale(i + 1), from[1]);
                    i += 2;
                }
                while i < R {
                    let dots = unit_dots::<S, F>(&w, code(i), start(i), n_planes);
                    y[i] = add_unit::<S, F>(y[i], dots, d, m, scale(i), start(i));
                    i += 1;
                }
            }
        }
        for n in 0..N {
            for i in 0..R {
                let y = if PLANES == 0 { S::add(ys[n][i], odds[n][i]) } else { ys[n][i] };
                let column = index * TILE_ROWS + first + n * S::LANES;
                self.outputs.write::<S>(r + i, column, y);
            }
        }
    }
}

/// `y` with what a unit adds to it: products of its halves, scales of the weights, the smallest
/// value, the scale of the activations, and where their sum is.
#[inline(always)]
unsafe fn add_unit<S: ByteSimd, F: Format>(
    y: S::V,
    dots: [S::I; 2],
    d: [S::V; 2],
    m: S::V,
    scale: f32,
    sum: *const u32,
) -> S::V {
    let s = S::splat(scale);
    let mut y = S::fma(S::mul(d[0], s), S::to_float(dots[0]), y);
    if F::HALVES == 2 {
        y = S::fma(S::mul(d[1], s), S::to_float(dots[1]), y);
    }
    if F::HAS_MIN {
        y = S::fma(m, S::splat(f32::from_bits(*sum)), y);
    }
    y
}

/// The products of a unit's codes with all planes of a row's, for each of the halves that have a
/// scale of their own.
#[inline(always)]
unsafe fn unit_dots<S: ByteSimd, F: Format>(
    w: &[S::B; 8],
    a: *const i8,
    sums: *const u32,
    n_planes: usize,
) -> [S::I; 2] {
    let mut dots = [S::zero_int(); 2];
    // The planes are two rows of activations for the same codes.
    if S::TWO_ROWS && n_planes == 2 {
        let a = [a, a.add(UNIT)];
        if F::HALVES == 2 {
            for h in 0..2 {
                let start = [sums.add(h), sums.add(2 + h)];
                let at = [a[0].add(UNIT / 2 * h), a[1].add(UNIT / 2 * h)];
                let [high, low] = dot_of_two::<S, F, 4>(start, w, 4 * h, at);
                dots[h] = S::add_128(low, high);
            }
        } else {
            // With a smallest value there is one sum for both, and nothing reads it here.
            let start = [sums, sums.wrapping_add(1)];
            let [high, low] = dot_of_two::<S, F, 8>(start, w, 0, a);
            dots[0] = S::add_128(low, high);
        }
        return dots;
    }
    for plane in 0..n_planes {
        let a = a.add(plane * UNIT);
        if F::HALVES == 2 {
            for h in 0..2 {
                let start = S::splat_int(sums.add(2 * plane + h).cast());
                let dot = dot::<S, F, 4>(start, w, 4 * h, a.add(UNIT / 2 * h));
                dots[h] = S::add_128(dot, dots[h]);
            }
        } else {
            let from = sums.add(plane).cast();
            let start = if F::HAS_MIN { S::zero_int() } else { S::splat_int(from) };
            dots[0] = S::add_128(dot::<S, F, 8>(start, w, 0, a), dots[0]);
        }
    }
    dots
}

/// [`unit_dots`] of two rows.
#[inline(always)]
unsafe fn unit_dots_of_two<S: ByteSimd, F: Format>(
    w: &[S::B; 8],
    a: [*const i8; 2],
    sums: [*const u32; 2],
    n_planes: usize,
) -> [[S::I; 2]; 2] {
    let mut dots = [[S::zero_int(); 2]; 2];
    for plane in 0..n_planes {
        for h in 0..F::HALVES {
            let (mut start, mut codes) = (sums, a);
            for i in 0..2 {
                start[i] = sums[i].wrapping_add(F::HALVES * plane + h);
                codes[i] = a[i].add(plane * UNIT + UNIT / 2 * h);
            }
            let two = if F::HALVES == 2 {
                dot_of_two::<S, F, 4>(start, w, 4 * h, codes)
            } else {
                dot_of_two::<S, F, 8>(start, w, 0, codes)
            };
            for i in 0..2 {
                dots[i][h] = S::add_128(two[i], dots[i][h]);
            }
        }
    }
    dots
}

/// Dot products of two rows of activations from their sums on; in a format with a smallest value
/// these are no whole numbers, and added elsewhere.
#[inline(always)]
unsafe fn dot_of_two<S: ByteSimd, F: Format, const N: usize>(
    sums: [*const u32; 2],
    w: &[S::B; 8],
    from: usize,
    a: [*const i8; 2],
) -> [S::I; 2] {
    let mut start = [S::zero_int(); 2];
    if !F::HAS_MIN {
        start = [S::splat_int(sums[0].cast()), S::splat_int(sums[1].cast())];
    }
    match const { multiplied_bits(F::TY) } {
        4 => S::dot_two::<N, 4>(start, w, from, a),
        5 => S::dot_two::<N, 5>(start, w, from, a),
        6 => S::dot_two::<N, 6>(start, w, from, a),
        _ => S::dot_two::<N, 8>(start, w, from, a),
    }
}

/// Prefetches the cache lines of `len` bytes.
#[inline(always)]
pub(super) unsafe fn ask_for<S: ByteSimd>(at: *const u8, len: usize) {
    let mut line = 0;
    while line < len {
        S::prefetch(at.wrapping_add(line));
        line += 64;
    }
}

#[inline(always)]
unsafe fn dot<S: ByteSimd, F: Format, const N: usize>(
    start: S::I,
    w: &[S::B; 8],
    from: usize,
    a: *const i8,
) -> S::I {
    match const { multiplied_bits(F::TY) } {
        4 => S::dot::<N, 4>(start, w, from, a),
        5 => S::dot::<N, 5>(start, w, from, a),
        6 => S::dot::<N, 6>(start, w, from, a),
        _ => S::dot::<N, 8>(start, w, from, a),
    }
}

/// What is multiplied, of a unit: byte j of vector i stands in column 4 i + j.
#[inline(always)]
pub(super) unsafe fn unit_codes<S: ByteSimd, F: Format>(planes: *const u8) -> [S::B; 8] {
    let plane = |i: usize| S::load_bytes(planes.add(4 * TILE_ROWS * i));
    if F::TY.code_bits() == 8 {
        let mut w = [plane(0); 8];
        for i in 0..8 {
            w[i] = if S::BIASED { plane(i) } else { S::flip(plane(i), 0x80) };
        }
        return w;
    }
    let mut w = [plane(0); 8];
    for i in 0..4 {
        let pair = plane(i);
        w[2 * i] = S::mask(pair, 0x0f);
        w[2 * i + 1] = S::mask(S::shift(pair, -4), 0x0f);
    }
    if F::TY.code_bits() == 5 {
        let fifth = plane(4);
        for i in 0..8 {
            w[i] = S::or(w[i], S::mask(S::shift(fifth, 4 - i as i32), 0x10));
        }
    }
    if F::TY.code_bits() == 6 {
        for h in 0..2 {
            let high = plane(4 + h);
            for i in 0..4 {
                let two = S::mask(S::shift(high, 4 - 2 * i as i32), 0x30);
                w[4 * h + i] = S::or(w[4 * h + i], two);
            }
        }
    }
    if let Some(table) = const { signed_table(F::TY, S::BIASED) } {
        for i in 0..8 {
            w[i] = S::look_up(&table, w[i]);
        }
    }
    w
}

/// What [`unit_codes`] has, with signs.
#[inline(always)]
pub(super) unsafe fn signed_codes<S: ByteSimd, F: Format>(mut w: [S::B; 8]) -> [S::B; 8] {
    if S::BIASED && multiplied_bits(F::TY) == 8 {
        for i in 0..8 {
            w[i] = S::flip(w[i], 0x80);
        }
    }
    w
}

/// The values that byte `j` of the lanes stands for.
#[inline(always)]
unsafe fn value<S: ByteSimd, F: Format>(w: S::B, j: usize, d: S::V, m: S::V) -> S::V {
    let code = S::to_float(S::signed_byte(w, j as i32));
    if F::OFFSET != 0 {
        return S::mul(d, S::sub(code, S::splat(F::OFFSET as f32)));
    }
    let product = S::mul(d, code);
    if !F::HAS_MIN {
        return product;
    }
    if F::SUBTRACTS { S::sub(product, m) } else { S::add(product, m) }
}

/// The table of a format that has one, biased by 128 where that is multiplied.
const fn signed_table(ty: QuantType, is_biased: bool) -> Option<[i8; 16]> {
    let Some(mut table) = table(ty) else { return None };
    let mut i = 0;
    while i < 16 && is_biased {
        table[i] = (table[i] as u8 ^ 0x80) as i8;
        i += 1;
    }
    Some(table)
}

/// Scales of the halves of unit `u` of a chunk (the first one, where a unit has one), and the
/// smallest value, of LANES rows from `part` on.
#[inline(always)]
pub(super) unsafe fn unit_scales<S: ByteSimd, F: Format>(
    scales: *const u8,
    u: usize,
    part: usize,
) -> ([S::V; 2], S::V) {
    let zero = S::zero();
    let (units, bytes) = F::TY.scales().group();
    let group = scales.add(u / units * bytes);
    let lane = |i: usize| group.add(2 * (TILE_ROWS * i + part));
    // Bytes stand behind the lanes of 16 bits, two times 16 for each unit.
    let byte =
        |i: usize| group.add(bytes - (units - u % units) * 2 * TILE_ROWS + TILE_ROWS * i + part);
    match F::TY.scales() {
        Scales::F16 => ([S::load_f16(lane(0).cast()), zero], zero),
        Scales::Bf16 => ([S::load_bf16(lane(0).cast()), zero], zero),
        Scales::WithMin => ([S::load_f16(lane(0).cast()), zero], S::load_f16(lane(1).cast())),
        Scales::SuperMin => {
            let d = S::mul(S::load_f16(lane(0).cast()), S::load_u8(byte(0)));
            ([d, zero], S::mul(S::load_f16(lane(1).cast()), S::load_u8(byte(1))))
        }
        Scales::SuperHalves => {
            let d = S::load_f16(lane(0).cast());
            let half = |h: usize| S::mul(d, S::load_i8(byte(h).cast()));
            ([half(0), half(1)], zero)
        }
    }
}
