//! Low-rank spaces in which queries and keys are compared, from the sums `G_Q = sum q q^T` and
//! `G_K = sum k k^T` that every prefill records: work on `Dh x Dh` matrices alone, however long the
//! prompt was.
//!
//! A projection of a KV head is a pair `W_Q, W_K [Dh, r]` with `q k` about `(q W_Q) . (k W_K)`.
//! Loki takes the leading eigenvectors of `G_K` for both; InfiniGen rotates by the eigenvectors of
//! `G_Q` (the right singular vectors of Q) and keeps the channels of most mass; LRQK alternates
//! between its factors, which after one update are `A_Q = Q W_Q` and `A_K = K W_K`, so that every
//! sum over tokens in its equations is one of `W^T G W`.

use longview_core::{HeadId, SplitMix64};
use nalgebra::{Cholesky, DMatrix, SymmetricEigen};

use crate::policy::{LrqkInit, LrqkOrder, Projection, Rank, TokenConfig};

/// Weight of `|Q - A_Q B_Q|^2` and `|K - A_K B_K|^2` in LRQK's objective: the paper's.
const LAMBDA: f64 = 1.0;

/// Share of the mean of a diagonal that is added to it, so that its inverse exists.
const RIDGE: f64 = 1e-6;

/// Share of the mean of a diagonal that shrunk sums of queries have in every direction: the queries
/// of a document say little of what will be asked about it. Keys are known, so their sums stay as
/// they are.
///
/// Measured on a text of one repeated sentence that hides a fact (RULER's niah-single-1, SmolLM2,
/// 32 of 64 dimensions, B = 128): without it 43 % of answers are right, with 0.1 it is 86 %, with 1
/// and 10 all of them; on books the error is the same. Gemma 3, whose keys lie in few of their 256
/// directions, finds 3 of 3 UUIDs (niah-single-3, B = 256) with 10, 2 with 1, and none with 1 where
/// sums of keys are shrunk too.
const SHRINKAGE: f64 = 10.0;

/// What elements of LRQK's factors stay below, so that a score, which two of them and a sum over a
/// head's width make, is a number in single precision.
const LARGEST: f64 = 1e12;

/// The projection of one KV head.
#[derive(Clone, Debug)]
pub struct Factors {
    /// `[Dh, r]`.
    pub w_q: DMatrix<f64>,
    /// `[Dh, r]`.
    pub w_k: DMatrix<f64>,
}

/// The projections of all KV heads, of one rank.
#[derive(Clone, Debug, Default)]
pub struct Projections {
    /// Numbers of a projected key, r.
    pub rank: usize,
    /// `[Hkv, Dh, r]`.
    pub w_q: Vec<f32>,
    /// `[Hkv, Dh, r]`.
    pub w_k: Vec<f32>,
}

impl Projections {
    /// From the sums `[Hkv, Dh, Dh]`. Heads that need fewer dimensions than others have zeros in
    /// the rest.
    pub fn new(config: &TokenConfig, gram_q: &[f32], gram_k: &[f32], head_dim: usize) -> Self {
        let matrices = |grams: &[f32]| -> Vec<DMatrix<f64>> {
            let one = |g: &[f32]| {
                let wide = g.iter().map(|x| f64::from(*x));
                symmetric(DMatrix::from_row_iterator(head_dim, head_dim, wide))
            };
            grams.chunks_exact(head_dim * head_dim).map(one).collect()
        };
        let grams: Vec<_> = matrices(gram_q).into_iter().zip(matrices(gram_k)).collect();
        let rank_of = |g: &(DMatrix<f64>, DMatrix<f64>)| match config.rank {
            Rank::Given(_) => config.rank.most(head_dim),
            Rank::Tolerance(error) => rank_for(&g.0, &g.1, f64::from(error)),
        };
        let rank = grams.iter().map(rank_of).max().unwrap_or(0);
        let mut all = Self { rank, ..Self::default() };
        for (head, (g_q, g_k)) in grams.iter().enumerate() {
            let factors = factors(config.projection, g_q, g_k, rank, HeadId::new(head));
            for (out, w) in [(&mut all.w_q, factors.w_q), (&mut all.w_k, factors.w_k)] {
                out.extend(w.transpose().iter().map(|x| *x as f32));
            }
        }
        all
    }
}

fn symmetric(m: DMatrix<f64>) -> DMatrix<f64> {
    (&m + m.transpose()) / 2.0
}

/// The projection of KV head `head` with `rank` dimensions.
pub fn factors(
    projection: Projection,
    g_q: &DMatrix<f64>,
    g_k: &DMatrix<f64>,
    rank: usize,
    head: HeadId,
) -> Factors {
    match projection {
        Projection::PrincipalKeys => {
            let w = leading(g_k).columns(0, rank).into_owned();
            Factors { w_q: w.clone(), w_k: w }
        }
        Projection::SkewedChannels => {
            let rotation = leading(g_q);
            let mass = |g: &DMatrix<f64>| (rotation.transpose() * g * &rotation).diagonal();
            let (q, k) = (mass(g_q), mass(g_k));
            let mut channels: Vec<usize> = (0..q.len()).collect();
            let telling = |c: usize| q[c].max(0.0).sqrt() * k[c].max(0.0).sqrt();
            channels.sort_by(|a, b| telling(*b).total_cmp(&telling(*a)).then(a.cmp(b)));
            let w = rotation.select_columns(&channels[..rank]);
            Factors { w_q: w.clone(), w_k: w }
        }
        Projection::ShrunkFactors => best(&shrunk(g_q), g_k, rank),
        Projection::Lrqk { iterations, init, order, seed } => {
            let seed = seed ^ (u64::from(head.0) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut w = start(init, g_q, g_k, rank, seed);
            for _ in 0..iterations {
                let next = update(&w, g_q, g_k, order);
                if !next.is_usable() {
                    break;
                }
                w = next;
            }
            w
        }
    }
}

impl Factors {
    /// Whether scores in single precision are finite. Of a few tokens alone the updates settle
    /// nowhere, and many of them grow beyond every bound.
    fn is_usable(&self) -> bool {
        let is_small = |w: &DMatrix<f64>| w.iter().all(|x| x.abs() < LARGEST);
        is_small(&self.w_q) && is_small(&self.w_k)
    }
}

/// Eigenvectors as columns, those of the largest eigenvalues first.
fn leading(g: &DMatrix<f64>) -> DMatrix<f64> {
    let eigen = SymmetricEigen::new(g.clone());
    let mut order: Vec<usize> = (0..g.nrows()).collect();
    order.sort_by(|a, b| eigen.eigenvalues[*b].total_cmp(&eigen.eigenvalues[*a]).then(a.cmp(b)));
    eigen.eigenvectors.select_columns(&order)
}

fn start(
    init: LrqkInit,
    g_q: &DMatrix<f64>,
    g_k: &DMatrix<f64>,
    rank: usize,
    seed: u64,
) -> Factors {
    let d = g_q.nrows();
    // The channels of most mass: the released code takes columns by their L1 norm, the sums know
    // their L2 norm.
    let top = |mass: &dyn Fn(usize) -> f64| {
        let mut channels: Vec<usize> = (0..d).collect();
        channels.sort_by(|a, b| mass(*b).total_cmp(&mass(*a)).then(a.cmp(b)));
        DMatrix::identity(d, d).select_columns(&channels[..rank])
    };
    let norm = |g: &DMatrix<f64>, c: usize| g[(c, c)].max(0.0).sqrt();
    match init {
        LrqkInit::Random => {
            let mut rng = SplitMix64::new(seed);
            let mut draw = || {
                let normal = (0..d * rank).map(|_| f64::from(rng.next_normal()));
                DMatrix::from_row_iterator(d, rank, normal.collect::<Vec<_>>())
            };
            let w_q = draw();
            Factors { w_q, w_k: draw() }
        }
        LrqkInit::Top => Factors { w_q: top(&|c| norm(g_q, c)), w_k: top(&|c| norm(g_k, c)) },
        LrqkInit::TopJoint => {
            let w = top(&|c| norm(g_q, c) + norm(g_k, c));
            Factors { w_q: w.clone(), w_k: w }
        }
        LrqkInit::Svd => best(g_q, g_k, rank),
    }
}

/// One round of updates: B_Q and B_K, then both projections in the given order.
fn update(w: &Factors, g_q: &DMatrix<f64>, g_k: &DMatrix<f64>, order: LrqkOrder) -> Factors {
    let b_q = basis(&w.w_q, g_q);
    let b_k = basis(&w.w_k, g_k);
    let queries = |w_k: &DMatrix<f64>| project(w_k, g_k, &b_q);
    let keys = |w_q: &DMatrix<f64>| project(w_q, g_q, &b_k);
    match order {
        LrqkOrder::KeysFirst => {
            let w_k = keys(&w.w_q);
            Factors { w_q: queries(&w_k), w_k }
        }
        LrqkOrder::QueriesFirst => {
            let w_q = queries(&w.w_k);
            Factors { w_k: keys(&w_q), w_q }
        }
        LrqkOrder::Together => Factors { w_q: queries(&w.w_k), w_k: keys(&w.w_q) },
    }
}

/// `B = (W^T G W)^-1 W^T G`: what the factor says about the matrix it was made of.
pub(crate) fn basis(w: &DMatrix<f64>, g: &DMatrix<f64>) -> DMatrix<f64> {
    let wg = w.transpose() * g;
    inverse(&(&wg * w)) * wg
}

/// `W = (G' W' + l B^T) (W'^T G' W' + l B B^T)^-1` with the other side's W' and G'.
fn project(other: &DMatrix<f64>, g: &DMatrix<f64>, b: &DMatrix<f64>) -> DMatrix<f64> {
    let gw = g * other;
    let right = other.transpose() * &gw + LAMBDA * (b * b.transpose());
    (gw + LAMBDA * b.transpose()) * inverse(&right)
}

/// The inverse of a symmetric matrix that is positive, or nearly so; of numbers that are none where
/// its own are none.
pub(crate) fn inverse(m: &DMatrix<f64>) -> DMatrix<f64> {
    let mut m = symmetric(m.clone());
    let n = m.nrows();
    let mean = (m.trace() / n as f64).max(f64::MIN_POSITIVE);
    let mut ridge = RIDGE * RIDGE * mean;
    loop {
        for i in 0..n {
            m[(i, i)] += ridge;
        }
        if let Some(root) = Cholesky::new(m.clone()) {
            return root.inverse();
        }
        ridge *= 100.0;
        if !ridge.is_finite() {
            // Some element is not a number: no ridge lifts that.
            return DMatrix::from_element(n, n, f64::NAN);
        }
    }
}

/// The best projection of a rank (Eckart and Young on `Q K^T`): with `G = L L^T` on both sides and
/// `L_Q^T L_K = U S V^T`, `W_Q = L_Q^-T U S^1/2` and `W_K = L_K^-T V S^1/2`.
fn best(g_q: &DMatrix<f64>, g_k: &DMatrix<f64>, rank: usize) -> Factors {
    let (l_q, l_k) = (root(g_q), root(g_k));
    let svd = (l_q.transpose() * &l_k).svd(true, true);
    let (u, v) = (svd.u.expect("asked for"), svd.v_t.expect("asked for").transpose());
    let scale = svd.singular_values.map(f64::sqrt);
    let side = |l: &DMatrix<f64>, vectors: &DMatrix<f64>| {
        let scaled =
            vectors.columns(0, rank) * DMatrix::from_diagonal(&scale.rows(0, rank).into_owned());
        l.transpose().solve_upper_triangular(&scaled).expect("its diagonal is positive")
    };
    Factors { w_q: side(&l_q, &u), w_k: side(&l_k, &v) }
}

/// Sums as if [`SHRINKAGE`] times as many queries again pointed evenly everywhere.
fn shrunk(g: &DMatrix<f64>) -> DMatrix<f64> {
    let n = g.nrows();
    g + DMatrix::identity(n, n) * (SHRINKAGE * g.trace() / n as f64)
}

/// L with `L L^T = G`, made positive by a small ridge; no numbers where G has some that are
/// none.
fn root(g: &DMatrix<f64>) -> DMatrix<f64> {
    let n = g.nrows();
    let mean = (g.trace() / n as f64).max(f64::MIN_POSITIVE);
    let mut ridge = RIDGE * mean;
    loop {
        let lifted = g + DMatrix::identity(n, n) * ridge;
        if let Some(root) = Cholesky::new(lifted) {
            return root.l();
        }
        ridge *= 100.0;
        if !ridge.is_finite() {
            return DMatrix::from_element(n, n, f64::NAN);
        }
    }
}

/// The fewest dimensions whose best projection leaves at most `error` of the scores, relative:
/// `sqrt(sum of the squared singular values left out / sum of all)`.
fn rank_for(g_q: &DMatrix<f64>, g_k: &DMatrix<f64>, error: f64) -> usize {
    let values = (root(g_q).transpose() * root(g_k)).singular_values();
    let squares: Vec<f64> = values.iter().map(|s| s * s).collect();
    let total: f64 = squares.iter().sum();
    let mut left = total;
    for (i, square) in squares.iter().enumerate() {
        if left <= error * error * total {
            return i.max(1);
        }
        left -= square;
    }
    squares.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queries and keys of 40 tokens whose products have rank about 3, and their sums.
    fn sample(d: usize) -> [DMatrix<f64>; 4] {
        let mut rng = SplitMix64::new(5);
        let mut draw = |rows: usize, cols: usize| {
            let normal: Vec<f64> = (0..rows * cols).map(|_| f64::from(rng.next_normal())).collect();
            DMatrix::from_row_slice(rows, cols, &normal)
        };
        let (mix_q, mix_k) = (draw(3, d), draw(3, d));
        let q = draw(40, 3) * mix_q + 0.01 * draw(40, d);
        let k = draw(40, 3) * mix_k + 0.01 * draw(40, d);
        let (g_q, g_k) = (q.transpose() * &q, k.transpose() * &k);
        [q, k, g_q, g_k]
    }

    #[test]
    fn what_is_no_number_has_no_inverse_and_ends() {
        let mut m = DMatrix::identity(3, 3);
        m[(1, 1)] = f64::NAN;
        assert!(inverse(&m).iter().chain(root(&m).iter()).any(|x| x.is_nan()));
        m[(1, 1)] = f64::INFINITY;
        let _ = (inverse(&m), root(&m));
    }

    #[test]
    fn any_number_of_iterations_over_few_tokens_ends_with_finite_factors() {
        let mut rng = SplitMix64::new(3);
        let mut token = || DMatrix::from_fn(1, 4, |_, _| f64::from(rng.next_normal()));
        let (q, k) = (token(), token());
        let (g_q, g_k) = (q.transpose() * &q, k.transpose() * &k);
        for init in [LrqkInit::Random, LrqkInit::Top, LrqkInit::TopJoint, LrqkInit::Svd] {
            for order in [LrqkOrder::KeysFirst, LrqkOrder::QueriesFirst, LrqkOrder::Together] {
                let lrqk = Projection::Lrqk { iterations: 1_024, init, order, seed: 0 };
                for rank in 1..=4 {
                    let Factors { w_q, w_k } = factors(lrqk, &g_q, &g_k, rank, HeadId(0));
                    let is_number = |x: &f64| (*x as f32).is_finite();
                    assert!(w_q.iter().chain(w_k.iter()).all(is_number), "{lrqk:?}, rank {rank}");
                }
            }
        }
    }

    fn error(q: &DMatrix<f64>, k: &DMatrix<f64>, w: &Factors) -> f64 {
        let want = q * k.transpose();
        let got = (q * &w.w_q) * (k * &w.w_k).transpose();
        (got - &want).norm() / want.norm()
    }

    /// LRQK as its paper writes it: factors of all tokens, sums over tokens.
    fn token_form(
        q: &DMatrix<f64>,
        k: &DMatrix<f64>,
        start: &Factors,
        order: LrqkOrder,
    ) -> (DMatrix<f64>, DMatrix<f64>) {
        let (mut a_q, mut a_k) = (q * &start.w_q, k * &start.w_k);
        let inv = |m: DMatrix<f64>| m.try_inverse().unwrap();
        for _ in 0..2 {
            let b_q = inv(a_q.transpose() * &a_q) * a_q.transpose() * q;
            let b_k = inv(a_k.transpose() * &a_k) * a_k.transpose() * k;
            let keys = |a_q: &DMatrix<f64>| {
                k * (q.transpose() * a_q + b_k.transpose())
                    * inv(a_q.transpose() * a_q + &b_k * b_k.transpose())
            };
            let queries = |a_k: &DMatrix<f64>| {
                q * (k.transpose() * a_k + b_q.transpose())
                    * inv(a_k.transpose() * a_k + &b_q * b_q.transpose())
            };
            (a_q, a_k) = match order {
                LrqkOrder::KeysFirst => {
                    let a_k = keys(&a_q);
                    (queries(&a_k), a_k)
                }
                LrqkOrder::QueriesFirst => {
                    let a_q = queries(&a_k);
                    (a_q.clone(), keys(&a_q))
                }
                LrqkOrder::Together => (queries(&a_k), keys(&a_q)),
            };
        }
        (a_q, a_k)
    }

    #[test]
    fn the_gram_form_is_the_papers_when_both_begin_alike() {
        let [q, k, g_q, g_k] = sample(10);
        for order in [LrqkOrder::KeysFirst, LrqkOrder::QueriesFirst, LrqkOrder::Together] {
            let w = start(LrqkInit::Random, &g_q, &g_k, 4, 9);
            let (a_q, a_k) = token_form(&q, &k, &w, order);
            let w = (0..2).fold(w, |w, _| update(&w, &g_q, &g_k, order));
            for (tokens, grams) in [(a_q, &q * w.w_q), (a_k, &k * w.w_k)] {
                let apart = (&tokens - grams).norm() / tokens.norm();
                assert!(apart < 1e-6, "{order:?} {apart}");
            }
        }
    }

    #[test]
    fn every_projection_finds_products_of_low_rank() {
        let [q, k, g_q, g_k] = sample(12);
        let lrqk = |init, order, iterations| Projection::Lrqk { iterations, init, order, seed: 3 };
        use LrqkInit::{Random, Svd, Top, TopJoint};
        use LrqkOrder::{KeysFirst, QueriesFirst};
        for (projection, most) in [
            (lrqk(Svd, KeysFirst, 0), 0.02),
            (Projection::ShrunkFactors, 0.05),
            (lrqk(Random, KeysFirst, 2), 0.05),
            (lrqk(Random, QueriesFirst, 2), 0.05),
            (lrqk(Top, KeysFirst, 2), 0.05),
            (lrqk(TopJoint, KeysFirst, 2), 0.05),
            (Projection::PrincipalKeys, 0.05),
            (Projection::SkewedChannels, 0.05),
        ] {
            let error = error(&q, &k, &factors(projection, &g_q, &g_k, 4, HeadId(0)));
            assert!(error < most, "{projection:?}: {error}");
        }
    }

    #[test]
    fn the_best_projection_is_better_than_any_other_and_the_tolerance_is_kept() {
        let [q, k, g_q, g_k] = sample(12);
        let svd = error(&q, &k, &best(&g_q, &g_k, 2));
        for seed in 0..5 {
            let w = start(LrqkInit::Random, &g_q, &g_k, 2, seed);
            let w = (0..5).fold(w, |w, _| update(&w, &g_q, &g_k, LrqkOrder::KeysFirst));
            assert!(svd <= error(&q, &k, &w) + 1e-6);
        }
        for tolerance in [0.5, 0.1, 0.02] {
            let rank = rank_for(&g_q, &g_k, tolerance);
            assert!(error(&q, &k, &best(&g_q, &g_k, rank)) <= tolerance + 1e-3, "{rank}");
            assert!(rank == 1 || error(&q, &k, &best(&g_q, &g_k, rank - 1)) > tolerance - 1e-3);
        }
    }

    /// A prompt whose keys differ in dimensions that none of its queries asks for, and later
    /// queries that point everywhere.
    #[test]
    fn shrunk_sums_keep_what_the_prompts_queries_do_not_ask_for() {
        let of = |spread: [f64; 6]| {
            DMatrix::from_fn(40, 6, |i, c| spread[c] * ((i * (c + 3)) as f64 + c as f64).sin())
        };
        let (q, k) = (of([3.0, 3.0, 0.3, 0.3, 1e-4, 1e-4]), of([3.0, 3.0, 0.3, 0.3, 2.0, 2.0]));
        let (g_q, g_k) = (q.transpose() * &q, k.transpose() * &k);
        let (init, order) = (LrqkInit::Svd, LrqkOrder::KeysFirst);
        let plain = Projection::Lrqk { iterations: 0, init, order, seed: 0 };
        let [shrunk, plain] = [Projection::ShrunkFactors, plain]
            .map(|projection| factors(projection, &g_q, &g_k, 4, HeadId(0)));
        let later = DMatrix::identity(6, 6);
        let [good, bad] = [&shrunk, &plain].map(|w| error(&later, &k, w));
        assert!(good < 0.1 && bad > 0.4, "{good} {bad}");
        assert!(error(&q, &k, &shrunk) < 0.02, "what the prompt asks for stays");
    }

    #[test]
    fn a_prompt_of_fewer_tokens_than_dimensions_is_no_trouble() {
        let [q, k, ..] = sample(12);
        let (q, k) = (q.rows(0, 3).into_owned(), k.rows(0, 3).into_owned());
        let (g_q, g_k) = (q.transpose() * &q, k.transpose() * &k);
        for init in [LrqkInit::Random, LrqkInit::Top, LrqkInit::TopJoint, LrqkInit::Svd] {
            let lrqk =
                Projection::Lrqk { iterations: 2, init, order: LrqkOrder::KeysFirst, seed: 1 };
            let w = factors(lrqk, &g_q, &g_k, 6, HeadId(0));
            assert!(w.w_q.iter().chain(w.w_k.iter()).all(|x| x.is_finite()), "{init:?}");
        }
    }

    fn diagonal(values: [f64; 4]) -> DMatrix<f64> {
        DMatrix::from_diagonal(&nalgebra::DVector::from_column_slice(&values))
    }

    /// The channel that each column of `w` takes, whatever its sign.
    fn channels(w: &DMatrix<f64>) -> Vec<usize> {
        let channel = |column: nalgebra::DVectorView<'_, f64>| {
            let is_one = |x: &f64| (x.abs() - 1.0).abs() < 1e-9;
            assert!((column.norm() - 1.0).abs() < 1e-9, "{column}");
            column.iter().position(is_one).expect("a column of one channel")
        };
        w.column_iter().map(|column| channel(column.as_view())).collect()
    }

    #[test]
    fn principal_keys_are_the_channels_of_the_largest_keys() {
        let (g_q, g_k) = (diagonal([9.0, 1.0, 1.0, 9.0]), diagonal([1.0, 5.0, 3.0, 2.0]));
        let w = factors(Projection::PrincipalKeys, &g_q, &g_k, 3, HeadId(0));
        assert_eq!(channels(&w.w_k), [1, 2, 3]);
        assert_eq!(w.w_q, w.w_k);
    }

    #[test]
    fn skewed_channels_are_those_of_most_mass_on_both_sides() {
        // Roots of products: 2, 10, 3, 0.
        let (g_q, g_k) = (diagonal([4.0, 1.0, 9.0, 1.0]), diagonal([1.0, 100.0, 1.0, 0.0]));
        let w = factors(Projection::SkewedChannels, &g_q, &g_k, 2, HeadId(0));
        assert_eq!(channels(&w.w_q), [1, 2]);
        assert_eq!(w.w_q, w.w_k);
        // Of equal ones, the channel of larger queries comes first.
        let (g_q, g_k) = (diagonal([1.0, 4.0, 2.0, 8.0]), diagonal([8.0, 2.0, 4.0, 1.0]));
        let w = factors(Projection::SkewedChannels, &g_q, &g_k, 4, HeadId(0));
        assert_eq!(channels(&w.w_q), [3, 1, 2, 0]);
    }

    #[test]
    fn lrqk_may_begin_with_the_largest_channels() {
        let (g_q, g_k) = (diagonal([1.0, 16.0, 4.0, 0.0]), diagonal([25.0, 1.0, 9.0, 4.0]));
        let top = start(LrqkInit::Top, &g_q, &g_k, 2, 0);
        assert_eq!((channels(&top.w_q), channels(&top.w_k)), (vec![1, 2], vec![0, 2]));
        // Norms together: 1 + 5, 4 + 1, 2 + 3, 0 + 2; the earlier channel wins a tie.
        let joint = start(LrqkInit::TopJoint, &g_q, &g_k, 2, 0);
        assert_eq!((channels(&joint.w_q), channels(&joint.w_k)), (vec![0, 1], vec![0, 1]));
    }

    #[test]
    fn a_random_start_follows_from_seed_and_head() {
        let g = diagonal([4.0, 3.0, 2.0, 1.0]);
        let at = |seed, head| {
            let order = LrqkOrder::KeysFirst;
            let lrqk = Projection::Lrqk { iterations: 0, init: LrqkInit::Random, order, seed };
            factors(lrqk, &g, &g, 2, HeadId(head)).w_q
        };
        assert_eq!(at(1, 0), at(1, 0));
        assert!(at(1, 0) != at(2, 0) && at(1, 0) != at(1, 1));
    }

    #[test]
    fn one_round_of_updates_has_the_papers_numbers() {
        // One channel: B = 1 / W for any sums, so W_Q = 2 and W_K = 4 give B_Q = 1/2, B_K = 1/4.
        let one = |x: f64| DMatrix::from_element(1, 1, x);
        let (g_q, g_k) = (one(3.0), one(5.0));
        let at = |order| {
            let w = update(&Factors { w_q: one(2.0), w_k: one(4.0) }, &g_q, &g_k, order);
            [w.w_q[(0, 0)], w.w_k[(0, 0)]]
        };
        let keys = |w_q: f64| (3.0 * w_q + 0.25) / (3.0 * w_q * w_q + 0.0625);
        let queries = |w_k: f64| (5.0 * w_k + 0.5) / (5.0 * w_k * w_k + 0.25);
        for (order, want) in [
            (LrqkOrder::KeysFirst, [queries(keys(2.0)), keys(2.0)]),
            (LrqkOrder::QueriesFirst, [queries(4.0), keys(queries(4.0))]),
            (LrqkOrder::Together, [queries(4.0), keys(2.0)]),
        ] {
            let got = at(order);
            let is_near = got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-9);
            assert!(is_near, "{order:?}: {got:?}, not {want:?}");
        }
    }

    #[test]
    fn projections_lie_head_by_head_and_row_by_row() {
        let gram = |values: [f64; 4]| diagonal(values).iter().map(|x| *x as f32).collect();
        let grams: [Vec<f32>; 2] = [gram([1.0, 5.0, 3.0, 2.0]), gram([1.0, 2.0, 3.0, 4.0])];
        let grams = grams.concat();
        let rank = Rank::Given(Some(2));
        let config = TokenConfig { projection: Projection::PrincipalKeys, rank, adapts: false };
        let made = Projections::new(&config, &grams, &grams, 4);
        let sizes: Vec<f32> = made.w_k.iter().map(|x| x.abs()).collect();
        let first = [0., 0., 1., 0., 0., 1., 0., 0.];
        let second = [0., 0., 0., 0., 0., 1., 1., 0.];
        assert_eq!((made.rank, sizes), (2, [first, second].concat()));
        assert_eq!(made.w_q, made.w_k);
    }

    #[test]
    fn the_head_that_needs_most_dimensions_sets_the_rank() {
        // The products of diagonal sums have singular values 4, 3, 0, 0, or 4, 0, 0, 0. One
        // dimension leaves 3 of 5 of the first.
        let (two, one) = (diagonal([4.0, 3.0, 0.0, 0.0]), diagonal([4.0, 0.0, 0.0, 0.0]));
        assert_eq!([rank_for(&two, &two, 0.61), rank_for(&two, &two, 0.59)], [1, 2]);
        assert_eq!(rank_for(&one, &one, 0.01), 1);
        assert_eq!(rank_for(&two, &two, 0.999), 1, "one dimension at least");
        let grams: Vec<f32> = one.iter().chain(two.iter()).map(|x| *x as f32).collect();
        let rank = |error| {
            let rank = Rank::Tolerance(error);
            let config = TokenConfig { projection: Projection::PrincipalKeys, rank, adapts: false };
            Projections::new(&config, &grams, &grams, 4).rank
        };
        assert_eq!([rank(0.61), rank(0.59)], [1, 2]);
    }
}
