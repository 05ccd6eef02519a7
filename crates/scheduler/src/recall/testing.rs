//! What tests of this room share: a device, small shapes, and KV rows with an index over them whose
//! numbers are made on the host, in f64.

use longview_core::{DType, LayerId, SplitMix64, decode_f32_into, encode_f32};
use longview_ops::{Backend, Distance, Pooling, ReferenceBackend, Storage, View, ViewMut};

use super::search::Searched;
use super::selector::Selector;
use crate::index::{HeadClusters, LayerIndex};
use crate::layout::{HostRows, KvShape, Query, SelectionId};
use crate::policy::{
    AttentionBound, Budget, ClusterConfig, Index, IndexKind, Policy, Preset, Residency, Residual,
    Schedule,
};
use crate::store::{HostStore, PlainStore};

pub(super) type Device = ReferenceBackend;
pub(super) type Buffer = <Device as Storage>::Buffer;

/// Numbers of a key, Dh.
pub(super) const WIDTH: usize = 4;
/// First tokens, which no index holds: rows of clusters begin here.
pub(super) const SINKS: usize = 2;
/// The layer, of three, that the rows belong to.
pub(super) const LAYER: LayerId = LayerId(1);
/// The selection, of three, that tests make: neither the first nor the last.
pub(super) const SELECTION: SelectionId = SelectionId(1);

/// 2 KV heads of 2 query heads each, width 4.
pub(super) fn shape() -> KvShape {
    KvShape {
        n_layers: 3,
        n_q_heads: 4,
        n_kv_heads: 2,
        head_dim: WIDTH,
        kv_dtype: DType::F32,
        host_rows: HostRows::default(),
        capacity: 64,
        scale: 0.5,
        inv_freq: [].into(),
        windows: [].into(),
    }
}

/// Clusters, of which each KV head recalls up to `tokens`.
pub(super) fn policy(tokens: usize) -> Policy {
    Policy {
        preset: Preset::Clusterkv,
        index: Some(Index {
            kind: IndexKind::Clusters(ClusterConfig {
                cluster_tokens: 4,
                window_clusters: 1,
                distance: Distance::Cosine,
                iterations: 4,
                max_cluster: 16,
                seed: 1,
                two_stage: None,
            }),
            segment: 0,
            window: 4,
            pooling: Pooling::SumSoftmax,
            schedule: Schedule::EVERY,
        }),
        budget: Budget::of(tokens + SINKS),
        residency: Residency::Recall { cache_steps: 1 },
        sinks: SINKS,
        recent: 0,
        dense_layers: 0,
        attend_all: 0,
        residual: Residual::Drop,
        attention_bound: AttentionBound::Off,
        seed: 0,
    }
}

/// The same with another kind of index.
pub(super) fn policy_of(kind: IndexKind, pooling: Pooling, tokens: usize) -> Policy {
    let clusters = policy(tokens);
    let index = clusters.index.map(|index| Index { kind, pooling, ..index });
    Policy { index, ..clusters }
}

pub(super) fn upload(device: &Device, values: &[f32]) -> Buffer {
    upload_as(device, DType::F32, values)
}

pub(super) fn upload_as(device: &Device, dtype: DType, values: &[f32]) -> Buffer {
    let mut buffer = device.alloc(dtype, values.len(), "test").unwrap();
    device.write(ViewMut::all(&mut buffer), &encode_f32(dtype, values)).unwrap();
    buffer
}

pub(super) fn upload_words(device: &Device, words: &[u32]) -> Buffer {
    let mut buffer = device.alloc(DType::U32, words.len(), "test").unwrap();
    device.write(ViewMut::all(&mut buffer), bytemuck::cast_slice(words)).unwrap();
    buffer
}

pub(super) fn floats(device: &Device, view: View<'_, Device>) -> Vec<f32> {
    let mut values = vec![0.0; view.len];
    pollster::block_on(device.read(view, bytemuck::cast_slice_mut(&mut values))).unwrap();
    values
}

pub(super) fn words(device: &Device, view: View<'_, Device>) -> Vec<u32> {
    let mut words = vec![0; view.len];
    pollster::block_on(device.read(view, bytemuck::cast_slice_mut(&mut words))).unwrap();
    words
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Numbers around 0.
pub(super) fn normals(rng: &mut SplitMix64, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.next_normal()).collect()
}

#[track_caller]
pub(super) fn assert_near(found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let near = |(f, e): (&f32, &f64)| (f64::from(*f) - e).abs() <= 2e-6 * e.abs().max(1.0);
    assert!(found.iter().zip(expected).all(near), "{found:?} for {expected:?}");
}

/// Keys and values of one KV head behind the sinks, cluster after cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct HeadRows {
    pub sizes: Vec<u32>,
    pub keys: Vec<[f32; WIDTH]>,
    pub values: Vec<[f32; WIDTH]>,
}

impl HeadRows {
    pub fn random(rng: &mut SplitMix64, sizes: &[u32]) -> Self {
        let n = sizes.iter().sum::<u32>() as usize;
        let mut rows = || (0..n).map(|_| std::array::from_fn(|_| rng.next_normal())).collect();
        Self { sizes: sizes.to_vec(), keys: rows(), values: rows() }
    }

    /// Clusters of which all tokens have the same key, and no value.
    pub fn of_equal_keys(clusters: &[(u32, [f32; WIDTH])]) -> Self {
        let keys: Vec<_> =
            clusters.iter().flat_map(|(size, key)| vec![*key; *size as usize]).collect();
        let sizes = clusters.iter().map(|(size, _)| *size).collect();
        Self { sizes, values: vec![[0.0; WIDTH]; keys.len()], keys }
    }

    /// The tokens of a cluster, among those behind the sinks.
    pub fn tokens(&self, cluster: usize) -> std::ops::Range<usize> {
        let start = self.sizes[..cluster].iter().sum::<u32>() as usize;
        start..start + self.sizes[cluster] as usize
    }

    /// Means and radii, as clustering makes them.
    pub fn clusters(&self) -> HeadClusters {
        let mut made = HeadClusters {
            order: vec![],
            sizes: self.sizes.clone(),
            centroids: vec![],
            radius: vec![],
            values: vec![],
        };
        for cluster in 0..self.sizes.len() {
            let tokens = self.tokens(cluster);
            let centroid = mean(&self.keys[tokens.clone()]);
            let gap = |key: &[f32; WIDTH]| {
                let squares = key.iter().zip(centroid).map(|(k, c)| f64::from(k - c).powi(2));
                squares.sum::<f64>().sqrt() as f32
            };
            made.radius.push(self.keys[tokens.clone()].iter().map(gap).fold(0.0, f32::max));
            made.centroids.extend(centroid);
            made.values.extend(mean(&self.values[tokens]));
        }
        made
    }
}

fn mean(rows: &[[f32; WIDTH]]) -> [f32; WIDTH] {
    std::array::from_fn(|i| {
        (rows.iter().map(|row| f64::from(row[i])).sum::<f64>() / rows.len() as f64) as f32
    })
}

/// An index over rows that each head has as many of.
pub(super) fn index_of(device: &Device, shape: &KvShape, rows: &[HeadRows]) -> LayerIndex<Device> {
    let index = LayerIndex::new(device, shape, WIDTH, 8, 1).unwrap();
    filled(device, index, rows)
}

/// The same that keeps mean values too.
pub(super) fn index_with_pairs(
    device: &Device,
    shape: &KvShape,
    rows: &[HeadRows],
) -> LayerIndex<Device> {
    let index = LayerIndex::new(device, shape, WIDTH, 8, 1).unwrap();
    filled(device, index.with_pairs(device).unwrap(), rows)
}

/// The same that knows the cluster of each token.
pub(super) fn index_with_owners(
    device: &Device,
    shape: &KvShape,
    rows: &[HeadRows],
) -> LayerIndex<Device> {
    let index = LayerIndex::new(device, shape, WIDTH, 8, 1).unwrap();
    let index = index.with_pairs(device).unwrap().with_owners(64);
    filled(device, index.with_device_owners(device, 64).unwrap(), rows)
}

fn filled(device: &Device, mut index: LayerIndex<Device>, rows: &[HeadRows]) -> LayerIndex<Device> {
    let clusters: Vec<_> = rows.iter().map(HeadRows::clusters).collect();
    index.append(device, SINKS, SINKS + rows[0].keys.len(), &clusters).unwrap();
    index
}

/// A host store with the rows behind the sinks of [`LAYER`].
pub(super) fn store_of(shape: &KvShape, rows: &[HeadRows]) -> PlainStore {
    let mut store = PlainStore::new(shape).unwrap();
    for (head, rows) in shape.heads().zip(rows) {
        let pairs = rows.keys.iter().zip(&rows.values);
        let numbers: Vec<f32> = pairs.flat_map(|(key, value)| [*key, *value]).flatten().collect();
        let bytes = encode_f32(shape.kv_dtype, &numbers);
        HostStore::<Device>::write_rows(&mut store, LAYER, head, SINKS, &bytes);
    }
    store
}

/// What numbers become when they are stored.
pub(super) fn stored(dtype: DType, values: [f32; WIDTH]) -> [f32; WIDTH] {
    let mut rounded = [0.0; WIDTH];
    decode_f32_into(dtype, &encode_f32(dtype, &values), &mut rounded);
    rounded
}

/// One index, searched without anything else.
pub(super) fn searched(index: &LayerIndex<Device>) -> Searched<'_, Device> {
    Searched { index, tokens: None, bounds: None, projection: None, rows: None }
}

/// The second of two tokens of a step, `[2, Hq, Dh]`.
pub(super) fn query(q: &Buffer) -> Query<'_, Device> {
    Query { q: View::all(q), n_tokens: 2, index: 1, selection: SELECTION }
}

/// A token before, whose query must not count, and the token of `q`.
pub(super) fn two_tokens(device: &Device, q: &[f32]) -> Buffer {
    let before: Vec<f32> = (0..q.len()).map(|i| 9.0 - 5.0 * (i % 3) as f32).collect();
    upload(device, &[&before, q].concat())
}

/// A selector that has on device and host what each head chose: cluster and tokens.
pub(super) fn chosen(
    device: &Device,
    shape: &KvShape,
    policy: &Policy,
    choice: &[Vec<[u32; 2]>],
) -> Selector<Device> {
    let mut selector = Selector::new(device, shape, policy, 8, 3).unwrap();
    assert!(selector.set_selected(SELECTION, choice));
    selector.upload_choice(device);
    selector
}

/// Attention of one query to rows of a key and a value, each there as often as it says: the mean of
/// the values, and the logarithm of the sum.
pub(super) fn attention<'a>(
    q: &[f32],
    scale: f32,
    rows: impl Iterator<Item = (&'a [f32; WIDTH], &'a [f32; WIDTH], f64)>,
) -> (Vec<f64>, f64) {
    let (mut sum, mut out) = (0.0, vec![0.0; WIDTH]);
    for (key, value, times) in rows {
        let mass = times * (f64::from(scale) * dot(q, key)).exp();
        sum += mass;
        out.iter_mut().zip(value).for_each(|(o, v)| *o += mass * f64::from(*v));
    }
    out.iter_mut().for_each(|o| *o /= sum);
    (out, sum.ln())
}
