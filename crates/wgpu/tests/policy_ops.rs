//! Ops of the policies that choose without clusters, where the corpus does not go: wide heads,
//! large groups, many tiles, and the corpus once more with views at whole vectors.

mod common;

use longview_core::DType;
use longview_ops::corpus::{
    BlockReduceCase, Case, CentroidScoresCase, ColumnMassCase, MassMask, PoolScoresCase,
    ProjectHeadsCase, cases_of,
};
use longview_ops::{BlockSummary, Op, PoolKind, Pooling, ReferenceBackend};
use pollster::block_on;

/// Runs cases at all tiers; with `whole`, on views that begin at whole vectors.
fn check(cases: impl IntoIterator<Item = Case>, whole: bool) {
    let backends = common::tiers();
    for case in cases {
        let mut plan = case.plan();
        if whole {
            plan.inputs.iter_mut().for_each(|input| input.front = 64);
            plan.outputs.iter_mut().for_each(|output| output.front = 64);
        }
        let want = case.execute_blocking(&ReferenceBackend::new()).expect("the reference");
        for backend in &backends {
            let mut buffers = plan.upload(backend).expect("memory");
            case.launch(backend, &mut buffers).unwrap_or_else(|e| panic!("{}: {e}", case.name()));
            let got = block_on(plan.read_back(backend, &buffers)).expect("an outcome");
            let compared = case.compare(&got, &want);
            assert!(compared.passed(), "{}, tier {}: {compared}", case.name(), backend.tier());
        }
    }
}

#[test]
fn views_at_whole_vectors_give_the_same() {
    let ops = [Op::BlockReduce, Op::ProjectHeads, Op::SplitSigns, Op::PoolScores, Op::ColumnMass];
    check(ops.into_iter().flat_map(cases_of), true);
}

#[test]
fn mass_of_few_tokens_for_groups_of_any_size() {
    let mut cases = Vec::new();
    for (i, group) in [1, 3, 5, 7, 8, 9, 16, 27].into_iter().enumerate() {
        for (t, rows) in [(1, 200), (3, 64), (4, 129)] {
            let (heads, pool) = ((2 * group, 2), i % 2 == 1);
            let (kv, dh) = ([DType::F16, DType::F32, DType::BF16][i % 3], [64, 33][i % 2]);
            let mask = [MassMask::All, MassMask::Causal][i / 2 % 2];
            cases.push(ColumnMassCase { t, rows, heads, dh, kv, mask, pool }.into());
        }
    }
    check(cases, false);
}

#[test]
fn mass_of_wide_heads_and_many_tiles() {
    let base = ColumnMassCase {
        t: 20,
        rows: 300,
        heads: (3, 1),
        dh: 256,
        kv: DType::F16,
        mask: MassMask::Causal,
        pool: false,
    };
    let mut cases: Vec<Case> =
        [129, 192, 255].map(|dh| ColumnMassCase { dh, ..base.clone() }.into()).into();
    cases.push(base.clone().into());
    cases.push(ColumnMassCase { t: 1, ..base.clone() }.into());
    cases.push(ColumnMassCase { t: 100, rows: 2000, heads: (8, 2), dh: 128, ..base }.into());
    check(cases, true);
}

#[test]
fn sums_of_scores_of_large_groups_over_many_blocks() {
    let mut cases = Vec::new();
    for (pooling, dtype) in [(Pooling::SumScores, DType::F16), (Pooling::SharedScores, DType::F32)]
    {
        for (hq, hkv, dh) in [(27, 1, 40), (18, 2, 256), (8, 8, 64)] {
            let (clusters, seqs, sharp) = (1500, 2, false);
            let case = CentroidScoresCase { clusters, hq, hkv, dh, dtype, pooling, seqs, sharp };
            cases.push(case.into());
        }
    }
    check(cases, true);
}

#[test]
fn projections_of_many_vectors_and_ranks() {
    let mut cases = Vec::new();
    for head_major in [false, true] {
        let mut add =
            |t, heads, dh, rank| cases.push(ProjectHeadsCase { t, heads, dh, rank, head_major });
        add(1000, (8, 2), 128, 32);
        add(70, (3, 1), 80, 100);
        add(1, (32, 2), 128, 20);
    }
    check(cases.into_iter().map(Case::from), true);
}

#[test]
fn more_landmarks_than_a_dimension_of_the_grid() {
    let summary = BlockSummary::Top;
    check(
        [BlockReduceCase { n: 140_000, block: 4, heads: 2, dh: 1, summary, top: 2 }.into()],
        false,
    );
}

#[test]
fn scores_of_many_tokens_are_pooled() {
    let (pool, group_max) = (PoolKind::Max, false);
    let of = |pool_first| {
        PoolScoresCase { n: 20_000, heads: (9, 3), kernel: 63, pool, group_max, pool_first }.into()
    };
    check([true, false].map(of), false);
}
