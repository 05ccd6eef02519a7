// out[t, h] = x[t, h] W[h / group], for vectors that lie head by head or token by token.
//
// The vectors of all heads that share a matrix are one product [n, Dh] x [Dh, r]. A workgroup owns
// VECTORS of them and RANKS columns. It loops over the channels, CHANNELS at a time through shared
// memory; an invocation owns 4 vectors of 4 columns each in registers.
//
// Bytes: 4 T H (Dh + r), and the matrices once for each VECTORS from cache; FLOPs 2 T H Dh r.
// Bound: memory for the ranks in use (16 to 32). Shared memory 13 KiB.

//# import shared/row4 X=x
//# import shared/row4 X=w

struct Params {
    n_tokens: u32,
    n_heads: u32,
    group: u32,
    head_dim: u32,
    rank: u32,
    head_major: u32,
    x_offset: u32,
    w_offset: u32,
    out_offset: u32,
}

const GROUP: u32 = 128u;
const VECTORS: u32 = 64u;
const RANKS: u32 = 32u;
const CHANNELS: u32 = 32u;
// Vectors of 4 channels, and of 4 columns.
const QUADS: u32 = 8u;
// One more than a tile's row has: invocations that read one below the other meet other banks.
const X_ROW: u32 = QUADS + 1u;
// Vectors from one of an invocation to its next.
const STEP: u32 = GROUP / QUADS;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<x_unit>;
@group(0) @binding(2) var<storage, read> w: array<w_unit>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

// [vector][4 channels].
var<workgroup> x_tile: array<vec4<f32>, VECTORS * X_ROW>;
// [channel][4 columns].
var<workgroup> w_tile: array<vec4<f32>, CHANNELS * QUADS>;

// Which of all vectors is number `vector` of those of a matrix.
fn place_of(matrix: u32, vector: u32) -> u32 {
    if p.head_major == 1u {
        return matrix * p.group * p.n_tokens + vector;
    }
    let token = vector / p.group;
    return token * p.n_heads + matrix * p.group + vector - token * p.group;
}

@compute @workgroup_size(128)
fn project_heads(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = workgroup.x * VECTORS;
    let matrix = workgroup.y;
    let first_column = workgroup.z * RANKS;
    let n = min(VECTORS, p.n_tokens * p.group - first);
    let w_start = p.w_offset + matrix * p.head_dim * p.rank;
    let own_quad = lane % QUADS;
    let own_vector = lane / QUADS;

    var sums = array<vec4<f32>, 4>();
    for (var k0 = 0u; k0 < p.head_dim; k0 += CHANNELS) {
        workgroupBarrier();
        for (var i = lane; i < n * QUADS; i += GROUP) {
            let vector = i / QUADS;
            let row = p.x_offset + place_of(matrix, first + vector) * p.head_dim;
            x_tile[vector * X_ROW + i % QUADS] = x_row4(row, k0 + i % QUADS * 4u, p.head_dim);
        }
        for (var i = lane; i < CHANNELS * QUADS; i += GROUP) {
            let k = k0 + i / QUADS;
            var columns = vec4<f32>(0.0);
            if k < p.head_dim {
                columns = w_row4(w_start + k * p.rank, first_column + i % QUADS * 4u, p.rank);
            }
            w_tile[i] = columns;
        }
        workgroupBarrier();
        for (var c = 0u; c < QUADS; c++) {
            let at = 4u * c * QUADS + own_quad;
            let w0 = w_tile[at];
            let w1 = w_tile[at + QUADS];
            let w2 = w_tile[at + 2u * QUADS];
            let w3 = w_tile[at + 3u * QUADS];
            for (var i = 0u; i < 4u; i++) {
                // The vectors of one token fill a part of the first round.
                if i * STEP < n {
                    // Beyond the last there is anything, and nobody takes the sum.
                    let channels = x_tile[(own_vector + i * STEP) * X_ROW + c];
                    sums[i] += channels.x * w0;
                    sums[i] += channels.y * w1;
                    sums[i] += channels.z * w2;
                    sums[i] += channels.w * w3;
                }
            }
        }
    }
    for (var i = 0u; i < 4u; i++) {
        let vector = own_vector + i * STEP;
        if vector < n {
            let row = p.out_offset + place_of(matrix, first + vector) * p.rank;
            for (var j = 0u; j < 4u; j++) {
                let column = first_column + 4u * own_quad + j;
                if column < p.rank {
                    out[row + column] = sums[i][j];
                }
            }
        }
    }
}
