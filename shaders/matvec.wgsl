// out = x W^T (+ bias) (+ out) for up to ROWS rows of x; x is [T, n_in], W is [n_out, n_in].
//
// A workgroup owns 4 rows of W and all rows of x. Its GROUP invocations walk along the 4 rows side
// by side, a unit of 16 bytes of each at a time, so that 4 loads are under way and every x serves 4
// products. The sums of the invocations meet at the end. W is read once, whatever T is.
//
// The binding holds the rows [first_out, first_out + shard_rows) of W. Rows are whole units, filled
// up with zeros; x beyond n_in is taken for 0, since not-a-number may follow.
//
// With ROUND_X, x is rounded to bf16 on its way.
//
// Bytes: W, once. x comes from cache, 4 T n_in for each 4 rows of W. Bound: memory.

//# import shared/common
//# if HAS_SUBGROUPS
//# import shared/subgroups
//# end
//# import shared/element X=bias
//# import shared/row4 X=x VECTOR=X_VECTOR

struct Params {
    n_rows: u32,
    n_in: u32,
    n_out: u32,
    accumulate: u32,
    first_out: u32,
    shard_rows: u32,
    // Units.
    weight_offset: u32,
    row_units: u32,
    // F32, F16 or BF16; anything else is no bias.
    bias_kind: u32,
    bias_offset: u32,
    x_offset: u32,
    out_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> bias: array<u32>;
@group(0) @binding(3) var<storage, read> x: array<x_unit>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

// Elements [i, i + 4) of row t of x; rows beyond the last are the last again.
fn x_load4(t: u32, i: u32) -> vec4<f32> {
    let quad = x_row4(p.x_offset + min(t, p.n_rows - 1u) * p.n_in, i, p.n_in);
//# if ROUND_X
    return round4_to_bf16(quad);
//# else
    return quad;
//# end
}

//# if WEIGHT_KIND != 0
fn low(unit: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(unpack_halves(WEIGHT_KIND, unit.x), unpack_halves(WEIGHT_KIND, unit.y));
}

fn high(unit: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(unpack_halves(WEIGHT_KIND, unit.z), unpack_halves(WEIGHT_KIND, unit.w));
}
//# end

// For each row of x, the parts of the 4 sums. A subgroup has at least 4 invocations.
//# if HAS_SUBGROUPS
const N_PARTS: u32 = GROUP / 4u;
//# else
const N_PARTS: u32 = GROUP;
//# end
var<workgroup> parts: array<vec4<f32>, ROWS * N_PARTS>;

@compute @workgroup_size(GROUP)
fn matvec(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
//# if HAS_SUBGROUPS
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) n_subgroups: u32,
//# end
) {
    // Rows beyond the last are the last again; nobody writes their sums.
    let first = flat_index(workgroup, grid) * 4u;
    let rows = min(vec4<u32>(first, first + 1u, first + 2u, first + 3u),
        vec4<u32>(p.shard_rows - 1u));
    let start = p.weight_offset + rows * p.row_units;
    var sums = array<vec4<f32>, ROWS>();
    for (var unit = lane; unit < p.row_units; unit += GROUP) {
        let unit_a = weight[start.x + unit];
        let unit_b = weight[start.y + unit];
        let unit_c = weight[start.z + unit];
        let unit_d = weight[start.w + unit];
//# if WEIGHT_KIND == 0
        let a = bitcast<vec4<f32>>(unit_a);
        let b = bitcast<vec4<f32>>(unit_b);
        let c = bitcast<vec4<f32>>(unit_c);
        let d = bitcast<vec4<f32>>(unit_d);
        for (var t = 0u; t < ROWS; t++) {
            let v = x_load4(t, unit * 4u);
            sums[t] += vec4<f32>(dot(a, v), dot(b, v), dot(c, v), dot(d, v));
        }
//# else
        let a = low(unit_a);
        let b = low(unit_b);
        let c = low(unit_c);
        let d = low(unit_d);
        let e = high(unit_a);
        let f = high(unit_b);
        let g = high(unit_c);
        let h = high(unit_d);
        for (var t = 0u; t < ROWS; t++) {
            let v = x_load4(t, unit * 8u);
            let w = x_load4(t, unit * 8u + 4u);
            sums[t] += vec4<f32>(dot(a, v), dot(b, v), dot(c, v), dot(d, v));
            sums[t] += vec4<f32>(dot(e, w), dot(f, w), dot(g, w), dot(h, w));
        }
//# end
    }

//# if HAS_SUBGROUPS
    let slot = subgroup_slot(subgroup, subgroup_lane);
    for (var t = 0u; t < ROWS; t++) {
        let part = subgroupAdd(sums[t]);
        if slot != NO_SLOT {
            parts[t * N_PARTS + slot] = part;
        }
    }
    workgroupBarrier();
    let n_parts = n_subgroups;
//# else
    for (var t = 0u; t < ROWS; t++) {
        parts[t * N_PARTS + lane] = sums[t];
    }
    workgroupBarrier();
    for (var half = GROUP / 2u; half >= 8u; half /= 2u) {
        if lane < half {
            for (var t = 0u; t < ROWS; t++) {
                parts[t * N_PARTS + lane] += parts[t * N_PARTS + lane + half];
            }
        }
        workgroupBarrier();
    }
    let n_parts = 8u;
//# end

    // An invocation for each element of out.
    let t = lane / 4u;
    let row = first + lane % 4u;
    if t >= min(p.n_rows, ROWS) || row >= p.shard_rows {
        return;
    }
    var sum = 0.0;
    for (var i = 0u; i < n_parts; i++) {
        sum += parts[t * N_PARTS + i][lane % 4u];
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
