// A chunk of query tokens over a run of KV rows, of which each tile of tokens attends the blocks
// that count: for each token and query head
//
//     out = sum_j w_j v_j / sum_j w_j,   lse = ln sum_j w_j,   w_j = weight * exp(scale * q . k_j)
//
// Row j of the sequence is part of block j / rows_per_block. With KEPT a row is a token, and counts
// where its block's share is at least the threshold and it is not behind the query; without, a row
// is the mean of `weight` tokens, and counts where the share is below the threshold.
//
// The tokens of a tile, with the query heads of a KV head, are cut into parts of QUERY_TILE
// queries. A workgroup takes one part and goes through the run, KEY_TILE rows at a time, without
// those of which no block counts; shared/attend_tiles.wgsl says how.
//
// Bound: multiplications, 4 * Dh for each query head, token and row that it attends.
// HEAD_DIM <= 256.

//# import shared/common
//# import shared/kv_rows
//# import shared/attend_shares
//# import shared/attend_tiles

struct Params {
    n_tokens: u32,
    n_q_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    scale: f32,
    accumulate: u32,
    q_start: u32,
    q_len: u32,
    position: u32,
    tile: u32,
    block: u32,
    share_stride: u32,
    threshold: f32,
    attended: u32,
    rows_per_block: u32,
    row_start: u32,
    first_row: u32,
    n_rows: u32,
    minus_infinity: f32,
    // What the weight adds to a score: its logarithm.
    bias: f32,
    // Tiles, and parts of each.
    n_tiles: u32,
    n_parts: u32,
    head_stride: u32,
    q_offset: u32,
    kv_offset: u32,
    shares_offset: u32,
    out_offset: u32,
    lse_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
//# if QUERY_VECTOR
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
//# else
@group(0) @binding(1) var<storage, read> q: array<f32>;
//# end
@group(0) @binding(2) var<storage, read> kv: array<KvUnit>;
@group(0) @binding(3) var<storage, read> block_shares: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read_write> lse: array<f32>;

fn rows_of(token: u32) -> vec2<u32> {
//# if KEPT
    let end = p.position + token + 1u;
    return vec2<u32>(0u, min(max(end, p.first_row) - p.first_row, p.n_rows));
//# else
    return vec2<u32>(0u, p.n_rows);
//# end
}

// Whether rows of this block count for the tile.
fn block_counts(tile: Tile, block: u32) -> bool {
    let is_kept = block_shares[tile.shares + block] >= p.threshold;
//# if KEPT
    return is_kept;
//# else
    return !is_kept;
//# end
}

fn is_left_out(tile: Tile, key: u32) -> bool {
    let first = (p.first_row + key) / p.rows_per_block;
    let last = (p.first_row + min(key + KEY_TILE, tile.end) - 1u) / p.rows_per_block;
    for (var block = first; block <= last; block++) {
        if block_counts(tile, block) {
            return false;
        }
    }
    return true;
}

fn score_of(s: vec4<f32>, tile: Tile, key: u32, unseen: vec4<u32>, seen: vec4<u32>) -> vec4<f32> {
    // Beyond the last row there may be no share.
    let block = (p.first_row + min(key, tile.end - 1u)) / p.rows_per_block;
    if !block_counts(tile, block) {
        return vec4<f32>(LOWEST);
    }
    return select(vec4<f32>(LOWEST), s + p.bias, vec4<u32>(key) < seen);
}

@compute @workgroup_size(128)
fn attend_blocks(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = flat_index(workgroup, grid);
    if index >= p.n_tiles * p.n_parts * p.n_kv_heads {
        return;
    }
    let kv_head = index % p.n_kv_heads;
    let part = index / p.n_kv_heads;
    // The last tiles have most rows: they begin first.
    let tile = p.n_tiles - 1u - part / p.n_parts;
    // The tile's tokens among those of the chunk: tiles end at multiples of their length.
    let whole = (p.position / p.tile + tile) * p.tile;
    let token = max(whole, p.position) - p.position;
    let n = min(p.tile - (p.position + token) % p.tile, p.q_len - token);
    let group = p.n_q_heads / p.n_kv_heads;
    let first = token * group + part % p.n_parts * QUERY_TILE;
    let n_queries = (token + n) * group;
    if first >= n_queries {
        return;
    }
    let end = rows_of((min(first + QUERY_TILE, n_queries) - 1u) / group).y;
    let kv_start = p.kv_offset + (kv_head * p.head_stride + p.row_start) * ROW_LEN;
    let first_entry = p.q_start * p.n_q_heads;
    let shares = p.shares_offset + (kv_head * p.n_tiles + tile) * p.share_stride;
    attend_tile(Tile(first, n_queries, 0u, end, kv_head, first_entry, kv_start, 0u, shares), lane);
}
