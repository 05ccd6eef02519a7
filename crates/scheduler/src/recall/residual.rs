//! The residual estimate: attention to what a step left unread. Every cluster counts as its mean
//! key and its mean value, as often as it has tokens that were not taken.
//!
//! With c and v the means of a cluster's keys and values and n its unread tokens, it adds `n
//! e^(scale q.c) v` to the attention's numerator and `n e^(scale q.c)` to its denominator, merged
//! with what was attended by log-sum-exp. Where whole clusters are chosen, that is never more than
//! the mass that is really there, by Jensen's inequality. Where tokens are chosen one by one
//! ([`super::two_stage`]), the host counts those that each cluster lost, or the device where it
//! looks rows up; c and v stay the means of all.
//!
//! With [`Residual::Groups`] that holds for clusters that lost tokens alone. All others count in
//! the mean of their group ([`crate::index`]'s upper level), as often as it has tokens in them: so
//! the estimate covers all tokens, and what is far from the query is coarser and costs less.

use std::sync::Mutex;

use longview_core::{DType, HeadId};
use longview_ops::{
    Backend, ClusterRest, ClusterRestParams, KvView, ListSpan, OpResult, View, ViewMut,
};

use super::device_rest::{DeviceRest, device_rest_bytes};
use super::unread::Unread;
use crate::index::{HeadGroups, LayerIndex, group_clusters};
use crate::layout::KvShape;
use crate::policy::{Policy, Residual};

/// Lists of an estimate, at most: a sequence's lists differ in length and in where their rows lie,
/// and one list of each sequence is a launch for all.
pub(crate) const RESIDUAL_PARTS: usize = 2;

/// Buffers that the layers of a sequence share.
pub(crate) struct ResidualMeans<B: Backend> {
    /// U32 `[Hkv, capacity]`: tokens of each cluster that were not taken.
    rest: B::Buffer,
    /// U32 `[Hkv, capacity]`: every cluster's number.
    all: B::Buffer,
    /// Where tokens are chosen one by one, and the host counts them.
    chosen: Option<ChosenTokens<B>>,
    /// Where tokens are chosen one by one, and the device counts them.
    on_device: Option<DeviceRest<B>>,
}

/// How many tokens each cluster lost to a choice of tokens.
struct ChosenTokens<B: Backend> {
    /// U32 `[Hkv, most]`: clusters that lost some.
    clusters: B::Buffer,
    /// U32 `[Hkv, most]`: how many.
    takes: B::Buffer,
    /// U32 `[Hkv]`.
    n_selected: B::Buffer,
    most: usize,
    host_clusters: Vec<u32>,
    host_takes: Vec<u32>,
    host_n: Vec<u32>,
    /// Tokens that each cluster of a head lost; 0 between calls.
    lost: Vec<u32>,
    /// Where groups stand for clusters.
    groups: Option<GroupRest<B>>,
}

/// What is left of clusters that lost tokens, and of groups of all others.
struct GroupRest<B: Backend> {
    /// Clusters that lost tokens, and how many are left of each.
    clusters: HostList<B>,
    /// All groups, and their tokens that are in no listed cluster.
    groups: HostList<B>,
    /// Heads are listed at once, by as many threads as there are.
    heads: Vec<Mutex<HeadRest>>,
}

/// The lists of a head, and what it takes to make them.
struct HeadRest {
    clusters: Vec<u32>,
    /// Tokens that are left of each of `clusters`.
    left: Vec<u32>,
    /// Tokens of each group that are in no listed cluster.
    groups: Vec<u32>,
    /// The cluster of each chosen token.
    owners: Vec<u32>,
    /// Tokens that each cluster lost; 0 between calls.
    lost: Vec<u32>,
}

/// A list of rows with weights for each KV head, made on the host.
struct HostList<B: Backend> {
    /// U32 `[Hkv, stride]`.
    rows: B::Buffer,
    weights: B::Buffer,
    /// U32 `[Hkv]`.
    n_rows: B::Buffer,
    host_rows: Vec<u32>,
    host_weights: Vec<u32>,
    host_n: Vec<u32>,
    stride: usize,
}

impl<B: Backend> HostList<B> {
    fn new(backend: &B, n_heads: usize, stride: usize) -> OpResult<Self> {
        let ints = |len: usize| backend.alloc(DType::U32, len, "unread clusters");
        Ok(Self {
            rows: ints(n_heads * stride)?,
            weights: ints(n_heads * stride)?,
            n_rows: ints(n_heads)?,
            host_rows: vec![0; n_heads * stride],
            host_weights: vec![0; n_heads * stride],
            host_n: vec![0; n_heads],
            stride,
        })
    }

    /// Sets a head's list.
    ///
    /// # Panics
    /// If it has no room, or rows and weights are not equally many.
    fn set(&mut self, head: usize, rows: impl ExactSizeIterator<Item = u32>, weights: &[u32]) {
        assert_eq!(rows.len(), weights.len());
        let own = head * self.stride..head * self.stride + weights.len();
        self.host_rows[own.clone()].iter_mut().zip(rows).for_each(|(to, row)| *to = row);
        self.host_weights[own].copy_from_slice(weights);
        self.host_n[head] = weights.len() as u32;
    }

    fn upload(&mut self, backend: &B) -> OpResult<()> {
        for (buffer, host) in [
            (&mut self.rows, &self.host_rows),
            (&mut self.weights, &self.host_weights),
            (&mut self.n_rows, &self.host_n),
        ] {
            backend.write(ViewMut::all(buffer), bytemuck::cast_slice(host))?;
        }
        Ok(())
    }

    fn span<'a>(&'a self, kv: KvView<'a, B>, q_index: usize) -> ListSpan<'a, B> {
        ListSpan {
            q_index: q_index as u32,
            kv,
            rows: View::all(&self.rows),
            n_rows: View::all(&self.n_rows),
            weights: Some(View::all(&self.weights)),
            list_stride: self.stride as u32,
        }
    }
}

/// Bytes that a [`HostList`] takes on the device.
fn list_bytes(n_heads: usize, stride: usize) -> usize {
    n_heads * (2 * stride + 1) * DType::U32.size()
}

impl HeadRest {
    /// Lists the clusters of `head` that lost tokens with what each has left, and what of all
    /// groups is not listed.
    fn list<B: Backend>(&mut self, head: HeadId, at: &Unread<'_, B>, groups: &HeadGroups) {
        let index = &at.clusters.heads()[head.index()];
        let Self { clusters, left, groups: rest, owners, lost } = self;
        rest.clear();
        rest.extend_from_slice(&groups.tokens);
        // All are looked up before the first is counted: these reads lie far apart, and wait for
        // each other where branches that nobody foresees come between them.
        owners.clear();
        let tokens = at.selector.selected(at.selection, head).map(|(token, _)| token);
        owners.extend(tokens.map(|token| index.owners[token]));
        clusters.clear();
        // Tokens of a cluster mostly follow each other.
        for own in owners.chunk_by(|a, b| a == b) {
            let cluster = own[0];
            if lost[cluster as usize] == 0 {
                clusters.push(cluster);
            }
            lost[cluster as usize] += own.len() as u32;
        }
        // In the order in which a device lists them.
        clusters.sort_unstable();
        left.clear();
        left.extend(clusters.iter().map(|cluster| {
            let cluster = *cluster as usize;
            let size = index.sizes[cluster];
            rest[groups.owners[cluster] as usize] -= size;
            size - std::mem::take(&mut lost[cluster])
        }));
    }
}

impl<B: Backend> ChosenTokens<B> {
    fn new(
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        most: usize,
        capacity: usize,
    ) -> OpResult<Self> {
        let (h, len) = (shape.n_kv_heads, shape.n_kv_heads * most);
        let groups = match group_lists(shape, policy, capacity) {
            Some([clusters, groups]) => {
                let head = || HeadRest {
                    clusters: Vec::with_capacity(clusters),
                    left: Vec::with_capacity(clusters),
                    groups: Vec::with_capacity(groups),
                    owners: Vec::with_capacity(most),
                    lost: vec![0; capacity],
                };
                Some(GroupRest {
                    clusters: HostList::new(backend, h, clusters)?,
                    groups: HostList::new(backend, h, groups)?,
                    heads: (0..h).map(|_| Mutex::new(head())).collect(),
                })
            }
            None => None,
        };
        Ok(Self {
            groups,
            clusters: backend.alloc(DType::U32, len, "clusters of tokens")?,
            takes: backend.alloc(DType::U32, len, "clusters of tokens")?,
            n_selected: backend.alloc(DType::U32, h, "clusters of tokens")?,
            most,
            host_clusters: vec![0; len],
            host_takes: vec![0; len],
            host_n: vec![0; h],
            lost: vec![0; capacity],
        })
    }

    /// Lists what is left of clusters and of groups; `false` where no groups stand for clusters.
    fn list_groups(&mut self, backend: &B, shape: &KvShape, at: &Unread<'_, B>) -> OpResult<bool> {
        let (Some(rest), Some(groups)) = (&mut self.groups, at.clusters.groups()) else {
            return Ok(false);
        };
        backend.on_host(shape.n_kv_heads, &|head| {
            let mut own = rest.heads[head].lock().expect("no list panicked");
            own.list(HeadId::new(head), at, &groups.heads()[head]);
        });
        for (head, own) in rest.heads.iter_mut().enumerate() {
            let own = own.get_mut().expect("no list panicked");
            rest.clusters.set(head, own.clusters.iter().copied(), &own.left);
            rest.groups.set(head, 0..own.groups.len() as u32, &own.groups);
        }
        rest.clusters.upload(backend)?;
        rest.groups.upload(backend)?;
        Ok(true)
    }

    /// Counts the tokens of a selection by their clusters, on the device.
    fn count(&mut self, backend: &B, shape: &KvShape, at: &Unread<'_, B>) -> OpResult<()> {
        for head in shape.heads() {
            let owners = &at.clusters.heads()[head.index()].owners;
            let own = head.index() * self.most;
            let mut n = 0;
            for (token, _) in at.selector.selected(at.selection, head) {
                let cluster = owners[token];
                let lost = &mut self.lost[cluster as usize];
                if *lost == 0 {
                    self.host_clusters[own + n] = cluster;
                    n += 1;
                }
                *lost += 1;
            }
            self.host_n[head.index()] = n as u32;
            let entries = own..own + n;
            let clusters = &self.host_clusters[entries.clone()];
            for (cluster, take) in clusters.iter().zip(&mut self.host_takes[entries]) {
                *take = std::mem::take(&mut self.lost[*cluster as usize]);
            }
        }
        for (buffer, host) in [
            (&mut self.clusters, &self.host_clusters),
            (&mut self.takes, &self.host_takes),
            (&mut self.n_selected, &self.host_n),
        ] {
            backend.write(ViewMut::all(buffer), bytemuck::cast_slice(host))?;
        }
        Ok(())
    }
}

/// Most tokens that a step chooses one by one; 0 where it chooses clusters.
fn most_chosen(shape: &KvShape, policy: &Policy) -> usize {
    match policy.index.and_then(|index| index.two_stage()) {
        Some(_) => policy.most_attended().min(shape.capacity).max(1),
        None => 0,
    }
}

/// Entries of a head's lists of clusters and of groups, where these stand for clusters.
fn group_lists(shape: &KvShape, policy: &Policy, capacity: usize) -> Option<[usize; 2]> {
    let index = policy.index.filter(|_| policy.residual == Residual::Groups)?;
    let groups = index.max_groups(shape.capacity, group_clusters(shape.capacity));
    Some([most_chosen(shape, policy).min(capacity).max(1), groups])
}

impl<B: Backend> ResidualMeans<B> {
    /// For indexes of up to `capacity` clusters; `on_device` where the device looks rows up, and
    /// the host knows no selection.
    pub fn new(
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        (capacity, on_device): (usize, bool),
    ) -> OpResult<Self> {
        let len = shape.n_kv_heads * capacity;
        let mut all = backend.alloc(DType::U32, len, "numbers of clusters")?;
        let numbers: Vec<u32> = (0..len).map(|i| (i % capacity) as u32).collect();
        backend.write(ViewMut::all(&mut all), bytemuck::cast_slice(&numbers))?;
        let rest = backend.alloc(DType::U32, len, "unread tokens")?;
        let (mut chosen, mut lists) = (None, None);
        match most_chosen(shape, policy) {
            0 => {}
            _ if on_device => {
                let groups = group_lists(shape, policy, capacity);
                lists = Some(DeviceRest::new(backend, shape.n_kv_heads, capacity, groups)?);
            }
            most => chosen = Some(ChosenTokens::new(backend, shape, policy, most, capacity)?),
        }
        Ok(Self { rest, all, chosen, on_device: lists })
    }

    /// Lists what the last selection left unread, for [`ResidualMeans::span`].
    pub fn prepare(&mut self, backend: &B, shape: &KvShape, at: &Unread<'_, B>) -> OpResult<()> {
        // An index that keeps no values has nothing to stand for its clusters.
        if at.clusters.pairs().is_none() {
            return Ok(());
        }
        if let Some(lists) = &mut self.on_device {
            return lists.list(backend, at, &self.all, &mut self.rest);
        }
        if let Some(chosen) = &mut self.chosen
            && chosen.list_groups(backend, shape, at)?
        {
            return Ok(());
        }
        let (selection, max_selected) = match &mut self.chosen {
            Some(chosen) => {
                chosen.count(backend, shape, at)?;
                let ChosenTokens { clusters, takes, n_selected, most, .. } = &*chosen;
                ([clusters, takes, n_selected].map(View::all), *most)
            }
            None => (at.selector.selection(at.selection), at.selector.max_selected()),
        };
        let [clusters, takes, n_selected] = selection;
        backend.cluster_rest(ClusterRest {
            p: ClusterRestParams {
                n_kv_heads: shape.n_kv_heads as u32,
                cluster_stride: at.clusters.capacity() as u32,
                max_selected: max_selected as u32,
            },
            sizes: at.clusters.sizes(),
            n_clusters: at.clusters.n_clusters(),
            clusters,
            takes,
            n_selected,
            rest: ViewMut::all(&mut self.rest),
        })
    }

    /// What stands for the unread tokens of `clusters`, to be added to the attention of the step's
    /// token `index`: one of [`RESIDUAL_PARTS`] lists, of which there may be fewer.
    pub fn span<'a>(
        &'a self,
        clusters: &'a LayerIndex<B>,
        index: usize,
        part: usize,
    ) -> Option<ListSpan<'a, B>> {
        let pairs = clusters.pairs()?;
        if let Some(lists) = self.on_device.as_ref().filter(|lists| lists.has_groups()) {
            return lists.spans(clusters, pairs, index)?.into_iter().nth(part);
        }
        let rest = self.chosen.as_ref().and_then(|chosen| chosen.groups.as_ref());
        match (rest.zip(clusters.groups()), part) {
            (Some((rest, _)), 0) => Some(rest.clusters.span(pairs, index)),
            (Some((rest, groups)), 1) => Some(rest.groups.span(groups.pairs(), index)),
            (None, 0) => Some(ListSpan {
                q_index: index as u32,
                kv: pairs,
                rows: View::all(&self.all),
                n_rows: clusters.n_clusters(),
                weights: Some(View::all(&self.rest)),
                list_stride: clusters.capacity() as u32,
            }),
            _ => None,
        }
    }
}

/// Bytes that [`ResidualMeans`] takes for indexes of up to `capacity` clusters.
pub(crate) fn residual_bytes(
    shape: &KvShape,
    policy: &Policy,
    (capacity, on_device): (usize, bool),
) -> u64 {
    if on_device && most_chosen(shape, policy) > 0 {
        let lists = group_lists(shape, policy, capacity);
        let lists = device_rest_bytes(shape.n_kv_heads, capacity, lists);
        return (shape.n_kv_heads * 2 * capacity * DType::U32.size() + lists) as u64;
    }
    let chosen = match most_chosen(shape, policy) {
        0 => 0,
        most => 2 * most + 1,
    };
    let lists = group_lists(shape, policy, capacity).filter(|_| chosen > 0);
    let bytes = |stride| list_bytes(shape.n_kv_heads, stride);
    let lists: usize = lists.map_or(0, |lists| lists.map(bytes).iter().sum());
    (shape.n_kv_heads * (2 * capacity + chosen) * DType::U32.size() + lists) as u64
}

#[cfg(test)]
mod tests {
    use longview_core::SplitMix64;
    use longview_ops::{AttendList, DeviceBuffer};

    use super::*;
    use crate::index::GROUP_CLUSTERS;
    use crate::layout::{LayerTensors, attend_params};
    use crate::policy::{ClusterConfig, IndexKind, Projection, Rank, TokenConfig, TwoStage};
    use crate::recall::testing::*;

    /// Five clusters, whose tokens the host counts.
    const HOST: (usize, bool) = (5, false);

    impl ResidualMeans<Device> {
        /// Adds what a selection left unread to the attention of a step's second token.
        fn attend(
            &mut self,
            device: &Device,
            shape: &KvShape,
            at: &Unread<'_, Device>,
            t: &mut LayerTensors<'_, Device>,
            lse: &mut Buffer,
        ) -> OpResult<()> {
            self.prepare(device, shape, at)?;
            for part in 0..RESIDUAL_PARTS {
                let Some(span) = self.span(at.clusters, 1, part) else { continue };
                let n_tokens = t.n_tokens(shape);
                device.attend_list(AttendList {
                    p: attend_params(shape, n_tokens, true),
                    q: t.q,
                    spans: &[span],
                    out: t.out_mut(),
                    lse: ViewMut::part(lse, 0, n_tokens * shape.n_q_heads),
                })?;
            }
            Ok(())
        }
    }

    /// Adds the residual of `choice` to what the second of two tokens attended, which is (`out`,
    /// `lse`) for each of its query heads, and gives both tokens' results back.
    fn attend(
        choice: &[Vec<[u32; 2]>],
        q: &[f32],
        out: &[f32],
        lse: &[f32],
        index: &LayerIndex<Device>,
    ) -> (Vec<f32>, Vec<f32>) {
        attend_under((&policy(20), false), choice, q, out, lse, index)
    }

    fn attend_under(
        (policy, on_device): (&Policy, bool),
        choice: &[Vec<[u32; 2]>],
        q: &[f32],
        out: &[f32],
        lse: &[f32],
        index: &LayerIndex<Device>,
    ) -> (Vec<f32>, Vec<f32>) {
        let (device, shape) = (Device::new(), shape());
        let selector = chosen(&device, &shape, policy, choice);
        let mut residual =
            ResidualMeans::new(&device, &shape, policy, (index.capacity(), on_device)).unwrap();
        let queries = two_tokens(&device, q);
        let mut out_buffer = upload(&device, &[&[7.0; 16], out].concat());
        let mut lse_buffer = upload(&device, &[&[3.0; 4], lse].concat());
        let mut t = LayerTensors {
            q: View::all(&queries),
            k: View::part(&queries, 0, 16),
            v: View::part(&queries, 0, 16),
            out: ViewMut::all(&mut out_buffer),
        };
        let at = Unread { clusters: index, selector: &selector, selection: SELECTION };
        residual.attend(&device, &shape, &at, &mut t, &mut lse_buffer).unwrap();
        let (out, lse) = (View::all(&out_buffer), View::all(&lse_buffer));
        (floats(&device, out), floats(&device, lse))
    }

    fn nothing() -> (Vec<f32>, Vec<f32>) {
        (vec![0.0; 16], vec![f32::NEG_INFINITY; 4])
    }

    /// Scale 1/2 and keys of length 2 ln n: a cluster's mass is n times its unread tokens.
    #[test]
    fn unread_tokens_count_as_their_means_by_hand() {
        let (device, shape) = (Device::new(), shape());
        let key = |n: f32| [2.0 * n.ln(), 0.0, 0.0, 0.0];
        let with_value = |mut rows: HeadRows, values: &[f32]| {
            for (cluster, value) in values.iter().enumerate() {
                for token in rows.tokens(cluster) {
                    rows.values[token] = [*value, 1.0, 0.0, 0.0];
                }
            }
            rows
        };
        let rows = [
            with_value(HeadRows::of_equal_keys(&[(3, key(2.0)), (2, key(3.0))]), &[1.0, 10.0]),
            with_value(HeadRows::of_equal_keys(&[(1, key(4.0)), (4, key(5.0))]), &[2.0, 3.0]),
        ];
        let index = index_with_pairs(&device, &shape, &rows);
        // Head 0 has read one of three tokens; head 1 the first cluster, and nothing of the second.
        let choice = [vec![[0, 1]], vec![[0, 1]]];
        let q = [[1.0, 0.0, 0.0, 0.0]; 4].concat();
        let (out, lse) = nothing();
        let (out, lse) = attend(&choice, &q, &out, &lse, &index);
        // 2 x 2 and 2 x 3; 4 x 5.
        let head0 = [(4.0 * 1.0 + 6.0 * 10.0) / 10.0, 1.0, 0.0, 0.0];
        let head1 = [3.0, 1.0, 0.0, 0.0];
        assert_near(&out[16..], &[head0, head0, head1, head1].concat());
        assert_near(&lse[4..], &[10f64.ln(), 10f64.ln(), 20f64.ln(), 20f64.ln()]);
        // Merged with an attention of mass 10 to the value (0, 0, 5, 0).
        let held = [[0.0, 0.0, 5.0, 0.0]; 4].concat();
        let (out, lse) = attend(&choice, &q, &held, &[10f32.ln(); 4], &index);
        let head0 = [3.2, 0.5, 2.5, 0.0];
        let head1 = [2.0, 2.0 / 3.0, 5.0 / 3.0, 0.0];
        assert_near(&out[16..], &[head0, head0, head1, head1].concat());
        assert_near(&lse[4..], &[20f64.ln(), 20f64.ln(), 30f64.ln(), 30f64.ln()]);
        assert_eq!((&out[..16], &lse[..4]), (&[7.0; 16][..], &[3.0; 4][..]), "the other token");
    }

    #[test]
    fn it_equals_attention_to_means_with_weights() {
        let (device, shape) = (Device::new(), shape());
        let mut rng = SplitMix64::new(5);
        let choices = [
            [vec![[2, 4], [0, 2]], vec![[1, 6]]],
            [vec![], vec![[3, 1], [2, 2], [0, 1]]],
            [vec![[0, 3], [1, 5], [2, 1]], vec![]],
        ];
        for choice in &choices {
            let rows =
                [HeadRows::random(&mut rng, &[3, 5, 4]), HeadRows::random(&mut rng, &[1, 6, 3, 2])];
            let index = index_with_pairs(&device, &shape, &rows);
            let (q, out) = (normals(&mut rng, 16), normals(&mut rng, 16));
            let lse = normals(&mut rng, 4);
            let (found, found_lse) = attend(choice, &q, &out, &lse, &index);
            for h in 0..4 {
                let (head, own) = (h / 2, h * WIDTH..(h + 1) * WIDTH);
                let made = rows[head].clusters();
                let rest = |c: usize| {
                    let read = choice[head].iter().find(|[chosen, _]| *chosen as usize == c);
                    f64::from(rows[head].sizes[c] - read.map_or(0, |[_, take]| *take))
                };
                let (keys, values) = (made.centroids.as_chunks().0, made.values.as_chunks().0);
                let means = keys.iter().zip(values).enumerate();
                // A row of key 0 has the mass of its weight.
                let held: [f32; WIDTH] = out[own.clone()].try_into().unwrap();
                let before = std::iter::once((&[0.0; WIDTH], &held, f64::from(lse[h]).exp()));
                let all = means.map(|(c, (key, value))| (key, value, rest(c))).chain(before);
                let (mean, sum) = attention(&q[own.clone()], shape.scale, all);
                assert_near(&found[16..][own], &mean);
                assert_near(&found_lse[4 + h..5 + h], &[sum]);
            }
        }
    }

    #[test]
    fn what_was_read_whole_adds_nothing() {
        let (device, shape) = (Device::new(), shape());
        let rows = [2, 3]
            .map(|size| HeadRows::random(&mut SplitMix64::new(u64::from(size)), &[size, 5 - size]));
        let index = index_with_pairs(&device, &shape, &rows);
        let choice = [vec![[0, 2], [1, 3]], vec![[1, 2], [0, 3]]];
        let (q, out, lse) = ([0.5; 16], [2.0; 16], [1.25; 4]);
        let (found, found_lse) = attend(&choice, &q, &out, &lse, &index);
        assert_near(&found[16..], &[2.0; 16]);
        assert_near(&found_lse[4..], &[1.25; 4]);
    }

    /// Clusters whose tokens are chosen one by one.
    fn of_tokens() -> Policy {
        let tokens = TokenConfig {
            projection: Projection::PrincipalKeys,
            rank: Rank::Given(Some(2)),
            adapts: false,
        };
        let Some(index) = policy(20).index else { unreachable!("the tests' policy has clusters") };
        let IndexKind::Clusters(clusters) = index.kind else { unreachable!("clusters") };
        let two_stage = Some(TwoStage { times: 2, tokens, rerank: 0, scored: usize::MAX });
        let kind = IndexKind::Clusters(ClusterConfig { two_stage, ..clusters });
        policy_of(kind, longview_ops::Pooling::SumSoftmax, 20)
    }

    /// Tokens of a cluster in any order and number leave as much of it as whole choices would.
    #[test]
    fn chosen_tokens_are_counted_by_their_clusters() {
        let (device, shape, policy) = (Device::new(), shape(), of_tokens());
        let mut rng = SplitMix64::new(8);
        let rows =
            [HeadRows::random(&mut rng, &[3, 5, 4]), HeadRows::random(&mut rng, &[1, 6, 3, 2])];
        let index = index_with_owners(&device, &shape, &rows);
        let (q, out, lse) = (normals(&mut rng, 16), normals(&mut rng, 16), normals(&mut rng, 4));
        for (tokens, clusters) in [
            // Tokens 0 to 2, 3 to 7 and 8 to 11; 0, 1 to 6, 7 to 9, and 10 to 11.
            (
                [vec![1, 4, 5, 11], vec![0, 6, 2, 10]],
                [vec![[0, 1], [1, 2], [2, 1]], vec![[0, 1], [1, 2], [3, 1]]],
            ),
            ([vec![], vec![7, 8, 9]], [vec![], vec![[2, 3]]]),
            ([(0..12).collect(), vec![3]], [vec![[0, 3], [1, 5], [2, 4]], vec![[1, 1]]]),
        ] {
            let ones = tokens.map(|head: Vec<u32>| head.iter().map(|t| [*t, 1]).collect());
            let wanted = attend(&clusters, &q, &out, &lse, &index);
            for on_device in [false, true] {
                let found = attend_under((&policy, on_device), &ones, &q, &out, &lse, &index);
                assert_eq!(found, wanted, "{clusters:?}, on the device: {on_device}");
            }
        }
    }

    /// Every token counts once: by itself, in its cluster's mean, or in its group's.
    #[test]
    fn clusters_without_a_chosen_token_count_in_the_means_of_groups() {
        let (device, shape) = (Device::new(), KvShape { capacity: 256, ..shape() });
        let policy = Policy { residual: Residual::Groups, ..of_tokens() };
        let mut rng = SplitMix64::new(9);
        // In groups of 32, 32 and 6, and of 32, 32, 32, 32 and 12.
        let rows = [vec![2; 70], vec![1; 140]].map(|sizes| HeadRows::random(&mut rng, &sizes));
        let index = LayerIndex::new(&device, &shape, WIDTH, 150, 1).unwrap();
        let index = index.with_pairs(&device).unwrap().with_owners(256);
        let [_, n_groups] = group_lists(&shape, &policy, 150).unwrap();
        let index = index.with_groups(&device, n_groups, GROUP_CLUSTERS).unwrap();
        let mut index = index.with_device_owners(&device, 256).unwrap();
        let clusters: Vec<_> = rows.iter().map(HeadRows::clusters).collect();
        index.append(&device, SINKS, SINKS + 140, &clusters).unwrap();
        for n in [0, 1, 5, 20] {
            let mut choose = |_| {
                let mut tokens: Vec<u32> = (0..n).map(|_| rng.below(140) as u32).collect();
                tokens.sort_unstable();
                tokens.dedup();
                tokens
            };
            let tokens = [0, 1].map(&mut choose);
            let ones = tokens.each_ref().map(|head| head.iter().map(|t| [*t, 1]).collect());
            let q = normals(&mut rng, 16);
            let selector = chosen(&device, &shape, &policy, &ones);
            let attended = [false, true].map(|on_device| {
                let mut residual =
                    ResidualMeans::new(&device, &shape, &policy, (150, on_device)).unwrap();
                let queries = two_tokens(&device, &q);
                let mut out = upload(&device, &[0.0; 32]);
                let mut lse = upload(&device, &[f32::NEG_INFINITY; 8]);
                let mut t = LayerTensors {
                    q: View::all(&queries),
                    k: View::part(&queries, 0, 16),
                    v: View::part(&queries, 0, 16),
                    out: ViewMut::all(&mut out),
                };
                let at = Unread { clusters: &index, selector: &selector, selection: SELECTION };
                residual.attend(&device, &shape, &at, &mut t, &mut lse).unwrap();
                (floats(&device, View::all(&out)), floats(&device, View::all(&lse)))
            });
            assert_eq!(attended[0], attended[1], "the device lists what the host does");
            let [(found, sums), _] = attended;
            for h in 0..4 {
                let (rows, tokens) = (&rows[h / 2], &tokens[h / 2]);
                let mean = |of: std::ops::Range<usize>| {
                    let mean = |rows: &[[f32; WIDTH]]| -> [f32; WIDTH] {
                        let n = rows.len() as f32;
                        std::array::from_fn(|i| rows.iter().map(|row| row[i]).sum::<f32>() / n)
                    };
                    (mean(&rows.keys[of.clone()]), mean(&rows.values[of]))
                };
                let lost = |cluster: usize| {
                    let own = rows.tokens(cluster);
                    tokens.iter().filter(|token| own.contains(&(**token as usize))).count()
                };
                let n_clusters = rows.sizes.len();
                let mut means = Vec::new();
                for first in (0..n_clusters).step_by(32) {
                    let end = n_clusters.min(first + 32);
                    let (mut left, mut all) = (0, 0..0);
                    for cluster in first..end {
                        let own = rows.tokens(cluster);
                        all = if cluster == first { own.clone() } else { all.start..own.end };
                        match lost(cluster) {
                            0 => left += own.len(),
                            lost => means.push((mean(own.clone()), own.len() - lost)),
                        }
                    }
                    means.push((mean(all), left));
                }
                let total: usize = means.iter().map(|(_, times)| times).sum();
                assert_eq!(total + tokens.len(), 140, "every token counts once");
                let own = h * WIDTH..(h + 1) * WIDTH;
                let all = means.iter().map(|((key, value), times)| (key, value, *times as f64));
                let (want, sum) = attention(&q[own.clone()], shape.scale, all);
                let near = |got: &f32, want: &f64| (f64::from(*got) - want).abs() < 1e-5;
                assert!(found[16..][own].iter().zip(&want).all(|(g, w)| near(g, w)), "{n} tokens");
                assert!(near(&sums[4 + h], &sum), "{n} tokens");
            }
        }
    }

    #[test]
    fn an_index_that_keeps_no_values_adds_nothing() {
        let (device, shape) = (Device::new(), shape());
        let rows = [1, 2].map(|seed| HeadRows::random(&mut SplitMix64::new(seed), &[4, 2]));
        let index = index_of(&device, &shape, &rows);
        let (q, out, lse) = ([0.5; 16], [2.0; 16], [1.25; 4]);
        let (found, found_lse) = attend(&[vec![], vec![]], &q, &out, &lse, &index);
        assert_eq!((&found[16..], &found_lse[4..]), (&out[..], &lse[..]));
    }

    #[test]
    fn its_bytes_are_those_of_its_buffers() {
        let policy = policy(20);
        let residual = ResidualMeans::new(&Device::new(), &shape(), &policy, HOST).unwrap();
        let bytes = residual.rest.size_bytes() + residual.all.size_bytes();
        assert_eq!((residual_bytes(&shape(), &policy, HOST), bytes), (80, 80));
        let policy = of_tokens();
        let residual = ResidualMeans::new(&Device::new(), &shape(), &policy, HOST).unwrap();
        let own = residual.chosen.unwrap();
        let own = [&own.clusters, &own.takes, &own.n_selected].map(DeviceBuffer::size_bytes);
        assert_eq!(residual_bytes(&shape(), &policy, HOST), 80 + own.iter().sum::<u64>());
        let numbers = words(&Device::new(), View::all(&residual.all));
        assert_eq!(numbers, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
        let policy = Policy { residual: Residual::Groups, ..of_tokens() };
        let residual = ResidualMeans::new(&Device::new(), &shape(), &policy, HOST).unwrap();
        let own = residual.chosen.unwrap();
        let rest = own.groups.unwrap();
        let lists = [&rest.clusters, &rest.groups].map(|list| {
            [&list.rows, &list.weights, &list.n_rows]
                .map(DeviceBuffer::size_bytes)
                .iter()
                .sum::<u64>()
        });
        let own = [&own.clusters, &own.takes, &own.n_selected].map(DeviceBuffer::size_bytes);
        let bytes = own.iter().chain(&lists).sum::<u64>();
        assert_eq!(residual_bytes(&shape(), &policy, HOST), 80 + bytes);
    }

    #[test]
    fn its_bytes_on_the_device_are_those_that_it_gets() {
        for residual in [Residual::Means, Residual::Groups] {
            let policy = Policy { residual, ..of_tokens() };
            let device = Device::new();
            let means = ResidualMeans::new(&device, &shape(), &policy, (5, true)).unwrap();
            assert!(means.chosen.is_none());
            let own = means.on_device.unwrap().device_bytes();
            assert_eq!(residual_bytes(&shape(), &policy, (5, true)), 80 + own, "{residual:?}");
        }
    }
}
