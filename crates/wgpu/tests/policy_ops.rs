//! Ops of the policies that choose without clusters, where the corpus does not go: wide heads,
//! large groups, many tiles, and the corpus once more with views at whole vectors.

use longview_core::{DType, SplitMix64};
use longview_ops::corpus::{
    BlockReduceCase, Case, CentroidScoresCase, ClusterRestCase, ClusterRowsCase, ColumnMassCase,
    MassMask, PoolScoresCase, ProjectHeadsCase, QuerySumsCase, RotateRowsCase, cases_of,
};
use longview_ops::{
    Backend, BlockSummary, DeviceBuffer, Op, Placed, PoolKind, Pooling, QuerySums, QuerySumsParams,
    View, ViewMut,
};
use longview_wgpu::WgpuBackend;
use pollster::block_on;

use crate::common;

/// Runs cases at all levels; with `whole`, on views that begin at whole vectors.
fn check(cases: impl IntoIterator<Item = Case>, whole: bool) {
    let cases: Vec<Case> = cases.into_iter().collect();
    if whole {
        return common::check(common::with_views_at(64, cases));
    }
    let plans: Vec<_> = cases.iter().map(Case::plan).collect();
    common::check(cases.into_iter().zip(plans).collect());
}

#[test]
fn views_at_whole_vectors_give_the_same() {
    let ops = [
        Op::BlockReduce,
        Op::ProjectHeads,
        Op::SplitSigns,
        Op::PoolScores,
        Op::ColumnMass,
        Op::ClusterRest,
        Op::ClusterRows,
        Op::OwnerCounts,
        Op::RestLists,
        Op::QuerySums,
        Op::RowMeans,
        Op::ScoreBlocks,
        Op::AttendBlocks,
    ];
    for op in ops {
        let cases = common::with_views_at(64, cases_of(op));
        common::check_in_turns(&format!("{op} at whole vectors"), cases);
    }
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
            let (listed, placed) = (false, Placed::DENSE);
            cases.push(
                CentroidScoresCase {
                    clusters,
                    hq,
                    hkv,
                    dh,
                    dtype,
                    pooling,
                    seqs,
                    sharp,
                    listed,
                    placed,
                }
                .into(),
            );
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

#[test]
fn what_is_left_of_many_clusters() {
    let mut cases = Vec::new();
    // Around the clusters of a workgroup, then many of them with a selection of many tiles.
    for (clusters, selected, hkv) in
        [(1023, 500, 2), (1024, 1024, 2), (1025, 1000, 3), (65_000, 20_000, 4)]
    {
        cases.push(ClusterRestCase { clusters, selected, hkv }.into());
    }
    check(cases, false);
}

#[test]
fn rows_of_many_clusters() {
    let mut cases = Vec::new();
    for is_short in [false, true] {
        for (clusters, selected, hkv) in [(600, 512, 2), (600, 513, 3), (65_000, 20_000, 3)] {
            let appends = selected % 2 == 1;
            cases.push(ClusterRowsCase { clusters, selected, hkv, is_short, appends }.into());
        }
    }
    check(cases, false);
}

#[test]
fn many_rows_turn() {
    let mut cases = Vec::new();
    for (kv, dh, rotary) in
        [(DType::F16, 128, 128), (DType::BF16, 255, 2), (DType::F32, 80, 32), (DType::F16, 33, 30)]
    {
        for (rows, heads) in [(3000, 8), (1, 129)] {
            cases.push(RotateRowsCase { rows, heads, dh, rotary, kv }.into());
        }
    }
    check(cases, false);
}

#[test]
fn queries_of_large_groups_and_far_positions_are_summed() {
    let mut cases = Vec::new();
    for (t, heads, dh, position, block) in [
        (300, (27, 1), 256, 100_000, 64),
        (1000, (4, 2), 128, 77, 1),
        (64, (32, 8), 128, 4096, 64),
        // The first block ends at a position that 31 bits do not hold, and the last is not full.
        (70, (4, 2), 20, 2_999_999_980, 1_500_000_000),
    ] {
        cases.push(QuerySumsCase { t, heads, dh, position, block }.into());
    }
    check(cases, true);
}

#[test]
fn rows_that_begin_anywhere_turn() {
    let mut cases = Vec::new();
    for case in cases_of(Op::RotateRows).into_iter().step_by(7) {
        for front in [0, 1, 3] {
            let mut plan = case.plan();
            plan.inputs.iter_mut().for_each(|input| input.front = front);
            cases.push((case.clone(), plan));
        }
    }
    common::check(cases);
}

/// Sums of 200 queries with 4 heads of width 20, given `piece` tokens at a time.
fn sums_in_pieces(backend: &WgpuBackend, q: &[f32], piece: u32) -> Vec<u32> {
    let mut on_device = backend.alloc(DType::F32, q.len(), "queries").expect("memory");
    backend.write(ViewMut::all(&mut on_device), bytemuck::cast_slice(q)).expect("a write");
    let mut out = backend.alloc(DType::F32, 2 * 8 * 20, "sums").expect("memory");
    for q_start in (0..200).step_by(piece as usize) {
        let sums = QuerySums {
            p: QuerySumsParams {
                n_tokens: 200,
                n_q_heads: 4,
                n_kv_heads: 2,
                head_dim: 20,
                q_start,
                q_len: piece.min(200 - q_start),
                position: 5 + q_start,
                block: 32,
                n_blocks: 8,
            },
            q: View::all(&on_device),
            out: ViewMut::all(&mut out),
        };
        backend.query_sums(sums).expect("a launch");
    }
    let mut bits = vec![0; out.len()];
    let read = backend.read(View::all(&out), bytemuck::cast_slice_mut(&mut bits));
    block_on(read).expect("a read");
    bits
}

#[test]
fn sums_of_queries_do_not_depend_on_how_they_come() {
    let mut rng = SplitMix64::new(3);
    let q: Vec<f32> = (0..200 * 4 * 20).map(|_| rng.next_normal()).collect();
    for backend in common::levels() {
        let whole = sums_in_pieces(&backend, &q, 200);
        assert!(whole[..7 * 20].iter().all(|bits| *bits != 0), "blocks 0 to 6 have tokens");
        for piece in [1, 7, 32, 100] {
            assert_eq!(sums_in_pieces(&backend, &q, piece), whole, "pieces of {piece}");
        }
    }
}
