//! What two lists of tokens begin with alike, found without either list.
//!
//! A session keeps one short hash for every [`BLOCK`] tokens, each over the hash before it. Two
//! lists that share a hash begin alike up to there, so the longest common beginning with hundreds
//! of sessions is found in the manifest alone. A hash of eight bytes may in theory be shared by
//! chance: who opens the session compares its tokens, and reads from where these differ.

use serde::{Deserialize, Serialize};

/// Tokens of one hash.
pub const BLOCK: usize = 256;
/// Bytes that are kept of a hash.
const HASH_BYTES: usize = 8;
/// Digits of one.
const DIGITS: usize = 2 * HASH_BYTES;

/// The hashes of a list of tokens, as digits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Chain(String);

impl Chain {
    /// That of `tokens`. What is behind the last whole block has none.
    pub fn of(tokens: &[u32]) -> Self {
        let mut digits = String::with_capacity(tokens.len() / BLOCK * DIGITS);
        let mut before = [0; 32];
        for block in tokens.chunks_exact(BLOCK) {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&before);
            block.iter().for_each(|token| {
                hasher.update(&token.to_le_bytes());
            });
            before = *hasher.finalize().as_bytes();
            digits.extend(before[..HASH_BYTES].iter().map(|byte| format!("{byte:02x}")));
        }
        Self(digits)
    }

    /// The digits of what the first `n` blocks hash to; none where there are not as many.
    #[cfg(feature = "shared")]
    pub(crate) fn prefix(&self, n: usize) -> &str {
        n.checked_sub(1).and_then(|i| self.0.get(i * DIGITS..n * DIGITS)).unwrap_or("")
    }

    /// Its blocks.
    #[cfg(feature = "shared")]
    pub(crate) fn n_blocks(&self) -> usize {
        self.0.len() / DIGITS
    }

    /// Tokens that both lists begin with, in whole blocks.
    pub fn common(&self, other: &Self) -> usize {
        let (a, b) = (self.0.as_bytes().chunks_exact(DIGITS), other.0.as_bytes());
        let pairs = a.zip(b.chunks_exact(DIGITS));
        // A hash covers all before it, so the first that differs ends it.
        pairs.take_while(|(a, b)| a == b).count() * BLOCK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_alike_in_whole_blocks() {
        let all: Vec<u32> = (0..1000).collect();
        let whole = Chain::of(&all);
        assert_eq!(whole.common(&whole), 768);
        assert_eq!(Chain::of(&all[..600]).common(&whole), 512);
        assert_eq!(Chain::of(&all[..255]).common(&whole), 0);
        let mut other = all.clone();
        other[300] = 7;
        assert_eq!(Chain::of(&other).common(&whole), 256);
        // The same block behind another beginning is another one.
        other[0] = 7;
        assert_eq!(Chain::of(&other).common(&whole), 0);
    }
}
