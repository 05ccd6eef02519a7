// out = x W^T (+ bias) (+ out) with quantised weights in tiles; x is [T, n_in], W is [n_out, n_in].
//
// A workgroup owns a tile, 16 rows of W, and ROWS rows of x. An invocation has 4 rows of the tile
// and every (GROUP / 4)th unit of 32 columns: a load brings 4 codes of each of its 4 rows, and
// codes that are unpacked serve all rows of x. The sums of the invocations meet at the end.
//
// With PLANES, x comes from `round_rows`: codes of 8 bits, or 128 high + low. A unit then adds
// d s (sum of codes * rounded - offset * sum of rounded), whose brackets are whole numbers, or
// d s (sum of codes * rounded) + m s (sum of rounded). Else x is f32.
//
// GROUP follows from the shape of W, and the order of sums from GROUP: the result of a row of x
// depends neither on the other rows nor on their number.
//
// The binding holds the rows [first_out, first_out + shard_rows) of W, whole tiles.
//
// Bytes: W once for each ROWS rows of x. Bound: memory; arithmetic where rows are many.

//# import shared/common
//# import shared/element X=bias
//# import shared/tiles
//# if PLANES
//# else
//# import shared/row4 X=x VECTOR=X_VECTOR
//# end

struct Params {
    n_rows: u32,
    n_in: u32,
    n_out: u32,
    accumulate: u32,
    first_out: u32,
    shard_rows: u32,
    // Vectors: of the first tile, from one tile to the next, and from a tile to its scales.
    weight_offset: u32,
    tile_vectors: u32,
    scales_at: u32,
    // F32, F16 or BF16; anything else is no bias.
    bias_kind: u32,
    bias_offset: u32,
    x_offset: u32,
    out_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> bias: array<u32>;
//# if PLANES
@group(0) @binding(3) var<storage, read> x: array<vec4<u32>>;
//# else
@group(0) @binding(3) var<storage, read> x: array<x_unit>;
//# end
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

const TILE_ROWS: u32 = 16u;
const UNIT: u32 = 32u;
// Invocations that share a unit, with 4 rows each.
const QUADS: u32 = TILE_ROWS / 4u;

// For each row of x, the parts of the sums.
var<workgroup> parts: array<vec4<f32>, ROWS * GROUP>;

//# if PLANES
//# if HAS_PACKED_DOT
fn dot_bytes(a: u32, b: u32) -> i32 {
    return dot4I8Packed(a, b);
}
//# else
fn dot_bytes(a: u32, b: u32) -> i32 {
    return dot(signed_bytes(a), signed_bytes(b));
}
//# end

// 4 codes of each of 4 rows with 4 codes of x.
fn dot_rows(codes: vec4<u32>, x4: u32) -> vec4<i32> {
    return vec4<i32>(dot_bytes(codes.x, x4), dot_bytes(codes.y, x4), dot_bytes(codes.z, x4),
        dot_bytes(codes.w, x4));
}

fn dot_half(a: vec4<u32>, b: vec4<u32>, c: vec4<u32>, d: vec4<u32>, half: vec4<u32>) -> vec4<i32> {
    return dot_rows(a, half.x) + dot_rows(b, half.y) + dot_rows(c, half.z) + dot_rows(d, half.w);
}

// What a unit adds to the sums of a row of x.
fn unit_sum(codes: array<vec4<u32>, 8>, scales: UnitScales, t: u32, unit: u32) -> vec4<f32> {
    let index = min(t, p.n_rows - 1u) * (p.n_in / UNIT) + unit;
    let at = p.x_offset + (2u * PLANES + 1u) * index;
    var first = dot_half(codes[0], codes[1], codes[2], codes[3], x[at]);
    var second = dot_half(codes[4], codes[5], codes[6], codes[7], x[at + 1u]);
//# if PLANES == 2
    first = (first << vec4<u32>(7u))
        + dot_half(codes[0], codes[1], codes[2], codes[3], x[at + 2u]);
    second = (second << vec4<u32>(7u))
        + dot_half(codes[4], codes[5], codes[6], codes[7], x[at + 3u]);
//# end
    let rest = x[at + 2u * PLANES];
    let s = bitcast<f32>(rest.x);
    let totals = bitcast<vec2<i32>>(rest.yz);
//# if SCALES == 4
    let a = vec4<f32>(first - vec4<i32>(CODE_OFFSET * totals.x));
    let b = vec4<f32>(second - vec4<i32>(CODE_OFFSET * totals.y));
    return (scales.d * s) * a + (scales.other * s) * b;
//# else
    let total = totals.x + totals.y;
    let sum = (scales.d * s) * vec4<f32>(first + second - vec4<i32>(CODE_OFFSET * total));
    if HAS_MIN {
        return sum + scales.other * (s * f32(total));
    }
    return sum;
//# end
}
//# else
// As above, of x as it is.
fn unit_sum(codes: array<vec4<u32>, 8>, scales: UnitScales, t: u32, unit: u32) -> vec4<f32> {
    let row = p.x_offset + min(t, p.n_rows - 1u) * p.n_in;
    var halves = array<vec4<f32>, 2>();
    var total = vec4<f32>(0.0);
    for (var i = 0u; i < 8u; i++) {
        let v = x_row4(row, unit * UNIT + 4u * i, p.n_in);
        total += v;
        halves[i / 4u] += vec4<f32>(dot(values(codes[i].x), v), dot(values(codes[i].y), v),
            dot(values(codes[i].z), v), dot(values(codes[i].w), v));
    }
    if HAS_HALVES {
        return scales.d * halves[0] + scales.other * halves[1];
    }
    let sum = scales.d * (halves[0] + halves[1]);
    if HAS_MIN {
        return sum + scales.other * dot(total, vec4<f32>(1.0));
    }
    return sum;
}

// Codes of one row, less their offset.
fn values(codes: u32) -> vec4<f32> {
    return vec4<f32>(signed_bytes(codes) - vec4<i32>(CODE_OFFSET));
}
//# end

@compute @workgroup_size(GROUP)
fn tile_product(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    // Blocks of rows of x that share a tile follow each other.
    let n_blocks = (p.n_rows + ROWS - 1u) / ROWS;
    let index = flat_index(workgroup, grid);
    let tile = index / n_blocks;
    let first_t = (index - tile * n_blocks) * ROWS;
    if tile * TILE_ROWS >= p.shard_rows {
        return;
    }
//# if TABLE
    fill_table(lane);
    workgroupBarrier();
//# end

    let quad = lane % QUADS;
    let planes = p.weight_offset + tile * p.tile_vectors;
    let n_units = p.n_in / UNIT;
    var sums = array<vec4<f32>, ROWS>();
    for (var unit = lane / QUADS; unit < n_units; unit += GROUP / QUADS) {
        let codes = unit_codes(planes + unit * UNIT_VECTORS + quad);
        let scales = unit_scales(planes + p.scales_at, unit, quad);
        for (var t = 0u; t < ROWS; t++) {
            sums[t] += unit_sum(codes, scales, first_t + t, unit);
        }
    }

    for (var t = 0u; t < ROWS; t++) {
        parts[t * GROUP + lane] = sums[t];
    }
    workgroupBarrier();
    // Halves of the group are whole sets of quads, down to 8 of them.
    for (var half = GROUP / 2u; half >= 8u * QUADS; half /= 2u) {
        if lane < half {
            for (var t = 0u; t < ROWS; t++) {
                parts[t * GROUP + lane] += parts[t * GROUP + lane + half];
            }
        }
        workgroupBarrier();
    }

    for (var i = lane; i < ROWS * TILE_ROWS; i += GROUP) {
        let t = first_t + i / TILE_ROWS;
        let in_tile = i % TILE_ROWS;
        let row = tile * TILE_ROWS + in_tile;
        if t >= p.n_rows || row >= p.shard_rows {
            continue;
        }
        var sum = 0.0;
        for (var part = 0u; part < 8u; part++) {
            sum += parts[i / TILE_ROWS * GROUP + part * QUADS + in_tile / 4u][in_tile % 4u];
        }
        let o = p.first_out + row;
        if p.bias_kind <= BF16 {
            sum += bias_element(p.bias_kind, p.bias_offset + o);
        }
        let to = p.out_offset + t * p.n_out + o;
        if p.accumulate != 0u {
            sum += out[to];
        }
        out[to] = sum;
    }
}
