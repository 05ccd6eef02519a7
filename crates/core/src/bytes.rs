//! Bytes on the host that a backend may keep: a mapped file or an owned vector.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A shared, immutable range of host memory. Cloning shares; nothing is copied.
///
/// A backend that reads weights in place (the CPU) keeps this handle, and with it the mapping,
/// alive.
#[derive(Clone)]
pub struct HostBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl HostBytes {
    /// The whole of `owner`.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        let range = 0..(*owner).as_ref().len();
        Self { owner, range }
    }

    /// The bytes of a vector.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self::new(Arc::new(bytes))
    }

    /// The part `range`, counted from the start of this part.
    ///
    /// # Panics
    /// If `range` reaches past the end.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "HostBytes: {range:?} of {}",
            self.len()
        );
        let start = self.range.start + range.start;
        Self { owner: Arc::clone(&self.owner), range: start..self.range.start + range.end }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

impl AsRef<[u8]> for HostBytes {
    fn as_ref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl fmt::Debug for HostBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBytes({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_a_slice_counts_from_its_own_start() {
        let bytes = HostBytes::from_vec((0..10).collect());
        assert_eq!(bytes.slice(2..8).slice(1..3).as_ref(), &[3, 4]);
    }
}
