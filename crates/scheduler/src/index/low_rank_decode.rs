//! LRQK's adaptive decode: every step finds the low-rank query and key that fit the step best, and
//! moves the bases a little towards them.
//!
//! For a KV head with bases `B_Q, B_K [r, d]`, the step's queries q (one for each query head of the
//! group), its key k, and the rows Omega that the step before attended with their keys `K` and low
//! ranks `A`, the paper minimises `|q' B_Q - q|^2 + |k' B_K - k|^2 + l1 (q' k' - q k)^2 + l2 |A q'
//! - K q|^2` by turns over q' and k' (here the sum over the group), then takes one step of gradient
//! descent with exact line search in each basis. The gradients have rank one, so that step is a
//! projection: `B += q'^T (q - q' B) / |q'|^2`, after which `q' B = q`.
//!
//! All of it happens on the host, in f64: r is small, and the rows that it reads are as many as a
//! step attends. The query's low rank goes to the device, where tokens are compared with it.

use std::ops::Range;

use longview_core::{HeadId, decode_f32_into};
use longview_ops::Backend;
use nalgebra::{DMatrix, DVector};

use super::layer_index::LayerIndex;
use super::projection::{Projections, basis, inverse};
use super::records::LowRankRecord;
use crate::layout::KvShape;
use crate::store::LayerRows;

/// Rounds of q' and k'.
const ROUNDS: usize = 2;

/// Rounds end when k' moves by less than this (mean square).
const TOLERANCE: f64 = 1e-2;

/// Weights of the fit to the step's own score and to those of the step before.
const LAMBDA: f64 = 1.0;

/// The bases of one KV head.
struct Head {
    b_q: DMatrix<f64>,
    b_k: DMatrix<f64>,
    w_k: DMatrix<f64>,
    /// Low ranks of the keys of rows that are not indexed yet.
    pending: Vec<DVector<f64>>,
}

/// The bases of one layer.
pub(crate) struct LowRankDecode {
    heads: Vec<Head>,
    /// The row of the first pending low rank.
    first: usize,
}

/// What rows that were attended say: sums over them.
struct Attended {
    /// `A^T A`, `[r, r]`.
    low: DMatrix<f64>,
    /// `K^T A`, `[d, r]`.
    cross: DMatrix<f64>,
}

impl Attended {
    fn new(d: usize, rank: usize) -> Self {
        Self { low: DMatrix::zeros(rank, rank), cross: DMatrix::zeros(d, rank) }
    }

    fn add(&mut self, key: &DVector<f64>, low: &DVector<f64>) {
        self.low.ger(1.0, low, low, 1.0);
        self.cross.ger(1.0, key, low, 1.0);
    }
}

impl Head {
    /// The low rank of a key by the prompt's projection.
    fn project(&self, key: &DVector<f64>) -> DVector<f64> {
        self.w_k.tr_mul(key)
    }

    /// The low ranks of a step's queries and key; the bases follow.
    fn step(
        &mut self,
        queries: &[DVector<f64>],
        key: &DVector<f64>,
        attended: &Attended,
    ) -> (Vec<DVector<f64>>, DVector<f64>) {
        let (b_q, b_k) = (&self.b_q, &self.b_k);
        let (gram_q, gram_k) = (b_q * b_q.transpose(), b_k * b_k.transpose());
        let own = b_k * key;
        let mut low_key = inverse(&gram_k) * &own;
        let mut low_queries = Vec::new();
        for _ in 0..ROUNDS {
            low_queries = queries
                .iter()
                .map(|q| {
                    let left = b_q * q
                        + LAMBDA * attended.cross.tr_mul(q)
                        + LAMBDA * q.dot(key) * &low_key;
                    let right =
                        &gram_q + LAMBDA * &attended.low + LAMBDA * &low_key * low_key.transpose();
                    inverse(&right) * left
                })
                .collect::<Vec<DVector<f64>>>();
            let mut left = own.clone();
            let mut right = gram_k.clone();
            for (q, low) in queries.iter().zip(&low_queries) {
                left.axpy(LAMBDA * q.dot(key), low, 1.0);
                right.ger(LAMBDA, low, low, 1.0);
            }
            let next = inverse(&right) * left;
            let moved = (&next - &low_key).norm_squared() / next.len() as f64;
            low_key = next;
            if moved < TOLERANCE {
                break;
            }
        }
        for (q, low) in queries.iter().zip(&low_queries) {
            follow(&mut self.b_q, low, q);
        }
        follow(&mut self.b_k, &low_key, key);
        (low_queries, low_key)
    }
}

/// `B += low^T (x - low B) / |low|^2`.
fn follow(b: &mut DMatrix<f64>, low: &DVector<f64>, x: &DVector<f64>) {
    let size = low.norm_squared();
    if size > f64::MIN_POSITIVE {
        let missing = x - b.tr_mul(low);
        b.ger(1.0 / size, low, &missing, 1.0);
    }
}

impl LowRankDecode {
    /// The bases after a prompt.
    pub fn new(made: &Projections, gram_q: &[f32], gram_k: &[f32], d: usize) -> Self {
        let matrix = |x: &[f32], rows: usize, cols: usize| {
            DMatrix::from_row_iterator(rows, cols, x.iter().map(|x| f64::from(*x)))
        };
        let len = d * made.rank;
        let projection = |w: &[f32], h: usize| matrix(&w[h * len..(h + 1) * len], d, made.rank);
        let gram = |g: &[f32], h: usize| matrix(&g[h * d * d..(h + 1) * d * d], d, d);
        let head = |h: usize| {
            let (w_q, w_k) = (projection(&made.w_q, h), projection(&made.w_k, h));
            Head {
                b_q: basis(&w_q, &gram(gram_q, h)),
                b_k: basis(&w_k, &gram(gram_k, h)),
                w_k,
                pending: Vec::new(),
            }
        };
        Self { heads: (0..gram_q.len() / (d * d)).map(head).collect(), first: 0 }
    }

    /// As a session file has it.
    pub fn record(&self) -> LowRankRecord {
        let record = |head: &Head| {
            let pending = head.pending.iter().flat_map(|low| low.iter().copied());
            let [b_q, b_k, w_k] = [&head.b_q, &head.b_k, &head.w_k].map(|m| m.as_slice().to_vec());
            [b_q, b_k, w_k, pending.collect()]
        };
        let rank = self.heads.first().map_or(0, |head| head.b_q.nrows());
        LowRankRecord { rank, first: self.first, heads: self.heads.iter().map(record).collect() }
    }

    /// What a session file has, of heads of width `d`.
    pub fn from_record(record: LowRankRecord, d: usize) -> Self {
        let r = record.rank;
        let head = |[b_q, b_k, w_k, pending]: [Vec<f64>; 4]| Head {
            b_q: DMatrix::from_vec(r, d, b_q),
            b_k: DMatrix::from_vec(r, d, b_k),
            w_k: DMatrix::from_vec(d, r, w_k),
            pending: pending.chunks_exact(r).map(DVector::from_column_slice).collect(),
        };
        Self { heads: record.heads.into_iter().map(head).collect(), first: record.first }
    }

    /// Low ranks of rows `start..start + n`, `[Hkv, n, r]`; nothing where steps did not find them.
    pub fn landmarks(&self, start: usize, n: usize) -> Vec<f32> {
        let is_there = |head: &Head| self.first == start && head.pending.len() >= n;
        if !self.heads.iter().all(is_there) {
            return Vec::new();
        }
        let low = self.heads.iter().flat_map(|head| &head.pending[..n]);
        low.flat_map(|low| low.iter().map(|x| *x as f32)).collect()
    }

    /// Fits the bases to a step's queries and key; returns the low ranks of its queries, `[Hq, r]`.
    ///
    /// `recalled` says which units of `index`, which is on `backend`, a head recalled in the step
    /// before.
    pub fn fit<B: Backend>(
        &mut self,
        rows: LayerRows<'_, B>,
        (backend, index): (&B, &LayerIndex<B>),
        step: &DecodeStep<'_>,
        recalled: impl Fn(HeadId) -> Vec<usize>,
    ) -> Vec<f32> {
        let (hq, hkv, d) = (rows.shape.n_q_heads, rows.shape.n_kv_heads, rows.shape.head_dim);
        let group = hq / hkv;
        self.fill_pending(rows, &step.pending);
        let mut features = Vec::with_capacity(hq * d);
        let queries = step.q.chunks_exact(group * d);
        for (head, (queries, key)) in rows.shape.heads().zip(queries.zip(step.k.chunks_exact(d))) {
            let attended = self.attended_sums(rows, (backend, index), head, &recalled(head));
            let queries: Vec<DVector<f64>> = queries.chunks_exact(d).map(wide).collect();
            let key = wide(key);
            let own = &mut self.heads[head];
            let (low_queries, low_key) = own.step(&queries, &key, &attended);
            own.pending.push(low_key);
            features.extend(low_queries.iter().flat_map(|low| low.iter().map(|x| *x as f32)));
        }
        features
    }

    /// Low ranks of all rows that are not indexed, but for the token's own; those that are missing
    /// by the prompt's projection.
    fn fill_pending<B: Backend>(&mut self, rows: LayerRows<'_, B>, pending: &Range<usize>) {
        for (head, own) in rows.shape.heads().zip(&mut self.heads) {
            match pending.start.checked_sub(self.first) {
                Some(gone) if gone <= own.pending.len() => drop(own.pending.drain(..gone)),
                _ => own.pending.clear(),
            }
            own.pending.truncate(pending.len());
            for row in pending.start + own.pending.len()..pending.end {
                let key = wide(&rows.key(head, row));
                own.pending.push(own.project(&key));
            }
        }
        self.first = pending.start;
    }

    /// Sums over what the head attended in the step before: the rows recalled, and those that are
    /// not indexed.
    fn attended_sums<B: Backend>(
        &self,
        rows: LayerRows<'_, B>,
        (backend, index): (&B, &LayerIndex<B>),
        head: HeadId,
        recalled: &[usize],
    ) -> Attended {
        let KvShape { head_dim, kv_dtype, .. } = *rows.shape;
        let own = &self.heads[head];
        let rank = own.b_q.nrows();
        let mut sums = Attended::new(head_dim, rank);
        for (low, row) in own.pending.iter().zip(self.first..) {
            sums.add(&wide(&rows.key(head, row)), low);
        }
        let (units, landmarks) = (&index.heads()[head], index.landmarks(backend, head.index()));
        let mut low = vec![0.0f32; rank];
        for token in recalled {
            // What was selected before a cut may be gone.
            let Some(start) = units.starts.get(*token) else { continue };
            decode_f32_into(kv_dtype, &landmarks.get(*token..token + 1), &mut low);
            sums.add(&wide(&rows.key(head, *start as usize)), &wide(&low));
        }
        sums
    }
}

/// A decode step in one layer, on the host.
pub(crate) struct DecodeStep<'a> {
    /// `[Hq, Dh]`.
    pub q: &'a [f32],
    /// `[Hkv, Dh]`.
    pub k: &'a [f32],
    /// Rows that are not indexed, without the token's own.
    pub pending: Range<usize>,
}

fn wide(x: &[f32]) -> DVector<f64> {
    DVector::from_iterator(x.len(), x.iter().map(|x| f64::from(*x)))
}

#[cfg(test)]
mod tests {
    use longview_core::LayerId;

    use super::super::HeadClusters;
    use super::super::testing::{R, shape, store_of};
    use super::*;
    use crate::store::PlainStore;

    /// Bases of rank 1 of two heads of two channels: head 0 has the first channel, head 1 the
    /// second.
    fn bases() -> LowRankDecode {
        let w = vec![1.0, 0.0, 0.0, 1.0];
        let made = Projections { rank: 1, w_q: w.clone(), w_k: w };
        let identity = [1.0, 0.0, 0.0, 1.0];
        LowRankDecode::new(&made, &identity.repeat(2), &identity.repeat(2), 2)
    }

    /// Keys `(row, 10 * head)`.
    fn keys(shape: &KvShape) -> PlainStore {
        store_of(shape, |head, row| vec![row as f32, 10.0 * head.0 as f32])
    }

    /// Two tokens of each head from row 2 on, with low ranks 1 and 2, or -1 and -2.
    fn two_tokens(shape: &KvShape) -> LayerIndex<R> {
        let backend = R::new();
        let mut index = LayerIndex::new(&backend, shape, 1, 4, 1).unwrap();
        let tokens = |sign: f32| HeadClusters {
            sizes: vec![1, 1],
            centroids: vec![sign, 2.0 * sign],
            ..HeadClusters::default()
        };
        index.append(&backend, 2, 4, &[tokens(1.0), tokens(-1.0)]).unwrap();
        index
    }

    fn close(got: impl IntoIterator<Item = f64>, want: &[f64]) {
        let got: Vec<f64> = got.into_iter().collect();
        let is_near = got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-6);
        assert!(got.len() == want.len() && is_near, "{got:?}, not {want:?}");
    }

    #[test]
    fn a_basis_that_follows_reproduces_what_it_followed() {
        let mut b = DMatrix::from_row_slice(2, 2, &[1.0, 0.0, 0.0, 1.0]);
        follow(&mut b, &wide(&[1.0, 1.0]), &wide(&[3.0, 1.0]));
        // (3, 1) - (1, 1) = (2, 0), half of it to each row.
        assert_eq!(b, DMatrix::from_row_slice(2, 2, &[2.0, 0.0, 1.0, 1.0]));
        let before = b.clone();
        follow(&mut b, &wide(&[0.0, 0.0]), &wide(&[3.0, 1.0]));
        assert_eq!(b, before, "a low rank of nothing moves nothing");
    }

    #[test]
    fn a_basis_is_what_its_projection_says_of_the_sums() {
        let made = Projections { rank: 1, w_q: vec![1.0, 0.0], w_k: vec![0.0, 1.0] };
        let bases = LowRankDecode::new(&made, &[2.0, 1.0, 1.0, 3.0], &[2.0, 1.0, 1.0, 4.0], 2);
        close(bases.heads[0].b_q.iter().copied(), &[1.0, 0.5]);
        close(bases.heads[0].b_k.iter().copied(), &[0.25, 1.0]);
    }

    #[test]
    fn a_step_weighs_its_own_score_and_what_was_attended() {
        let mut own = bases().heads.remove(0);
        let mut attended = Attended::new(2, 1);
        attended.add(&wide(&[1.0, 1.0]), &wide(&[2.0]));
        assert_eq!((attended.low[(0, 0)], attended.cross.as_slice()), (4.0, &[2.0, 2.0][..]));
        // q = (2, 0) and k = (3, 0), so both are 2 and 3 by the bases. Round 1 has
        // q' = (2 + 4 + 6 * 3) / (1 + 4 + 9) = 12 / 7 and k' = (3 + 6 q') / (1 + q'^2) = 651 / 193;
        // round 2 goes on with that k'.
        let (low_queries, low_key) = own.step(&[wide(&[2.0, 0.0])], &wide(&[3.0, 0.0]), &attended);
        close(low_queries[0].iter().copied(), &[1.602_095_58]);
        close(low_key.iter().copied(), &[3.536_192_35]);
        close(own.b_q.iter().copied(), &[2.0 / 1.602_095_58, 0.0]);
        close(own.b_k.iter().copied(), &[3.0 / 3.536_192_35, 0.0]);
    }

    #[test]
    fn every_head_fits_its_own_group_of_queries() {
        let shape = shape(4, 2, 2);
        let (store, index) = (keys(&shape), two_tokens(&shape));
        let rows = LayerRows::<R> { shape: &shape, store: &store, layer: LayerId(0) };
        let mut bases = bases();
        let step = DecodeStep {
            q: &[2.0, 0.0, 1.0, 0.0, 0.0, 4.0, 0.0, 1.0],
            k: &[3.0, 0.0, 0.0, 2.0],
            pending: 5..5,
        };
        // Nothing was attended, and all vectors lie in their head's channel: low ranks are exact.
        let features = bases.fit(rows, (&R::new(), &index), &step, |_| Vec::new());
        close(features.into_iter().map(f64::from), &[2.0, 1.0, 4.0, 1.0]);
        close(bases.landmarks(5, 1).into_iter().map(f64::from), &[3.0, 2.0]);
        // The next step finds row 5 pending, with the low rank that this one gave it.
        let next = DecodeStep { pending: 5..6, ..step };
        let sums = {
            let mut sums = Attended::new(2, 1);
            sums.add(&wide(&[5.0, 0.0]), &bases.heads[0].pending[0].clone());
            sums
        };
        bases.fill_pending(rows, &next.pending);
        let got = bases.attended_sums(rows, (&R::new(), &index), HeadId(0), &[]);
        assert_eq!((got.low, got.cross), (sums.low, sums.cross));
    }

    #[test]
    fn sums_are_over_recalled_and_pending_rows() {
        let shape = shape(2, 2, 2);
        let (store, index) = (keys(&shape), two_tokens(&shape));
        let rows = LayerRows::<R> { shape: &shape, store: &store, layer: LayerId(0) };
        let mut bases = bases();
        bases.fill_pending(rows, &(4..5));
        // Head 0: row 4 is (4, 0) with low rank 4; token 1 is row 3, (3, 0), with low rank 2. Token
        // 7 is gone.
        let sums = bases.attended_sums(rows, (&R::new(), &index), HeadId(0), &[1, 7]);
        assert_eq!((sums.low[(0, 0)], sums.cross.as_slice()), (20.0, &[22.0, 0.0][..]));
        // Head 1: row 4 is (4, 10) with low rank 10; token 0 is row 2, (2, 10), with low rank -1.
        let sums = bases.attended_sums(rows, (&R::new(), &index), HeadId(1), &[0]);
        assert_eq!((sums.low[(0, 0)], sums.cross.as_slice()), (101.0, &[38.0, 90.0][..]));
    }

    #[test]
    fn pending_low_ranks_move_with_the_rows() {
        let shape = shape(2, 2, 2);
        let store = keys(&shape);
        let rows = LayerRows::<R> { shape: &shape, store: &store, layer: LayerId(0) };
        let mut bases = bases();
        bases.fill_pending(rows, &(2..5));
        assert_eq!(bases.landmarks(2, 3), [2.0, 3.0, 4.0, 10.0, 10.0, 10.0]);
        assert_eq!(bases.landmarks(2, 2), [2.0, 3.0, 10.0, 10.0], "the first of each head");
        assert!(bases.landmarks(2, 4).is_empty() && bases.landmarks(3, 2).is_empty());
        // A low rank that a step found stays until its row is indexed.
        bases.heads[0].pending[2] = wide(&[9.0]);
        bases.fill_pending(rows, &(4..6));
        assert_eq!(bases.landmarks(4, 2), [9.0, 5.0, 10.0, 10.0]);
        bases.fill_pending(rows, &(4..5));
        assert_eq!(bases.heads[0].pending.len(), 1, "a cut takes the last ones");
        bases.fill_pending(rows, &(6..8));
        assert_eq!(bases.landmarks(6, 2), [6.0, 7.0, 10.0, 10.0], "a gap: all anew");
        bases.heads[0].pending[0] = wide(&[9.0]);
        bases.fill_pending(rows, &(5..7));
        assert_eq!(bases.landmarks(5, 2), [5.0, 6.0, 10.0, 10.0], "cut back: all anew");
    }

    #[test]
    fn a_record_makes_the_same_bases() {
        let made = Projections {
            rank: 2,
            w_q: vec![1.0, 2.0, 0.0, 1.0, 3.0, 1.0],
            w_k: vec![2.0, 0.0, 1.0, 1.0, 1.0, 4.0],
        };
        let gram = [4.0, 1.0, 0.0, 1.0, 3.0, 1.0, 0.0, 1.0, 5.0];
        let mut bases = LowRankDecode::new(&made, &gram, &gram, 3);
        bases.first = 7;
        bases.heads[0].pending = vec![wide(&[1.0, 2.0]), wide(&[3.0, 4.0])];
        let record = bases.record();
        assert_eq!((record.rank, record.first, record.heads.len()), (2, 7, 1));
        assert_eq!(record.heads[0][2], [2.0, 1.0, 1.0, 0.0, 1.0, 4.0], "W_K by columns");
        assert_eq!(record.heads[0][3], [1.0, 2.0, 3.0, 4.0]);
        let again = LowRankDecode::from_record(record.clone(), 3);
        assert_eq!(again.record(), record);
        assert_eq!(again.landmarks(7, 2), [1.0, 2.0, 3.0, 4.0]);
        let (a, b) = (&bases.heads[0], &again.heads[0]);
        assert_eq!((&a.b_q, &a.b_k, &a.w_k), (&b.b_q, &b.b_k, &b.w_k));
    }
}
