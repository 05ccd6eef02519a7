//! Landmarks of blocks of keys.

use longview_ops::{BlockReduce, BlockReduceParams, BlockSummary, OpResult};

use crate::backend::CpuBackend;
use crate::queue::Queue;
use crate::team::Cost;
use crate::views::{slice, slice_mut};

/// Each block is one item.
pub(crate) fn run(queue: &mut Queue, d: BlockReduce<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (p, points, mass) = (d.p, slice::<f32>(&d.points), slice::<f32>(&d.mass));
    let (n, dh, block) = (p.n_points as usize, p.head_dim as usize, p.block as usize);
    let (n_blocks, width) = (p.n_blocks(), p.width());
    let out = slice_mut::<f32>(d.out);
    if n == 0 || dh == 0 {
        return Ok(());
    }
    queue.team.for_chunks(out, width, Cost::bytes(4 * points.len()), |_, i, out| {
        let (head, first) = (i / n_blocks, i % n_blocks * block);
        let members = head * n + first..head * n + n.min(first + block);
        let keys = &points[members.start * dh..members.end * dh];
        let mass = if p.uses_mass() { &mass[members] } else { &[] };
        summarise(&p, keys, mass, out);
    });
    Ok(())
}

fn summarise(p: &BlockReduceParams, keys: &[f32], mass: &[f32], out: &mut [f32]) {
    let dh = p.head_dim as usize;
    match BlockSummary::ALL[p.summary as usize] {
        BlockSummary::Mean => mean(keys.chunks_exact(dh), out),
        BlockSummary::Max => extreme(keys, out, f32::max),
        BlockSummary::MinMax => {
            let (largest, smallest) = out.split_at_mut(dh);
            extreme(keys, largest, f32::max);
            extreme(keys, smallest, f32::min);
        }
        BlockSummary::Strided => {
            let every = keys.chunks_exact(dh).step_by(p.stride() as usize);
            mean(every.take(p.n_top as usize), out);
        }
        BlockSummary::Top => {
            let (best, n) = largest(mass, p.n_top as usize);
            mean(best[..n].iter().map(|i| &keys[i * dh..(i + 1) * dh]), out);
        }
    }
}

fn mean<'a>(keys: impl Iterator<Item = &'a [f32]>, out: &mut [f32]) {
    out.fill(0.0);
    let mut n = 0;
    for key in keys {
        out.iter_mut().zip(key).for_each(|(out, k)| *out += k);
        n += 1;
    }
    out.iter_mut().for_each(|out| *out /= n as f32);
}

fn extreme(keys: &[f32], out: &mut [f32], pick: fn(f32, f32) -> f32) {
    let mut keys = keys.chunks_exact(out.len());
    out.copy_from_slice(keys.next().expect("blocks have members"));
    for key in keys {
        out.iter_mut().zip(key).for_each(|(out, k)| *out = pick(*out, *k));
    }
}

/// The indices of up to k of the largest, the largest first, the lowest first among equals.
fn largest(mass: &[f32], k: usize) -> ([usize; BlockReduceParams::MAX_TOP as usize], usize) {
    let mut best = [0; BlockReduceParams::MAX_TOP as usize];
    let mut n = 0;
    for (i, m) in mass.iter().enumerate() {
        let place = best[..n].iter().position(|b| mass[*b] < *m).unwrap_or(n);
        if place < k {
            n = k.min(n + 1);
            best[place..n].rotate_right(1);
            best[place] = i;
        }
    }
    (best, n)
}
