//! Attention that listed rows received, made again from each query's log-sum-exp.

use crate::simd::elem::Elem;
use crate::simd::{Kernel, MAX_LANES, Simd, math};

use super::dots::{self, Strided, StridedMut};

/// Which rows a query sees: those with `first < row - query <= last`.
#[derive(Clone, Copy)]
pub(crate) struct Sight {
    pub(crate) first: i64,
    pub(crate) last: i64,
}

impl Sight {
    fn sees(self, query: usize, row: u32) -> bool {
        let apart = i64::from(row) - query as i64;
        apart > self.first && apart <= self.last
    }

    /// Whether every query sees every row.
    fn is_all(self) -> bool {
        self.first == i64::MIN && self.last >= i64::from(i32::MAX)
    }
}

/// `sums[g, i] += sum over queries t that see row i of e^(q[t, g] . k[i] - lse[t, g])`.
pub(crate) struct Mass<'a, E> {
    /// `[queries, group, q_row]`, scaled, zeros after the head's width.
    pub(crate) q: &'a [f32],
    pub(crate) q_row: usize,
    /// `[queries, group]`.
    pub(crate) lse: &'a [f32],
    /// The number of the first query, for `sight`.
    pub(crate) first_query: usize,
    pub(crate) group: usize,
    /// The rows of one head; every row of `list` was checked to lie inside.
    pub(crate) elements: &'a [E],
    pub(crate) list: &'a [u32],
    pub(crate) head_dim: usize,
    pub(crate) sight: Sight,
    /// `[queries, group, rows]`, overwritten.
    pub(crate) scores: &'a mut [f32],
    /// `[group, rows]`.
    pub(crate) sums: &'a mut [f32],
}

impl<E: Elem> Kernel for Mass<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { q, q_row, lse, group, elements, list, head_dim, sight, scores, sums, .. } = self;
        let (n, n_q) = (list.len(), lse.len());
        assert!(q.len() == n_q * q_row && q_row >= head_dim.next_multiple_of(S::LANES));
        assert!(scores.len() >= n_q * n && sums.len() == group * n);
        let row = |i: usize| elements.as_ptr().add(list[i] as usize * 2 * head_dim);
        let ahead = |i: usize| {
            if let Some(row) = list.get(i + S::LANES) {
                S::prefetch(elements.as_ptr().add(*row as usize * 2 * head_dim));
            }
        };
        let out = StridedMut { at: scores.as_mut_ptr(), row: n };
        let rows = Strided { at: q.as_ptr(), row: q_row };
        dots::dots::<S, _>(rows, n_q, row, ahead, n, head_dim, out);
        // Queries in their order: a row's sum is added up in the same order however many lanes a
        // vector has.
        for (v, lse) in lse.iter().enumerate() {
            // A query that saw nothing.
            if *lse == f32::NEG_INFINITY {
                continue;
            }
            let scores = &scores[v * n..(v + 1) * n];
            let sums = &mut sums[v % group * n..][..n];
            let query = self.first_query + v / group;
            let mut i = 0;
            while i < n {
                let len = (n - i).min(S::LANES);
                let x = S::sub(S::load_n(scores.as_ptr().add(i), len), S::splat(*lse));
                let mut e = [0.0; MAX_LANES];
                S::store(e.as_mut_ptr(), math::exp::<S>(x));
                if !sight.is_all() {
                    for (e, row) in e.iter_mut().zip(&list[i..i + len]) {
                        *e = if sight.sees(query, *row) { *e } else { 0.0 };
                    }
                }
                for (sum, e) in sums[i..i + len].iter_mut().zip(&e) {
                    *sum += e;
                }
                i += len;
            }
        }
    }
}

/// `out = x W` for vectors of one head, W `[k, rank]`.
pub(crate) struct Projection<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) w: &'a [f32],
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Projection<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, w, out } = self;
        let (k, rank) = (x.len(), out.len());
        assert_eq!(w.len(), k * rank);
        let mut j = 0;
        while j < rank {
            let n = (rank - j).min(S::LANES);
            // Down the rows of W with one sum a column: W is read as it lies, and no lanes meet.
            let mut sum = S::zero();
            for (c, x) in x.iter().enumerate() {
                let row = w.as_ptr().add(c * rank + j);
                let row = if n == S::LANES { S::load(row) } else { S::load_n(row, n) };
                sum = S::fma(S::splat(*x), row, sum);
            }
            S::store_n(out.as_mut_ptr().add(j), n, sum);
            j += n;
        }
    }
}
