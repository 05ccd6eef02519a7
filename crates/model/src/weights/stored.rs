//! Where a tensor's bytes are: in memory, or in a file that is read in runs.

use std::fmt;
use std::io;
use std::ops::Range;

use longview_core::HostBytes;

use crate::source::SharedSource;

/// The bytes of one tensor.
#[derive(Clone)]
pub(super) enum Stored {
    /// Mapped.
    InMemory(HostBytes),
    /// To be read.
    InFile {
        /// The file.
        source: SharedSource,
        /// The first byte in it.
        start: u64,
        /// How many.
        len: usize,
    },
}

impl Stored {
    pub fn len(&self) -> usize {
        match self {
            Stored::InMemory(bytes) => bytes.len(),
            Stored::InFile { len, .. } => *len,
        }
    }

    /// `runs` one after the other, at an address that is a multiple of `align`: in place where they
    /// lie so in memory.
    pub fn aligned_runs(&self, runs: &[Range<usize>], align: usize) -> io::Result<HostBytes> {
        if let (Stored::InMemory(bytes), [run]) = (self, runs) {
            let bytes = bytes.slice(run.clone());
            if (bytes.as_ref().as_ptr() as usize).is_multiple_of(align) {
                return Ok(bytes);
            }
        }
        let len = runs.iter().map(ExactSizeIterator::len).sum();
        HostBytes::filled(len, |out| self.read_runs(runs, 0, out))
    }

    /// Fills `out` with bytes of `runs`, which follow one another, from byte `at` of them on.
    pub fn read_runs(&self, runs: &[Range<usize>], at: usize, out: &mut [u8]) -> io::Result<()> {
        let (mut skip, mut left) = (at, out);
        for run in runs {
            let from = run.start + skip.min(run.len());
            skip = skip.saturating_sub(run.len());
            let n = left.len().min(run.end - from);
            let (now, later) = left.split_at_mut(n);
            self.read(from, now)?;
            left = later;
        }
        if left.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn read(&self, at: usize, out: &mut [u8]) -> io::Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        match self {
            Stored::InMemory(bytes) => {
                out.copy_from_slice(&bytes.as_ref()[at..at + out.len()]);
                Ok(())
            }
            Stored::InFile { source, start, .. } => source.read_at(start + at as u64, out),
        }
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stored({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tens() -> Stored {
        Stored::InMemory(HostBytes::from_vec((0..100).collect()))
    }

    #[test]
    fn runs_are_read_from_any_byte_on() {
        let runs = [10..13, 50..50, 70..74];
        let all = tens().aligned_runs(&runs, 4).unwrap();
        assert_eq!(all.as_ref(), [10, 11, 12, 70, 71, 72, 73]);
        for at in 0..7 {
            for end in at..=7 {
                let mut out = vec![0; end - at];
                tens().read_runs(&runs, at, &mut out).unwrap();
                assert_eq!(out, all.as_ref()[at..end], "{at}..{end}");
            }
        }
        assert!(tens().read_runs(&runs, 5, &mut [0; 3]).is_err());
    }
}
