// out[i] = x[i] cos[i] - x[i+h] sin[i], out[i+h] = x[i+h] cos[i] + x[i] sin[i] for the first
// rotary_dim = 2 h elements of each head; the rest is copied.
//
// An invocation owns one pair, or one element that is copied.
//
// Bytes: 4 T heads Dh in, as many out; the table row of a token is read once per head, from cache.
// Bound: memory.

//# import shared/common

struct Params {
    n_tokens: u32,
    n_heads: u32,
    head_dim: u32,
    rotary_dim: u32,
    x_offset: u32,
    table_offset: u32,
    out_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> table: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn rope(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let half = p.rotary_dim / 2u;
    let per_head = p.head_dim - half;
    let item = flat_index(workgroup, grid) * 256u + lane;
    if item >= p.n_tokens * p.n_heads * per_head {
        return;
    }
    let head = item / per_head;
    let i = item - head * per_head;
    let start = p.x_offset + head * p.head_dim;
    let to = p.out_offset + head * p.head_dim;
    if i >= half {
        out[to + half + i] = x[start + half + i];
        return;
    }
    let angle = p.table_offset + head / p.n_heads * p.rotary_dim + i;
    let cosine = table[angle];
    let sine = table[angle + half];
    let a = x[start + i];
    let b = x[start + half + i];
    out[to + i] = a * cosine - b * sine;
    out[to + half + i] = b * cosine + a * sine;
}
