//! The parameter blocks, written down: WGSL and CUDA declare the same fields at the same offsets,
//! all of four bytes and without padding. A change here is a change of every kernel.

use std::mem::{align_of, offset_of, size_of};

use longview_ops::*;

macro_rules! layout {
    ($params:ident, $size:literal, $($field:ident: $offset:literal),+) => {
        // The pattern names every field, so a new one does not go unnoticed.
        let $params { $($field: _),+ } = bytemuck::Zeroable::zeroed();
        assert_eq!(size_of::<$params>(), $size, stringify!($params));
        assert_eq!(align_of::<$params>(), 4, stringify!($params));
        $(assert_eq!(
            offset_of!($params, $field), $offset,
            "{}.{}", stringify!($params), stringify!($field)
        );)+
    };
}

#[test]
fn dense_parameters_are_where_kernels_read_them() {
    layout!(EmbedParams, 12, n_tokens: 0, width: 4, scale: 8);
    layout!(RmsNormParams, 16, n_rows: 0, width: 4, eps: 8, accumulate: 12);
    layout!(LinearParams, 16, n_rows: 0, n_in: 4, n_out: 8, accumulate: 12);
    layout!(RopeParams, 16, n_tokens: 0, n_heads: 4, head_dim: 8, rotary_dim: 12);
    layout!(SiluMulParams, 4, n: 0);
    layout!(GeluMulParams, 4, n: 0);
    layout!(ArgmaxParams, 8, n_rows: 0, width: 4);
    layout!(TopKParams, 12, n_rows: 0, width: 4, k: 8);
    layout!(GramParams, 16, n_tokens: 0, n_heads: 4, group: 8, head_dim: 12);
}

#[test]
fn kv_parameters_are_where_kernels_read_them() {
    layout!(KvScatterParams, 16, n_tokens: 0, n_kv_heads: 4, head_dim: 8, dst_head_stride: 12);
    layout!(KvGatherParams, 16, n_kv_heads: 0, head_dim: 4, list_stride: 8, dst_head_stride: 12);
    layout!(KvKeysParams, 12, n_kv_heads: 0, head_dim: 4, n_rows: 8);
}

#[test]
fn attention_parameters_are_where_kernels_read_them() {
    layout!(
        AttendParams, 24,
        n_tokens: 0, n_q_heads: 4, n_kv_heads: 8, head_dim: 12, scale: 16, accumulate: 20
    );
    layout!(LseMergeParams, 8, n_rows: 0, head_dim: 4);
}

#[test]
fn cluster_parameters_are_where_kernels_read_them() {
    layout!(
        KmeansParams, 20,
        n_kv_heads: 0, n_points: 4, n_clusters: 8, head_dim: 12, distance: 16
    );
    layout!(
        CentroidScoresParams, 28,
        n_tokens: 0, n_q_heads: 4, n_kv_heads: 8, head_dim: 12, score_stride: 16, scale: 20,
        pooling: 24
    );
    layout!(
        SelectClustersParams, 16, n_kv_heads: 0, score_stride: 4, max_selected: 8, by_id: 12
    );
    layout!(
        LookUpRowsParams, 32,
        n_kv_heads: 0, max_selected: 4, cluster_stride: 8, list_stride: 12, move_stride: 16,
        n_slots: 20, first_slot_row: 24, cache_steps: 28
    );
    layout!(
        QueryGateParams, 20,
        n_tokens: 0, n_q_heads: 4, n_kv_heads: 8, head_dim: 12, q_index: 16
    );
}

#[test]
fn index_and_mass_parameters_are_where_kernels_read_them() {
    layout!(
        BlockReduceParams, 24,
        n_kv_heads: 0, n_points: 4, head_dim: 8, block: 12, summary: 16, n_top: 20
    );
    layout!(
        ProjectHeadsParams, 24,
        n_tokens: 0, n_heads: 4, group: 8, head_dim: 12, rank: 16, head_major: 20
    );
    layout!(SplitSignsParams, 8, n_vectors: 0, width: 4);
    layout!(
        ColumnMassParams, 44,
        n_tokens: 0, n_q_heads: 4, n_kv_heads: 8, head_dim: 12, scale: 16, q_start: 20,
        q_len: 24, list_stride: 28, out_stride: 32, diagonal: 36, window: 40
    );
    layout!(
        PoolScoresParams, 40,
        n_kv_heads: 0, group: 4, n: 8, in_stride: 12, out_stride: 16, kernel: 20, pool: 24,
        group_max: 28, pool_first: 32, scale: 36
    );
    layout!(ClusterRestParams, 12, n_kv_heads: 0, cluster_stride: 4, max_selected: 8);
    layout!(
        ClusterRowsParams, 20,
        n_kv_heads: 0, cluster_stride: 4, max_selected: 8, list_stride: 12, first_row: 16
    );
    layout!(
        OwnerCountsParams, 16,
        n_kv_heads: 0, owner_stride: 4, cluster_stride: 8, max_selected: 12
    );
    layout!(
        RestListsParams, 16,
        n_kv_heads: 0, cluster_stride: 4, group_stride: 8, list_stride: 12
    );
    layout!(
        RotateRowsParams, 20,
        n_kv_heads: 0, head_dim: 4, rotary_dim: 8, n_rows: 12, dst_head_stride: 16
    );
    layout!(
        QuerySumsParams, 36,
        n_tokens: 0, n_q_heads: 4, n_kv_heads: 8, head_dim: 12, q_start: 16, q_len: 20,
        position: 24, block: 28, n_blocks: 32
    );
    layout!(
        RowMeansParams, 28,
        n_kv_heads: 0, head_dim: 4, n_averaged: 8, n_means: 12, row_start: 16, first_mean: 20,
        out_stride: 24
    );
    layout!(
        TileParams, 24,
        q_start: 0, q_len: 4, position: 8, tile: 12, block: 16, share_stride: 20
    );
    layout!(
        ScoreBlocksParams, 56,
        n_tokens: 0, n_q_heads: 4, n_kv_heads: 8, head_dim: 12, scale: 16, n_first: 20,
        n_recent: 24, n_parts: 28, tiles: 32
    );
    layout!(
        AttendBlocksParams, 72,
        attend: 0, tiles: 24, threshold: 48, attended: 52, rows_per_block: 56, row_start: 60,
        first_row: 64, n_rows: 68
    );
}

#[test]
fn numbers_of_choices_are_those_that_kernels_compare_with() {
    let distances = [Distance::Cosine, Distance::L2, Distance::InnerProduct];
    assert_eq!(distances.map(|d| d as u32), [0, 1, 2]);
    assert_eq!(Pooling::ALL.map(|p| p as u32), [0, 1, 2, 3, 4]);
    let raw = [Pooling::SumScores, Pooling::SharedScores];
    assert_eq!(raw.map(|p| p as u32), [3, 4]);
    assert_eq!(BlockSummary::ALL.map(|s| s as u32), [0, 1, 2, 3, 4]);
    let picking = [BlockSummary::MinMax, BlockSummary::Strided, BlockSummary::Top];
    assert_eq!(picking.map(|s| s as u32), [2, 3, 4]);
    assert_eq!([PoolKind::Average, PoolKind::Max].map(|k| k as u32), [0, 1]);
}
