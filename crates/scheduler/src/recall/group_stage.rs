//! The first stage of a search among many clusters: the query is compared with groups of them
//! ([`crate::index`]'s upper level), and the clusters of the best groups are listed. Only these are
//! then compared with it, so that a step's work hardly grows with the context.

use longview_core::{DType, HeadId};
use longview_ops::{Backend, OpResult, Opened, SearchLevel, View, ViewMut};
use smallvec::{SmallVec, smallvec};

use crate::index::{GROUP_CLUSTERS, LayerIndex};
use crate::layout::KvShape;
use crate::policy::Policy;
use crate::store::UploadCache;

/// Buffers of the choice of groups, and of the clusters in them.
pub(crate) struct GroupStage<B: Backend> {
    /// Most clusters of a head that are listed.
    scan: usize,
    /// U32 `[Hkv, max_groups]`.
    groups: B::Buffer,
    takes: B::Buffer,
    n_selected: B::Buffer,
    budgets: UploadCache<B>,
    /// U32 `[Hkv, scan]`: clusters of the chosen groups.
    clusters: B::Buffer,
    n_clusters: B::Buffer,
    max_groups: usize,
    host_groups: Vec<u32>,
    host_takes: Vec<u32>,
    host_n: Vec<u32>,
    /// Whether the last search went by groups.
    in_use: bool,
}

/// Most groups that a search opens.
fn max_groups(shape: &KvShape, policy: &Policy, scan: usize) -> usize {
    let groups = policy.index.map_or(0, |index| index.max_groups(shape.capacity, GROUP_CLUSTERS));
    groups.min(scan).max(1)
}

/// Most clusters that a search lists: no more than there may be.
fn most_listed(shape: &KvShape, policy: &Policy, scan: usize) -> usize {
    scan.min(policy.max_units(shape.capacity)).max(1)
}

/// Bytes that [`GroupStage`] takes on the device.
pub(crate) fn group_stage_bytes(shape: &KvShape, policy: &Policy, scan: usize) -> u64 {
    let lists = 2 * max_groups(shape, policy, scan) + most_listed(shape, policy, scan) + 3;
    (DType::U32.size() * shape.n_kv_heads * lists) as u64
}

impl<B: Backend> GroupStage<B> {
    /// For sequences of `shape` under `policy`, of which a step looks at `scan` clusters.
    pub fn new(backend: &B, shape: &KvShape, policy: &Policy, scan: usize) -> OpResult<Self> {
        let (h, max_groups) = (shape.n_kv_heads, max_groups(shape, policy, scan));
        let scan = most_listed(shape, policy, scan);
        let ints = |len: usize| backend.alloc(DType::U32, h * len, "opened groups");
        Ok(Self {
            scan,
            groups: ints(max_groups)?,
            takes: ints(max_groups)?,
            n_selected: ints(1)?,
            budgets: UploadCache::new(backend, 1, h, "budgets")?,
            clusters: ints(scan)?,
            n_clusters: ints(1)?,
            max_groups,
            host_groups: vec![0; h * max_groups],
            host_takes: vec![0; h * max_groups],
            host_n: vec![0; h],
            in_use: false,
        })
    }

    /// The level of groups of a search in `index`, where some head has more clusters than a step
    /// looks at.
    pub fn level<'a>(
        &'a mut self,
        backend: &B,
        index: &'a LayerIndex<B>,
    ) -> OpResult<Option<(SearchLevel<'a, B>, Opened<'a, B>)>> {
        let exceeds = index.heads().iter().any(|head| head.sizes.len() > self.scan);
        let groups = index.groups().filter(|_| exceeds);
        self.in_use = groups.is_some();
        let Some(groups) = groups else { return Ok(None) };
        let budgets: SmallVec<[u32; 16]> = smallvec![self.scan as u32; self.host_n.len()];
        self.budgets.put(backend, 0, &budgets)?;
        let level = SearchLevel {
            centroids: groups.centroids(),
            sizes: groups.sizes(),
            n: groups.n_groups(),
            budgets: self.budgets.all(),
            stride: groups.capacity() as u32,
            max_selected: self.max_groups as u32,
            chosen: ViewMut::all(&mut self.groups),
            takes: ViewMut::all(&mut self.takes),
            n_chosen: ViewMut::all(&mut self.n_selected),
        };
        let opened = Opened {
            starts: groups.starts(),
            first_row: 0,
            stride: self.scan as u32,
            rows: ViewMut::all(&mut self.clusters),
            n_rows: ViewMut::all(&mut self.n_clusters),
        };
        Ok(Some((level, opened)))
    }

    /// Whether the last search went by groups.
    pub fn is_in_use(&self) -> bool {
        self.in_use
    }

    /// The clusters that the last search is among and how many of each head, where a backend has
    /// searched level by level.
    #[cfg(test)]
    fn listed(&self) -> Option<[View<'_, B>; 2]> {
        self.in_use.then(|| [&self.clusters, &self.n_clusters].map(View::all))
    }

    /// What the last search opened, on the device, and where it goes on the host.
    pub fn read_parts(&mut self) -> Option<[(View<'_, B>, &mut [u8]); 3]> {
        let cast = bytemuck::cast_slice_mut::<u32, u8>;
        self.in_use.then(|| {
            [
                (View::all(&self.groups), cast(&mut self.host_groups)),
                (View::all(&self.takes), cast(&mut self.host_takes)),
                (View::all(&self.n_selected), cast(&mut self.host_n)),
            ]
        })
    }

    /// Groups of `head` that were opened, and how many of the clusters of each, from its first on;
    /// `None` where the search was among all clusters.
    pub fn opened(&self, head: HeadId) -> Option<impl Iterator<Item = (usize, usize)> + '_> {
        let first = head.index() * self.max_groups;
        let own = first..first + self.host_n[head.index()] as usize;
        let pairs = self.host_groups[own.clone()].iter().zip(&self.host_takes[own]);
        self.in_use.then(|| pairs.map(|(group, take)| (*group as usize, *take as usize)))
    }
}

#[cfg(test)]
mod tests {
    use longview_core::SplitMix64;
    use longview_ops::{DeviceBuffer, Pooling};

    use super::*;
    use crate::index::{HeadClusters, LayerProjection, projection::Projections};
    use crate::layout::LayerTensors;
    use crate::policy::{ClusterConfig, IndexKind, Projection, Rank, TokenConfig, TwoStage};
    use crate::recall::residual::{ResidualMeans, Unread};
    use crate::recall::search::Searched;
    use crate::recall::selector::Selector;
    use crate::recall::testing::*;

    const ROWS: usize = 140;
    /// Room for clusters.
    const CAPACITY: usize = 150;

    fn long_shape() -> KvShape {
        KvShape { capacity: 256, ..shape() }
    }

    /// Tokens inside of clusters, of which a step looks at `scan`.
    fn policy_with(scan: Option<usize>) -> Policy {
        let tokens = TokenConfig {
            projection: Projection::PrincipalKeys,
            rank: Rank::Given(Some(2)),
            adapts: false,
        };
        let IndexKind::Clusters(clusters) = policy(20).index.unwrap().kind else {
            unreachable!("the tests' policy has clusters")
        };
        let two_stage = Some(TwoStage { times: 2, scan, tokens });
        let kind = IndexKind::Clusters(ClusterConfig { two_stage, ..clusters });
        policy_of(kind, Pooling::SumSoftmax, 20)
    }

    struct Case {
        device: Device,
        rows: [HeadRows; 2],
        index: LayerIndex<Device>,
        tokens: LayerIndex<Device>,
        projection: LayerProjection<Device>,
    }

    /// Head 0 has 70 clusters of two tokens, in groups of 32, 32 and 6; head 1 has 140 of one.
    fn case(seed: u64) -> Case {
        let mut rng = SplitMix64::new(seed);
        let (device, shape) = (Device::new(), long_shape());
        let rows = [vec![2; 70], vec![1; 140]].map(|sizes| HeadRows::random(&mut rng, &sizes));
        let index = LayerIndex::new(&device, &shape, WIDTH, CAPACITY, 1).unwrap();
        let index = index.with_pairs(&device).unwrap().with_owners(256);
        let mut index = index.with_groups(&device, 8).unwrap();
        let clusters: Vec<_> = rows.iter().map(HeadRows::clusters).collect();
        index.append(&device, SINKS, SINKS + ROWS, &clusters).unwrap();
        // Two of the four numbers of a key stand for it.
        let w: Vec<f32> = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0].repeat(2);
        let marks = |head: &HeadRows| HeadClusters {
            sizes: vec![1; ROWS],
            centroids: head.keys.iter().flat_map(|key| [key[0], key[1]]).collect(),
            ..HeadClusters::default()
        };
        let mut tokens = LayerIndex::new(&device, &shape, 2, 256, 1).unwrap();
        tokens.append(&device, SINKS, SINKS + ROWS, &rows.each_ref().map(marks)).unwrap();
        let made = Projections { rank: 2, w_q: w.clone(), w_k: w };
        let projection = LayerProjection::new(&device, made, None).unwrap();
        Case { device, rows, index, tokens, projection }
    }

    impl Case {
        fn select(&self, policy: &Policy, q: &[f32]) -> Selector<Device> {
            let (device, shape) = (&self.device, long_shape());
            let mut selector = Selector::new(device, &shape, policy, CAPACITY, 3).unwrap();
            let q = two_tokens(device, q);
            let searched = Searched {
                index: &self.index,
                tokens: Some(&self.tokens),
                projection: Some(&self.projection),
            };
            selector.select(device, &shape, policy, &searched, &query(&q), &[20, 20]).unwrap();
            pollster::block_on(selector.read(device, SELECTION, None)).unwrap();
            selector
        }

        /// Clusters of a head's group, and the mean key of its tokens.
        fn group(&self, head: usize, group: usize) -> (std::ops::Range<usize>, Vec<f32>) {
            let n = self.rows[head].sizes.len();
            let clusters = 32 * group..n.min(32 * group + 32);
            let tokens = self.rows[head].tokens(clusters.start).start
                ..self.rows[head].tokens(clusters.end - 1).end;
            let keys = &self.rows[head].keys[tokens];
            let mean = |i: usize| keys.iter().map(|key| key[i]).sum::<f32>() / keys.len() as f32;
            (clusters, (0..WIDTH).map(mean).collect())
        }

        /// The clusters of the best groups of a head, up to `scan`.
        fn best(&self, head: usize, q: &[f32], scan: usize) -> Vec<usize> {
            let n_groups = self.rows[head].sizes.len().div_ceil(32);
            let groups: Vec<_> = (0..n_groups).map(|group| self.group(head, group)).collect();
            let mut scores = vec![0.0; n_groups];
            for q in q[head * 2 * WIDTH..][..2 * WIDTH].chunks(WIDTH) {
                let terms: Vec<f64> = groups.iter().map(|g| (0.5 * dot(q, &g.1)).exp()).collect();
                let sum: f64 = terms.iter().sum();
                scores.iter_mut().zip(terms).for_each(|(score, term)| *score += term / sum);
            }
            let mut order: Vec<usize> = (0..n_groups).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            order.into_iter().flat_map(|group| groups[group].0.clone()).take(scan).collect()
        }
    }

    #[test]
    fn the_clusters_of_the_best_groups_are_searched() {
        let mut rng = SplitMix64::new(4);
        for seed in 0..20 {
            let (case, q) = (case(seed), normals(&mut rng, 16));
            for scan in [40, 64, 69] {
                let selector = case.select(&policy_with(Some(scan)), &q);
                let stage = selector.group_stage().expect("a policy of groups");
                let listed = stage.listed().expect("more clusters than are looked at");
                let [ids, n] = listed.map(|view| words(&case.device, view));
                for head in 0..2 {
                    let best = case.best(head, &q, scan);
                    let own = &ids[head * stage.scan..][..n[head] as usize];
                    assert!(own.iter().map(|id| *id as usize).eq(best.iter().copied()));
                    // What was chosen is in them.
                    for (token, _) in selector.selected(SELECTION, HeadId::new(head)) {
                        let owner = case.index.heads()[head].owners[token] as usize;
                        assert!(best.contains(&owner), "seed {seed}, scan {scan}");
                    }
                }
            }
        }
    }

    #[test]
    fn with_all_clusters_open_the_choice_is_that_of_a_search_without_groups() {
        let mut rng = SplitMix64::new(6);
        for seed in 0..10 {
            let (case, q) = (case(seed), normals(&mut rng, 16));
            let flat = case.select(&policy_with(None), &q);
            for scan in [140, 1000] {
                let selector = case.select(&policy_with(Some(scan)), &q);
                assert!(selector.group_stage().unwrap().listed().is_none());
                for head in 0..2 {
                    assert_eq!(selector.choice(head), flat.choice(head), "scan {scan}");
                }
            }
        }
    }

    /// Every token counts once: by itself, in its cluster's mean, or in its group's.
    #[test]
    fn what_is_not_chosen_counts_in_the_mean_of_its_cluster_or_group() {
        let (mut rng, shape) = (SplitMix64::new(9), long_shape());
        for seed in 0..10 {
            let (case, q, policy) = (case(seed), normals(&mut rng, 16), policy_with(Some(40)));
            let (device, selector) = (&case.device, case.select(&policy, &q));
            let mut residual = ResidualMeans::new(device, &shape, &policy, CAPACITY).unwrap();
            let queries = two_tokens(device, &q);
            let mut out = upload(device, &[0.0; 32]);
            let mut lse = upload(device, &[f32::NEG_INFINITY; 8]);
            let mut t = LayerTensors {
                q: View::all(&queries),
                k: View::part(&queries, 0, 16),
                v: View::part(&queries, 0, 16),
                out: ViewMut::all(&mut out),
            };
            let clusters = &case.index;
            let at = Unread { clusters, selector: &selector, selection: SELECTION, index: 1 };
            residual.attend(device, &shape, &at, &mut t, &mut lse).unwrap();
            let found = floats(device, View::all(&out));
            for h in 0..4 {
                let (head, own) = (h / 2, h * WIDTH..(h + 1) * WIDTH);
                let rows = &case.rows[head];
                let mean = |rows: &[[f32; WIDTH]]| -> [f32; WIDTH] {
                    let n = rows.len() as f32;
                    std::array::from_fn(|i| rows.iter().map(|row| row[i]).sum::<f32>() / n)
                };
                let open = case.best(head, &q, 40);
                let mut means = Vec::new();
                for cluster in &open {
                    let tokens = rows.tokens(*cluster);
                    let is_left = |token: &usize| {
                        let chosen = HeadId::new(head);
                        !selector.selected(SELECTION, chosen).any(|(t, _)| t == *token)
                    };
                    let left = tokens.clone().filter(is_left).count();
                    let (keys, values) = (&rows.keys[tokens.clone()], &rows.values[tokens]);
                    means.push((mean(keys), mean(values), left as f64));
                }
                for group in 0..rows.sizes.len().div_ceil(32) {
                    let (members, _) = case.group(head, group);
                    let tokens = rows.tokens(members.start).start..rows.tokens(members.end - 1).end;
                    let closed = members.filter(|cluster| !open.contains(cluster));
                    let left: u32 = closed.map(|cluster| rows.sizes[cluster]).sum();
                    let (keys, values) = (&rows.keys[tokens.clone()], &rows.values[tokens]);
                    means.push((mean(keys), mean(values), f64::from(left)));
                }
                let chosen = selector.selected(SELECTION, HeadId::new(head)).count();
                let total: f64 = means.iter().map(|(.., times)| times).sum();
                assert_eq!(total as usize + chosen, ROWS);
                let all = means.iter().map(|(key, value, times)| (key, value, *times));
                let (want, _) = attention(&q[own.clone()], shape.scale, all);
                let got = &found[16..][own];
                assert!(got.iter().zip(&want).all(|(g, w)| (f64::from(*g) - w).abs() < 1e-5));
            }
        }
    }

    #[test]
    fn its_bytes_are_those_of_its_buffers() {
        for scan in [3, 40, 1000] {
            let (shape, policy) = (long_shape(), policy_with(Some(scan)));
            let stage = GroupStage::new(&Device::new(), &shape, &policy, scan).unwrap();
            let buffers = [
                &stage.groups,
                &stage.takes,
                &stage.n_selected,
                stage.budgets.all().buffer,
                &stage.clusters,
                &stage.n_clusters,
            ];
            let bytes: u64 = buffers.iter().map(|buffer| buffer.size_bytes()).sum();
            assert_eq!(group_stage_bytes(&shape, &policy, scan), bytes);
        }
    }
}
