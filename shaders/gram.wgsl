// out[h] += sum over tokens and over the group's heads of x x^T.
//
// A workgroup owns a tile of 32 x 32 of one matrix and loops over all vectors of its group, 32 at a
// time through shared memory; an invocation owns 2 x 2 elements in registers.
//
// Bytes: 4 T H Dh for each tile of 32 columns, from cache; FLOPs 2 T H Dh^2. Bound: arithmetic.

//# import shared/common

struct Params {
    n_tokens: u32,
    n_heads: u32,
    group: u32,
    head_dim: u32,
    x_offset: u32,
    out_offset: u32,
}

const TILE: u32 = 32u;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

// [vector, column].
var<workgroup> tile_rows: array<f32, 1024>;
var<workgroup> tile_columns: array<f32, 1024>;

// Element `column` of vector `vector` of the group; 0 where there is none.
fn element(first_head: u32, vector: u32, column: u32) -> f32 {
    if vector >= p.n_tokens * p.group || column >= p.head_dim {
        return 0.0;
    }
    let token = vector / p.group;
    let head = first_head + vector - token * p.group;
    return x[p.x_offset + (token * p.n_heads + head) * p.head_dim + column];
}

@compute @workgroup_size(256)
fn gram(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let n_tiles = (p.head_dim + TILE - 1u) / TILE;
    let matrix = workgroup.y;
    let first_row = workgroup.x / n_tiles * TILE;
    let first_column = workgroup.x % n_tiles * TILE;
    let n_vectors = p.n_tokens * p.group;
    let row = lane / 16u;
    let column = lane % 16u;
    // (row, column), (row, column + 16), (row + 16, column), (row + 16, column + 16).
    var sums = vec4<f32>(0.0);
    for (var first = 0u; first < n_vectors; first += TILE) {
        for (var i = lane; i < 1024u; i += 256u) {
            let vector = first + i / TILE;
            let head = matrix * p.group;
            tile_rows[i] = element(head, vector, first_row + i % TILE);
            tile_columns[i] = element(head, vector, first_column + i % TILE);
        }
        workgroupBarrier();
        for (var i = 0u; i < 1024u; i += TILE) {
            let a = vec2<f32>(tile_rows[i + row], tile_rows[i + row + 16u]);
            let b = vec2<f32>(tile_columns[i + column], tile_columns[i + column + 16u]);
            sums += a.xxyy * b.xyxy;
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        let to_row = first_row + row + 16u * (i / 2u);
        let to_column = first_column + column + 16u * (i % 2u);
        if to_row < p.head_dim && to_column < p.head_dim {
            let at = (matrix * p.head_dim + to_row) * p.head_dim + to_column;
            out[p.out_offset + at] += sums[i];
        }
    }
}
