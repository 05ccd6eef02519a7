//! The reference against values that were worked out by hand, or by another formula.

use longview_core::{DType, HostBytes, SplitMix64, encode_f32};
use longview_ops::*;

type R = ReferenceBackend;
type Buffer = <R as Storage>::Buffer;

fn floats(backend: &R, values: &[f32]) -> Buffer {
    typed(backend, DType::F32, values)
}

fn typed(backend: &R, dtype: DType, values: &[f32]) -> Buffer {
    let mut buffer = backend.alloc(dtype, values.len(), "test").unwrap();
    backend.write(ViewMut::all(&mut buffer), &encode_f32(dtype, values)).unwrap();
    buffer
}

fn ints(backend: &R, values: &[u32]) -> Buffer {
    let mut buffer = backend.alloc(DType::U32, values.len(), "test").unwrap();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    backend.write(ViewMut::all(&mut buffer), &bytes).unwrap();
    buffer
}

fn weight(backend: &R, n_rows: usize, values: &[f32]) -> <R as Storage>::Weight {
    let bytes = HostBytes::from_vec(encode_f32(DType::F32, values));
    let n_cols = values.len() / n_rows;
    let (name, dtype, activations) = ("w".into(), DType::F32, Activations::F32);
    let source = WeightSource { name, dtype, n_rows, n_cols, bytes, activations };
    backend.load_weight(source).unwrap()
}

fn bytes_of(backend: &R, buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.size_bytes() as usize];
    pollster::block_on(backend.read(View::all(buffer), &mut bytes)).unwrap();
    bytes
}

fn numbers(backend: &R, buffer: &Buffer) -> Vec<f32> {
    longview_core::decode_f32(buffer.dtype(), &bytes_of(backend, buffer))
}

fn indices(backend: &R, buffer: &Buffer) -> Vec<u32> {
    let bytes = bytes_of(backend, buffer);
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn near(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    let close = |(g, w): (&f32, &f32)| g == w || (g - w).abs() < 1e-6 * (1.0 + w.abs());
    assert!(got.iter().zip(want).all(close), "{got:?}, expected {want:?}");
}

#[test]
fn rms_norm_of_three_and_four() {
    let b = R::new();
    let (x, w) = (floats(&b, &[3.0, 4.0]), weight(&b, 1, &[1.0, 2.0]));
    let mut out = floats(&b, &[0.0; 2]);
    let root = 12.5f32.sqrt();
    for (accumulate, sum) in [(0, 1.0), (1, 2.0)] {
        let p = RmsNormParams { n_rows: 1, width: 2, eps: 0.0, accumulate };
        let d = RmsNorm { p, x: View::all(&x), weight: &w, out: ViewMut::all(&mut out) };
        b.rms_norm(d).unwrap();
        near(&numbers(&b, &out), &[sum * 3.0 / root, sum * 8.0 / root]);
    }
}

#[test]
fn a_product_with_bias_is_added_to_the_residual() {
    let b = R::new();
    let x = floats(&b, &[1.0, 2.0, 3.0]);
    let w = weight(&b, 2, &[1.0, 0.0, -1.0, 2.0, 2.0, 2.0]);
    let bias = weight(&b, 1, &[0.5, -0.5]);
    let p = LinearParams { n_rows: 1, n_in: 3, n_out: 2, accumulate: 1 };
    let mut out = floats(&b, &[100.0, 200.0]);
    let d =
        Linear { p, x: View::all(&x), weight: &w, bias: Some(&bias), out: ViewMut::all(&mut out) };
    b.matmul(d).unwrap();
    near(&numbers(&b, &out), &[98.5, 211.5]);
}

#[test]
fn rope_is_multiplication_by_complex_numbers_of_length_one() {
    let b = R::new();
    let (angles, x) = ([0.3f64, 2.0], [1.0f32, 2.0, 3.0, 4.0, 9.0]);
    let cos_sin: Vec<f32> = angles
        .iter()
        .map(|a| a.cos() as f32)
        .chain(angles.iter().map(|a| a.sin() as f32))
        .collect();
    let (input, table) = (floats(&b, &x), floats(&b, &cos_sin));
    let mut out = floats(&b, &[0.0; 5]);
    let p = RopeParams { n_tokens: 1, n_heads: 1, head_dim: 5, rotary_dim: 4 };
    let d = Rope { p, x: View::all(&input), table: View::all(&table), out: ViewMut::all(&mut out) };
    b.rope(d).unwrap();
    // (x[i] + i x[i + 2]) e^(i angle) by length and argument, not by sums of products.
    let turned = |i: usize| {
        let (re, im) = (f64::from(x[i]), f64::from(x[i + 2]));
        let (length, argument) = (re.hypot(im), im.atan2(re) + angles[i]);
        (length * argument.cos(), length * argument.sin())
    };
    let ((a, c), (b2, d2)) = (turned(0), turned(1));
    near(&numbers(&b, &out), &[a as f32, b2 as f32, c as f32, d2 as f32, 9.0]);
}

#[test]
fn silu_of_zero_one_and_minus_a_thousand() {
    let b = R::new();
    let (gate, up) = (floats(&b, &[0.0, 1.0, -1000.0]), floats(&b, &[5.0, 2.0, 3.0]));
    let mut out = floats(&b, &[9.0; 3]);
    let d = SiluMul {
        p: SiluMulParams { n: 3 },
        gate: View::all(&gate),
        up: View::all(&up),
        out: ViewMut::all(&mut out),
    };
    b.silu_mul(d).unwrap();
    near(&numbers(&b, &out), &[0.0, 2.0 * 0.731_058_6, 0.0]);
}

/// By the form with the hyperbolic tangent.
#[test]
fn gelu_of_zero_one_minus_two_and_minus_a_thousand() {
    let b = R::new();
    let gates = [0.0, 1.0, -2.0, -1000.0];
    let (gate, up) = (floats(&b, &gates), floats(&b, &[5.0, 2.0, 3.0, 7.0]));
    let mut out = floats(&b, &[9.0; 4]);
    let d = GeluMul {
        p: GeluMulParams { n: 4 },
        gate: View::all(&gate),
        up: View::all(&up),
        out: ViewMut::all(&mut out),
    };
    b.gelu_mul(d).unwrap();
    let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    let gelu = |x: f32| 0.5 * f64::from(x) * (1.0 + inner(f64::from(x)).tanh());
    near(
        &numbers(&b, &out),
        &[0.0, 2.0 * gelu(1.0) as f32, 3.0 * gelu(-2.0) as f32, 7.0 * gelu(-1000.0) as f32],
    );
}

/// Three keys along the axes, values 1, 10, 100: one KV head of width 2.
const ROWS: [f32; 12] = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 10.0, 10.0, 0.0, 0.0, 100.0, 100.0];

fn attend_params(accumulate: u32) -> AttendParams {
    AttendParams { n_tokens: 1, n_q_heads: 2, n_kv_heads: 1, head_dim: 2, scale: 1.0, accumulate }
}

/// Attention of two query heads, (ln 2, 0) and (0, ln 3), over the first `n_rows` of [`ROWS`].
fn attend(n_rows: u32, diagonal: i32) -> (Vec<f32>, Vec<f32>) {
    attend_within(n_rows, diagonal, u32::MAX)
}

/// The same, and no more than the last `window` of these rows.
fn attend_within(n_rows: u32, diagonal: i32, window: u32) -> (Vec<f32>, Vec<f32>) {
    let b = R::new();
    let q = floats(&b, &[2f32.ln(), 0.0, 0.0, 3f32.ln()]);
    let kv = typed(&b, DType::F32, &ROWS);
    let (mut out, mut lse) = (floats(&b, &[7.0; 4]), floats(&b, &[7.0; 2]));
    let kv = KvView::new(&kv, 3);
    let order = None;
    let span =
        ChunkSpan { q_start: 0, q_len: 1, kv, row_start: 0, n_rows, diagonal, window, order };
    let spans = [span];
    let d = AttendChunk {
        p: attend_params(0),
        q: View::all(&q),
        spans: &spans,
        out: ViewMut::all(&mut out),
        lse: ViewMut::all(&mut lse),
    };
    b.attend_chunk(d).unwrap();
    (numbers(&b, &out), numbers(&b, &lse))
}

#[test]
fn a_window_hides_the_rows_before_it() {
    // The last row alone, whose key is nothing.
    let (out, lse) = attend_within(3, 2, 1);
    near(&out, &[100.0; 4]);
    near(&lse, &[0.0, 0.0]);
    // The last two: (0, 1) and nothing, which weigh 1 and 1, then 3 and 1.
    let (out, lse) = attend_within(3, 2, 2);
    near(&out, &[55.0, 55.0, 32.5, 32.5]);
    near(&lse, &[2f32.ln(), 4f32.ln()]);
    assert_eq!(attend_within(3, 2, 3), attend(3, 2), "as many as there are");
    // Its window lies behind the run.
    let (out, lse) = attend_within(3, 9, 4);
    assert_eq!((out, lse), (vec![0.0; 4], vec![f32::NEG_INFINITY; 2]));
}

#[test]
fn attention_over_three_keys() {
    // Weights 2 : 1 : 1 for the first head, 1 : 3 : 1 for the second.
    let (out, lse) = attend(3, i32::MAX);
    near(&out, &[28.0, 28.0, 26.2, 26.2]);
    near(&lse, &[4f32.ln(), 5f32.ln()]);
    // The diagonal leaves two keys, one, none.
    near(&attend(3, 1).0, &[4.0, 4.0, 7.75, 7.75]);
    near(&attend(3, 0).0, &[1.0; 4]);
    assert_eq!(attend(3, -1), (vec![0.0; 4], vec![f32::NEG_INFINITY; 2]));
    assert_eq!(attend(0, i32::MAX), (vec![0.0; 4], vec![f32::NEG_INFINITY; 2]));
}

#[test]
fn attention_over_parts_merges_to_attention_over_all() {
    let (whole, whole_lse) = attend(3, i32::MAX);
    let b = R::new();
    let q = floats(&b, &[2f32.ln(), 0.0, 0.0, 3f32.ln()]);
    let kv = typed(&b, DType::F32, &ROWS);
    let (out, lse) = attend(2, i32::MAX);
    let (mut out, mut lse) = (floats(&b, &out), floats(&b, &lse));
    let (rows, n_rows) = (ints(&b, &[2]), ints(&b, &[1]));
    let spans = [ListSpan {
        q_index: 0,
        kv: KvView::new(&kv, 3),
        rows: View::all(&rows),
        n_rows: View::all(&n_rows),
        weights: None,
        list_stride: 1,
    }];
    let d = AttendList {
        p: attend_params(1),
        q: View::all(&q),
        spans: &spans,
        out: ViewMut::all(&mut out),
        lse: ViewMut::all(&mut lse),
    };
    b.attend_list(d).unwrap();
    near(&numbers(&b, &out), &whole);
    near(&numbers(&b, &lse), &whole_lse);
}

#[test]
fn a_merge_weighs_by_the_masses() {
    let b = R::new();
    let minus = f32::NEG_INFINITY;
    let (other_out, other_lse) = (floats(&b, &[5.0, 5.0, 5.0]), floats(&b, &[0.0, minus, minus]));
    let (mut out, mut lse) = (floats(&b, &[1.0, 1.0, 0.0]), floats(&b, &[3f32.ln(), 2.0, minus]));
    let d = LseMerge {
        p: LseMergeParams { n_rows: 3, head_dim: 1 },
        other_out: View::all(&other_out),
        other_lse: View::all(&other_lse),
        out: ViewMut::all(&mut out),
        lse: ViewMut::all(&mut lse),
    };
    b.lse_merge(d).unwrap();
    near(&numbers(&b, &out), &[2.0, 1.0, 0.0]);
    near(&numbers(&b, &lse), &[4f32.ln(), 2.0, minus]);
}

fn kmeans_params(distance: Distance) -> KmeansParams {
    let distance = distance as u32;
    KmeansParams { n_kv_heads: 1, n_points: 2, n_clusters: 3, head_dim: 2, distance }
}

/// Labels, scores and changes of the points (2, 1) and (0, 0), both labelled 0 before.
fn assign(distance: Distance) -> (Vec<u32>, Vec<f32>, Vec<u32>) {
    let b = R::new();
    let points = floats(&b, &[2.0, 1.0, 0.0, 0.0]);
    let centroids = floats(&b, &[0.0, 0.0, 2.0, 0.0, 3.0, 4.0]);
    let (mut labels, mut scores) = (ints(&b, &[0, 0]), floats(&b, &[0.0; 2]));
    let mut n_changed = ints(&b, &[9]);
    let d = KmeansAssign {
        p: kmeans_params(distance),
        points: View::all(&points),
        centroids: View::all(&centroids),
        labels: ViewMut::all(&mut labels),
        scores: ViewMut::all(&mut scores),
        n_changed: ViewMut::all(&mut n_changed),
    };
    b.kmeans_assign(d).unwrap();
    (indices(&b, &labels), numbers(&b, &scores), indices(&b, &n_changed))
}

#[test]
fn kmeans_assigns_by_each_distance() {
    // Cosine: 0, 2, 10 / 5 = 2: a tie, so the lower id. L2: 0, 4 - 2, 10 - 12.5. Inner product: 0,
    // 4, 10.
    assert_eq!(assign(Distance::Cosine), (vec![1, 0], vec![2.0, 0.0], vec![1]));
    assert_eq!(assign(Distance::L2), (vec![1, 0], vec![2.0, 0.0], vec![1]));
    assert_eq!(assign(Distance::InnerProduct), (vec![2, 0], vec![10.0, 0.0], vec![1]));
}

#[test]
fn kmeans_moves_centroids_to_the_means_and_leaves_empty_ones() {
    let b = R::new();
    let (points, labels) = (floats(&b, &[2.0, 1.0, 4.0, -1.0]), ints(&b, &[2, 2]));
    let mut centroids = floats(&b, &[1.0, 1.5, 2.0, 2.5, 8.0, 9.0]);
    let mut counts = ints(&b, &[7; 3]);
    let d = KmeansUpdate {
        p: kmeans_params(Distance::Cosine),
        points: View::all(&points),
        labels: View::all(&labels),
        centroids: ViewMut::all(&mut centroids),
        counts: ViewMut::all(&mut counts),
    };
    b.kmeans_update(d).unwrap();
    near(&numbers(&b, &centroids), &[1.0, 1.5, 2.0, 2.5, 3.0, 0.0]);
    assert_eq!(indices(&b, &counts), [0, 0, 2]);
}

#[test]
fn closeness_and_radius_of_two_points() {
    let b = R::new();
    let (points, labels) = (floats(&b, &[3.0, 4.0, 0.0, 5.0]), ints(&b, &[1, 1]));
    let centroids = floats(&b, &[1.0, 1.0, 0.0, 2.0, 0.0, 0.0]);
    for (distance, closeness) in [
        (Distance::Cosine, [0.8, 1.0]),
        (Distance::L2, [-(13f32.sqrt()), -3.0]),
        (Distance::InnerProduct, [8.0, 10.0]),
    ] {
        let (mut close, mut radius) = (floats(&b, &[0.0; 2]), floats(&b, &[9.0; 3]));
        let d = ClusterStats {
            p: kmeans_params(distance),
            points: View::all(&points),
            labels: View::all(&labels),
            centroids: View::all(&centroids),
            closeness: ViewMut::all(&mut close),
            radius: ViewMut::all(&mut radius),
        };
        b.cluster_stats(d).unwrap();
        near(&numbers(&b, &close), &closeness);
        near(&numbers(&b, &radius), &[0.0, 13f32.sqrt(), 0.0]);
    }
}

#[test]
fn cluster_scores_are_pooled_masses() {
    let b = R::new();
    // Two query heads of width 1 over centroids 0 and 1: masses 1:2 and 1:3.
    let (q, centroids) = (floats(&b, &[2f32.ln(), 3f32.ln()]), floats(&b, &[0.0, 1.0]));
    let (sizes, n_clusters) = (ints(&b, &[4, 1]), ints(&b, &[2]));
    for (pooling, want) in [
        (Pooling::SumSoftmax, [1.0 / 3.0 + 0.25, 2.0 / 3.0 + 0.75]),
        (Pooling::MaxSoftmax, [1.0 / 3.0, 0.75]),
        (Pooling::SizeWeighted, [4.0 / 6.0 + 4.0 / 7.0, 2.0 / 6.0 + 3.0 / 7.0]),
    ] {
        let mut scores = floats(&b, &[0.0; 2]);
        let spans = [ScoreSpan {
            q_index: 0,
            centroids: View::all(&centroids),
            sizes: View::all(&sizes),
            n_clusters: View::all(&n_clusters),
            cluster_stride: 2,
            listed: None,
            placed: Placed::DENSE,
        }];
        let p = CentroidScoresParams {
            n_tokens: 1,
            n_q_heads: 2,
            n_kv_heads: 1,
            head_dim: 1,
            score_stride: 2,
            scale: 1.0,
            pooling: pooling as u32,
        };
        let scores_view = ViewMut::all(&mut scores);
        let d = CentroidScores { p, q: View::all(&q), spans: &spans, scores: scores_view };
        b.centroid_scores(d).unwrap();
        near(&numbers(&b, &scores), &want);
    }
}

/// (clusters, takes) for a budget over five clusters.
fn select(budget: u32) -> (Vec<u32>, Vec<u32>) {
    let b = R::new();
    let scores = floats(&b, &[0.2, 0.9, 0.5, 0.9, 0.99]);
    let (sizes, n_clusters) = (ints(&b, &[10, 4, 6, 3, 0]), ints(&b, &[5]));
    let budgets = ints(&b, &[budget]);
    let (mut clusters, mut takes) = (ints(&b, &[0; 5]), ints(&b, &[0; 5]));
    let mut n_selected = ints(&b, &[9]);
    let spans = [SelectSpan {
        sizes: View::all(&sizes),
        n_clusters: View::all(&n_clusters),
        budgets: View::all(&budgets),
        cluster_stride: 5,
        listed: None,
    }];
    let d = SelectClusters {
        p: SelectClustersParams { n_kv_heads: 1, score_stride: 5, max_selected: 5, by_id: 0 },
        scores: View::all(&scores),
        spans: &spans,
        clusters: ViewMut::all(&mut clusters),
        takes: ViewMut::all(&mut takes),
        n_selected: ViewMut::all(&mut n_selected),
    };
    b.select_clusters(d).unwrap();
    let n = indices(&b, &n_selected)[0] as usize;
    (indices(&b, &clusters)[..n].to_vec(), indices(&b, &takes)[..n].to_vec())
}

#[test]
fn selection_ranks_sums_and_trims() {
    // The best cluster is empty, 1 and 3 are equal.
    assert_eq!(select(0), (vec![], vec![]));
    assert_eq!(select(4), (vec![1], vec![4]));
    assert_eq!(select(9), (vec![1, 3, 2], vec![4, 3, 2]));
    assert_eq!(select(13), (vec![1, 3, 2], vec![4, 3, 6]));
    assert_eq!(select(1000), (vec![1, 3, 2, 0], vec![4, 3, 6, 10]));
}

#[test]
fn argmax_takes_the_first_largest_or_the_first_not_a_number() {
    let b = R::new();
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows = [
        [1.0, 3.0, 3.0],
        [9.0, nan, nan],
        [-0.0, 0.0, -1.0],
        [0.0, 1.0, inf],
        [inf, -inf, -nan],
        [-inf; 3],
    ];
    let x = floats(&b, rows.as_flattened());
    let mut out = ints(&b, &[9; 6]);
    let p = ArgmaxParams { n_rows: 6, width: 3 };
    b.argmax(Argmax { p, x: View::all(&x), out: ViewMut::all(&mut out) }).unwrap();
    let odd = ArgmaxParams::NOT_FINITE;
    assert_eq!(indices(&b, &out), [1, odd | 1, 0, odd | 2, odd | 2, 0]);
}

#[test]
fn top_k_takes_not_a_numbers_then_the_largest_and_of_equals_the_first() {
    let b = R::new();
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let x = floats(&b, &[1.0, 3.0, 2.0, 3.0, inf, -nan, nan, 9.0, -inf, -0.0, -1.0, 0.0]);
    let (mut values, mut ids) = (floats(&b, &[0.0; 9]), ints(&b, &[9; 9]));
    let top_k = |k, values: ViewMut<'_, R>, ids: ViewMut<'_, R>| {
        let p = TopKParams { n_rows: 3, width: 4, k };
        b.top_k(TopK { p, x: View::all(&x), values, ids })
    };
    top_k(3, ViewMut::all(&mut values), ViewMut::all(&mut ids)).unwrap();
    assert_eq!(indices(&b, &ids), [1, 3, 2, 1, 2, 0, 1, 3, 2]);
    let values = numbers(&b, &values);
    near(&values[..3], &[3.0, 3.0, 2.0]);
    assert!(values[3].is_nan() && values[4].is_nan() && values[5] == inf);
    near(&values[6..], &[0.0, 0.0, -1.0]);

    for k in [0, 5, 257] {
        let (mut values, mut ids) = (floats(&b, &vec![0.0; 3 * k]), ints(&b, &vec![9; 3 * k]));
        let (values, ids) = (ViewMut::all(&mut values), ViewMut::all(&mut ids));
        let message = top_k(k as u32, values, ids).unwrap_err().to_string();
        assert_eq!(message, format!("top_k: k is {k}, expected 1 to 256 and at most the width 4"));
    }
}

#[test]
fn gram_of_a_group_is_the_sum_of_its_outer_products() {
    let b = R::new();
    let x = floats(&b, &[1.0, 2.0, 3.0, 4.0]);
    let mut out = floats(&b, &[0.5, 0.0, 0.0, 0.0]);
    let p = GramParams { n_tokens: 1, n_heads: 2, group: 2, head_dim: 2 };
    b.gram(Gram { p, x: View::all(&x), out: ViewMut::all(&mut out) }).unwrap();
    near(&numbers(&b, &out), &[10.5, 14.0, 14.0, 20.0]);
}

#[test]
fn a_query_is_compared_with_the_last_one_and_takes_its_place() {
    let b = R::new();
    // Two tokens of four heads of width 2; the second token is meant. Cosines: 1, 0.6, of a zero
    // vector, -1.
    let q = floats(
        &b,
        &[9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 2.0, 0.0, 3.0, 4.0, 1.0, 1.0, 1.0, 2.0],
    );
    let mut last = floats(&b, &[5.0, 0.0, 7.0, 0.0, 0.0, 0.0, -2.0, -4.0]);
    let mut cosines = floats(&b, &[0.0; 2]);
    let p = QueryGateParams { n_tokens: 2, n_q_heads: 4, n_kv_heads: 2, head_dim: 2, q_index: 1 };
    let d = QueryGate {
        p,
        q: View::all(&q),
        last: ViewMut::all(&mut last),
        cosines: ViewMut::all(&mut cosines),
    };
    b.query_gate(d).unwrap();
    near(&numbers(&b, &cosines), &[0.8, -0.5]);
    near(&numbers(&b, &last), &[2.0, 0.0, 3.0, 4.0, 1.0, 1.0, 1.0, 2.0]);
}

#[test]
fn rows_go_where_they_are_sent_and_no_further() {
    let b = R::new();
    let (k, v, rows) = (floats(&b, &[1.0, 2.0]), floats(&b, &[3.0, 4.0]), ints(&b, &[1]));
    let mut dst = typed(&b, DType::F16, &[9.0; 8]);
    // One token, two heads of width 1, two rows a head.
    let p = KvScatterParams { n_tokens: 1, n_kv_heads: 2, head_dim: 1, dst_head_stride: 2 };
    let (k, v) = (View::all(&k), View::all(&v));
    b.kv_scatter(KvScatter { p, k, v, rows: View::all(&rows), dst: &mut dst }).unwrap();
    near(&numbers(&b, &dst), &[9.0, 9.0, 1.0, 3.0, 9.0, 9.0, 2.0, 4.0]);

    let (from, to, n_rows) = (ints(&b, &[1, 1]), ints(&b, &[0, 0]), ints(&b, &[1, 0]));
    let mut copy = typed(&b, DType::F16, &[0.0; 4]);
    let p = KvGatherParams { n_kv_heads: 2, head_dim: 1, list_stride: 1, dst_head_stride: 1 };
    let d = KvGather {
        p,
        src: KvView::new(&dst, 2),
        src_rows: View::all(&from),
        dst_rows: View::all(&to),
        n_rows: View::all(&n_rows),
        dst: &mut copy,
    };
    b.kv_gather(d).unwrap();
    near(&numbers(&b, &copy), &[1.0, 3.0, 0.0, 0.0]);
}

#[test]
fn stored_values_are_rounded_to_the_nearest_even() {
    let b = R::new();
    let mut rng = SplitMix64::new(5);
    let k: Vec<f32> = (0..64).map(|_| rng.next_normal()).collect();
    let (keys, rows) = (floats(&b, &k), ints(&b, &[0]));
    let mut dst = typed(&b, DType::BF16, &[0.0; 128]);
    let p = KvScatterParams { n_tokens: 1, n_kv_heads: 1, head_dim: 64, dst_head_stride: 1 };
    let view = View::all(&keys);
    b.kv_scatter(KvScatter { p, k: view, v: view, rows: View::all(&rows), dst: &mut dst }).unwrap();
    assert_eq!(bytes_of(&b, &dst)[..128], encode_f32(DType::BF16, &k)[..]);
}

/// 1 + 2^-8 lies between the neighbours 1 and 1 + 2^-7 of bf16, and goes to the even one.
#[test]
fn products_round_to_bf16_where_weights_ask_for_it() {
    let b = R::new();
    let x = floats(&b, &[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0]);
    let product = |activations| {
        let bytes = HostBytes::from_vec(encode_f32(DType::BF16, &[1.0, 2.0]));
        let (name, dtype) = ("w".into(), DType::BF16);
        let source = WeightSource { name, dtype, n_rows: 1, n_cols: 2, bytes, activations };
        let weight = b.load_weight(source).unwrap();
        let mut out = floats(&b, &[0.0]);
        let p = LinearParams { n_rows: 1, n_in: 2, n_out: 1, accumulate: 0 };
        let (x, to) = (View::all(&x), ViewMut::all(&mut out));
        b.matvec(Linear { p, x, weight: &weight, bias: None, out: to }).unwrap();
        numbers(&b, &out)[0]
    };
    assert_eq!(product(Activations::Bf16), 1.0 + 2.0 * (1.0 + 4.0 / 256.0));
    for kind in [Activations::Int16, Activations::Int8, Activations::F32] {
        assert_eq!(product(kind), 1.0 + 1.0 / 256.0 + 2.0 * (1.0 + 3.0 / 256.0));
    }
}
