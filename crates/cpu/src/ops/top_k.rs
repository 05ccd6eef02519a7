//! The largest elements of each row and their indices.
//!
//! One pass: a short list keeps the best so far. When it is full, the best k of it are split off,
//! and from then on only elements that beat the k-th of them come in, which vectors of comparisons
//! find. Most of a vocabulary is looked at only once.

use longview_ops::{OpResult, TopK, TopKParams};

use crate::backend::CpuBackend;
use crate::kernels::rank::{FirstBelow, key, rank};
use crate::queue::Queue;
use crate::supported_isa::SupportedIsa;
use crate::team::{Cost, Pieces};
use crate::views::{slice, slice_mut};

const STRETCH: usize = FirstBelow::STRETCH;

/// The list is cut when it holds more than twice what is wanted; a stretch may come on top.
const ROOM: usize = 2 * TopKParams::MAX_K as usize + STRETCH;

/// Each row is one item.
pub(crate) fn run(queue: &mut Queue, d: TopK<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (width, k) = (d.p.width as usize, d.p.k as usize);
    let x = slice::<f32>(&d.x);
    let (values, ids) = (slice_mut::<f32>(d.values), slice_mut::<u32>(d.ids));
    let (isa, cost) = (queue.team.isa(), Cost::bytes(x.len() * 4));
    queue.team.for_chunks2(Pieces::of(values, k), Pieces::of(ids, k), cost, |_, r, values, ids| {
        let x = &x[r * width..(r + 1) * width];
        select(isa, x, ids);
        for (value, id) in values.iter_mut().zip(ids) {
            *value = x[*id as usize];
        }
    });
    Ok(())
}

/// Fills `ids` with the indices of the largest elements, best first.
fn select(isa: SupportedIsa, x: &[f32], ids: &mut [u32]) {
    let k = ids.len();
    let mut keys = [0u64; ROOM];
    let (mut n, mut limit, mut at) = (0, u64::MAX, 0);
    while at < x.len() {
        // A later element that equals the k-th is behind it.
        at += isa.run(FirstBelow { x: &x[at..], limit: (limit >> 32) as u32 });
        let end = x.len().min(at + STRETCH);
        for (i, value) in (at..end).zip(&x[at..end]) {
            keys[n] = key(rank(*value, 0), i as u32);
            n += usize::from(keys[n] < limit);
        }
        at = end;
        if n > 2 * k {
            limit = *keys[..n].select_nth_unstable(k - 1).1;
            n = k;
        }
    }
    keys[..n].sort_unstable();
    for (id, key) in ids.iter_mut().zip(keys) {
        *id = key as u32;
    }
}
