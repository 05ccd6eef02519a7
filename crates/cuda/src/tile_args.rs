//! Structs of arguments of kernels of quantised weights: as `kernel_args`.

use crate::args::Address;

// quantised.cu

kernel_args! {
    RoundRowsArgs {
        x: Address,
        rounded: Address,
        n_groups: u64,
        x_is_aligned: u32,
        planes: u32,
    }
}

kernel_args! {
    TileProductArgs {
        x: Address,
        weight: Address,
        bias: Address,
        out: Address,
        n_rows: u32,
        n_in: u32,
        n_out: u32,
        tile_units: u32,
        scales_at: u32,
        bias_kind: u32,
        accumulate: u32,
        x_is_aligned: u32,
        planes: u32,
        unused: u32,
    }
}

kernel_args! {
    TileEmbedArgs {
        ids: Address,
        table: Address,
        out: Address,
        n_tokens: u32,
        width: u32,
        n_vocab: u32,
        tile_units: u32,
        scales_at: u32,
        scale: f32,
    }
}

// tile_products.cu

kernel_args! {
    RoundBlocksArgs {
        x: Address,
        blocks: Address,
        n_rows: u32,
        groups_of_row: u32,
        x_is_aligned: u32,
        planes: u32,
    }
}

kernel_args! {
    TileProductsArgs {
        x: Address,
        weight: Address,
        bias: Address,
        out: Address,
        n_rows: u32,
        n_in: u32,
        n_out: u32,
        tile_units: u32,
        scales_at: u32,
        bias_kind: u32,
        accumulate: u32,
        planes: u32,
    }
}
