// out[h, i] = the key of row rows[h, i] of KV head h, widened to f32. An invocation owns one
// element. A row outside of those there are gives zeros.
//
// Bytes: Hkv N Dh elements in, 4 Hkv N Dh out. Bound: memory.

//# import shared/common
//# import shared/element X=src

struct Params {
    n_kv_heads: u32,
    head_dim: u32,
    n_rows: u32,
    kind: u32,
    head_stride: u32,
    // Rows that a list may name are below this: those of a head, or all where heads share them.
    row_limit: u32,
    src_offset: u32,
    rows_offset: u32,
    out_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> src: array<u32>;
@group(0) @binding(2) var<storage, read> rows: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn kv_keys(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let item = flat_index(workgroup, grid) * 256u + lane;
    let entry = item / p.head_dim;
    if entry >= p.n_kv_heads * p.n_rows {
        return;
    }
    let head = entry / p.n_rows;
    let row = rows[p.rows_offset + entry];
    var key = 0.0;
    if row < p.row_limit {
        let first = p.src_offset + (head * p.head_stride + row) * 2u * p.head_dim;
        key = src_element(p.kind, first + item - entry * p.head_dim);
    }
    out[p.out_offset + item] = key;
}
