//! Pinned host memory that copies go through: two pieces for uploads, taken in turns, and one
//! buffer for downloads.
//!
//! Both have their size after the first use, so a step allocates nothing. An upload of any length
//! goes through in pieces: while the device copies one, the host fills the other.
//!
//! What the host tells the device in a decode step is many short runs of words: such uploads, as
//! long as no op comes between them, share a block of pinned memory, from which one kernel
//! (`upload_words.cu`) brings each to its place. Its one argument is where the block lies. Whenever
//! the stream was waited for, as at the end of each step, blocks begin at the begin again: so the
//! arguments are the same in every step, and no node of its graphs changes for what the host tells.

use std::ops::Range;
use std::sync::Arc;

use longview_ops::{OpError, OpResult};

use crate::args::Address;
use crate::device::{Counted, Device};
use crate::driver::{CopyCall, Driver, Grid, KernelCall, Memory, Place};
use crate::fused_args::UploadWordsArgs;
use crate::kernels::Kernel;
use crate::stream::{Stream, Ticket};

/// Bytes of a piece.
const PIECE: usize = 4 << 20;
const N_PIECES: usize = 2;
/// What is copied begins at multiples of this, which copies like.
const ALIGNMENT: usize = 16;
/// The smallest and the largest download that is one wait.
const DOWNLOADS: Range<usize> = 64 << 10..16 << 20;

/// Bytes of a block of words, and those before the words: as `upload_words.cu` says.
const BLOCK: usize = 8192;
const BEFORE_WORDS: usize = 2048;
/// An entry says where its words go and which is its first; the first of all says how many there
/// are.
const ENTRY: usize = 16;
const MOST_ENTRIES: usize = BEFORE_WORDS / ENTRY - 1;
const WORD: usize = 4;

/// A block of words whose launch is given to the stream.
struct Block {
    launch: Ticket,
    /// Where it begins in the current piece.
    at: usize,
    /// Where its words go, entry by entry.
    targets: Vec<Range<u64>>,
    n_bytes: usize,
}

impl Block {
    /// Whether so many bytes to `to` are an entry of it: entries are written in any order.
    fn takes(&self, to: u64, n_bytes: usize) -> bool {
        let end = to + n_bytes as u64;
        self.targets.len() < MOST_ENTRIES
            && self.n_bytes + n_bytes <= BLOCK - BEFORE_WORDS
            && self.targets.iter().all(|other| end <= other.start || other.end <= to)
    }

    /// Adds an entry; `fill` writes its bytes.
    fn add(&mut self, block: &mut [u8], to: Range<u64>, fill: impl FnOnce(&mut [u8])) {
        let n_bytes = (to.end - to.start) as usize;
        let first = self.n_bytes / WORD;
        fill(&mut block[BEFORE_WORDS + self.n_bytes..][..n_bytes]);
        let entry = [to.start as u32, (to.start >> 32) as u32, first as u32, 0];
        self.targets.push(to);
        self.n_bytes += n_bytes;
        block[self.targets.len() * ENTRY..][..ENTRY].copy_from_slice(bytemuck::cast_slice(&entry));
        let counts = [self.targets.len() as u32, (self.n_bytes / WORD) as u32, 0, 0];
        block[..ENTRY].copy_from_slice(bytemuck::cast_slice(&counts));
    }
}

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
    block: Option<Block>,
    n_given: u64,
}

impl<D: Driver> Default for Uploads<D> {
    fn default() -> Self {
        Self { pieces: Vec::new(), current: 0, block: None, n_given: 0 }
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
        self.n_given += 1;
        let is_words = |n: u64| n.is_multiple_of(WORD as u64);
        let is_short = (1..=BLOCK - BEFORE_WORDS).contains(&n_bytes) && is_words(n_bytes as u64);
        if is_short && is_words(to.offset) && to.memory.host_bytes().is_none() {
            let address = to.address_of(n_bytes as u64);
            let to = address..address + n_bytes as u64;
            return self.run_words(device, stream, to, |out| fill(0..n_bytes, out));
        }
        let mut at = 0;
        while at < n_bytes {
            let piece = self.piece_with_room(device, stream, 1)?;
            let n = (PIECE - piece.used).min(n_bytes - at);
            let from = piece.used;
            fill(at..at + n, &mut host_mut::<D>(&mut piece.memory.memory)?[from..from + n]);
            let to = Place::new(to.memory, to.offset + at as u64);
            let from = Place::new(&piece.memory.memory, from as u64);
            copy(stream, &to, &from, n)?;
            piece.used = (piece.used + n).next_multiple_of(ALIGNMENT).min(PIECE);
            at += n;
        }
        Ok(())
    }

    /// Whole words, which go with others that no op is between.
    fn run_words(
        &mut self,
        device: &Arc<Device<D>>,
        stream: &Stream<D>,
        to: Range<u64>,
        fill: impl FnOnce(&mut [u8]),
    ) -> OpResult<()> {
        let n_bytes = (to.end - to.start) as usize;
        let mut fill = Some(fill);
        if let Some(block) = self.block.as_mut().filter(|block| block.takes(to.start, n_bytes)) {
            let piece = &mut self.pieces[self.current];
            let is_added = stream.while_last(block.launch, || {
                let bytes = &mut host_mut::<D>(&mut piece.memory.memory)?[block.at..][..BLOCK];
                fill.take().into_iter().for_each(|fill| block.add(bytes, to.clone(), fill));
                Ok(())
            })?;
            if is_added {
                return Ok(());
            }
        }
        let Some(fill) = fill else { return Ok(()) };
        let mut targets = self.block.take().map_or_else(Vec::new, |block| block.targets);
        targets.clear();
        let piece = self.piece_with_room(device, stream, BLOCK)?;
        let at = piece.used;
        piece.used += BLOCK;
        let mut block = Block { launch: Ticket::NONE, at, targets, n_bytes: 0 };
        block.add(&mut host_mut::<D>(&mut piece.memory.memory)?[at..][..BLOCK], to, fill);
        let address = Address(piece.memory.memory.address() + at as u64);
        let args = UploadWordsArgs { block: address };
        let args = bytemuck::bytes_of(&args);
        let call = KernelCall { kernel: Kernel::upload_words, grid: Grid::over(1, 1), args };
        // SAFETY: the block is written again after waiting; entries are places that callers found
        // to lie in their memories, which hand over and wait for work before they are freed.
        block.launch = unsafe { stream.push(call) }?;
        self.block = Some(block);
        Ok(())
    }

    /// Uploads so far.
    pub fn n_given(&self) -> u64 {
        self.n_given
    }

    /// The stream has done all that it was given when there were `n_given` uploads: if there are no
    /// more, nothing reads what is here.
    pub fn begin_anew(&mut self, n_given: u64) {
        if self.n_given == n_given {
            self.current = 0;
            self.block.iter_mut().for_each(|block| block.launch = Ticket::NONE);
            self.pieces.iter_mut().for_each(|piece| piece.used = 0);
        }
    }

    /// The current piece, or the next one as soon as the device is done with it.
    fn piece_with_room(
        &mut self,
        device: &Arc<Device<D>>,
        stream: &Stream<D>,
        n_bytes: usize,
    ) -> OpResult<&mut Piece<D>> {
        let driver = &device.driver;
        while self.pieces.len() < N_PIECES {
            let memory = device.alloc_host(PIECE as u64, "upload staging")?;
            let done = device.told(driver.new_event())?;
            self.pieces.push(Piece { memory, done, used: 0 });
        }
        if self.pieces[self.current].used + n_bytes > PIECE {
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
    unsafe { stream.copy(CopyCall::new(to, from, n as u64)) }
}

/// The bytes of host memory.
fn host_mut<D: Driver>(memory: &mut D::Memory) -> OpResult<&mut [u8]> {
    let lost = || OpError::DeviceLost {
        backend: D::NAME,
        reason: "pinned memory has no address on the host".into(),
    };
    memory.host_bytes_mut().ok_or_else(lost)
}
