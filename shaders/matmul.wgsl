// out = x W^T (+ bias) (+ out) for many rows of x; x is [T, n_in], W is [n_out, n_in].
//
// A workgroup of SIDE x SIDE invocations owns a tile of TILE x TILE of out (64, or 128 with WIDE),
// an invocation 8 x 8 of it: 4 quarters of 4 x 4, TILE / 2 apart, in registers. Along n_in it goes
// 16 elements at a time: the tiles of x and W are loaded in blocks of 4 rows x 4 columns, widened,
// turned and put into shared memory (8 or 16 KiB), while the blocks after those are on their way.
//
// Shared memory holds vectors of 4 rows, [DEPTH, TILE / 4]. Vector m of depth k lies at
// m ^ 2 (k / 4), so that neighbours that write along k hit different banks.
//
// The binding holds the rows [first_out, first_out + shard_rows) of W. Rows are whole vectors,
// filled up with zeros; x beyond n_in is taken for 0, since not-a-number may follow.
//
// With ROUND_X, x is rounded to bf16 on its way.
//
// Bytes: W once for each TILE rows of x, x once for each TILE rows of W. FLOPs: 2 T n_in n_out.
// Bound: arithmetic.

//# import shared/common
//# import shared/element X=bias
//# import shared/row4 X=x VECTOR=X_VECTOR

struct Params {
    n_rows: u32,
    n_in: u32,
    n_out: u32,
    accumulate: u32,
    first_out: u32,
    shard_rows: u32,
    // Vectors of 4 elements.
    weight_offset: u32,
    row_vectors: u32,
    // F32, F16 or BF16; anything else is no bias.
    bias_kind: u32,
    bias_offset: u32,
    x_offset: u32,
    out_offset: u32,
}

//# if WEIGHT_KIND == 0
alias Packed = vec4<u32>;
//# else
alias Packed = vec2<u32>;
//# end

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> weight: array<Packed>;
@group(0) @binding(2) var<storage, read> bias: array<u32>;
@group(0) @binding(3) var<storage, read> x: array<x_unit>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

//# if WIDE
const SIDE: u32 = 16u;
//# else
const SIDE: u32 = 8u;
//# end
const GROUP: u32 = SIDE * SIDE;
const TILE: u32 = 8u * SIDE;
const DEPTH: u32 = 16u;
// Vectors from one depth to the next, and to the tile of W.
const HEIGHT: u32 = 2u * SIDE;
const W_TILE: u32 = DEPTH * HEIGHT;

var<workgroup> tiles: array<vec4<f32>, 2u * W_TILE>;

// Columns [k, k + 4) of row `row` of x; rows beyond the last are the last again.
fn x_load4(row: u32, k: u32) -> vec4<f32> {
    let quad = x_row4(p.x_offset + min(row, p.n_rows - 1u) * p.n_in, k, p.n_in);
//# if ROUND_X
    return round4_to_bf16(quad);
//# else
    return quad;
//# end
}

// Columns [k, k + 4) of row `row` of the shard.
fn weight_load4(row: u32, k: u32) -> vec4<f32> {
    if k >= p.n_in {
        return vec4<f32>(0.0);
    }
    let last = p.shard_rows - 1u;
    let unit = weight[p.weight_offset + min(row, last) * p.row_vectors + k / 4u];
//# if WEIGHT_KIND == 0
    return bitcast<vec4<f32>>(unit);
//# else
    return vec4<f32>(unpack_halves(WEIGHT_KIND, unit.x), unpack_halves(WEIGHT_KIND, unit.y));
//# end
}

// 4 rows x 4 columns.
fn x_block(row: u32, k: u32) -> mat4x4<f32> {
    return mat4x4<f32>(x_load4(row, k), x_load4(row + 1u, k), x_load4(row + 2u, k),
        x_load4(row + 3u, k));
}

fn weight_block(row: u32, k: u32) -> mat4x4<f32> {
    return mat4x4<f32>(weight_load4(row, k), weight_load4(row + 1u, k), weight_load4(row + 2u, k),
        weight_load4(row + 3u, k));
}

// Puts a block where its columns are depths.
fn store_block(at: u32, block: mat4x4<f32>) {
    let turned = transpose(block);
    tiles[at] = turned[0];
    tiles[at + HEIGHT] = turned[1];
    tiles[at + 2u * HEIGHT] = turned[2];
    tiles[at + 3u * HEIGHT] = turned[3];
}

// Writes one quarter: rows [t, t + 4), columns [row, row + 4) of the shard.
fn finish(t: u32, row: u32, sums: mat4x4<f32>) {
    for (var j = 0u; j < 4u; j++) {
        if row + j >= p.shard_rows {
            continue;
        }
        let o = p.first_out + row + j;
        var extra = 0.0;
        if p.bias_kind <= BF16 {
            extra = bias_element(p.bias_kind, p.bias_offset + o);
        }
        for (var i = 0u; i < 4u; i++) {
            if t + i >= p.n_rows {
                continue;
            }
            let to = p.out_offset + (t + i) * p.n_out + o;
            var sum = sums[i][j] + extra;
            if p.accumulate != 0u {
                sum += out[to];
            }
            out[to] = sum;
        }
    }
}

@compute @workgroup_size(GROUP)
fn matmul(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first_row = workgroup.x * TILE;
    let first_t = workgroup.y * TILE;

    // The blocks that this invocation loads: neighbours go along the columns. There are 4 along the
    // depth and HEIGHT along the rows, of x and of W: two for each invocation, or one with WIDE.
    let depth = lane % 4u;
    let block = lane / 4u % HEIGHT;
    let store = 4u * depth * HEIGHT + (block ^ (2u * depth));
    let load_t = first_t + 4u * block;
    let load_row = first_row + 4u * block;
    var load_k = 4u * depth;
//# if WIDE
    let is_weight = lane >= GROUP / 2u;
    var next = mat4x4<f32>();
    if is_weight {
        next = weight_block(load_row, load_k);
    } else {
        next = x_block(load_t, load_k);
    }
//# else
    var next_x = x_block(load_t, load_k);
    var next_w = weight_block(load_row, load_k);
//# end

    // What it computes.
    let own_t = lane / SIDE;
    let own_row = lane % SIDE;
    var sums_a = mat4x4<f32>();
    var sums_b = mat4x4<f32>();
    var sums_c = mat4x4<f32>();
    var sums_d = mat4x4<f32>();
    for (var first_k = 0u; first_k < p.n_in; first_k += DEPTH) {
        load_k += DEPTH;
        workgroupBarrier();
//# if WIDE
        store_block(store + select(0u, W_TILE, is_weight), next);
        workgroupBarrier();
        if is_weight {
            next = weight_block(load_row, load_k);
        } else {
            next = x_block(load_t, load_k);
        }
//# else
        store_block(store, next_x);
        store_block(store + W_TILE, next_w);
        workgroupBarrier();
        next_x = x_block(load_t, load_k);
        next_w = weight_block(load_row, load_k);
//# end
        for (var k = 0u; k < DEPTH; k++) {
            let at = k * HEIGHT;
            let swap = 2u * (k / 4u);
            let a = tiles[at + (own_t ^ swap)];
            let b = tiles[at + (own_t ^ swap) + SIDE];
            let v = tiles[W_TILE + at + (own_row ^ swap)];
            let w = tiles[W_TILE + at + (own_row ^ swap) + SIDE];
            sums_a[0] += a.x * v;
            sums_a[1] += a.y * v;
            sums_a[2] += a.z * v;
            sums_a[3] += a.w * v;
            sums_b[0] += a.x * w;
            sums_b[1] += a.y * w;
            sums_b[2] += a.z * w;
            sums_b[3] += a.w * w;
            sums_c[0] += b.x * v;
            sums_c[1] += b.y * v;
            sums_c[2] += b.z * v;
            sums_c[3] += b.w * v;
            sums_d[0] += b.x * w;
            sums_d[1] += b.y * w;
            sums_d[2] += b.z * w;
            sums_d[3] += b.w * w;
        }
    }

    let t = first_t + 4u * own_t;
    let row = first_row + 4u * own_row;
    finish(t, row, sums_a);
    finish(t, row + TILE / 2u, sums_b);
    finish(t + TILE / 2u, row, sums_c);
    finish(t + TILE / 2u, row + TILE / 2u, sums_d);
}
