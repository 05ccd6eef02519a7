//! Digests of parts of a file.

/// A digest of some bytes: BLAKE3, 32 bytes.
pub type Digest = [u8; 32];

/// The digest of `bytes`.
pub(super) fn digest(bytes: &[u8]) -> Digest {
    *blake3::hash(bytes).as_bytes()
}
