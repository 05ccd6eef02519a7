//! Quantised weights: the block formats of ggml, what their values are, and the tiles that kernels
//! read.
//!
//! A row of a quantised matrix is a run of blocks of 32 or 256 values. [`dequantize`] says what the
//! values are; [`Tiles`] is the same data in the order in which kernels of every backend read it.

mod blocks;
mod codes;
mod quantize;
mod scales;
mod tiles;
mod types;

pub use self::blocks::dequantize;
pub use self::quantize::quantize;
pub use self::scales::block_without_scale;
pub use self::tiles::{Chunk, Order, Scales, TILE_ROWS, Tiles, UNIT, table};
pub use self::types::{ParseQuantTypeError, QuantType};
