//! Scores of query heads become those of KV heads, pooled over neighbours.

use longview_ops::{OpResult, PoolKind, PoolScores, PoolScoresParams};

use crate::backend::CpuBackend;
use crate::queue::Queue;
use crate::team::Cost;
use crate::views::{slice, slice_mut};

/// Each KV head is one item.
pub(crate) fn run(queue: &mut Queue, d: PoolScores<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (p, x) = (d.p, slice::<f32>(&d.x));
    let (n, group, stride) = (p.n as usize, p.group as usize, p.in_stride as usize);
    if n == 0 {
        return Ok(());
    }
    let out = slice_mut::<f32>(d.out);
    let cost = Cost::bytes(4 * n * group * p.n_kv_heads as usize * p.kernel as usize);
    queue.team.for_chunks(out, p.out_stride as usize, cost, |scratch, head, out| {
        let heads = &x[head * group * stride..(head + 1) * group * stride];
        let [joined] = scratch.floats([n]);
        let out = &mut out[..n];
        if p.pool_first == 0 {
            for (g, head) in heads.chunks_exact(stride).enumerate() {
                join(&p, g, joined, |i| head[i]);
            }
            finish(&p, joined);
            out.iter_mut().enumerate().for_each(|(i, out)| *out = near(&p, joined, i));
        } else {
            for (g, head) in heads.chunks_exact(stride).enumerate() {
                join(&p, g, out, |i| near(&p, &head[..n], i));
            }
            finish(&p, out);
        }
        out.iter_mut().for_each(|out| *out *= p.scale);
    });
    Ok(())
}

/// Takes the scores of head g of a group in.
fn join(p: &PoolScoresParams, g: usize, into: &mut [f32], score: impl Fn(usize) -> f32) {
    for (i, into) in into.iter_mut().enumerate() {
        let new = score(i);
        *into = match (g, p.group_max) {
            (0, _) => new,
            (_, 1) => into.max(new),
            _ => *into + new,
        };
    }
}

/// Sums become means.
fn finish(p: &PoolScoresParams, joined: &mut [f32]) {
    if p.group_max == 0 {
        joined.iter_mut().for_each(|sum| *sum /= p.group as f32);
    }
}

/// Score i pooled with its neighbours.
fn near(p: &PoolScoresParams, x: &[f32], i: usize) -> f32 {
    let half = p.kernel as usize / 2;
    let near = &x[i.saturating_sub(half)..x.len().min(i + half + 1)];
    if p.pool == PoolKind::Max as u32 {
        near.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    } else {
        near.iter().sum::<f32>() / p.kernel as f32
    }
}
