//! Reference of the ops that make landmarks of keys, and the queries to compare with them.

use super::access::{floats, put};
use super::checks::dot;
use super::device::ReferenceBackend as R;
use crate::desc::{BlockReduce, BlockReduceParams, BlockSummary, ProjectHeads, SplitSigns};
use crate::error::OpResult;

/// One landmark for each block of a head's keys.
pub(super) fn block_reduce(mut d: BlockReduce<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, points, mass) = (d.p, floats(&d.points), floats(&d.mass));
    let (n, width, block) = (p.n_points as usize, p.head_dim as usize, p.block as usize);
    let mut at = 0;
    for head in 0..p.n_kv_heads as usize {
        for first in (0..n).step_by(block) {
            let members: Vec<usize> = (head * n + first..head * n + n.min(first + block)).collect();
            let key = |i: usize| &points[i * width..][..width];
            let landmark = summarise(&p, &members, key, &mass);
            put(&mut d.out, at, &landmark);
            at += landmark.len();
        }
    }
    Ok(())
}

fn summarise<'a>(
    p: &BlockReduceParams,
    members: &[usize],
    key: impl Fn(usize) -> &'a [f64],
    mass: &[f64],
) -> Vec<f64> {
    let channels = 0..p.head_dim as usize;
    let mean = |of: &[usize]| -> Vec<f64> {
        let sum = |c: usize| of.iter().map(|i| key(*i)[c]).sum::<f64>();
        channels.clone().map(|c| sum(c) / of.len() as f64).collect()
    };
    let extreme = |pick: fn(f64, f64) -> f64| -> Vec<f64> {
        let all = |c: usize| members.iter().map(|i| key(*i)[c]).reduce(pick);
        channels.clone().map(|c| all(c).expect("blocks have members")).collect()
    };
    match BlockSummary::ALL[p.summary as usize] {
        BlockSummary::Mean => mean(members),
        BlockSummary::Max => extreme(f64::max),
        BlockSummary::MinMax => [extreme(f64::max), extreme(f64::min)].concat(),
        BlockSummary::Strided => {
            let every = members.iter().copied().step_by(p.stride() as usize);
            mean(&every.take(p.n_top as usize).collect::<Vec<_>>())
        }
        BlockSummary::Top => {
            let mut order = members.to_vec();
            order.sort_by(|a, b| mass[*b].total_cmp(&mass[*a]).then(a.cmp(b)));
            order.truncate(p.n_top as usize);
            mean(&order)
        }
    }
}

/// `out = x W` for each vector, W that of its KV head.
pub(super) fn project_heads(mut d: ProjectHeads<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, x, w) = (d.p, floats(&d.x), floats(&d.w));
    let (width, rank) = (p.head_dim as usize, p.rank as usize);
    let (t, h) = (p.n_tokens as usize, p.n_heads as usize);
    for i in 0..t * h {
        let head = if p.head_major == 1 { i / t } else { i % h };
        let w = &w[head / p.group as usize * width * rank..][..width * rank];
        let x = &x[i * width..][..width];
        let column = |j: usize| w.iter().copied().skip(j).step_by(rank).collect::<Vec<_>>();
        let out: Vec<f64> = (0..rank).map(|j| dot(x, &column(j))).collect();
        put(&mut d.out, i * rank, &out);
    }
    Ok(())
}

/// `[max(x, 0); min(x, 0)]` of each vector.
pub(super) fn split_signs(mut d: SplitSigns<'_, R>) -> OpResult<()> {
    d.check()?;
    let (x, width) = (floats(&d.x), d.p.width as usize);
    for (i, x) in x.chunks_exact(width.max(1)).enumerate() {
        let parts = x.iter().map(|x| x.max(0.0)).chain(x.iter().map(|x| x.min(0.0)));
        put(&mut d.out, i * 2 * width, &parts.collect::<Vec<_>>());
    }
    Ok(())
}
