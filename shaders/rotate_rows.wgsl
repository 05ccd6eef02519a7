// Row j of every KV head of dst gets row j of src, its key x turned to
//
//     x[i] cos[i] - x[i+h] sin[i], x[i+h] cos[i] + x[i] sin[i]    for i < h = rotary_dim / 2
//
// and rounded to the rows' type. What does not turn, values with it, keeps its bits.
//
// An invocation owns one word of a row of dst: one f32 or two halves. Rows have 2 Dh elements, so
// those of dst begin and end at words; those of src begin anywhere.
//
// Bytes: the rows, once in and once out. Bound: memory.

//# import shared/common
//# import shared/element X=src

struct Params {
    n_kv_heads: u32,
    head_dim: u32,
    rotary_dim: u32,
    n_rows: u32,
    dst_head_stride: u32,
    kind: u32,
    src_head_stride: u32,
    src_offset: u32,
    table_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> src: array<u32>;
@group(0) @binding(2) var<storage, read> table: array<f32>;
@group(0) @binding(3) var<storage, read_write> dst: array<u32>;

// Element i of the key that begins at element `start`, turned; i < rotary_dim.
fn turned(start: u32, i: u32) -> f32 {
    let half = p.rotary_dim / 2u;
    let is_second = i >= half;
    let pair = select(i, i - half, is_second);
    let cosine = table[p.table_offset + pair];
    let sine = table[p.table_offset + half + pair];
    let a = src_element(p.kind, start + pair);
    let b = src_element(p.kind, start + half + pair);
    return select(a * cosine - b * sine, b * cosine + a * sine, is_second);
}

// The bits of half i of the row that begins at element `start`.
fn half_bits(start: u32, i: u32) -> u32 {
    if i >= p.rotary_dim {
        let at = start + i;
        return (src[at / 2u] >> (16u * (at & 1u))) & 0xffffu;
    }
    let x = turned(start, i);
    if p.kind == F16 {
        return f16_bits(x);
    }
    return bf16_bits(x);
}

@compute @workgroup_size(256)
fn rotate_rows(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row_words = select(p.head_dim, 2u * p.head_dim, p.kind == F32);
    let item = flat_index(workgroup, grid) * 256u + lane;
    if item >= p.n_kv_heads * p.n_rows * row_words {
        return;
    }
    let head_row = item / row_words;
    let i = item - head_row * row_words;
    let head = head_row / p.n_rows;
    let row = head_row - head * p.n_rows;
    let start = p.src_offset + (head * p.src_head_stride + row) * 2u * p.head_dim;
    let at = (head * p.dst_head_stride + row) * row_words + i;
    if p.kind != F32 {
        dst[at] = half_bits(start, 2u * i) | (half_bits(start, 2u * i + 1u) << 16u);
    } else if i < p.rotary_dim {
        dst[at] = bitcast<u32>(turned(start, i));
    } else {
        dst[at] = src[start + i];
    }
}
