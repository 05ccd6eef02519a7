//! Attention and small matrices in f64, as the equations have them.

use longview_core::{HeadId, LayerId};
use longview_cpu::CpuBackend;
use longview_tests::sim::Sim;

/// The rows of one head of a layer, widened.
pub type Rows = Vec<Vec<f64>>;

/// Keys of a KV head, by token.
pub fn keys(sim: &Sim<CpuBackend>, layer: LayerId, kv_head: HeadId) -> Rows {
    let d = sim.sequence.shape().head_dim;
    let tokens = sim.truth[layer].iter();
    tokens.map(|t| widen(&t.k[kv_head.index() * d..][..d])).collect()
}

/// Queries of a query head, by token.
pub fn queries(sim: &Sim<CpuBackend>, layer: LayerId, head: usize) -> Rows {
    let d = sim.sequence.shape().head_dim;
    sim.truth[layer].iter().map(|t| widen(&t.q[head * d..(head + 1) * d])).collect()
}

fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Causal attention weights of the queries at `positions` over `keys`: one row per query.
pub fn attention(
    queries: &Rows,
    positions: std::ops::Range<usize>,
    keys: &Rows,
    scale: f64,
) -> Rows {
    let weights = |p: usize| {
        let scores: Vec<f64> = keys[..=p].iter().map(|k| scale * dot(&queries[p], k)).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let mut row: Vec<f64> = scores.iter().map(|s| (s - max).exp() / sum).collect();
        row.resize(keys.len(), 0.0);
        row
    };
    positions.map(weights).collect()
}

/// Sums over the rows of a matrix.
pub fn column_sums(rows: &Rows) -> Vec<f64> {
    let mut sums = vec![0.0; rows[0].len()];
    for row in rows {
        sums.iter_mut().zip(row).for_each(|(s, x)| *s += x);
    }
    sums
}

/// `a b`.
pub fn product(a: &Rows, b: &Rows) -> Rows {
    let bt = transposed(b);
    a.iter().map(|row| bt.iter().map(|col| dot(row, col)).collect()).collect()
}

pub fn transposed(a: &Rows) -> Rows {
    (0..a[0].len()).map(|c| a.iter().map(|row| row[c]).collect()).collect()
}

pub fn sum(a: &Rows, b: &Rows) -> Rows {
    let add = |(x, y): (&Vec<f64>, &Vec<f64>)| x.iter().zip(y).map(|(x, y)| x + y).collect();
    a.iter().zip(b).map(add).collect()
}

/// The inverse by Gauss and Jordan with pivots.
pub fn inverse(a: &Rows) -> Rows {
    let n = a.len();
    let unit = |i: usize| (0..n).map(move |j| f64::from(u8::from(i == j)));
    let mut m: Rows =
        a.iter().enumerate().map(|(i, r)| r.iter().copied().chain(unit(i)).collect()).collect();
    for c in 0..n {
        let pivot = (c..n).max_by(|a, b| m[*a][c].abs().total_cmp(&m[*b][c].abs())).unwrap();
        m.swap(c, pivot);
        let lead = m[c][c];
        m[c].iter_mut().for_each(|x| *x /= lead);
        let row = m[c].clone();
        for (r, other) in m.iter_mut().enumerate().filter(|(r, _)| *r != c) {
            let _ = r;
            let factor = other[c];
            other.iter_mut().zip(&row).for_each(|(x, y)| *x -= factor * y);
        }
    }
    m.into_iter().map(|row| row[n..].to_vec()).collect()
}

/// Eigenvalues and eigenvectors (as rows) of a symmetric matrix by Jacobi's rotations, the largest
/// first.
pub fn eigen(a: &Rows) -> (Vec<f64>, Rows) {
    let n = a.len();
    let mut a = a.clone();
    let mut v: Rows =
        (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect();
    for _ in 0..60 {
        for p in 0..n {
            for q in p + 1..n {
                if a[p][q].abs() < 1e-300 {
                    continue;
                }
                let theta = (a[q][q] - a[p][p]) / (2.0 * a[p][q]);
                let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
                let t = if theta == 0.0 { 1.0 } else { t };
                let c = 1.0 / (t * t + 1.0).sqrt();
                let s = t * c;
                for row in &mut a {
                    (row[p], row[q]) = (c * row[p] - s * row[q], s * row[p] + c * row[q]);
                }
                for k in 0..n {
                    (a[p][k], a[q][k]) = (c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]);
                    (v[p][k], v[q][k]) = (c * v[p][k] - s * v[q][k], s * v[p][k] + c * v[q][k]);
                }
            }
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|i, j| a[*j][*j].total_cmp(&a[*i][*i]));
    (order.iter().map(|i| a[*i][*i]).collect(), order.iter().map(|i| v[*i].clone()).collect())
}
