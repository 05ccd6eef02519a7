//! Reference of the ops that say which keys queries attended to.

use longview_core::HeadId;

use super::access::{floats, ints, kv_row, present, put};
use super::checks::{below, counts_fit, dot};
use super::device::ReferenceBackend as R;
use crate::desc::{ColumnMass, PoolScores, PoolScoresParams, QuerySums};
use crate::error::OpResult;
use crate::op::Op;

/// Adds to each listed row's sum what every query that sees it gave it.
pub(super) fn column_mass(mut d: ColumnMass<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, op) = (d.p, Op::ColumnMass);
    let (q, lse, lists, counts) = (floats(&d.q), floats(&d.lse), ints(&d.rows), ints(&d.n_rows));
    let (width, hq) = (p.head_dim as usize, p.n_q_heads as usize);
    let group = hq / p.n_kv_heads as usize;
    counts_fit(op, "n_rows", &counts, p.list_stride as usize)?;
    let listed = |head: usize| &lists[head * p.list_stride as usize..][..counts[head]];
    for head in 0..p.n_kv_heads as usize {
        let limit = d.kv.row_limit(width);
        listed(head).iter().try_for_each(|row| below(op, "row", *row, limit))?;
    }
    let mut sums = present(&d.out);
    for head in 0..hq {
        for (i, row) in listed(head / group).iter().enumerate() {
            let kv = kv_row(&d.kv, width, HeadId::new(head / group), *row);
            for t in 0..p.q_len as usize {
                let last = t as i64 + i64::from(p.diagonal);
                let first = if p.window == 0 { i64::MIN } else { last - i64::from(p.window) };
                let at = (p.q_start as usize + t) * hq + head;
                let sees = (*row as i64) <= last && (*row as i64) > first;
                if sees && lse[at] > f64::NEG_INFINITY {
                    let score = f64::from(p.scale) * dot(&q[at * width..][..width], &kv[..width]);
                    sums[head * p.out_stride as usize + i] += (score - lse[at]).exp();
                }
            }
        }
    }
    for head in 0..hq {
        let at = head * p.out_stride as usize;
        let n = counts[head / group];
        put(&mut d.out, at, &sums[at..at + n]);
    }
    Ok(())
}

/// Adds each query to the sum of its block and KV head.
pub(super) fn query_sums(mut d: QuerySums<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, q) = (d.p, floats(&d.q));
    let (width, hq) = (p.head_dim as usize, p.n_q_heads as usize);
    let group = hq / p.n_kv_heads as usize;
    let mut sums = present(&d.out);
    for i in 0..p.q_len as usize {
        let block = (p.position as usize + i) / p.block as usize;
        for head in 0..hq {
            let q = &q[((p.q_start as usize + i) * hq + head) * width..][..width];
            let at = (head / group * p.n_blocks as usize + block) * width;
            sums[at..at + width].iter_mut().zip(q).for_each(|(sum, q)| *sum += q);
        }
    }
    put(&mut d.out, 0, &sums);
    Ok(())
}

/// Scores of query heads, pooled over neighbours and over the group in the order asked for.
pub(super) fn pool_scores(mut d: PoolScores<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, x) = (d.p, floats(&d.x));
    let (n, group) = (p.n as usize, p.group as usize);
    for kv_head in 0..p.n_kv_heads as usize {
        let heads: Vec<Vec<f64>> = (kv_head * group..(kv_head + 1) * group)
            .map(|head| x[head * p.in_stride as usize..][..n].to_vec())
            .collect();
        let pooled = match p.pool_first {
            1 => joined(&p, &heads.iter().map(|head| smoothed(&p, head)).collect::<Vec<_>>()),
            _ => smoothed(&p, &joined(&p, &heads)),
        };
        let scaled: Vec<f64> = pooled.iter().map(|s| f64::from(p.scale) * s).collect();
        put(&mut d.out, kv_head * p.out_stride as usize, &scaled);
    }
    Ok(())
}

/// The mean or the maximum over a group.
fn joined(p: &PoolScoresParams, heads: &[Vec<f64>]) -> Vec<f64> {
    let of = |i: usize| heads.iter().map(move |head| head[i]);
    let join = |i: usize| match p.group_max {
        1 => of(i).fold(f64::NEG_INFINITY, f64::max),
        _ => of(i).sum::<f64>() / heads.len() as f64,
    };
    (0..p.n as usize).map(join).collect()
}

/// The mean or the maximum of every score and its neighbours.
fn smoothed(p: &PoolScoresParams, x: &[f64]) -> Vec<f64> {
    let half = p.kernel as usize / 2;
    let near = |i: usize| &x[i.saturating_sub(half)..x.len().min(i + half + 1)];
    let pool = |i: usize| match p.pool {
        1 => near(i).iter().copied().fold(f64::NEG_INFINITY, f64::max),
        _ => near(i).iter().sum::<f64>() / f64::from(p.kernel),
    };
    (0..x.len()).map(pool).collect()
}
