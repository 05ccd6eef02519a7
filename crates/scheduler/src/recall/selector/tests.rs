//! Selections by hand: scores, budgets, cuts, and what comes to the host.

use longview_core::{HeadId, SplitMix64};
use longview_ops::Pooling;

use super::*;
use crate::index::projection::Projections;
use crate::index::{HeadClusters, LayerIndex, LayerProjection};
use crate::policy::{BlockConfig, Importance, Projection, Rank, TokenConfig};
use crate::recall::testing::*;

impl Selector<Device> {
    /// Brings what the host holds to the device.
    pub(in crate::recall) fn upload_choice(&mut self, device: &Device) {
        let words = [
            (&mut self.clusters, &self.host_clusters),
            (&mut self.takes, &self.host_takes),
            (&mut self.n_selected, &self.host_n),
        ];
        for (buffer, words) in words {
            device.write(ViewMut::all(buffer), bytemuck::cast_slice(words)).unwrap();
        }
    }

    /// What a head chose, as the host knows it.
    pub(in crate::recall) fn choice(&self, head: usize) -> Vec<(usize, usize)> {
        self.selected(SELECTION, HeadId::new(head)).collect()
    }
}

/// Selects for `q` under the policy and brings the result to the host.
fn selected(
    policy: &Policy,
    searched: &Searched<'_, Device>,
    q: &[f32],
    budgets: [u32; 2],
) -> Selector<Device> {
    let (device, shape) = (Device::new(), shape());
    let mut selector = Selector::new(&device, &shape, policy, 8, 3).unwrap();
    let q = two_tokens(&device, q);
    selector.select(&device, &shape, policy, searched, &query(&q), &budgets).unwrap();
    pollster::block_on(device.read_all(&mut selector.parts_of(SELECTION))).unwrap();
    selector
}

/// Under the scale of 1/2 and for queries of [`query_of`], scores are the numbers' logarithms.
fn axis(i: usize) -> [f32; WIDTH] {
    std::array::from_fn(|j| if i == j { 1.0 } else { 0.0 })
}

fn query_of(masses: [f32; WIDTH]) -> [f32; WIDTH] {
    masses.map(|mass| 2.0 * mass.ln())
}

/// Head 0: clusters of 3, 2, 4 and 1 tokens along axes 0 to 3; head 1 the other way round.
fn rows() -> [HeadRows; 2] {
    [
        HeadRows::of_equal_keys(&[(3, axis(0)), (2, axis(1)), (4, axis(2)), (1, axis(3))]),
        HeadRows::of_equal_keys(&[(1, axis(3)), (5, axis(2)), (1, axis(1)), (3, axis(0))]),
    ]
}

/// Shares of attention of 0.6, 0.25, 0.1 and 0.05 along axes 1, 2, 0 and 3.
fn alike() -> Vec<f32> {
    [query_of([2.0, 12.0, 5.0, 1.0]); 4].concat()
}

#[test]
fn the_best_clusters_are_taken_until_the_budget_is_full() {
    let (device, shape) = (Device::new(), shape());
    let index = index_of(&device, &shape, &rows());
    let choose = |budgets| {
        let selector = selected(&policy(9), &searched(&index), &alike(), budgets);
        [selector.choice(0), selector.choice(1)]
    };
    assert_eq!(choose([5, 7]), [vec![(1, 2), (2, 3)], vec![(2, 1), (1, 5), (3, 1)]]);
    assert_eq!(choose([6, 0]), [vec![(1, 2), (2, 4)], vec![]]);
    assert_eq!(choose([1, 1]), [vec![(1, 1)], vec![(2, 1)]]);
    let all0 = vec![(1, 2), (2, 4), (0, 3), (3, 1)];
    assert_eq!(choose([99, 9]), [all0, vec![(2, 1), (1, 5), (3, 3)]]);
    let selector = selected(&policy(9), &searched(&index), &alike(), [5, 7]);
    assert_eq!(selector.n_selected(SELECTION), 5);
    assert_eq!([0, 2].map(|s| selector.n_selected(SelectionId(s))), [0, 0]);
    let [clusters, takes, n] = selector.selection(SELECTION);
    let stride = selector.max_selected();
    assert_eq!(words(&device, n), [2, 3]);
    let (clusters, takes) = (words(&device, clusters), words(&device, takes));
    assert_eq!((&clusters[..2], &takes[..2]), (&[1, 2][..], &[2, 3][..]));
    assert_eq!((&clusters[stride..][..3], &takes[stride..][..3]), (&[2, 1, 3][..], &[1, 5, 1][..]));
    let others = [SelectionId(0), SelectionId(2)].map(|s| words(&device, selector.selection(s)[2]));
    assert_eq!(others, [[0, 0], [0, 0]], "selections of other layers");
}

/// One query head of a group is sure of cluster 3, the other spreads over 0 and 1.
#[test]
fn a_group_chooses_by_the_pooling_of_the_policy() {
    let (device, shape) = (Device::new(), shape());
    let rows = [0, 0].map(|_| {
        HeadRows::of_equal_keys(&[(9, axis(0)), (2, axis(1)), (1, axis(2)), (1, axis(3))])
    });
    let index = index_of(&device, &shape, &rows);
    // Shares 0.2, 0.5, 0.1, 0.2 and 0.3, 0.05, 0.05, 0.6.
    let group = [query_of([2.0, 5.0, 1.0, 2.0]), query_of([6.0, 1.0, 1.0, 12.0])].concat();
    let first = |pooling, q: &[f32]| {
        let policy = policy_of(policy(8).index.unwrap().kind, pooling, 8);
        let selector = selected(&policy, &searched(&index), q, [20, 20]);
        let order: Vec<_> = selector.choice(1).into_iter().map(|(cluster, _)| cluster).collect();
        order
    };
    let q = group.repeat(2);
    assert_eq!(first(Pooling::SumSoftmax, &q), [3, 1, 0, 2], "0.8, 0.55, 0.5, 0.15");
    assert_eq!(first(Pooling::MaxSoftmax, &q), [3, 1, 0, 2]);
    assert_eq!(first(Pooling::SizeWeighted, &q), [0, 1, 3, 2]);
    // Scores: ln 12, ln 5, ln 1, ln 24.
    assert_eq!(first(Pooling::SumScores, &q), [3, 0, 1, 2]);
    // The other KV head wants axis 2 alone.
    let far = [query_of([1.0, 1.0, 900.0, 1.0]); 2].concat();
    let q = [far, group].concat();
    assert_eq!(first(Pooling::SumScores, &q), [3, 0, 1, 2]);
    assert_eq!(first(Pooling::SharedScores, &q), [2, 3, 0, 1]);
}

#[test]
fn a_trim_leaves_what_a_smaller_budget_would_have_chosen() {
    let (device, shape) = (Device::new(), shape());
    let mut rng = SplitMix64::new(2);
    let rows = [vec![3, 1, 4, 2], vec![2, 2, 5, 1]].map(|s| HeadRows::random(&mut rng, &s));
    let index = index_of(&device, &shape, &rows);
    let q = normals(&mut rng, 16);
    for budgets in (0..=9).flat_map(|a| (0..=9).map(move |b| [a, b])) {
        let expected = selected(&policy(9), &searched(&index), &q, budgets);
        let mut trimmed = selected(&policy(9), &searched(&index), &q, [9, 9]);
        trimmed.trim(SELECTION, &budgets);
        for head in 0..2 {
            assert_eq!(trimmed.choice(head), expected.choice(head), "{budgets:?}");
        }
    }
}

/// Head 0 takes shares of 0.6 (cluster 1), 0.25 (2), 0.1 (0) and 0.05 (3); head 1 too.
#[test]
fn mass_cuts_where_the_chosen_hold_enough() {
    let (device, shape) = (Device::new(), shape());
    let index = index_of(&device, &shape, &rows());
    let choose = |mass: f32, budgets| {
        let budget = Budget { mass: Some(mass), ..policy(10).budget };
        let policy = Policy { budget, ..policy(10) };
        let mut selector = selected(&policy, &searched(&index), &alike(), budgets);
        selector.trim_by_scores(SELECTION, &budget, index.heads());
        [selector.choice(0), selector.choice(1)].map(|head| head.len())
    };
    assert_eq!(choose(0.5, [10, 10]), [1, 1]);
    assert_eq!(choose(0.59, [10, 10]), [1, 1]);
    assert_eq!(choose(0.61, [10, 10]), [2, 2]);
    assert_eq!(choose(0.84, [10, 10]), [2, 2]);
    assert_eq!(choose(0.86, [10, 10]), [3, 3]);
    assert_eq!(choose(0.96, [10, 10]), [4, 4]);
    // A cluster counts as much as was taken of it: 0.6 + 3/4 x 0.25 = 0.7875; 0.6 + 1/5 x 0.25.
    assert_eq!(choose(0.78, [5, 2]), [2, 2]);
    assert_eq!(choose(0.3, [1, 1]), [1, 1], "half of cluster 1 is enough");
    // Where the budget ends before, it says where: nothing is added.
    assert_eq!(choose(0.9, [5, 2]), [2, 2]);
    assert_eq!(choose(0.9, [0, 3]), [0, 2]);
}

#[test]
fn mass_takes_no_more_clusters_of_a_head_than_its_own_scores_ask_for() {
    let (device, shape) = (Device::new(), shape());
    let index = index_of(&device, &shape, &rows());
    let even = query_of([1.0; WIDTH]);
    let sure = query_of([1.0, 97.0, 1.0, 1.0]);
    let budget = Budget { mass: Some(0.7), ..policy(10).budget };
    let policy = Policy { budget, ..policy(10) };
    let q = [sure, sure, even, even].concat();
    let mut selector = selected(&policy, &searched(&index), &q, [10, 10]);
    selector.trim_by_scores(SELECTION, &budget, index.heads());
    assert_eq!(selector.choice(0), [(1, 2)]);
    assert_eq!(selector.choice(1), [(0, 1), (1, 5), (2, 1)], "three quarters, in order");
    selector.upload_cut(&device, SELECTION).unwrap();
    assert_eq!(words(&device, selector.selection(SELECTION)[2]), [1, 3]);
    let others = [SelectionId(0), SelectionId(2)].map(|s| words(&device, selector.selection(s)[2]));
    assert_eq!(others, [[0, 0], [0, 0]]);
}

/// Tokens, whose scores are 0.6, 0.25, 0.1 and 0.05: 2.4, 6 and 12 times below the best.
#[test]
fn alpha_cuts_at_the_mean_number_of_near_scores_rounded_up() {
    let (device, shape) = (Device::new(), shape());
    let index = index_of(&device, &shape, &rows());
    let even = query_of([1.0; WIDTH]);
    let choose = |factor: f32, q: &[f32], budgets| {
        let budget = Budget { alpha: Some(factor.ln()), ..policy(10).budget };
        let policy = Policy { budget, ..policy(10) };
        let mut selector = selected(&policy, &searched(&index), q, budgets);
        selector.trim_by_scores(SELECTION, &budget, index.heads());
        [selector.choice(0), selector.choice(1)].map(|head| head.len())
    };
    let all = [10, 10];
    assert_eq!(choose(2.3, &alike(), all), [1, 1]);
    assert_eq!(choose(2.5, &alike(), all), [2, 2]);
    assert_eq!(choose(6.1, &alike(), all), [3, 3]);
    assert_eq!(choose(13.0, &alike(), all), [4, 4]);
    // One near score in head 0 and four in head 1: 5 / 2, rounded up.
    let q = [&alike()[..8], &even, &even].concat();
    assert_eq!(choose(2.3, &q, all), [3, 3]);
    assert_eq!(choose(2.3, &q, [2, 10]), [1, 3], "no head gets more than it chose");
    assert_eq!(choose(2.3, &alike(), [0, 10]), [0, 1]);
}

#[test]
fn only_a_policy_that_cuts_by_scores_brings_them() {
    let (device, shape) = (Device::new(), shape());
    let index = index_of(&device, &shape, &rows());
    let selector = selected(&policy(9), &searched(&index), &alike(), [5, 5]);
    assert!(selector.host_scores.is_empty());
    let choice = selector.choice(0);
    let mut selector = selector;
    selector.trim_by_scores(SELECTION, &policy(9).budget, index.heads());
    assert_eq!(selector.choice(0), choice);
}

#[test]
fn a_saved_choice_is_taken_back_unless_it_is_too_long() {
    let (device, shape, policy) = (Device::new(), shape(), policy(4));
    let mut selector = Selector::new(&device, &shape, &policy, 8, 3).unwrap();
    assert_eq!(selector.max_selected(), 4 + SINKS, "no more clusters than tokens");
    assert!(selector.set_selected(SELECTION, &[vec![[7, 3], [2, 1]], vec![[5, 2]]]));
    assert_eq!(selector.choice(0), [(7, 3), (2, 1)]);
    assert_eq!(selector.choice(1), [(5, 2)]);
    assert!(!selector.set_selected(SELECTION, &[vec![], vec![[0, 1]; 7]]));
    assert_eq!(selector.choice(0), [(7, 3), (2, 1)], "nothing was taken");
    assert!(selector.set_selected(SelectionId(2), &[vec![[1, 1]; 6], vec![]]));
    assert_eq!(selector.choice(1), [(5, 2)]);
    assert_eq!([0, 1, 2].map(|s| selector.n_selected(SelectionId(s))), [0, 3, 6]);
}

#[test]
fn all_selections_and_something_else_come_with_one_wait() {
    let (device, shape) = (Device::new(), shape());
    let mut selector = chosen(&device, &shape, &policy(4), &[vec![[7, 3]], vec![[5, 2], [1, 1]]]);
    let other = upload_words(&device, &[4, 8]);
    let mut read = [0u32; 2];
    let with = (View::all(&other), bytemuck::cast_slice_mut(&mut read));
    // The host knows nothing.
    assert!(selector.set_selected(SELECTION, &[vec![[0, 0]], vec![[0, 0]]]));
    let mut parts = selector.parts_of(SELECTION);
    parts.push(with);
    pollster::block_on(device.read_all(&mut parts)).unwrap();
    drop(parts);
    assert_eq!(read, [4, 8]);
    assert_eq!((selector.choice(0), selector.choice(1)), (vec![(7, 3)], vec![(5, 2), (1, 1)]));
    assert!(selector.set_selected(SELECTION, &[vec![[0, 0]], vec![[0, 0]]]));
    pollster::block_on(device.read_all(&mut selector.read_parts())).unwrap();
    assert_eq!((selector.choice(0), selector.choice(1)), (vec![(7, 3)], vec![(5, 2), (1, 1)]));
}

/// Hits first, then misses, each in the order of the selection.
#[test]
fn a_lookup_lists_the_slots_of_what_was_chosen() {
    let (device, shape) = (Device::new(), shape());
    let mut selector = chosen(&device, &shape, &policy(8), &[vec![[4, 2], [1, 1]], vec![]]);
    let mut cache = ClusterCache::new(8, 1, 8, 8);
    cache.set_clusters(8);
    let mut lists = RowLists::new(&device, 2, 16, true).unwrap();
    let mut look_up = |selector: &mut Selector<Device>, hits_first| {
        lists.clear();
        lists.push(HeadId(0), 90);
        let lookup =
            Lookup { selection: SELECTION, head: HeadId(0), first_slot_row: 10, hits_first };
        let hits = selector.look_up(&lookup, &mut cache, &mut lists);
        (hits, lists.head(HeadId(0)).to_vec(), lists.head(HeadId(1)).len())
    };
    assert_eq!(look_up(&mut selector, false), (0, vec![90, 10, 11, 12], 0));
    let misses: Vec<_> = selector.misses.iter().map(|m| (m.cluster.0, m.member)).collect();
    assert_eq!(misses, [(4, 0), (4, 1), (1, 0)]);
    // Cluster 4 grows by one row, 6 is new, and 1 is there.
    assert!(selector.set_selected(SELECTION, &[vec![[6, 1], [4, 3], [1, 1]], vec![]]));
    assert_eq!(look_up(&mut selector, true), (3, vec![90, 10, 11, 12, 13, 14], 0));
    let misses: Vec<_> = selector.misses.iter().map(|m| (m.cluster.0, m.slot.0)).collect();
    assert_eq!(misses, [(6, 3), (4, 4)]);
    // The same again, in the order of the selection.
    assert_eq!(look_up(&mut selector, false), (5, vec![90, 13, 10, 11, 14, 12], 0));
    assert!(selector.misses.is_empty());
    lists.upload(&device).unwrap();
}

#[test]
fn absent_rows_are_in_the_second_part_of_a_divided_list() {
    let (device, shape) = (Device::new(), shape());
    let mut selector = chosen(&device, &shape, &policy(8), &[vec![], vec![[4, 2]]]);
    let mut cache = ClusterCache::new(8, 1, 8, 8);
    cache.set_clusters(8);
    let kv = upload(&device, &[0.0; 16]);
    let mut lists = RowLists::new(&device, 2, 16, true).unwrap();
    for (takes, expected) in [(2, [1, 2]), (3, [3, 1])] {
        assert!(selector.set_selected(SELECTION, &[vec![], vec![[4, takes]]]));
        lists.clear();
        lists.push(HeadId(1), 90);
        let lookup =
            Lookup { selection: SELECTION, head: HeadId(1), first_slot_row: 10, hits_first: true };
        selector.look_up(&lookup, &mut cache, &mut lists);
        lists.upload(&device).unwrap();
        lists.upload_rest(&device).unwrap();
        let kv = longview_ops::KvView::new(&kv, 2);
        let n = [lists.first(kv, 0), lists.rest(kv, 0).unwrap()].map(|s| words(&device, s.n_rows));
        assert_eq!(n, [[0, expected[0]], [0, expected[1]]], "{takes} tokens of the cluster");
    }
}

fn units(rows: &[HeadRows], landmarks: impl Fn(&[[f32; WIDTH]]) -> Vec<f32>) -> Vec<HeadClusters> {
    let made = |rows: &HeadRows| {
        let mut made = rows.clusters();
        let marks = (0..rows.sizes.len()).map(|c| landmarks(&rows.keys[rows.tokens(c)]));
        made.centroids = marks.flatten().collect();
        made
    };
    rows.iter().map(made).collect()
}

fn block_policy(summary: BlockSummary) -> Policy {
    let blocks =
        BlockConfig { block: 2, summary, n_top: 1, importance: Importance::Last, preselect: None };
    policy_of(IndexKind::Blocks(blocks), Pooling::SumScores, 20)
}

/// Blocks of two keys by their largest and smallest: what ranks is the bound, summed over a group.
#[test]
fn blocks_rank_by_the_bound_of_their_keys_or_by_their_means() {
    let (device, shape) = (Device::new(), shape());
    let mut rng = SplitMix64::new(8);
    let rows = [1, 2].map(|_| HeadRows::random(&mut rng, &[2, 2, 2, 2]));
    let q = normals(&mut rng, 16);
    let ends = |keys: &[[f32; WIDTH]]| -> Vec<f32> {
        let of = |c: usize, pick: fn(f32, f32) -> f32| pick(keys[0][c], keys[1][c]);
        (0..WIDTH).map(|c| of(c, f32::max)).chain((0..WIDTH).map(|c| of(c, f32::min))).collect()
    };
    let bound = |q: &[f32], keys: &[[f32; WIDTH]]| -> f64 {
        let channel = |c: usize| f64::from(q[c] * keys[0][c]).max(f64::from(q[c] * keys[1][c]));
        (0..WIDTH).map(channel).sum()
    };
    let middle = |keys: &[[f32; WIDTH]]| (0..WIDTH).map(|c| keys[0][c] + keys[1][c]).collect();
    let mean = |q: &[f32], keys: &[[f32; WIDTH]]| dot(q, &keys[0]) + dot(q, &keys[1]);
    type Score<'a> = &'a dyn Fn(&[f32], &[[f32; WIDTH]]) -> f64;
    let cases: [(BlockSummary, Vec<HeadClusters>, Score<'_>); 2] = [
        (BlockSummary::MinMax, units(&rows, ends), &bound),
        (BlockSummary::Mean, units(&rows, middle), &mean),
    ];
    for (summary, made, score) in cases {
        let width = summary.width(WIDTH);
        let mut index = LayerIndex::new(&device, &shape, width, 8, 1).unwrap();
        index.append(&device, SINKS, SINKS + 8, &made).unwrap();
        let found = selected(&block_policy(summary), &searched(&index), &q, [20, 20]);
        for (head, rows) in rows.iter().enumerate() {
            let group = q[head * 2 * WIDTH..][..2 * WIDTH].chunks(WIDTH);
            let total = |c: usize| -> f64 {
                group.clone().map(|q| score(q, &rows.keys[rows.tokens(c)])).sum()
            };
            let mut order: Vec<_> = (0..4).map(|c| (c, 2)).collect();
            order.sort_by(|a, b| total(b.0).total_cmp(&total(a.0)));
            assert_eq!(found.choice(head), order, "{summary:?}");
        }
    }
}

fn token_policy() -> Policy {
    let tokens = TokenConfig {
        projection: Projection::PrincipalKeys,
        rank: Rank::Given(Some(2)),
        adapts: false,
    };
    policy_of(IndexKind::Tokens(tokens), Pooling::SumScores, 20)
}

#[test]
fn tokens_rank_in_the_space_of_their_head() {
    let (device, shape) = (Device::new(), shape());
    let tokens = |marks: [[f32; 2]; 3]| HeadClusters {
        order: vec![],
        sizes: vec![1; 3],
        centroids: marks.concat(),
        radius: vec![],
        values: vec![],
    };
    let marks = [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]];
    let mut index = LayerIndex::new(&device, &shape, 2, 8, 1).unwrap();
    index.append(&device, SINKS, SINKS + 3, &[tokens(marks), tokens(marks)]).unwrap();
    // Head 0 compares channels 0 and 1, head 1 channels 3 and 2.
    let take = |a: usize, b: usize| -> Vec<f32> {
        (0..WIDTH)
            .flat_map(|c| [f32::from(u8::from(c == a)), f32::from(u8::from(c == b))])
            .collect()
    };
    let w_q = [take(0, 1), take(3, 2)].concat();
    let made = Projections { rank: 2, w_k: w_q.clone(), w_q };
    let projection = LayerProjection::new(&device, made, None).unwrap();
    let q = [[3.0, 1.0, 50.0, 70.0], [1.0, 2.0, 0.0, 0.0], [60.0, 80.0, 1.0, -9.0], [0.0; 4]];
    let by_space =
        |projection| Searched { index: &index, tokens: None, bounds: None, projection, rows: None };
    let found = selected(&token_policy(), &by_space(Some(&projection)), &q.concat(), [2, 3]);
    // Sums over the group: 4, 3 and -7; -9, 1 and 8.
    assert_eq!(found.choice(0), [(0, 1), (1, 1)]);
    assert_eq!(found.choice(1), [(2, 1), (1, 1), (0, 1)]);
}

#[test]
fn features_that_the_host_has_made_are_taken_as_they_are() {
    let (device, shape, policy) = (Device::new(), shape(), token_policy());
    let mut selector = Selector::new(&device, &shape, &policy, 8, 3).unwrap();
    let features: Vec<f32> = (0..8).map(|i| i as f32).collect();
    selector.set_features(&device, &features).unwrap();
    assert_eq!(floats(&device, View::all(selector.features.as_ref().unwrap())), features);
    let mut clusters =
        Selector::new(&device, &shape, &crate::recall::testing::policy(4), 8, 3).unwrap();
    clusters.set_features(&device, &features).unwrap();
    assert!(clusters.features.is_none());
}

#[test]
fn tokens_without_a_space_are_not_selected() {
    let (device, shape) = (Device::new(), shape());
    let index = LayerIndex::new(&device, &shape, WIDTH, 8, 1).unwrap();
    let found = selected(&token_policy(), &searched(&index), &[1.0; 16], [3, 3]);
    assert_eq!((found.choice(0), found.choice(1)), (vec![], vec![]));
}
