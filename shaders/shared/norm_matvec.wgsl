// Linear layers of the root-mean-square norm of x, for up to ROWS rows of x, in one launch.
//
// `project`: q, k and v, with RoPE on q and k. A workgroup owns 4 rows of one weight: for q and k
// the rows i, i + 1 of a head and their partners i + h, i + h + 1 (h = rotary_dim / 2), which the
// rotation mixes; else 4 rows in sequence.
// `gated`: out = silu(gate) * up, or with GELU gelu(gate) * up. A workgroup owns 2 rows of the gate
// and the same 2 of up.
//
// The norm is not stored: x is weighed by the norm's weights on the way, every workgroup sums the
// squares of x while it passes (x comes from cache), and the factor 1 / rms goes to the sums.
// With ROUND_X, what meets W is rounded to bf16, so the factor is needed before: every workgroup
// goes over x once more, for the squares.
//
// Bytes: the weights, once. Bound: memory.

//# import shared/common
//# if HAS_SUBGROUPS
//# import shared/subgroups
//# end
//# import shared/element X=vectors
//# if PROJECT
//# else
//# if GELU
//# import shared/gelu
//# end
//# end

// One layer of the call. (Uniform memory has no structures of 20 bytes: Params lists their parts.)
struct Layer {
    n_out: u32,
    // Units.
    weight_offset: u32,
    // F32, F16 or BF16; anything else is no bias.
    bias_kind: u32,
    bias_offset: u32,
    out_offset: u32,
}

struct Params {
    n_rows: u32,
    n_in: u32,
    eps: f32,
    x_offset: u32,
    norm_kind: u32,
    norm_offset: u32,
    row_units: u32,
    head_dim: u32,
    rotary_dim: u32,
    table_offset: u32,
    // q, k, v; or gate, up and (for its out_offset alone) the result.
    n_out_0: u32,
    weight_offset_0: u32,
    bias_kind_0: u32,
    bias_offset_0: u32,
    out_offset_0: u32,
    n_out_1: u32,
    weight_offset_1: u32,
    bias_kind_1: u32,
    bias_offset_1: u32,
    out_offset_1: u32,
    n_out_2: u32,
    weight_offset_2: u32,
    bias_kind_2: u32,
    bias_offset_2: u32,
    out_offset_2: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> vectors: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> weight: array<vec4<u32>>;
//# if PROJECT
@group(0) @binding(4) var<storage, read> table: array<f32>;
@group(0) @binding(5) var<storage, read_write> q_out: array<f32>;
@group(0) @binding(6) var<storage, read_write> k_out: array<f32>;
@group(0) @binding(7) var<storage, read_write> v_out: array<f32>;
//# else
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
//# end

// Layer `i` of the parameters.
fn layer_of(i: u32) -> Layer {
    if i == 0u {
        return Layer(p.n_out_0, p.weight_offset_0, p.bias_kind_0, p.bias_offset_0, p.out_offset_0);
    }
    if i == 1u {
        return Layer(p.n_out_1, p.weight_offset_1, p.bias_kind_1, p.bias_offset_1, p.out_offset_1);
    }
    return Layer(p.n_out_2, p.weight_offset_2, p.bias_kind_2, p.bias_offset_2, p.out_offset_2);
}

// Elements [i, i + 4) of the norm's weights; i and the offset are multiples of 4.
fn norm_load4(i: u32) -> vec4<f32> {
    let at = p.norm_offset + i;
    if p.norm_kind == F32 {
        let word = vec4<u32>(vectors[at], vectors[at + 1u], vectors[at + 2u], vectors[at + 3u]);
        return bitcast<vec4<f32>>(word);
    }
    return vec4<f32>(
        unpack_halves(p.norm_kind, vectors[at / 2u]),
        unpack_halves(p.norm_kind, vectors[at / 2u + 1u]),
    );
}

fn bias_of(layer: Layer, row: u32) -> f32 {
    if layer.bias_kind > BF16 {
        return 0.0;
    }
    return vectors_element(layer.bias_kind, layer.bias_offset + row);
}

// For each row of x, the parts of 4 sums and of the sum of squares. A subgroup has at least 4
// invocations.
//# if HAS_SUBGROUPS
const N_PARTS: u32 = GROUP / 4u;
//# else
const N_PARTS: u32 = GROUP;
//# end
var<workgroup> parts: array<vec4<f32>, ROWS * N_PARTS>;
var<workgroup> squares: array<f32, ROWS * N_PARTS>;

//# if ROUND_X
// The factors 1 / rms of the rows of x, for which `squares` is used.
fn factors(lane: u32, slot: u32, n_slots: u32) -> array<f32, ROWS> {
    var square = array<f32, ROWS>();
    for (var i = lane * 4u; i < p.n_in; i += GROUP * 4u) {
        for (var t = 0u; t < ROWS; t++) {
            let v = x[(p.x_offset + min(t, p.n_rows - 1u) * p.n_in + i) / 4u];
            square[t] += dot(v, v);
        }
    }
//# if HAS_SUBGROUPS
    for (var t = 0u; t < ROWS; t++) {
        let total = subgroupAdd(square[t]);
        if slot != NO_SLOT {
            squares[t * N_PARTS + slot] = total;
        }
    }
    workgroupBarrier();
    let n_parts = n_slots;
//# else
    for (var t = 0u; t < ROWS; t++) {
        squares[t * N_PARTS + lane] = square[t];
    }
    workgroupBarrier();
    for (var half = GROUP / 2u; half >= 4u; half /= 2u) {
        if lane < half {
            for (var t = 0u; t < ROWS; t++) {
                squares[t * N_PARTS + lane] += squares[t * N_PARTS + lane + half];
            }
        }
        workgroupBarrier();
    }
    let n_parts = 4u;
//# end
    for (var t = 0u; t < ROWS; t++) {
        var sum = 0.0;
        for (var i = 0u; i < n_parts; i++) {
            sum += squares[t * N_PARTS + i];
        }
        square[t] = inverseSqrt(sum / f32(p.n_in) + p.eps);
    }
    // Nobody writes `squares` again before all have read them.
    workgroupBarrier();
    return square;
}
//# end

// x times the norm's weights against the weight rows that begin at these units, for all rows of x;
// the sums lie in `parts` and `squares`, in `n_parts` parts.
fn walk(start: vec4<u32>, lane: u32, slot: u32, n_slots: u32) -> u32 {
    var sums = array<vec4<f32>, ROWS>();
    var square = array<f32, ROWS>();
//# if ROUND_X
    let factor = factors(lane, slot, n_slots);
//# end
    for (var unit = lane; unit < p.row_units; unit += GROUP) {
        let unit_a = weight[start.x + unit];
        let unit_b = weight[start.y + unit];
        let unit_c = weight[start.z + unit];
        let unit_d = weight[start.w + unit];
//# if WEIGHT_KIND == 0
        let i = unit * 4u;
        if i < p.n_in {
            let g = norm_load4(i);
            for (var t = 0u; t < ROWS; t++) {
                let v = x[(p.x_offset + min(t, p.n_rows - 1u) * p.n_in + i) / 4u];
                square[t] += dot(v, v);
                let w = v * g;
                sums[t] += vec4<f32>(
                    dot(bitcast<vec4<f32>>(unit_a), w),
                    dot(bitcast<vec4<f32>>(unit_b), w),
                    dot(bitcast<vec4<f32>>(unit_c), w),
                    dot(bitcast<vec4<f32>>(unit_d), w),
                );
            }
        }
//# else
        for (var part = 0u; part < 2u; part++) {
            let i = unit * 8u + part * 4u;
            if i < p.n_in {
                let a = half_unit(unit_a, part);
                let b = half_unit(unit_b, part);
                let c = half_unit(unit_c, part);
                let d = half_unit(unit_d, part);
                let g = norm_load4(i);
                for (var t = 0u; t < ROWS; t++) {
                    let v = x[(p.x_offset + min(t, p.n_rows - 1u) * p.n_in + i) / 4u];
//# if ROUND_X
                    let w = round4_to_bf16(v * factor[t] * g);
//# else
                    square[t] += dot(v, v);
                    let w = v * g;
//# end
                    sums[t] += vec4<f32>(dot(a, w), dot(b, w), dot(c, w), dot(d, w));
                }
            }
        }
//# end
    }
//# if HAS_SUBGROUPS
    for (var t = 0u; t < ROWS; t++) {
        let sum = subgroupAdd(sums[t]);
        let total = subgroupAdd(square[t]);
        if slot != NO_SLOT {
            parts[t * N_PARTS + slot] = sum;
            squares[t * N_PARTS + slot] = total;
        }
    }
    workgroupBarrier();
    return n_slots;
//# else
    for (var t = 0u; t < ROWS; t++) {
        parts[t * N_PARTS + lane] = sums[t];
        squares[t * N_PARTS + lane] = square[t];
    }
    workgroupBarrier();
    for (var half = GROUP / 2u; half >= 4u; half /= 2u) {
        if lane < half {
            for (var t = 0u; t < ROWS; t++) {
                parts[t * N_PARTS + lane] += parts[t * N_PARTS + lane + half];
                squares[t * N_PARTS + lane] += squares[t * N_PARTS + lane + half];
            }
        }
        workgroupBarrier();
    }
    return 4u;
//# end
}

//# if WEIGHT_KIND != 0
fn half_unit(unit: vec4<u32>, part: u32) -> vec4<f32> {
    let words = select(unit.xy, unit.zw, part != 0u);
    return vec4<f32>(unpack_halves(WEIGHT_KIND, words.x), unpack_halves(WEIGHT_KIND, words.y));
}
//# end

// The 4 products of row t of x, after the norm.
fn total(t: u32, n_parts: u32) -> vec4<f32> {
    var sum = vec4<f32>(0.0);
    var square = 0.0;
    for (var i = 0u; i < n_parts; i++) {
        sum += parts[t * N_PARTS + i];
        square += squares[t * N_PARTS + i];
    }
//# if ROUND_X
    return sum;
//# else
    return sum * inverseSqrt(square / f32(p.n_in) + p.eps);
//# end
}

//# if PROJECT
@compute @workgroup_size(GROUP)
fn project(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
//# if HAS_SUBGROUPS
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) n_subgroups: u32,
//# end
) {
    var quad = flat_index(workgroup, grid);
    var which = 0u;
    var layer = layer_of(0u);
    if quad >= layer.n_out / 4u {
        quad -= layer.n_out / 4u;
        which = 1u;
        layer = layer_of(1u);
    }
    if which == 1u && quad >= layer.n_out / 4u {
        quad -= layer.n_out / 4u;
        which = 2u;
        layer = layer_of(2u);
    }
    let half = p.rotary_dim / 2u;
    let quads_per_head = p.head_dim / 4u;
    let head = quad / quads_per_head;
    let in_head = quad - head * quads_per_head;
    let turns = which < 2u && in_head < half / 2u;
    var first = quad * 4u;
    var rows = vec4<u32>(first, first + 1u, first + 2u, first + 3u);
    if turns {
        first = head * p.head_dim + in_head * 2u;
        rows = vec4<u32>(first, first + 1u, first + half, first + half + 1u);
    } else if which < 2u {
        first = head * p.head_dim + p.rotary_dim + (in_head - half / 2u) * 4u;
        rows = vec4<u32>(first, first + 1u, first + 2u, first + 3u);
    }
    // A grid split over two dimensions has workgroups beyond the last; they compute the last rows.
    rows = min(rows, vec4<u32>(layer.n_out - 1u));
    let start = layer.weight_offset + rows * p.row_units;
//# if HAS_SUBGROUPS
    let slot = subgroup_slot(subgroup, subgroup_lane);
    let n_parts = walk(start, lane, slot, n_subgroups);
//# else
    let n_parts = walk(start, lane, 0u, 0u);
//# end
    if lane >= min(p.n_rows, ROWS) {
        return;
    }
    var y = total(lane, n_parts) + vec4<f32>(
        bias_of(layer, rows.x),
        bias_of(layer, rows.y),
        bias_of(layer, rows.z),
        bias_of(layer, rows.w),
    );
    if turns {
        let at = p.table_offset + lane * p.rotary_dim + in_head * 2u;
        let cosine = vec2<f32>(table[at], table[at + 1u]);
        let sine = vec2<f32>(table[at + half], table[at + half + 1u]);
        y = vec4<f32>(y.xy * cosine - y.zw * sine, y.zw * cosine + y.xy * sine);
    }
    let to = layer.out_offset + lane * layer.n_out + rows;
    for (var i = 0u; i < 4u; i++) {
        if which == 0u {
            q_out[to[i]] = y[i];
        } else if which == 1u {
            k_out[to[i]] = y[i];
        } else {
            v_out[to[i]] = y[i];
        }
    }
}
//# else
@compute @workgroup_size(GROUP)
fn gated(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
//# if HAS_SUBGROUPS
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) n_subgroups: u32,
//# end
) {
    let first = flat_index(workgroup, grid) * 2u;
    let rows = min(vec2<u32>(first, first + 1u), vec2<u32>(p.n_out_0 - 1u));
    let start = vec4<u32>(
        p.weight_offset_0 + rows * p.row_units,
        p.weight_offset_1 + rows * p.row_units,
    );
//# if HAS_SUBGROUPS
    let slot = subgroup_slot(subgroup, subgroup_lane);
    let n_parts = walk(start, lane, slot, n_subgroups);
//# else
    let n_parts = walk(start, lane, 0u, 0u);
//# end
    if lane >= min(p.n_rows, ROWS) {
        return;
    }
    let y = total(lane, n_parts);
    let gate = y.xy + vec2<f32>(bias_of(layer_of(0u), rows.x), bias_of(layer_of(0u), rows.y));
    let up = y.zw + vec2<f32>(bias_of(layer_of(1u), rows.x), bias_of(layer_of(1u), rows.y));
//# if GELU
    let product = vec2<f32>(gelu(gate.x), gelu(gate.y)) * up;
//# else
    let product = gate / (1.0 + exp(-gate)) * up;
//# end
    let to = p.out_offset_2 + lane * p.n_out_0 + rows;
    out[to.x] = product.x;
    out[to.y] = product.y;
}
//# end
