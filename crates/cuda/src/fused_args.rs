//! Structs of arguments of kernels that make several ops at once, and of what the host tells the
//! device: as `kernel_args`.

use crate::args::Address;

// matvec.cu

kernel_args! {
    NormMatvecArgs {
        x: Address,
        norm: Address,
        table: Address,
        weight_0: Address,
        weight_1: Address,
        weight_2: Address,
        bias_0: Address,
        bias_1: Address,
        bias_2: Address,
        out_0: Address,
        out_1: Address,
        out_2: Address,
        n_rows: u32,
        n_in: u32,
        n_out_0: u32,
        n_out_1: u32,
        n_out_2: u32,
        row_units: u32,
        norm_kind: u32,
        bias_kind_0: u32,
        bias_kind_1: u32,
        bias_kind_2: u32,
        head_dim: u32,
        rotary_dim: u32,
        eps: f32,
        x_is_aligned: u32,
        is_rounding: u32,
        mode: u32,
    }
}

// rope.cu

kernel_args! {
    NormRopeArgs {
        q: Address,
        k: Address,
        q_norm: Address,
        k_norm: Address,
        table: Address,
        q_out: Address,
        k_out: Address,
        n_tokens: u32,
        n_q_heads: u32,
        n_k_heads: u32,
        head_dim: u32,
        rotary_dim: u32,
        q_norm_kind: u32,
        k_norm_kind: u32,
        eps: f32,
    }
}

// tile_layers.cu

kernel_args! {
    TileLayersArgs {
        x: Address,
        norm: Address,
        table: Address,
        weight_0: Address,
        weight_1: Address,
        weight_2: Address,
        bias_0: Address,
        bias_1: Address,
        bias_2: Address,
        out_0: Address,
        out_1: Address,
        out_2: Address,
        n_in: u32,
        n_out_0: u32,
        n_out_1: u32,
        n_out_2: u32,
        pairs_0: u32,
        pairs_1: u32,
        n_pairs: u32,
        tile_units: u32,
        scales_at: u32,
        tile_units_2: u32,
        scales_at_2: u32,
        planes: u32,
        norm_kind: u32,
        bias_kind_0: u32,
        bias_kind_1: u32,
        bias_kind_2: u32,
        head_dim: u32,
        rotary_dim: u32,
        eps: f32,
        x_is_aligned: u32,
        accumulate: u32,
        mode: u32,
    }
}

// upload_words.cu

kernel_args! {
    UploadWordsArgs { block: Address }
}
