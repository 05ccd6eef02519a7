// Row rows[t] of every KV head gets k[t, head], then v[t, head], rounded to the rows' type.
//
// An invocation owns one word of a row: one f32 or two halves. Rows have 2 Dh elements, so they
// begin and end at words. A row outside of its head is left out.
//
// With CODED a row becomes one of 8 bits (see `shared/kv_rows`), and a workgroup owns it: the
// largest numbers of all blocks, then their scales, then an invocation makes four bytes of a word.
// Dh <= 1024.
//
// Bytes: 8 T Hkv Dh in, as much, half or a quarter out. Bound: memory.

//# import shared/common
//# if CODED
//# import shared/codes
//# end

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

//# if CODED
const GROUP: u32 = 64u;
// Numbers of a key that share a scale.
const KEY_BLOCK: u32 = 32u;
const MOST_SCALES: u32 = 33u;

// Sizes by their bits, where not-a-number and infinity are the largest of all.
var<workgroup> largest: array<atomic<u32>, MOST_SCALES>;
var<workgroup> scales: array<u32, MOST_SCALES>;

// Which scale number i of a row has.
fn scale_at(i: u32) -> u32 {
    return select((p.head_dim + KEY_BLOCK - 1u) / KEY_BLOCK, i / KEY_BLOCK, i < p.head_dim);
}

// The bits of the scale of numbers of up to a size.
fn scale_of(size: u32) -> u32 {
    if size >= 0x7f800000u {
        return 0x7e00u;
    }
    return f16_bits(bitcast<f32>(size) / 127.0);
}

fn code_of(x: f32, scale: u32) -> u32 {
    if scale == 0u || scale >= 0x7c00u {
        return 0u;
    }
    let inverse = 1.0 / scale_of_half(scale);
    return bitcast<u32>(i32(clamp(round(x * inverse), -127.0, 127.0))) & 0xffu;
}

// Byte i of a row.
fn byte_at(token_head: u32, i: u32) -> u32 {
    if i < 2u * p.head_dim {
        return code_of(element(token_head, i), scales[scale_at(i)]);
    }
    let scale = (i - 2u * p.head_dim) / 2u;
    if scale > scale_at(p.head_dim) {
        return 0u;
    }
    return (scales[scale] >> (8u * (i & 1u))) & 0xffu;
}

@compute @workgroup_size(64)
fn kv_scatter_coded(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let token_head = flat_index(workgroup, grid);
    if token_head >= p.n_tokens * p.n_kv_heads {
        return;
    }
    let token = token_head / p.n_kv_heads;
    let head = token_head - token * p.n_kv_heads;
    let row = rows[p.rows_offset + token];
    if row >= p.dst_head_stride {
        return;
    }
    let n_scales = scale_at(p.head_dim) + 1u;
    for (var i = lane; i < n_scales; i += GROUP) {
        atomicStore(&largest[i], 0u);
    }
    workgroupBarrier();
    for (var i = lane; i < 2u * p.head_dim; i += GROUP) {
        atomicMax(&largest[scale_at(i)], bitcast<u32>(element(token_head, i)) & 0x7fffffffu);
    }
    workgroupBarrier();
    for (var i = lane; i < n_scales; i += GROUP) {
        scales[i] = scale_of(atomicLoad(&largest[i]));
    }
    workgroupBarrier();
    let row_words = (2u * p.head_dim + 2u * n_scales + 3u) / 4u;
    let start = (head * p.dst_head_stride + row) * row_words;
    for (var i = lane; i < row_words; i += GROUP) {
        var word = 0u;
        for (var b = 0u; b < 4u; b++) {
            word |= byte_at(token_head, 4u * i + b) << (8u * b);
        }
        dst[start + i] = word;
    }
}
//# else
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
//# end
