// Row dst_rows[h, i] of dst gets the bits of row src_rows[h, i] of src, for i < n_rows[h].
//
// An invocation owns one unit of one list entry: 16 bytes with VECTOR (rows of whole units, first
// row at a unit), else a word. Entries beyond a head's count and rows outside are left out. With
// SHIFTED, rows of halves begin in the middle of a word of src.
//
// Bytes: the rows, once in and once out. Bound: memory.

//# import shared/common

struct Params {
    n_kv_heads: u32,
    head_dim: u32,
    list_stride: u32,
    dst_head_stride: u32,
    src_head_stride: u32,
    // Rows that lists may name are below these: those of a head, or all where heads share them.
    src_limit: u32,
    dst_limit: u32,
    // Units.
    row_units: u32,
    src_offset: u32,
    src_rows_offset: u32,
    dst_rows_offset: u32,
    n_rows_offset: u32,
}

//# if VECTOR
alias Unit = vec4<u32>;
//# else
alias Unit = u32;
//# end

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> src: array<Unit>;
@group(0) @binding(2) var<storage, read> src_rows: array<u32>;
@group(0) @binding(3) var<storage, read> dst_rows: array<u32>;
@group(0) @binding(4) var<storage, read> n_rows: array<u32>;
@group(0) @binding(5) var<storage, read_write> dst: array<Unit>;

fn unit(at: u32) -> Unit {
//# if SHIFTED
    return (src[at] >> 16u) | (src[at + 1u] << 16u);
//# else
    return src[at];
//# end
}

@compute @workgroup_size(256)
fn kv_gather(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let item = flat_index(workgroup, grid) * 256u + lane;
    let entry = item / p.row_units;
    let i = item - entry * p.row_units;
    let head = entry / p.list_stride;
    if head >= p.n_kv_heads {
        return;
    }
    if entry - head * p.list_stride >= n_rows[p.n_rows_offset + head] {
        return;
    }
    let src_row = src_rows[p.src_rows_offset + entry];
    let dst_row = dst_rows[p.dst_rows_offset + entry];
    if src_row >= p.src_limit || dst_row >= p.dst_limit {
        return;
    }
    let src_at = p.src_offset + (head * p.src_head_stride + src_row) * p.row_units + i;
    dst[(head * p.dst_head_stride + dst_row) * p.row_units + i] = unit(src_at);
}
