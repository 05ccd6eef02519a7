//! Pinned host memory that copies go through: two pieces for uploads, taken in turns, and one
//! buffer for downloads.
//!
//! Both have their size after the first use, so a step allocates nothing. An upload of any length
//! goes through in pieces: while the device copies one, the host fills the other.

use std::ops::Range;
use std::sync::Arc;

use longview_ops::{OpError, OpResult};

use crate::device::{Counted, Device};
use crate::driver::{CopyCall, Driver, Memory, Place, Work};
use crate::stream::Stream;

/// Bytes of a piece.
const PIECE: usize = 4 << 20;
const N_PIECES: usize = 2;
/// What is copied begins at multiples of this, which copies like.
const ALIGNMENT: usize = 16;
/// The smallest and the largest download that is one wait.
const DOWNLOADS: Range<usize> = 64 << 10..16 << 20;

struct Piece<D: Driver> {
    memory: Counted<D>,
    /// After its last copy.
    done: D::Event,
    used: usize,
}

/// Copies from the host to the device, through pieces that are filled in turns.
pub(crate) struct Uploads<D: Driver> {
    pieces: Vec<Piece<D>>,
    current: usize,
}

impl<D: Driver> Default for Uploads<D> {
    fn default() -> Self {
        Self { pieces: Vec::new(), current: 0 }
    }
}

impl<D: Driver> Uploads<D> {
    /// Puts `n_bytes` bytes to `to` in the stream's order. `fill` writes any range of them.
    pub fn run(
        &mut self,
        device: &Arc<Device<D>>,
        stream: &Stream<D>,
        to: Place<'_, D::Memory>,
        n_bytes: usize,
        mut fill: impl FnMut(Range<usize>, &mut [u8]),
    ) -> OpResult<()> {
        let mut at = 0;
        while at < n_bytes {
            let piece = self.piece_with_room(device, stream)?;
            let n = (PIECE - piece.used).min(n_bytes - at);
            let from = piece.used;
            fill(at..at + n, &mut host_mut::<D>(&mut piece.memory.memory)?[from..from + n]);
            let to = Place::new(to.memory, to.offset + at as u64);
            let from = Place::new(&piece.memory.memory, from as u64);
            copy(stream, &to, &from, n)?;
            piece.used = (piece.used + n).next_multiple_of(ALIGNMENT);
            at += n;
        }
        Ok(())
    }

    /// The current piece, or the next one as soon as the device is done with it.
    fn piece_with_room(
        &mut self,
        device: &Arc<Device<D>>,
        stream: &Stream<D>,
    ) -> OpResult<&mut Piece<D>> {
        let driver = &device.driver;
        while self.pieces.len() < N_PIECES {
            let memory = device.alloc_host(PIECE as u64, "upload staging")?;
            let done = device.told(driver.new_event())?;
            self.pieces.push(Piece { memory, done, used: 0 });
        }
        if self.pieces[self.current].used >= PIECE {
            stream.record(&self.pieces[self.current].done)?;
            self.current = (self.current + 1) % N_PIECES;
            let next = &mut self.pieces[self.current];
            if next.used > 0 {
                device.told(driver.synchronize_event(&next.done))?;
                next.used = 0;
            }
        }
        Ok(&mut self.pieces[self.current])
    }
}

/// Copies from the device to the host, through one buffer.
pub(crate) struct Downloads<D: Driver> {
    memory: Option<Counted<D>>,
    jobs: Vec<Job>,
}

impl<D: Driver> Default for Downloads<D> {
    fn default() -> Self {
        Self { memory: None, jobs: Vec::new() }
    }
}

/// A part of a download: where it comes from, and where it goes to.
pub(crate) struct Part<'p, 'm, D: Driver> {
    pub from: Place<'m, D::Memory>,
    pub out: &'p mut [u8],
}

/// What is left of a part.
struct Rest<'a, D: Driver> {
    from: &'a Place<'a, D::Memory>,
    part: usize,
    /// Bytes of it that have not been asked for.
    range: Range<usize>,
}

/// Bytes of a part that come with the next wait.
struct Job {
    part: usize,
    range: Range<usize>,
    /// Where they are staged; `None` where the host reads them in place.
    staged_at: Option<usize>,
}

impl<D: Driver> Downloads<D> {
    /// Copies all parts once everything before on the stream is done: one wait, unless there is
    /// more than fits.
    pub fn run(
        &mut self,
        device: &Arc<Device<D>>,
        stream: &Stream<D>,
        parts: &mut [Part<'_, '_, D>],
    ) -> OpResult<()> {
        let padded = |part: &Part<'_, '_, D>| part.out.len().next_multiple_of(ALIGNMENT);
        self.reserve(device, parts.iter().map(padded).sum())?;
        // Of a read that failed half-way.
        self.jobs.clear();
        let (mut part, mut at) = (0, 0);
        loop {
            let mut used = 0;
            while let Some(Part { from, out }) = parts.get(part) {
                if out.is_empty() {
                    part += 1;
                    continue;
                }
                let rest = Rest { from, part, range: at..out.len() };
                let n = self.stage(stream, &rest, &mut used)?;
                at += n;
                if at < out.len() {
                    break;
                }
                (part, at) = (part + 1, 0);
            }
            stream.synchronize()?;
            self.finish(parts);
            if part == parts.len() {
                return Ok(());
            }
        }
    }

    /// Copies as much of the rest of a part as fits behind `used`; returns how much that is.
    fn stage(
        &mut self,
        stream: &Stream<D>,
        rest: &Rest<'_, D>,
        used: &mut usize,
    ) -> OpResult<usize> {
        let Rest { from, part, range: Range { start: at, end: len } } = rest;
        let (part, at, len) = (*part, *at, *len);
        let is_host = from.memory.host_bytes().is_some();
        let memory = self.memory.as_ref().map(|counted| &counted.memory);
        let Some(memory) = memory.filter(|_| !is_host) else {
            self.jobs.push(Job { part, range: at..len, staged_at: None });
            return Ok(len - at);
        };
        let n = (memory.len() as usize - *used).min(len - at);
        if n > 0 {
            let from = Place::new(from.memory, from.offset + at as u64);
            let to = Place::new(memory, *used as u64);
            copy(stream, &to, &from, n)?;
            self.jobs.push(Job { part, range: at..at + n, staged_at: Some(*used) });
            *used = (*used + n).next_multiple_of(ALIGNMENT);
        }
        Ok(n)
    }

    /// Hands over what has arrived.
    fn finish(&mut self, parts: &mut [Part<'_, '_, D>]) {
        let memory = self.memory.as_ref().map(|counted| &counted.memory);
        let staged = memory.and_then(Memory::host_bytes).unwrap_or_default();
        for Job { part, range, staged_at } in self.jobs.drain(..) {
            let Part { from, out } = &mut parts[part];
            let bytes = match staged_at {
                Some(at) => &staged[at..],
                None => &from.memory.host_bytes().unwrap_or_default()[from.offset as usize..],
            };
            let n = range.len();
            out[range].copy_from_slice(&bytes[..n]);
        }
    }

    /// Room for `n_bytes`, or for as much as one wait brings.
    fn reserve(&mut self, device: &Arc<Device<D>>, n_bytes: usize) -> OpResult<()> {
        let size = n_bytes.next_power_of_two().clamp(DOWNLOADS.start, DOWNLOADS.end);
        let has = self.memory.as_ref().map_or(0, |counted| counted.memory.len());
        if has < size as u64 {
            self.memory = None;
            self.memory = Some(device.alloc_host(size as u64, "download staging")?);
        }
        Ok(())
    }
}

/// A copy after all work before.
fn copy<D: Driver>(
    stream: &Stream<D>,
    to: &Place<'_, D::Memory>,
    from: &Place<'_, D::Memory>,
    n: usize,
) -> OpResult<()> {
    // SAFETY: both runs lie in their memories, which hand over and wait for work before they are
    // freed; pieces are filled again, and downloads read, after waiting.
    unsafe { stream.push(Work::Copy(CopyCall::new(to, from, n as u64))) }
}

/// The bytes of host memory.
fn host_mut<D: Driver>(memory: &mut D::Memory) -> OpResult<&mut [u8]> {
    let lost = || OpError::DeviceLost {
        backend: D::NAME,
        reason: "pinned memory has no address on the host".into(),
    };
    memory.host_bytes_mut().ok_or_else(lost)
}
