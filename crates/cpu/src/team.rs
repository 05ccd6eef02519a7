//! Who does an op's work: the calling thread alone, or with the pool; each worker with scratch of
//! its own.
//!
//! Work is cut into items by the op, always the same way for the same shape. Each worker has a
//! range of them of its own, which it does in order: so it reads weights as one stream, and what
//! was read ahead at the end of an item is the start of the next. Then it takes from the ranges of
//! others, so that a slow or preempted core does fewer items. Results do not depend on who does
//! which item. One of the modules that may use `unsafe`.

use std::cell::UnsafeCell;
use std::iter::Sum;
use std::marker::PhantomData;

use crate::pool::Pool;
use crate::scratch::Scratch;
use crate::supported_isa::SupportedIsa;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Below this much work, in nanoseconds of one core, waking a second core costs more than it saves.
const ALONE_NS: u64 = 5_000;

/// A rough cost of an op on one core: bytes from memory at 16 GB/s, FLOP at 32 GFLOP/s.
#[derive(Clone, Copy)]
pub(crate) struct Cost(u64);

impl Cost {
    /// Worth a second core.
    pub(crate) const ENOUGH: Self = Self(ALONE_NS);

    /// Work bound by memory.
    pub(crate) fn bytes(n: usize) -> Self {
        Self(n as u64 / 16)
    }

    /// Work bound by arithmetic.
    pub(crate) fn flop(n: usize) -> Self {
        Self(n as u64 / 32)
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        Self(costs.map(|cost| cost.0).sum())
    }
}

/// An array that is handed out in pieces.
pub(crate) struct Pieces<'a, T> {
    pub(crate) all: &'a mut [T],
    /// Elements of a piece; the last may have fewer.
    pub(crate) len: usize,
}

impl<'a, T> Pieces<'a, T> {
    /// `all` in pieces of `len` elements.
    pub(crate) fn of(all: &'a mut [T], len: usize) -> Self {
        Self { all, len }
    }
}

/// The workers of one queue.
pub(crate) struct Team {
    isa: SupportedIsa,
    locals: Box<[Local]>,
    pool: Option<Pool>,
}

/// What a worker has of its own, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Local {
    scratch: UnsafeCell<Scratch>,
    /// The next item of its range.
    next: AtomicUsize,
}

// SAFETY: worker i alone touches scratch i while a task runs, and `&mut Team` guards it otherwise.
unsafe impl Sync for Local {}

impl Team {
    /// The calling thread alone.
    pub(crate) fn alone(isa: SupportedIsa) -> Self {
        Self { isa, locals: Box::new([Local::default()]), pool: None }
    }

    /// `n_workers` threads, the calling one included.
    pub(crate) fn with_threads(isa: SupportedIsa, n_workers: usize) -> std::io::Result<Self> {
        let pool = if n_workers > 1 { Some(Pool::new(n_workers)?) } else { None };
        let locals = (0..n_workers.max(1)).map(|_| Local::default()).collect();
        Ok(Self { isa, locals, pool })
    }

    /// The instructions of kernels.
    pub(crate) fn isa(&self) -> SupportedIsa {
        self.isa
    }

    /// Scratch of the calling thread.
    pub(crate) fn scratch(&mut self) -> &mut Scratch {
        self.locals[0].scratch.get_mut()
    }

    /// Calls `item(scratch, i)` for each i below `n_items`, in any order, and returns when all are
    /// done.
    pub(crate) fn for_each(
        &mut self,
        n_items: usize,
        cost: Cost,
        item: impl Fn(&mut Scratch, usize) + Sync,
    ) {
        let is_worth_it = n_items > 1 && cost.0 >= ALONE_NS;
        if is_worth_it && let Some(pool) = &mut self.pool {
            level(&mut self.locals);
            let locals = &self.locals;
            let start = |owner: usize| n_items * owner / locals.len();
            for (owner, local) in locals.iter().enumerate() {
                local.next.store(start(owner), Ordering::Relaxed);
            }
            return pool.run(&|worker| {
                // SAFETY: each worker has its own number, hence its own scratch, for the whole
                // task.
                let scratch = unsafe { &mut *locals[worker].scratch.get() };
                // Its own range first, then those of the others.
                for owner in (worker..locals.len()).chain(0..worker) {
                    let end = start(owner + 1);
                    loop {
                        let i = locals[owner].next.fetch_add(1, Ordering::Relaxed);
                        if i >= end {
                            break;
                        }
                        item(scratch, i);
                    }
                }
            });
        }
        let scratch = self.scratch();
        for i in 0..n_items {
            item(scratch, i);
        }
    }

    /// As [`Team::for_each`] over pieces of `out`, `len` elements each but for the last.
    pub(crate) fn for_chunks<T: Send>(
        &mut self,
        out: &mut [T],
        len: usize,
        cost: Cost,
        item: impl Fn(&mut Scratch, usize, &mut [T]) + Sync,
    ) {
        let (total, len) = (out.len(), len.max(1));
        let shared = Shared::new(out);
        self.for_each(total.div_ceil(len), cost, |scratch, i| {
            let start = i * len;
            // SAFETY: pieces of different items do not overlap, and each item is done once.
            let piece = unsafe { shared.slice(start, len.min(total - start)) };
            item(scratch, i, piece);
        });
    }

    /// As [`Team::for_chunks`] over two arrays in step.
    pub(crate) fn for_chunks2<T: Send, U: Send>(
        &mut self,
        a: Pieces<'_, T>,
        b: Pieces<'_, U>,
        cost: Cost,
        item: impl Fn(&mut Scratch, usize, &mut [T], &mut [U]) + Sync,
    ) {
        let (b_total, b_len) = (b.all.len(), b.len.max(1));
        let shared = Shared::new(b.all);
        self.for_chunks(a.all, a.len, cost, |scratch, i, a| {
            let start = (i * b_len).min(b_total);
            // SAFETY: as in `for_chunks`.
            let b = unsafe { shared.slice(start, b_len.min(b_total - start)) };
            item(scratch, i, a, b);
        });
    }

    /// As [`Team::for_chunks`] over three arrays in step.
    pub(crate) fn for_chunks3<T: Send, U: Send, W: Send>(
        &mut self,
        a: Pieces<'_, T>,
        b: Pieces<'_, U>,
        c: Pieces<'_, W>,
        cost: Cost,
        item: impl Fn(&mut Scratch, usize, &mut [T], &mut [U], &mut [W]) + Sync,
    ) {
        let (c_total, c_len) = (c.all.len(), c.len.max(1));
        let shared = Shared::new(c.all);
        self.for_chunks2(a, b, cost, |scratch, i, a, b| {
            let start = (i * c_len).min(c_total);
            // SAFETY: as in `for_chunks`.
            let c = unsafe { shared.slice(start, c_len.min(c_total - start)) };
            item(scratch, i, a, b, c);
        });
    }
}

/// Gives every worker as much scratch as the one with the most: which worker met a large item first
/// is chance, and must not make another one allocate long after warm-up.
fn level(locals: &mut [Local]) {
    let most = locals.iter_mut().map(|local| local.scratch.get_mut().size()).max().unwrap_or(0);
    for local in locals {
        let scratch = local.scratch.get_mut();
        if scratch.size() < most {
            scratch.reserve(most.div_ceil(2));
        }
    }
}

/// A slice that several workers write, each its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` that was handed to several threads; `slice` makes its callers promise
// disjoint parts.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Shares `all` for as long as it is borrowed.
    pub(crate) fn new(all: &'a mut [T]) -> Self {
        Self { start: all.as_mut_ptr(), len: all.len(), life: PhantomData }
    }

    /// The part of `len` elements from `start`.
    ///
    /// # Safety
    /// No other part that overlaps is alive on any thread.
    ///
    /// # Panics
    /// If the part reaches past the end.
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start, "{start} + {len} of {}", self.len);
        // SAFETY: inside the slice that `new` borrowed for 'a; disjoint from others by the caller's
        // promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

/// Models of the team; see those of the pool.
#[cfg(all(test, loom))]
mod models {
    use loom::cell::Cell;

    use super::*;

    /// Pieces are written through cells that loom watches, by whoever gets them.
    #[test]
    fn every_piece_goes_to_one_worker() {
        loom::model(|| {
            let mut team = Team::with_threads(SupportedIsa, 2).unwrap();
            let mut pieces = [(); 3].map(|()| Cell::new(0));
            team.for_chunks(&mut pieces, 1, Cost::flop(usize::MAX), |_, i, piece| {
                assert_eq!(piece.len(), 1);
                piece[0].set(piece[0].get() + 1 + i);
            });
            assert_eq!(pieces.map(|piece| piece.get()), [1, 2, 3]);
        });
    }
}
