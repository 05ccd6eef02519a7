// out = x W^T (+ bias) (+ out) for many rows of x; x is [T, n_in], W is [n_out, n_in].
//
// A workgroup of 16 x 16 invocations owns a tile of TILE x TILE of out, an invocation 4 x 4 of it
// (8 x 8 with WIDE, in quarters that lie TILE / 2 apart), in registers. Along n_in it goes DEPTH =
// 2048 / TILE elements at a time: every invocation loads one block of 4 rows x 4 columns, the lower
// half of them of x, the upper half of W, widens it, turns it and puts it into shared memory (16
// KiB), while the block after that is on its way.
//
// Shared memory holds vectors of 4 rows, [DEPTH, TILE / 4]. Vector m of depth k lies at m ^ (k / 4),
// so that neighbours that write along k hit different banks.
//
// The binding holds the rows [first_out, first_out + shard_rows) of W. Rows are whole vectors,
// filled up with zeros; x beyond n_in is taken for 0, since not-a-number may follow.
//
// Bytes: W once for each TILE rows of x, x once for each TILE rows of W. FLOPs: 2 T n_in n_out.
// Bound: arithmetic.

//# import common
//# import element X=bias

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
//# if X_VECTOR
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
//# else
@group(0) @binding(3) var<storage, read> x: array<f32>;
//# end
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

//# if WIDE
const TILE: u32 = 128u;
//# else
const TILE: u32 = 64u;
//# end
const DEPTH: u32 = 2048u / TILE;
// Vectors of a tile's column, of its depth, and of half of shared memory.
const HEIGHT: u32 = TILE / 4u;
const STEPS: u32 = DEPTH / 4u;
const W_TILE: u32 = DEPTH * HEIGHT;

var<workgroup> tiles: array<vec4<f32>, 2u * W_TILE>;

// Columns [k, k + 4) of row `row` of x; rows beyond the last are the last again.
fn x_load4(row: u32, k: u32) -> vec4<f32> {
    let start = p.x_offset + min(row, p.n_rows - 1u) * p.n_in;
//# if X_VECTOR
    if k < p.n_in {
        return x[(start + k) / 4u];
    }
    return vec4<f32>(0.0);
//# else
    let at = start + min(vec4<u32>(k, k + 1u, k + 2u, k + 3u), vec4<u32>(p.n_in - 1u));
    let elements = vec4<f32>(x[at.x], x[at.y], x[at.z], x[at.w]);
    let inside = vec4<u32>(k, k + 1u, k + 2u, k + 3u) < vec4<u32>(p.n_in);
    return select(vec4<f32>(0.0), elements, inside);
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
fn load_block(is_weight: bool, row: u32, k: u32) -> mat4x4<f32> {
    if is_weight {
        return mat4x4<f32>(weight_load4(row, k), weight_load4(row + 1u, k),
            weight_load4(row + 2u, k), weight_load4(row + 3u, k));
    }
    return mat4x4<f32>(x_load4(row, k), x_load4(row + 1u, k),
        x_load4(row + 2u, k), x_load4(row + 3u, k));
}

// Adds the products of one quarter to what out gets, and writes it: rows [t, t + 4), columns
// [row, row + 4) of the shard.
fn finish(t: u32, row: u32, sums: mat4x4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            if t + i >= p.n_rows || row + j >= p.shard_rows {
                continue;
            }
            let o = p.first_out + row + j;
            var sum = sums[i][j];
            if p.bias_kind <= BF16 {
                sum += bias_element(p.bias_kind, p.bias_offset + o);
            }
            let to = p.out_offset + (t + i) * p.n_out + o;
            if p.accumulate != 0u {
                sum += out[to];
            }
            out[to] = sum;
        }
    }
}

@compute @workgroup_size(256)
fn matmul(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first_row = workgroup.x * TILE;
    let first_t = workgroup.y * TILE;

    // What this invocation loads: neighbours go along the columns.
    let is_weight = lane >= 128u;
    let step = lane % STEPS;
    let block = lane % 128u / STEPS;
    let load_row = select(first_t, first_row, is_weight) + 4u * block;
    let store = select(0u, W_TILE, is_weight) + 4u * step * HEIGHT + (block ^ step);

    // What it computes.
    let own_t = lane / 16u;
    let own_row = lane % 16u;
    var sums_a = mat4x4<f32>();
//# if WIDE
    var sums_b = mat4x4<f32>();
    var sums_c = mat4x4<f32>();
    var sums_d = mat4x4<f32>();
//# end

    var next = load_block(is_weight, load_row, 4u * step);
    for (var first_k = 0u; first_k < p.n_in; first_k += DEPTH) {
        workgroupBarrier();
        let turned = transpose(next);
        tiles[store] = turned[0];
        tiles[store + HEIGHT] = turned[1];
        tiles[store + 2u * HEIGHT] = turned[2];
        tiles[store + 3u * HEIGHT] = turned[3];
        workgroupBarrier();
        next = load_block(is_weight, load_row, first_k + DEPTH + 4u * step);
        for (var k = 0u; k < DEPTH; k++) {
            let at_x = k * HEIGHT + (own_t ^ (k / 4u));
            let at_w = W_TILE + k * HEIGHT + (own_row ^ (k / 4u));
            let a = tiles[at_x];
            let w = tiles[at_w];
            sums_a[0] += a.x * w;
            sums_a[1] += a.y * w;
            sums_a[2] += a.z * w;
            sums_a[3] += a.w * w;
//# if WIDE
            let b = tiles[at_x + 16u];
            let v = tiles[at_w + 16u];
            sums_b[0] += a.x * v;
            sums_b[1] += a.y * v;
            sums_b[2] += a.z * v;
            sums_b[3] += a.w * v;
            sums_c[0] += b.x * w;
            sums_c[1] += b.y * w;
            sums_c[2] += b.z * w;
            sums_c[3] += b.w * w;
            sums_d[0] += b.x * v;
            sums_d[1] += b.y * v;
            sums_d[2] += b.z * v;
            sums_d[3] += b.w * v;
//# end
        }
    }

    let t = first_t + 4u * own_t;
    let row = first_row + 4u * own_row;
    finish(t, row, sums_a);
//# if WIDE
    finish(t, row + 64u, sums_b);
    finish(t + 64u, row, sums_c);
    finish(t + 64u, row + 64u, sums_d);
//# end
}
