// A chunk of query tokens over a run of KV rows: for each token i and query head
//
//     out = sum_j w_j v_j / sum_j w_j,   lse = ln sum_j w_j,   w_j = exp(scale * q . k_j)
//
// over the rows hidden + i <= j < lead + i. The queries of a KV head, [token][query head of the
// group], are cut into tiles of QUERY_TILE. A workgroup takes one tile and goes through the rows
// from the first that its first token sees to the last that its last token sees, KEY_TILE at a
// time; shared/attend_tiles.wgsl says how.
//
// With PARTIAL the run is cut into splits, the grid's third dimension, whose results go to
// `partials` for `attend_merge`; without, the result goes to `out` and `lse`.
//
// Bound: multiplications, 4 * Dh for each query head, token and row that it sees.
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
    minus_infinity: f32,
    // The span: its first token, its tokens, and tiles of a KV head's queries.
    first_token: u32,
    q_len: u32,
    n_tiles: u32,
    head_stride: u32,
    split_rows: u32,
    n_splits: u32,
    n_rows: u32,
    first_row: u32,
    // Token i of the span sees lead + i rows of the run.
    lead: i32,
    // The first hidden + i of them are hidden from it.
    hidden: i32,
    q_offset: u32,
    kv_offset: u32,
//# if PARTIAL
//# else
    out_offset: u32,
    lse_offset: u32,
//# end
}

@group(0) @binding(0) var<uniform> p: Params;
//# if QUERY_VECTOR
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
//# else
@group(0) @binding(1) var<storage, read> q: array<f32>;
//# end
@group(0) @binding(2) var<storage, read> kv: array<KvUnit>;
//# if PARTIAL
// For each query row of the span and split (m, l, -, -), then the octets of o.
@group(0) @binding(3) var<storage, read_write> partials: array<vec4<f32>>;
//# else
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;
//# end

// Rows that a token of the span attends to.
fn attended(token: u32) -> u32 {
    return min(u32(max(p.lead + i32(token), 0)), p.n_rows);
}

// Rows before the first that a token of the span attends to.
fn skipped(token: u32) -> u32 {
    return min(u32(max(p.hidden + i32(token), 0)), p.n_rows);
}

fn rows_of(token: u32) -> vec2<u32> {
    return vec2<u32>(skipped(token), attended(token));
}

fn is_left_out(tile: Tile, key: u32) -> bool {
    return false;
}

// Hidden are rows before those that are seen, and those that are not seen yet.
fn score_of(s: vec4<f32>, tile: Tile, key: u32, unseen: vec4<u32>, seen: vec4<u32>) -> vec4<f32> {
    let row = vec4<u32>(key);
    return select(vec4<f32>(LOWEST), s, (row >= unseen) & (row < seen));
}

@compute @workgroup_size(128)
fn attend_chunk(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = flat_index(workgroup, grid);
    if index >= p.n_tiles * p.n_kv_heads {
        return;
    }
    let kv_head = index % p.n_kv_heads;
    // The last tiles see most rows: they begin first.
    let first = (p.n_tiles - 1u - index / p.n_kv_heads) * QUERY_TILE;
    let split = workgroup.z;
    let group = p.n_q_heads / p.n_kv_heads;
    let n_queries = p.q_len * group;
    let limit = attended((min(first + QUERY_TILE, n_queries) - 1u) / group);
    let split_begin = min(split * p.split_rows, limit);
    // In whole tiles from the split's begin: behind its end the next split goes on.
    let begin = max(split_begin, skipped(first / group) / KEY_TILE * KEY_TILE);
    let end = min(split_begin + p.split_rows, limit);
    let kv_start = p.kv_offset + (kv_head * p.head_stride + p.first_row) * ROW_LEN;
    let first_entry = p.first_token * p.n_q_heads;
    let tile = Tile(first, n_queries, begin, end, kv_head, first_entry, kv_start, split, 0u);
    attend_tile(tile, lane);
}
