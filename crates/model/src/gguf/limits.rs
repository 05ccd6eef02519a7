//! How much of a GGUF file is believed.

/// The longest header that is read, in bytes: key-values and the list of tensors. A vocabulary of
/// 260,000 tokens takes up to 20 MB.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// The most key-values.
pub const MAX_KEYS: u64 = 65_536;
/// The most tensors, over all parts of a split model.
pub const MAX_TENSORS: u64 = 65_536;
/// The longest text, in bytes: a chat template, say.
pub const MAX_TEXT_BYTES: u64 = 16 << 20;
/// The most elements of a list.
pub const MAX_ELEMENTS: u64 = 16 << 20;
/// The longest name of a key, in bytes, as the format has it.
pub const MAX_KEY_BYTES: u64 = 65_535;
/// The longest name of a tensor, in bytes, as the format has it.
pub const MAX_NAME_BYTES: u64 = 64;
/// The most dimensions of a tensor.
pub const MAX_DIMS: u32 = 4;
/// Alignments of tensors that are accepted, in bytes; powers of two.
pub const ALIGNMENTS: std::ops::RangeInclusive<u64> = 8..=4096;
/// The most files that a model may be split into.
pub const MAX_PARTS: u64 = 1024;
