//! The struct of arguments of each kernel, in the order of the files of `kernels/`.
//!
//! They lie below the table of kernels and below the ops, so that what runs kernels knows what a
//! launch carries and nothing of how one is prepared.

use crate::args::Address;

// argmax.cu

kernel_args! {
    ArgmaxPartsArgs { x: Address, parts: Address, width: u32, n_parts: u32 }
}

kernel_args! {
    ArgmaxMergeArgs { parts: Address, out: Address, n_rows: u32, n_parts: u32 }
}

// attend_blocks.cu

kernel_args! {
    AttendBlocksArgs {
        q: Address,
        kv: Address,
        shares: Address,
        out: Address,
        lse: Address,
        n_q_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        scale: f32,
        accumulate: u32,
        first_token: u32,
        q_len: u32,
        position: u32,
        tile: u32,
        share_stride: u32,
        threshold: f32,
        is_kept: u32,
        rows_per_block: u32,
        row_start: u32,
        first_row: u32,
        n_rows: u32,
        head_stride: u32,
        n_tiles: u32,
        n_parts: u32,
        bias: f32,
    }
}

// attend_chunk.cu

kernel_args! {
    AttendChunkArgs {
        q: Address,
        kv: Address,
        out: Address,
        lse: Address,
        states: Address,
        sums: Address,
        first_token: u32,
        n_tokens: u32,
        n_q_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        head_stride: u32,
        n_rows: u32,
        first_row: u32,
        lead: i32,
        hidden: i32,
        n_tiles: u32,
        n_splits: u32,
        accumulate: u32,
        scale: f32,
    }
}

// attend_list.cu

kernel_args! {
    AttendListArgs {
        q: Address,
        kv: Address,
        rows: Address,
        n_rows: Address,
        weights: Address,
        out: Address,
        lse: Address,
        states: Address,
        sums: Address,
        first_token: u32,
        n_tokens: u32,
        n_q_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        head_stride: u32,
        row_limit: u32,
        room: u32,
        first_row: u32,
        lead: i32,
        hidden: i32,
        n_parts: u32,
        n_splits: u32,
        accumulate: u32,
        scale: f32,
        is_aligned: u32,
    }
}

// block_reduce.cu

kernel_args! {
    BlockReduceArgs {
        points: Address,
        mass: Address,
        out: Address,
        n_kv_heads: u32,
        n_points: u32,
        head_dim: u32,
        block: u32,
        n_blocks: u32,
        summary: u32,
        n_top: u32,
        stride: u32,
    }
}

// centroid_scores.cu

kernel_args! {
    CentroidLogitsArgs {
        q: Address,
        centroids: Address,
        sizes: Address,
        n_clusters: Address,
        logits: Address,
        pairs: Address,
        ids: Address,
        n_q_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        cluster_stride: u32,
        room: u32,
        per_block: u32,
        n_blocks: u32,
        scale: f32,
        pooling: u32,
        is_aligned: u32,
        id_stride: u32,
        id_limit: u32,
        id_width: u32,
        unused: u32,
    }
}

kernel_args! {
    CentroidPoolArgs {
        logits: Address,
        pairs: Address,
        sizes: Address,
        n_clusters: Address,
        scores: Address,
        n_q_heads: u32,
        n_kv_heads: u32,
        cluster_stride: u32,
        score_stride: u32,
        room: u32,
        per_block: u32,
        n_blocks: u32,
        share: u32,
        pooling: u32,
        unused: u32,
    }
}

kernel_args! {
    CentroidSumsArgs {
        q: Address,
        centroids: Address,
        n_clusters: Address,
        sums: Address,
        n_q_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        cluster_stride: u32,
        room: u32,
        per_block: u32,
        sum_stride: u32,
        scale: f32,
        is_aligned: u32,
        unused: u32,
    }
}

kernel_args! {
    CentroidShareArgs {
        sums: Address,
        n_clusters: Address,
        scores: Address,
        n_kv_heads: u32,
        score_stride: u32,
        room: u32,
        unused: u32,
    }
}

// cluster_rest.cu

kernel_args! {
    ClusterRestArgs {
        sizes: Address,
        n_clusters: Address,
        clusters: Address,
        takes: Address,
        n_selected: Address,
        rest: Address,
        cluster_stride: u32,
        max_selected: u32,
    }
}

// cluster_rows.cu

kernel_args! {
    ClusterRowsArgs {
        starts: Address,
        clusters: Address,
        takes: Address,
        n_selected: Address,
        behind: Address,
        rows: Address,
        n_rows: Address,
        cluster_stride: u32,
        max_selected: u32,
        list_stride: u32,
        first_row: u32,
    }
}

// cluster_stats.cu

kernel_args! {
    ClusterRadiusClearArgs { radius: Address, n: u32, unused: u32 }
}

kernel_args! {
    ClusterStatsArgs {
        points: Address,
        labels: Address,
        centroids: Address,
        closeness: Address,
        radius: Address,
        n_all_points: u32,
        n_points: u32,
        n_clusters: u32,
        head_dim: u32,
        distance: u32,
        rows_are_aligned: u32,
    }
}

// column_mass.cu

kernel_args! {
    ColumnMassArgs {
        q: Address,
        lse: Address,
        kv: Address,
        rows: Address,
        n_rows: Address,
        out: Address,
        n_q_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        q_start: u32,
        q_len: u32,
        list_stride: u32,
        out_stride: u32,
        head_stride: u32,
        row_limit: u32,
        diagonal: i32,
        window: u32,
        scale: f32,
        tokens: u32,
        kv_is_aligned: u32,
        q_is_aligned: u32,
        unused: u32,
    }
}

// embed.cu

kernel_args! {
    EmbedArgs {
        ids: Address,
        table: Address,
        out: Address,
        row_bytes: u64,
        n_tokens: u32,
        width: u32,
        n_vocab: u32,
        scale: f32,
    }
}

// gram.cu

kernel_args! {
    GramArgs {
        x: Address,
        out: Address,
        n_tokens: u32,
        n_heads: u32,
        group: u32,
        head_dim: u32,
    }
}

// kmeans_assign.cu

kernel_args! {
    KmeansTermsArgs {
        centroids: Address,
        terms: Address,
        n_changed: Address,
        n_kv_heads: u32,
        n_clusters: u32,
        head_dim: u32,
        distance: u32,
    }
}

kernel_args! {
    KmeansAssignArgs {
        points: Address,
        centroids: Address,
        terms: Address,
        labels: Address,
        scores: Address,
        n_changed: Address,
        n_points: u32,
        n_clusters: u32,
        head_dim: u32,
        rows_are_aligned: u32,
    }
}

// kmeans_update.cu

kernel_args! {
    KmeansUpdateArgs {
        points: Address,
        labels: Address,
        centroids: Address,
        counts: Address,
        n_points: u32,
        n_clusters: u32,
        head_dim: u32,
        unused: u32,
    }
}

// kv_gather.cu

kernel_args! {
    KvGatherArgs {
        src: Address,
        src_rows: Address,
        dst_rows: Address,
        n_rows: Address,
        dst: Address,
        n_kv_heads: u32,
        list_stride: u32,
        src_head_stride: u32,
        dst_head_stride: u32,
        src_limit: u32,
        dst_limit: u32,
        row_units: u32,
        unused: u32,
    }
}

// kv_keys.cu

kernel_args! {
    KvKeysArgs {
        src: Address,
        rows: Address,
        out: Address,
        n_kv_heads: u32,
        head_dim: u32,
        n_rows: u32,
        head_stride: u32,
        row_limit: u32,
        unused: u32,
    }
}

// kv_scatter.cu

kernel_args! {
    KvScatterArgs {
        k: Address,
        v: Address,
        rows: Address,
        dst: Address,
        more_rows: Address,
        more_dst: Address,
        n_tokens: u32,
        n_kv_heads: u32,
        head_dim: u32,
        dst_head_stride: u32,
        more_head_stride: u32,
        unused: u32,
    }
}

// lse_merge.cu

kernel_args! {
    LseMergeArgs {
        other_out: Address,
        other_lse: Address,
        out: Address,
        lse: Address,
        n_rows: u32,
        head_dim: u32,
    }
}

// matmul.cu

kernel_args! {
    MatmulArgs {
        x: Address,
        weight: Address,
        bias: Address,
        out: Address,
        n_rows: u32,
        n_in: u32,
        n_out: u32,
        row_units: u32,
        bias_kind: u32,
        accumulate: u32,
        x_is_aligned: u32,
        is_rounding: u32,
    }
}

kernel_args! {
    MatmulRoundArgs {
        x: Address,
        to: Address,
        n_rows: u32,
        n_in: u32,
        row_units: u32,
        x_is_aligned: u32,
    }
}

kernel_args! {
    MatmulBiasArgs {
        bias: Address,
        out: Address,
        n_rows: u32,
        n_out: u32,
        bias_kind: u32,
        accumulate: u32,
    }
}

// matvec.cu

kernel_args! {
    MatvecArgs {
        x: Address,
        weight: Address,
        bias: Address,
        out: Address,
        n_rows: u32,
        n_in: u32,
        n_out: u32,
        row_units: u32,
        bias_kind: u32,
        accumulate: u32,
        x_is_aligned: u32,
        is_rounding: u32,
    }
}

// owner_counts.cu

kernel_args! {
    OwnerCountsArgs {
        owners: Address,
        chosen: Address,
        n_selected: Address,
        n_clusters: Address,
        counts: Address,
        owner_stride: u32,
        cluster_stride: u32,
        max_selected: u32,
        unused: u32,
    }
}

// pool_scores.cu

kernel_args! {
    PoolScoresArgs {
        x: Address,
        out: Address,
        group: u32,
        n: u32,
        in_stride: u32,
        out_stride: u32,
        kernel: u32,
        pool: u32,
        group_max: u32,
        pool_first: u32,
        scale: f32,
        unused: u32,
    }
}

// project_heads.cu

kernel_args! {
    ProjectHeadsArgs {
        x: Address,
        w: Address,
        out: Address,
        n_tokens: u32,
        n_heads: u32,
        group: u32,
        head_dim: u32,
        rank: u32,
        head_major: u32,
        is_aligned: u32,
        unused: u32,
    }
}

// query_gate.cu

kernel_args! {
    QueryGateArgs {
        q: Address,
        last: Address,
        cosines: Address,
        q_index: u32,
        n_q_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
    }
}

// query_sums.cu

kernel_args! {
    QuerySumsArgs {
        q: Address,
        out: Address,
        n_q_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        q_start: u32,
        q_len: u32,
        position: u32,
        block: u32,
        n_blocks: u32,
        first_block: u32,
        unused: u32,
    }
}

// look_up_rows.cu

kernel_args! {
    LookUpRowsArgs {
        starts: Address,
        clusters: Address,
        takes: Address,
        n_selected: Address,
        state: Address,
        rows: Address,
        moves: Address,
        counts: Address,
        n_kv_heads: u32,
        max_selected: u32,
        cluster_stride: u32,
        list_stride: u32,
        move_stride: u32,
        n_slots: u32,
        first_slot_row: u32,
        cache_steps: u32,
        table_len: u32,
        unused: u32,
    }
}

// rest_lists.cu

kernel_args! {
    RestListsArgs {
        lost: Address,
        sizes: Address,
        group_of: Address,
        n_clusters: Address,
        group_tokens: Address,
        n_groups: Address,
        clusters: Address,
        left: Address,
        n_listed: Address,
        rest_of_groups: Address,
        cluster_stride: u32,
        group_stride: u32,
        list_stride: u32,
        unused: u32,
    }
}

// rms_norm.cu

kernel_args! {
    RmsNormArgs {
        x: Address,
        weight: Address,
        out: Address,
        n_rows: u32,
        width: u32,
        eps: f32,
        accumulate: u32,
    }
}

// rope.cu

kernel_args! {
    RopeArgs {
        x: Address,
        table: Address,
        out: Address,
        n_tokens: u32,
        n_heads: u32,
        head_dim: u32,
        rotary_dim: u32,
    }
}

// rotate_rows.cu

kernel_args! {
    RotateRowsArgs {
        src: Address,
        table: Address,
        dst: Address,
        n_kv_heads: u32,
        head_dim: u32,
        rotary_dim: u32,
        n_rows: u32,
        src_head_stride: u32,
        dst_head_stride: u32,
    }
}

// row_means.cu

kernel_args! {
    RowMeansArgs {
        kv: Address,
        out: Address,
        n_kv_heads: u32,
        head_dim: u32,
        n_averaged: u32,
        n_means: u32,
        row_start: u32,
        first_mean: u32,
        out_stride: u32,
        head_stride: u32,
    }
}

// score_blocks.cu

kernel_args! {
    ScoreBlocksArgs {
        q: Address,
        means: Address,
        shares: Address,
        n_q_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        scale: f32,
        n_first: u32,
        n_recent: u32,
        n_parts: u32,
        q_start: u32,
        q_len: u32,
        position: u32,
        tile: u32,
        block: u32,
        share_stride: u32,
        n_tiles: u32,
        n_blocks: u32,
        head_stride: u32,
    }
}

// select_clusters.cu

kernel_args! {
    SelectClustersArgs {
        scores: Address,
        sizes: Address,
        n_clusters: Address,
        budgets: Address,
        clusters: Address,
        takes: Address,
        n_selected: Address,
        ids: Address,
        score_stride: u32,
        cluster_stride: u32,
        max_selected: u32,
        by_id: u32,
        id_stride: u32,
        unused: u32,
    }
}

// gelu_mul.cu

kernel_args! {
    GeluMulArgs { gate: Address, up: Address, out: Address, n: u64 }
}

// silu_mul.cu

kernel_args! {
    SiluMulArgs { gate: Address, up: Address, out: Address, n: u64 }
}

// split_signs.cu

kernel_args! {
    SplitSignsArgs {
        x: Address,
        out: Address,
        n: u64,
        width: u32,
        unused: u32,
    }
}

// top_k.cu

kernel_args! {
    TopKArgs {
        x: Address,
        values: Address,
        ids: Address,
        found: Address,
        width: u32,
        k: u32,
        n_parts: u32,
        per_part: u32,
    }
}
