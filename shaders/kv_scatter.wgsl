// Row rows[t] of every KV head gets k[t, head], then v[t, head], rounded to the rows' type.
//
// An invocation owns one word of a row: one f32 or two halves. Rows have 2 Dh elements, so they
// begin and end at words. A row outside of its head is left out.
//
// Bytes: 8 T Hkv Dh in, as much or half out. Bound: memory.

//# import shared/common

struct Params {
    n_tokens: u32,
    n_kv_heads: u32,
    head_dim: u32,
    dst_head_stride: u32,
    kind: u32,
    k_offset: u32,
    v_offset: u32,
    rows_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(3) var<storage, read> rows: array<u32>;
@group(0) @binding(4) var<storage, read_write> dst: array<u32>;

// Element i of a row: the key's, then the value's.
fn element(token_head: u32, i: u32) -> f32 {
    let at = token_head * p.head_dim;
    if i < p.head_dim {
        return k[p.k_offset + at + i];
    }
    return v[p.v_offset + at + i - p.head_dim];
}

@compute @workgroup_size(256)
fn kv_scatter(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row_words = select(p.head_dim, 2u * p.head_dim, p.kind == F32);
    let item = flat_index(workgroup, grid) * 256u + lane;
    if item >= p.n_tokens * p.n_kv_heads * row_words {
        return;
    }
    let token_head = item / row_words;
    let i = item - token_head * row_words;
    let token = token_head / p.n_kv_heads;
    let head = token_head - token * p.n_kv_heads;
    let row = rows[p.rows_offset + token];
    if row >= p.dst_head_stride {
        return;
    }
    let at = (head * p.dst_head_stride + row) * row_words + i;
    if p.kind == F32 {
        dst[at] = bitcast<u32>(element(token_head, i));
        return;
    }
    let pair = vec2<f32>(element(token_head, 2u * i), element(token_head, 2u * i + 1u));
    dst[at] = pack_halves(p.kind, pair);
}
