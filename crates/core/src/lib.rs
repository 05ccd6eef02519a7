//! Words that every crate of Longview shares: data types, block formats of weights, KV rows of 8
//! bits, index newtypes, host bytes, bytes read in runs, counts as people read them, words of
//! strangers in messages, a seeded generator.
//!
//! Nothing here knows a device. Two integers that could be swapped in a call get a newtype
//! ([`TokenPos`], [`ClusterId`], [`Slot`]); everything random takes a seed and uses [`SplitMix64`],
//! so that the same arguments give the same tokens on every machine.

mod bytes;
mod dtype;
mod grouped;
mod ids;
pub mod kv8;
mod nearest;
pub mod quant;
mod regular;
mod rng;
mod shown;
mod source;

pub use bytes::HostBytes;
pub use dtype::{DType, ParseDTypeError, decode_f32, decode_f32_into, encode_f32, encode_f32_into};
pub use grouped::Grouped;
pub use ids::{ClusterId, HeadId, LayerId, Slot, TokenPos};
pub use regular::{open_regular, read_regular, special_kind};
pub use rng::SplitMix64;
pub use shown::{acts_on_terminal, quoted};
pub use source::{FileSource, RangeSource};
