//! Blocks, in which files of version 1 are verified.

/// The largest block.
const BLOCK_BYTES: usize = 1 << 20;
/// The smallest block that is read: a table never takes more than a 16th of a file.
const MIN_BLOCK_BYTES: usize = 512;

/// Whether blocks may have this size.
pub(super) fn is_block_size(bytes: usize) -> bool {
    bytes.is_power_of_two() && (MIN_BLOCK_BYTES..=BLOCK_BYTES).contains(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_powers_of_two_between_half_a_kibibyte_and_a_mebibyte() {
        let sizes = [512, 1024, 1 << 19, BLOCK_BYTES];
        assert!(sizes.into_iter().all(is_block_size));
        let others = [0, 1, 256, 511, 513, 768, BLOCK_BYTES + 1, 2 * BLOCK_BYTES];
        assert!(!others.into_iter().any(is_block_size));
    }
}
