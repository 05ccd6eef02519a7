//! Memory of the host that kernels do not read, whoever makes it.

use std::ops::Range;

/// Bytes of one layer, read and written in runs.
pub trait HostBytesMut: Send + Sync {
    /// Fills `out` with the bytes from `at` on.
    fn read(&self, at: usize, out: &mut [u8]);

    /// Overwrites the bytes from `at` on.
    fn write(&mut self, at: usize, bytes: &[u8]);

    /// Others with the same bytes in the spans `used`, to be written without these; `None` where
    /// there is no memory for them.
    fn fork(&self, used: &[Range<usize>]) -> Option<Box<dyn HostBytesMut>>;

    /// Bytes in memory that others have too.
    fn shared_bytes(&self) -> u64 {
        0
    }
}

/// Opens that many zeroed bytes, or says `None` where there is no memory for them.
pub type OpenBytes = fn(usize) -> Option<Box<dyn HostBytesMut>>;

impl HostBytesMut for Vec<u8> {
    fn read(&self, at: usize, out: &mut [u8]) {
        out.copy_from_slice(&self[at..at + out.len()]);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn fork(&self, used: &[Range<usize>]) -> Option<Box<dyn HostBytesMut>> {
        Self::new().try_reserve_exact(self.len()).ok()?;
        let mut fork = vec![0; self.len()];
        for span in used {
            fork[span.clone()].copy_from_slice(&self[span.clone()]);
        }
        Some(Box::new(fork))
    }
}
