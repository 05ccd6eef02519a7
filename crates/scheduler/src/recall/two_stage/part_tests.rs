//! Tests of clusters that are chosen by the parts of their groups.

use longview_core::SplitMix64;
use longview_ops::{Backend, Pooling, View};

use super::TokenStage;
use super::tests::{UNIT, codes_of, project, ranked, token_marks, two_stage};
use crate::index::projection::Projections;
use crate::index::{ClusterBounds, GROUP_CLUSTERS, LayerIndex, LayerProjection, PART_CLUSTERS};
use crate::layout::KvShape;
use crate::policy::{ClusterConfig, IndexKind, Policy, Residual, TwoStage};
use crate::recall::search::Searched;
use crate::recall::selector::Selector;
use crate::recall::testing::*;

/// Two full groups of clusters and a half.
const CLUSTERS: usize = 72;
/// Parts of them.
const PARTS: usize = CLUSTERS / PART_CLUSTERS;

fn shape_of_many() -> KvShape {
    KvShape { capacity: 256, ..shape() }
}

/// Clusters that are opened for twice the budget, and scored so many of them.
fn policy_of_parts(scored: usize) -> Policy {
    let clusters = policy(60);
    let IndexKind::Clusters(own) = clusters.index.unwrap().kind else {
        unreachable!("the tests' policy has clusters")
    };
    let two_stage = Some(TwoStage { scored, ..two_stage(2) });
    let kind = IndexKind::Clusters(ClusterConfig { two_stage, ..own });
    Policy { residual: Residual::Groups, ..policy_of(kind, Pooling::SumSoftmax, 60) }
}

struct Case {
    device: Device,
    rows: [HeadRows; 2],
    /// `[Dh, 2]` of each head, for queries.
    w: [Vec<f32>; 2],
    index: LayerIndex<Device>,
    tokens: LayerIndex<Device>,
    bounds: ClusterBounds<Device>,
    projection: LayerProjection<Device>,
    /// Codes of each head's tokens.
    codes: [Vec<[f32; 2]>; 2],
}

fn case(seed: u64) -> Case {
    let mut rng = SplitMix64::new(seed);
    let (device, shape) = (Device::new(), shape_of_many());
    let sizes = [3, 5, 2, 4, 1, 3, 2, 4].repeat(CLUSTERS / 8);
    let turned: Vec<u32> = sizes.iter().rev().copied().collect();
    let rows = [sizes, turned].map(|sizes| HeadRows::random(&mut rng, &sizes));
    let n = rows[0].keys.len();
    let w = [0, 1].map(|_| normals(&mut rng, 2 * WIDTH));
    let codes = [0, 1].map(|head| codes_of(&rows[head], &w[head]));
    let marks = codes.each_ref().map(|codes| token_marks(codes));
    let mut tokens = LayerIndex::of_codes(&device, &shape, 2, shape.capacity, 1).unwrap();
    tokens.append(&device, SINKS, SINKS + n, &marks).unwrap();
    let scaled = w.clone().map(|w| w.iter().map(|x| x * UNIT).collect::<Vec<_>>());
    let made = Projections { rank: 2, w_q: scaled.concat(), w_k: scaled.concat() };
    let projection = LayerProjection::new(&device, made, None).unwrap();
    let index = LayerIndex::new(&device, &shape, WIDTH, CLUSTERS + 4, 1).unwrap();
    let index = index.with_pairs(&device).unwrap();
    let mut index = index.with_groups(&device, 4, GROUP_CLUSTERS).unwrap();
    let clusters: Vec<_> = rows.iter().map(HeadRows::clusters).collect();
    index.append(&device, SINKS, SINKS + n, &clusters).unwrap();
    let bounds = ClusterBounds::new(&device, 2, index.capacity(), 2).unwrap();
    let mut bounds = bounds.with_parts(&device, PARTS + 3).unwrap();
    bounds.follow(&device, &index, &tokens, SINKS).unwrap();
    let w = scaled;
    Case { device, rows, w, index, tokens, bounds, projection, codes }
}

impl Case {
    /// The tokens that each head chooses, sorted.
    fn choose(&self, scored: usize, q: &[f32], budgets: [u32; 2]) -> [Vec<usize>; 2] {
        let (device, shape, policy) = (&self.device, shape_of_many(), policy_of_parts(scored));
        let mut selector = Selector::new(device, &shape, &policy, CLUSTERS + 4, 3).unwrap();
        let q = two_tokens(device, q);
        let searched = Searched {
            index: &self.index,
            tokens: Some(&self.tokens),
            bounds: Some(&self.bounds),
            projection: Some(&self.projection),
            rows: None,
        };
        selector.select(device, &shape, &policy, &searched, &query(&q), &budgets).unwrap();
        pollster::block_on(device.read_all(&mut selector.parts_of(SELECTION))).unwrap();
        [0, 1].map(|head| {
            let mut tokens: Vec<usize> = selector.choice(head).iter().map(|(t, _)| *t).collect();
            tokens.sort_unstable();
            tokens
        })
    }

    /// What lies halfway from the mean of some tokens to their bounds.
    fn halfway(&self, head: usize, tokens: std::ops::Range<usize>) -> Vec<f32> {
        let factor = |factor: usize, pick: fn(f32, f32) -> f32| {
            let own = || self.codes[head][tokens.clone()].iter().map(|code| code[factor]);
            let mean = own().sum::<f32>() / own().count() as f32;
            (0.5 * (mean + own().reduce(pick).unwrap())).round_ties_even()
        };
        let of = |pick| [0, 1].map(|i| factor(i, pick));
        [of(f32::max), of(f32::min)].concat()
    }

    /// The same choice by loops.
    fn oracle(&self, head: usize, scored: usize, q: &[f32], budget: usize) -> Vec<usize> {
        let rows = &self.rows[head];
        let group = &q[head * 2 * WIDTH..][..2 * WIDTH];
        let queries: Vec<_> = group.chunks(WIDTH).map(|q| project(&self.w[head], q)).collect();
        let split = |q: &[f32; 2]| [q.map(|x| x.max(0.0)), q.map(|x| x.min(0.0))].concat();
        let split: Vec<_> = queries.iter().map(split).collect();
        let best = |marks: &[Vec<f32>]| {
            let marks: Vec<&[f32]> = marks.iter().map(|own| &own[..]).collect();
            ranked(split.iter().map(|q| &q[..]), &marks)
        };
        let parts: Vec<Vec<f32>> = (0..PARTS)
            .map(|part| {
                let (first, end) = (part * PART_CLUSTERS, (part + 1) * PART_CLUSTERS);
                self.halfway(head, rows.tokens(first).start..rows.tokens(end - 1).end)
            })
            .collect();
        let mut scored_clusters: Vec<usize> = best(&parts)
            .into_iter()
            .flat_map(|part| part * PART_CLUSTERS..(part + 1) * PART_CLUSTERS)
            .collect();
        scored_clusters.truncate(scored);
        let clusters: Vec<_> =
            scored_clusters.iter().map(|c| self.halfway(head, rows.tokens(*c))).collect();
        let mut opened: Vec<usize> = vec![];
        for place in best(&clusters) {
            let room = 2 * budget - opened.len();
            opened.extend(rows.tokens(scored_clusters[place]).take(room));
        }
        let marks: Vec<&[f32]> = opened.iter().map(|i| &self.codes[head][*i][..]).collect();
        let order = ranked(queries.iter().map(|q| &q[..]), &marks);
        let mut tokens: Vec<usize> = order.iter().take(budget).map(|i| opened[*i]).collect();
        tokens.sort_unstable();
        tokens
    }
}

#[test]
fn clusters_of_the_best_parts_alone_are_scored() {
    let mut rng = SplitMix64::new(8);
    for seed in 0..10 {
        let (case, q) = (case(seed), normals(&mut rng, 16));
        // The last part is scored in part.
        for (scored, budgets) in [(16, [12, 20]), (24, [20, 7]), (27, [9, 20])] {
            let found = case.choose(scored, &q, budgets);
            for head in 0..2 {
                let expected = case.oracle(head, scored, &q, budgets[head] as usize);
                assert_eq!(found[head], expected, "{scored} scored, seed {seed}");
            }
        }
    }
}

/// Where parts and clusters of them were no fewer than all clusters, all are scored; and with room
/// for all of them in the list the choice is the same.
#[test]
fn with_all_clusters_scored_parts_change_nothing() {
    let mut rng = SplitMix64::new(9);
    for seed in 0..10 {
        let (case, q) = (case(seed), normals(&mut rng, 16));
        let flat = case.choose(usize::MAX, &q, [20, 11]);
        assert_eq!(case.choose(CLUSTERS - PARTS, &q, [20, 11]), flat);
        for (head, budget) in [20, 11].into_iter().enumerate() {
            assert_eq!(case.oracle(head, CLUSTERS, &q, budget), flat[head]);
        }
        assert_ne!(case.choose(16, &q, [20, 11]), flat);
    }
}

#[test]
fn bytes_of_parts_are_those_of_their_buffers() {
    let (device, shape) = (Device::new(), shape_of_many());
    let buffers = |policy: &Policy| {
        let two_stage = policy.index.unwrap().two_stage().unwrap();
        let stage = TokenStage::new(&device, &shape, policy, two_stage).unwrap();
        let bytes = super::token_stage_bytes(&shape, policy, two_stage);
        (bytes, stage.parts.is_some())
    };
    let (all, has_parts) = buffers(&policy_of_parts(usize::MAX));
    assert!(!has_parts);
    let (some, has_parts) = buffers(&policy_of_parts(16));
    assert!(has_parts);
    // Parts and takes, their number, budgets, clusters and their number, of two heads.
    assert_eq!(some - all, 4 * 2 * (16 + 16 + 1 + 1 + 16 + 1));
    let case = case(1);
    let parts = case.bounds.parts().unwrap();
    let expected = crate::index::part_bytes(2, PARTS + 3, 2) as u64;
    assert_eq!(parts.device_bytes(), expected);
    let n = words(&case.device, View::all(parts.n_parts().buffer));
    assert_eq!(n, [PARTS as u32; 2]);
}
