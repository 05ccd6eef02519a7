//! The order in which kernels read quantised weights: tiles of 16 rows, side by side.
//!
//! A tile holds all columns of its rows: first the codes of every unit of 32 columns, then the
//! scales of every unit; or, in the other [`Order`], scales and codes in turns. Codes of a unit are
//! planes of 64 bytes; bytes 4 r to 4 r + 3 of a plane belong to row r:
//!
//! | bits of a code | planes of a unit |
//! |---|---|
//! | 8 | 8: byte j of plane i is code 4 i + j |
//! | 4 | 4: byte j of plane i is code 8 i + j, and code 8 i + 4 + j in the high bits |
//! | 5 | as 4, and one: bit i of byte j is the fifth bit of code 4 i + j |
//! | 6 | as 4, and two: bits 2 i and 2 i + 1 of byte j of plane h are high bits of 16 h + 4 i + j |
//!
//! So one load of 64 bytes gives a vector of 16 lanes, one for each row, four codes each, which is
//! what dot products of bytes take (`vpdpbusd`, `sdot`, `dot4I8Packed`).

use std::ops::Range;

use half::{bf16, f16};

use super::blocks::{IQ4_NL, MXFP4, power};
use super::codes::{Codes, codes, scale_and_min};
use super::types::QuantType;

/// Rows of a tile.
pub const TILE_ROWS: usize = 16;
/// Columns of a unit.
pub const UNIT: usize = 32;
/// Bytes of a plane.
const PLANE: usize = 4 * TILE_ROWS;
/// Units of a block of 256.
const UNITS_OF_256: usize = 8;
/// Tiles start at multiples of this.
const TILE_ALIGN: usize = 64;

/// What the scales of a tile are, and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// A unit: `d`, 16 of f16.
    F16,
    /// A unit: `d`, 16 of bf16, which holds every power of two that f32 has.
    Bf16,
    /// A unit: `d` and `m`, 16 of f16 each.
    WithMin,
    /// Eight units: `d` and `dmin`, 16 of f16 each; then for each unit 16 bytes `s` and 16 bytes
    /// `m`: a value is `d * s * code - dmin * m`.
    SuperMin,
    /// Eight units: `d`, 16 of f16; then for each unit two times 16 signed bytes `s`, for its first
    /// and second 16 columns.
    SuperHalves,
}

impl Scales {
    /// Units that share a group of scales, and the bytes of one.
    pub const fn group(self) -> (usize, usize) {
        match self {
            Scales::F16 | Scales::Bf16 => (1, 2 * TILE_ROWS),
            Scales::WithMin => (1, 4 * TILE_ROWS),
            Scales::SuperMin => (UNITS_OF_256, (4 + 2 * UNITS_OF_256) * TILE_ROWS),
            Scales::SuperHalves => (UNITS_OF_256, (2 + 2 * UNITS_OF_256) * TILE_ROWS),
        }
    }
}

/// Where the scales of a tile stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Behind all codes.
    Apart,
    /// In front of the codes that they belong to: a [`Chunk`] after the other. Whoever reads a tile
    /// from front to back reads one stream, which processors read ahead best.
    Together,
}

/// A piece of a tile in the order [`Order::Together`]: scales, then the codes of their units. Both
/// start at multiples of 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Units of a chunk; the last one of a tile may have fewer.
    pub units: usize,
    /// Bytes in front of the codes.
    pub scale_bytes: usize,
    /// Bytes of a chunk.
    pub bytes: usize,
}

impl QuantType {
    /// How tiles in the order [`Order::Together`] are made up.
    pub const fn chunk(self) -> Chunk {
        let (units, bytes) = self.scales().group();
        // Two groups of 32 bytes are a line.
        let groups = if bytes < TILE_ALIGN { TILE_ALIGN / bytes } else { 1 };
        let scale_bytes = (groups * bytes).next_multiple_of(TILE_ALIGN);
        let units = groups * units;
        Chunk { units, scale_bytes, bytes: scale_bytes + units * self.plane_bytes() }
    }

    /// What the scales of a tile are.
    pub const fn scales(self) -> Scales {
        match self {
            QuantType::Q4_0 | QuantType::Q5_0 | QuantType::Q8_0 | QuantType::Iq4Nl => Scales::F16,
            QuantType::Mxfp4 => Scales::Bf16,
            QuantType::Q4_1 | QuantType::Q5_1 => Scales::WithMin,
            QuantType::Q4K | QuantType::Q5K => Scales::SuperMin,
            QuantType::Q6K => Scales::SuperHalves,
        }
    }

    /// Bits of a code.
    pub const fn code_bits(self) -> usize {
        match self {
            QuantType::Q4_0 | QuantType::Q4_1 | QuantType::Q4K => 4,
            QuantType::Iq4Nl | QuantType::Mxfp4 => 4,
            QuantType::Q5_0 | QuantType::Q5_1 | QuantType::Q5K => 5,
            QuantType::Q6K => 6,
            QuantType::Q8_0 => 8,
        }
    }

    /// Bytes of a unit's codes in a tile.
    pub const fn plane_bytes(self) -> usize {
        self.code_bits() * PLANE
    }
}

/// The tiles of a quantised matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Of the blocks.
    pub ty: QuantType,
    /// Rows of the matrix.
    pub n_rows: usize,
    /// Columns of the matrix: whole blocks.
    pub n_cols: usize,
    /// Of codes and scales.
    pub order: Order,
}

impl Tiles {
    /// How many there are; rows of the last one that the matrix has not are zeros.
    pub fn count(&self) -> usize {
        self.n_rows.div_ceil(TILE_ROWS)
    }

    /// Units of a row.
    pub fn n_units(&self) -> usize {
        self.n_cols / UNIT
    }

    /// Bytes of a tile's codes: where its scales begin, where they stand apart.
    pub fn code_bytes(&self) -> usize {
        self.n_units() * self.ty.plane_bytes()
    }

    /// Bytes of a tile.
    pub fn tile_bytes(&self) -> usize {
        let scale_bytes = match self.order {
            Order::Apart => {
                let (units, bytes) = self.ty.scales().group();
                self.n_units() / units * bytes
            }
            Order::Together => {
                let chunk = self.ty.chunk();
                self.n_units().div_ceil(chunk.units) * chunk.scale_bytes
            }
        };
        (self.code_bytes() + scale_bytes).next_multiple_of(TILE_ALIGN)
    }

    /// Where the codes of unit `u` are in a tile.
    fn codes_of(&self, u: usize) -> Range<usize> {
        let start = match self.order {
            Order::Apart => u * self.ty.plane_bytes(),
            Order::Together => {
                let chunk = self.ty.chunk();
                let in_chunk = u % chunk.units * self.ty.plane_bytes();
                u / chunk.units * chunk.bytes + chunk.scale_bytes + in_chunk
            }
        };
        start..start + self.ty.plane_bytes()
    }

    /// Where the group of scales that unit `u` has is in a tile.
    fn scales_of(&self, u: usize) -> Range<usize> {
        let (units, bytes) = self.ty.scales().group();
        let start = match self.order {
            Order::Apart => self.code_bytes() + u / units * bytes,
            Order::Together => {
                let chunk = self.ty.chunk();
                u / chunk.units * chunk.bytes + u % chunk.units / units * bytes
            }
        };
        start..start + bytes
    }

    /// Bytes of a row as blocks.
    pub fn row_bytes(&self) -> usize {
        self.n_cols / self.ty.block_len() * self.ty.block_bytes()
    }

    /// Makes tile `index` of the blocks of all rows.
    ///
    /// # Panics
    /// If `rows` are not the blocks of the matrix, `tile` is not as long as a tile, or there is no
    /// such tile.
    pub fn pack(&self, rows: &[u8], index: usize, tile: &mut [u8]) {
        assert_eq!(rows.len(), self.n_rows * self.row_bytes(), "the blocks of all rows");
        assert_eq!(tile.len(), self.tile_bytes(), "a tile");
        let first = index * TILE_ROWS;
        assert!(first < self.n_rows, "tile {index} of {}", self.count());
        if self.n_rows - first < TILE_ROWS {
            tile.fill(0);
        }
        for r in 0..TILE_ROWS.min(self.n_rows - first) {
            let row = &rows[(first + r) * self.row_bytes()..][..self.row_bytes()];
            let units = self.ty.block_len() / UNIT;
            for (b, block) in row.chunks_exact(self.ty.block_bytes()).enumerate() {
                for u in 0..units {
                    let planes = &mut tile[self.codes_of(b * units + u)];
                    put_codes(self.ty, codes(self.ty, block, u), r, planes);
                }
                put_scales(self.ty, block, r, &mut tile[self.scales_of(b * units)]);
            }
        }
    }

    /// The values of row `row` of `tile`, as [`super::dequantize`] has them.
    ///
    /// # Panics
    /// If `tile` is not as long as a tile, or `out` is not as long as a row.
    pub fn row(&self, tile: &[u8], row: usize, out: &mut [f32]) {
        assert_eq!((tile.len(), out.len()), (self.tile_bytes(), self.n_cols), "a tile and a row");
        for (u, out) in out.chunks_exact_mut(UNIT).enumerate() {
            let codes = take_codes(self.ty, row, &tile[self.codes_of(u)]);
            values(self.ty, codes, &tile[self.scales_of(u)], u, row, out);
        }
    }
}

const LOW: u32 = 0x0f0f_0f0f;
const PAIR: u32 = 0x0303_0303;
const BIT: u32 = 0x0101_0101;

/// Writes the codes of row `r` of a unit.
fn put_codes(ty: QuantType, codes: Codes, r: usize, planes: &mut [u8]) {
    let mut put = |plane: usize, word: u32| {
        planes[PLANE * plane + 4 * r..][..4].copy_from_slice(&word.to_le_bytes());
    };
    let bits = ty.code_bits();
    if bits == 8 {
        return codes.into_iter().enumerate().for_each(|(i, word)| put(i, word));
    }
    for i in 0..4 {
        put(i, codes[2 * i] & LOW | (codes[2 * i + 1] & LOW) << 4);
    }
    let high = codes.map(|word| word >> 4);
    if bits == 5 {
        put(4, (0..8).map(|i| (high[i] & BIT) << i).sum());
    } else if bits == 6 {
        for h in 0..2 {
            put(4 + h, (0..4).map(|i| (high[4 * h + i] & PAIR) << (2 * i)).sum());
        }
    }
}

/// The codes of row `r` of a unit.
fn take_codes(ty: QuantType, r: usize, planes: &[u8]) -> Codes {
    let word = |plane: usize| {
        let word = &planes[PLANE * plane + 4 * r..][..4];
        u32::from_le_bytes([word[0], word[1], word[2], word[3]])
    };
    let (bits, mut codes) = (ty.code_bits(), Codes::default());
    if bits == 8 {
        codes.iter_mut().enumerate().for_each(|(i, code)| *code = word(i));
        return codes;
    }
    for (i, two) in codes.chunks_exact_mut(2).enumerate() {
        let low = word(i);
        (two[0], two[1]) = (low & LOW, low >> 4 & LOW);
    }
    if bits == 5 {
        let high = word(4);
        codes.iter_mut().enumerate().for_each(|(i, code)| *code |= (high >> i & BIT) << 4);
    } else if bits == 6 {
        for (h, four) in codes.chunks_exact_mut(4).enumerate() {
            let high = word(4 + h);
            let four = four.iter_mut().enumerate();
            four.for_each(|(i, code)| *code |= (high >> (2 * i) & PAIR) << 4);
        }
    }
    codes
}

/// Writes the scales of a block of row `r` into their group.
fn put_scales(ty: QuantType, block: &[u8], r: usize, scales: &mut [u8]) {
    let group = scales.len();
    let mut put = |lane: usize, two: [u8; 2]| {
        scales[2 * (lane * TILE_ROWS + r)..][..2].copy_from_slice(&two);
    };
    match ty.scales() {
        Scales::F16 => put(0, [block[0], block[1]]),
        Scales::Bf16 => put(0, ((power(block[0]) >> 16) as u16).to_le_bytes()),
        Scales::WithMin | Scales::SuperMin => {
            put(0, [block[0], block[1]]);
            put(1, [block[2], block[3]]);
        }
        Scales::SuperHalves => put(0, [block[208], block[209]]),
    }
    for u in 0..UNITS_OF_256 {
        let two = match ty.scales() {
            Scales::SuperMin => scale_and_min(&block[4..16], u),
            Scales::SuperHalves => (block[192 + 2 * u], block[193 + 2 * u]),
            Scales::F16 | Scales::Bf16 | Scales::WithMin => return,
        };
        let at = group - (UNITS_OF_256 - u) * 2 * TILE_ROWS + r;
        (scales[at], scales[at + TILE_ROWS]) = two;
    }
}

/// The values of unit `u` of row `r`, of its codes and its group of scales.
fn values(ty: QuantType, codes: Codes, scales: &[u8], u: usize, r: usize, out: &mut [f32]) {
    let group = scales.len();
    let two = |lane: usize| {
        let at = 2 * (lane * TILE_ROWS + r);
        [scales[at], scales[at + 1]]
    };
    let half = |lane: usize| f16::from_le_bytes(two(lane)).to_f32();
    let byte = |lane: usize| {
        scales[group - (UNITS_OF_256 - u % UNITS_OF_256) * 2 * TILE_ROWS + lane * TILE_ROWS + r]
    };
    // All at once, and no choice inside of a loop: so a unit takes a few vector instructions.
    let mut bytes = [0; UNIT];
    bytes
        .chunks_exact_mut(4)
        .zip(codes)
        .for_each(|(to, code)| to.copy_from_slice(&code.to_le_bytes()));
    let affine = |s: f32, m: f32, out: &mut [f32]| {
        out.iter_mut().zip(bytes).for_each(|(out, code)| *out = s * f32::from(code) + m);
    };
    match ty.scales() {
        Scales::F16 => scaled(ty, half(0), &bytes, out),
        Scales::Bf16 => scaled(ty, bf16::from_le_bytes(two(0)).to_f32(), &bytes, out),
        Scales::WithMin => affine(half(0), half(1), out),
        Scales::SuperMin => {
            affine(half(0) * f32::from(byte(0)), -(half(1) * f32::from(byte(1))), out);
        }
        Scales::SuperHalves => {
            let halves = out.chunks_exact_mut(UNIT / 2).zip(bytes.chunks_exact(UNIT / 2));
            for (h, (out, codes)) in halves.enumerate() {
                scaled(ty, half(0) * f32::from(byte(h) as i8), codes, out);
            }
        }
    }
}

/// Values of formats without a smallest value.
fn scaled(ty: QuantType, s: f32, codes: &[u8], out: &mut [f32]) {
    let out = out.iter_mut().zip(codes);
    match table(ty) {
        Some(table) => {
            out.for_each(|(out, code)| *out = s * f32::from(table[usize::from(*code)]));
        }
        None => {
            let zero = 1 << (ty.code_bits() - 1);
            out.for_each(|(out, code)| *out = s * f32::from(i16::from(*code) - zero));
        }
    }
}

/// What codes stand for in formats whose values are not evenly spaced.
pub const fn table(ty: QuantType) -> Option<[i8; 16]> {
    match ty {
        QuantType::Iq4Nl => Some(IQ4_NL),
        QuantType::Mxfp4 => Some(MXFP4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::dequantize;
    use crate::rng::SplitMix64;

    const ORDERS: [Order; 2] = [Order::Apart, Order::Together];

    /// Blocks of random bits whose scales are finite.
    fn blocks(ty: QuantType, n: usize, rng: &mut SplitMix64) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..n * ty.block_bytes()).map(|_| rng.below(256) as u8).collect();
        for block in bytes.chunks_exact_mut(ty.block_bytes()) {
            let at: &[usize] = match ty {
                QuantType::Mxfp4 => continue,
                QuantType::Q6K => &[208],
                QuantType::Q4_1 | QuantType::Q5_1 | QuantType::Q4K | QuantType::Q5K => &[0, 2],
                _ => &[0],
            };
            for at in at {
                let d = f16::from_f32(rng.next_normal());
                block[*at..at + 2].copy_from_slice(&d.to_le_bytes());
            }
        }
        bytes
    }

    #[test]
    fn rows_of_tiles_are_those_of_blocks_bit_for_bit() {
        let mut rng = SplitMix64::new(7);
        for ty in QuantType::ALL {
            for (n_rows, order) in
                [1, 15, 16, 17, 40].into_iter().flat_map(|n| ORDERS.map(|order| (n, order)))
            {
                let tiles = Tiles { ty, n_rows, n_cols: 3 * ty.block_len(), order };
                let rows = blocks(ty, n_rows * 3, &mut rng);
                let mut expected = vec![0.0; n_rows * tiles.n_cols];
                dequantize(ty, &rows, &mut expected);
                let mut tile = vec![0xff; tiles.tile_bytes()];
                let mut found = vec![f32::NAN; tiles.n_cols];
                for row in 0..n_rows {
                    tiles.pack(&rows, row / TILE_ROWS, &mut tile);
                    tiles.row(&tile, row % TILE_ROWS, &mut found);
                    let expected = &expected[row * tiles.n_cols..][..tiles.n_cols];
                    let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&found), bits(expected), "{ty}, row {row} of {n_rows}");
                }
            }
        }
    }

    #[test]
    fn rows_beyond_the_last_are_zeros() {
        let mut rng = SplitMix64::new(8);
        for (ty, order) in QuantType::ALL.into_iter().flat_map(|ty| ORDERS.map(|order| (ty, order)))
        {
            let tiles = Tiles { ty, n_rows: 3, n_cols: ty.block_len(), order };
            let mut tile = vec![0xff; tiles.tile_bytes()];
            tiles.pack(&blocks(ty, 3, &mut rng), 0, &mut tile);
            let mut found = vec![f32::NAN; tiles.n_cols];
            tiles.row(&tile, 3, &mut found);
            assert!(found.iter().all(|value| *value == 0.0), "{ty}: {found:?}");
        }
    }

    #[test]
    fn tiles_are_as_large_as_blocks() {
        // Only the scales of 6 bits of Q4_K and Q5_K, and those of MXFP4, take more room.
        for (ty, bits) in [
            (QuantType::Q4_0, 4.5),
            (QuantType::Q4_1, 5.0),
            (QuantType::Q5_0, 5.5),
            (QuantType::Q5_1, 6.0),
            (QuantType::Q8_0, 8.5),
            (QuantType::Q4K, 4.625),
            (QuantType::Q5K, 5.625),
            (QuantType::Q6K, 6.5625),
            (QuantType::Iq4Nl, 4.5),
            (QuantType::Mxfp4, 4.5),
        ] {
            for order in ORDERS {
                let tiles = Tiles { ty, n_rows: TILE_ROWS, n_cols: 4096, order };
                // Half a line more for 256 columns.
                let is_padded = ty == QuantType::Q6K && order == Order::Together;
                let padding = if is_padded { 0.0625 } else { 0.0 };
                let found = tiles.tile_bytes() as f64 * 8.0 / (16.0 * 4096.0);
                assert_eq!(found, bits + padding, "{ty}, {order:?}");
            }
        }
    }
}
