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

    /// `len` bytes that `fill` writes, at an address that fits every type.
    ///
    /// # Errors
    /// What `fill` says.
    pub fn filled<E>(len: usize, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        let mut words = vec![0u64; len.div_ceil(8)];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        fill(&mut bytes[..len])?;
        Ok(Self::new(Arc::new(Words(words))).slice(0..len))
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

/// Owns memory aligned to 8; a `Vec<u8>` promises only 1.
struct Words(Vec<u64>);

impl AsRef<[u8]> for Words {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
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

    #[test]
    fn filled_bytes_are_those_written_and_a_failure_is_passed_on() {
        let write = |out: &mut [u8]| {
            out.copy_from_slice(&[1, 2, 3, 4, 5]);
            Ok::<_, ()>(())
        };
        let bytes = HostBytes::filled(5, write).unwrap();
        assert_eq!(bytes.as_ref(), &[1, 2, 3, 4, 5]);
        assert!((bytes.as_ref().as_ptr() as usize).is_multiple_of(8));
        assert_eq!(HostBytes::filled(5, |_| Err("no")).unwrap_err(), "no");
    }
}
