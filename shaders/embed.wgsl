// out[t] = scale * table[ids[t]], widened to f32: one element per invocation, so that neighbours
// read neighbouring halves and write neighbouring words.
//
// The binding holds the rows [first_row, first_row + shard_rows) of the table; each shard writes
// its own tokens. An id that no row has gives zeros, written with the first shard.
//
// Bytes: T D of the table, 4 T D out. Bound: memory.

//# import shared/common
//# import shared/element X=table

struct Params {
    n_tokens: u32,
    width: u32,
    scale: f32,
    kind: u32,
    n_vocab: u32,
    first_row: u32,
    shard_rows: u32,
    // Element of the shard's first row, and elements from one row to the next.
    table_offset: u32,
    row_elements: u32,
    ids_offset: u32,
    out_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> table: array<u32>;
@group(0) @binding(2) var<storage, read> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn embed(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat_index(workgroup, grid) * 256u + lane;
    if i >= p.n_tokens * p.width {
        return;
    }
    let token = i / p.width;
    let column = i - token * p.width;
    let id = ids[p.ids_offset + token];
    if id >= p.n_vocab {
        if p.first_row == 0u {
            out[p.out_offset + i] = 0.0;
        }
        return;
    }
    // Wraps to a large number for the rows of an earlier shard.
    let row = id - p.first_row;
    if row < p.shard_rows {
        let at = p.table_offset + row * p.row_elements + column;
        out[p.out_offset + i] = p.scale * table_element(p.kind, at);
    }
}
