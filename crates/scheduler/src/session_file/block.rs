//! Blocks, in which a file is written and verified.

/// Bytes of a block as they are written; readers take smaller ones too.
pub const BLOCK_BYTES: usize = 1 << 20;
/// The smallest block that is read: a table never takes more than a 16th of a file.
const MIN_BLOCK_BYTES: usize = 512;

/// Whether blocks may have this size.
pub(super) fn is_block_size(bytes: usize) -> bool {
    bytes.is_power_of_two() && (MIN_BLOCK_BYTES..=BLOCK_BYTES).contains(&bytes)
}
