//! How much of a header is read.

/// The longest safetensors header (and index) that is read, in bytes.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// The most tensors in a file or index.
pub const MAX_TENSORS: usize = 65_536;
