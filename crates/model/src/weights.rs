//! Weights of a Hugging Face folder: one `model.safetensors`, or shards behind an index.
//!
//! Files are mapped, not read: a backend that computes in place (the CPU) pages in what it
//! touches, and one that uploads reads each byte once. Where no file can be mapped (a browser),
//! tensors are read in runs as they are handed over. Headers are checked against the file and
//! every tensor against the config before anything is computed, because the file came from a
//! stranger and a wrong shape would otherwise surface as nonsense or a crash much later.

mod digest;
mod error;
mod expected;
mod finite;
mod limits;
mod made;
mod part;
mod quantize;
mod set;
mod shard;
mod stored;
mod tensor;

pub use self::digest::sample_windows;
pub use self::error::{LoadError, Mismatch, WeightsError};
pub(crate) use self::expected::{FINAL_NORM, stored_layer_tensors, weight_tensors};
pub use self::expected::{LayerTensors, LinearTensors, expected_tensors, layer_tensors};
pub use self::limits::{MAX_HEADER_BYTES, MAX_TENSORS};
pub(crate) use self::made::RowForm;
pub use self::part::{ExpectedTensor, TensorPart};
pub(crate) use self::quantize::block_type;
pub use self::set::TensorSet;
pub(crate) use self::set::WeightRows;
pub(crate) use self::shard::map;
pub use self::tensor::Tensor;
