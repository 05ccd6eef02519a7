//! Bytes in segments that forks share until one of them writes there.
//!
//! For stores whose memory kernels do not read: there nobody needs one run of addresses, so a
//! reference count and a copy of one segment do what pages of the system do elsewhere, on every
//! system. A segment that was never written takes no memory.

use std::ops::Range;
use std::sync::Arc;

use super::host_bytes::HostBytesMut;

/// Small enough that a fork which writes one row of each head copies little; a lookup for each
/// costs nothing beside it.
const SEGMENT_BYTES: usize = 1 << 16;

/// Zeroed bytes that can be forked.
pub(super) struct SegmentedBytes {
    segments: Vec<Option<Arc<[u8]>>>,
    len: usize,
}

impl SegmentedBytes {
    /// `len` zero bytes, or `None` where there is no memory for them.
    pub fn open(len: usize) -> Option<Box<dyn HostBytesMut>> {
        // All of them are asked for once: what cannot be had is to fail now, not at a later write.
        Vec::<u8>::new().try_reserve_exact(len).ok()?;
        Some(Box::new(Self { segments: vec![None; len.div_ceil(SEGMENT_BYTES)], len }))
    }

    /// The parts of a run of bytes that lie in one segment each: segment, bytes in it, bytes of the
    /// run.
    fn parts(
        &self,
        at: usize,
        len: usize,
    ) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> + use<> {
        assert!(at + len <= self.len, "bytes {at} to {} of {}", at + len, self.len);
        let mut done = 0;
        std::iter::from_fn(move || {
            let (segment, first) = ((at + done) / SEGMENT_BYTES, (at + done) % SEGMENT_BYTES);
            let n = (len - done).min(SEGMENT_BYTES - first);
            let part = (segment, first..first + n, done..done + n);
            done += n;
            (n > 0).then_some(part)
        })
    }
}

impl HostBytesMut for SegmentedBytes {
    fn read(&self, at: usize, out: &mut [u8]) {
        for (segment, from, to) in self.parts(at, out.len()) {
            match &self.segments[segment] {
                Some(bytes) => out[to].copy_from_slice(&bytes[from]),
                None => out[to].fill(0),
            }
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        for (segment, to, from) in self.parts(at, bytes.len()) {
            let len = SEGMENT_BYTES.min(self.len - segment * SEGMENT_BYTES);
            let own = self.segments[segment].get_or_insert_with(|| Arc::from(vec![0; len]));
            Arc::make_mut(own)[to].copy_from_slice(&bytes[from]);
        }
    }

    fn fork(&self, used: &[Range<usize>]) -> Option<Box<dyn HostBytesMut>> {
        let mut segments = vec![None; self.segments.len()];
        for span in used.iter().filter(|span| !span.is_empty()) {
            let range = span.start / SEGMENT_BYTES..span.end.div_ceil(SEGMENT_BYTES);
            segments[range.clone()].clone_from_slice(&self.segments[range]);
        }
        Some(Box::new(Self { segments, len: self.len }))
    }

    fn shared_bytes(&self) -> u64 {
        let shared = self.segments.iter().flatten().filter(|bytes| Arc::strong_count(bytes) > 1);
        shared.map(|bytes| bytes.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 3 * SEGMENT_BYTES + 100;

    fn all(bytes: &dyn HostBytesMut) -> Vec<u8> {
        let mut out = vec![9; LEN];
        bytes.read(0, &mut out);
        out
    }

    #[test]
    fn runs_may_lie_across_segments() {
        let mut bytes = SegmentedBytes::open(LEN).unwrap();
        let (at, run) =
            (SEGMENT_BYTES - 3, (0..SEGMENT_BYTES + 50).map(|i| i as u8).collect::<Vec<_>>());
        bytes.write(at, &run);
        bytes.write(LEN - 1, &[7]);
        let mut want = vec![0; LEN];
        want[at..at + run.len()].copy_from_slice(&run);
        want[LEN - 1] = 7;
        assert_eq!(all(&*bytes), want);
        let mut part = [1; 2];
        bytes.read(SEGMENT_BYTES - 1, &mut part);
        assert_eq!(part, [2, 3]);
    }

    #[test]
    fn a_fork_shares_what_neither_writes() {
        let mut bytes = SegmentedBytes::open(LEN).unwrap();
        bytes.write(0, &vec![5; LEN]);
        let mut fork = bytes.fork(&[0..10, SEGMENT_BYTES..2 * SEGMENT_BYTES + 1]).unwrap();
        assert_eq!(fork.shared_bytes(), 3 * SEGMENT_BYTES as u64);
        fork.write(SEGMENT_BYTES + 4, &[6]);
        bytes.write(8, &[4]);
        assert_eq!([bytes.shared_bytes(), fork.shared_bytes()], [SEGMENT_BYTES as u64; 2]);
        let (mut want, mut forked) = (vec![5; LEN], vec![5; LEN]);
        (want[8], forked[SEGMENT_BYTES + 4]) = (4, 6);
        forked[3 * SEGMENT_BYTES..].fill(0);
        assert!(all(&*bytes) == want && all(&*fork) == forked);
        drop(bytes);
        assert!(all(&*fork) == forked);
        assert_eq!(fork.shared_bytes(), 0);
    }

    #[test]
    fn more_than_all_memory_is_none() {
        assert!(SegmentedBytes::open(isize::MAX as usize).is_none());
    }
}
