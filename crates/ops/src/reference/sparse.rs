//! Reference of sparse attention of a prefill chunk.

use longview_core::HeadId;

use super::access::{floats, kv_row, put};
use super::attention::{Attended, Sink, entries};
use super::checks::dot;
use super::device::ReferenceBackend as R;
use crate::desc::{AttendBlocks, RowMeans, ScoreBlocks};
use crate::error::OpResult;

/// Means of neighbouring rows.
pub(super) fn row_means(mut d: RowMeans<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, width) = (d.p, d.p.head_dim as usize);
    for head in (0..p.n_kv_heads).map(HeadId) {
        for mean in 0..p.n_means as usize {
            let first = p.row_start as usize + mean * p.n_averaged as usize;
            let mut sum = vec![0.0; 2 * width];
            for row in first..first + p.n_averaged as usize {
                let row = kv_row(&d.kv, width, head, row);
                sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
            sum.iter_mut().for_each(|sum| *sum /= f64::from(p.n_averaged));
            let at = head.index() * p.out_stride as usize + p.first_mean as usize + mean;
            put(&mut d.out, at * 2 * width, &sum);
        }
    }
    Ok(())
}

/// Shares of blocks, by the means of their parts.
pub(super) fn score_blocks(mut d: ScoreBlocks<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, q, width) = (d.p, floats(&d.q), d.p.head_dim as usize);
    let parts = p.n_parts as usize;
    for head in (0..p.n_kv_heads).map(HeadId) {
        for tile in 0..p.tiles.n_tiles() {
            let own = p.tiles.own_block(tile);
            let mean = |i: usize| kv_row(&d.means, width, head, i)[..width].to_vec();
            let means: Vec<_> = (0..own * parts).map(mean).collect();
            let mut sums = vec![0.0; own];
            let tokens = p.tiles.tokens(tile).map(|token| p.tiles.q_start as usize + token);
            let group = (p.n_q_heads / p.n_kv_heads) as usize;
            let first = |token: usize| token * p.n_q_heads as usize + head.index() * group;
            for query in tokens.flat_map(|token| first(token)..first(token) + group) {
                let query = &q[query * width..][..width];
                let score = |mean: &Vec<f64>| f64::from(p.scale) * dot(query, mean);
                let scores: Vec<f64> = means
                    .chunks_exact(parts)
                    .map(|parts| parts.iter().map(score).fold(f64::NEG_INFINITY, f64::max))
                    .collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                sums.iter_mut().zip(&scores).for_each(|(sum, z)| *sum += (z - max).exp());
            }
            let most = sums.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let distant = p.n_first as usize..own.saturating_sub(p.n_recent as usize);
            let share = |b: usize| if distant.contains(&b) { sums[b] / most } else { 1.0 };
            let shares: Vec<f64> = (0..p.tiles.n_blocks()).map(share).collect();
            let at = head.index() * p.tiles.n_tiles() + tile;
            put(&mut d.shares, at * p.tiles.share_stride as usize, &shares);
        }
    }
    Ok(())
}

/// Attention over the rows of blocks that count, or over the means of the others.
pub(super) fn attend_blocks(d: AttendBlocks<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, q, shares) = (d.p, floats(&d.q), floats(&d.shares));
    let (tiles, width) = (p.tiles, p.attend.head_dim as usize);
    let mut sink = Sink { out: d.out, lse: d.lse, accumulate: p.attend.accumulate == 1 };
    for head in (0..p.attend.n_kv_heads).map(HeadId) {
        for tile in 0..tiles.n_tiles() {
            let at = (head.index() * tiles.n_tiles() + tile) * tiles.share_stride as usize;
            // Shares are numbers of 32 bits, and are compared as such.
            let is_kept =
                |row: usize| shares[at + row / p.rows_per_block as usize] >= f64::from(p.threshold);
            let of_run = p.first_row as usize..(p.first_row + p.n_rows) as usize;
            let chosen: Vec<usize> = of_run.filter(|row| is_kept(*row) == p.is_kept()).collect();
            let place = |row: usize| (p.row_start as usize) + row - p.first_row as usize;
            let rows: Vec<_> =
                chosen.iter().map(|row| kv_row(&d.kv, width, head, place(*row))).collect();
            for token in tiles.tokens(tile) {
                let position = tiles.position as usize + token;
                let is_seen = |row: &usize| !p.is_kept() || *row <= position;
                let n = chosen.partition_point(is_seen);
                let weights = vec![p.weight() as usize; n];
                for index in entries(&p.attend, tiles.q_start as usize + token, head) {
                    let query = &q[index * width..][..width];
                    let rows = &rows[..n];
                    sink.take(
                        index,
                        Attended::over_weighted(query, rows, &weights, p.attend.scale),
                    );
                }
            }
        }
    }
    Ok(())
}
