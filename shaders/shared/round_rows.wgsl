// Rounds activations to 8 bits for products with quantised weights: 32 in a row become codes
// round(x 127 / max |x|), ties to even, and the scale max |x| / 127.
//
// An invocation owns a unit of 32 and writes 3 vectors: 32 codes, 4 in each word; then the bits of
// the scale, and the sums of the codes of the first and the second half. x may be several rows, as
// their widths are whole units.
//
// Bytes: 128 in, 48 out for each unit. Bound: memory.

//# import shared/common
//# import shared/row4 X=x VECTOR=X_VECTOR

struct Params {
    n_units: u32,
    x_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<x_unit>;
@group(0) @binding(2) var<storage, read_write> rounded: array<vec4<u32>>;

// Below this a unit counts as zeros: the inverse of its scale would not be finite.
const SMALLEST: f32 = 1e-30;
const NOT_A_NUMBER: u32 = 0x7fc00000u;

fn is_not_finite(bits: vec4<u32>) -> bool {
    return any((bits & vec4<u32>(0x7f800000u)) == vec4<u32>(0x7f800000u));
}

@compute @workgroup_size(64)
fn round_rows(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let unit = flat_index(workgroup, grid) * 64u + lane;
    if unit >= p.n_units {
        return;
    }
    let row = p.x_offset + 32u * unit;
    var most = vec4<f32>(0.0);
    var bad = false;
    for (var i = 0u; i < 8u; i++) {
        let v = x_row4(row, 4u * i, 32u);
        most = max(most, abs(v));
        // By the bits: a shader may compute as if there were no such numbers.
        bad = bad || is_not_finite(bitcast<vec4<u32>>(v));
    }
    let size = max(max(most.x, most.y), max(most.z, most.w));
    let is_zero = bad || size < SMALLEST;
    let inverse = select(127.0 / size, 0.0, is_zero);
    let scale = select(size / 127.0, 0.0, is_zero);

    var words: array<u32, 8>;
    var sums = vec2<i32>(0);
    for (var i = 0u; i < 8u; i++) {
        var codes = vec4<i32>(0);
        if !is_zero {
            codes = vec4<i32>(round(x_row4(row, 4u * i, 32u) * inverse));
        }
        let bytes = bitcast<vec4<u32>>(codes) & vec4<u32>(0xffu);
        words[i] = bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
        sums[i / 4u] += codes.x + codes.y + codes.z + codes.w;
    }
    // Infinity and not-a-number become not-a-number, and the outputs with them.
    let scale_bits = select(bitcast<u32>(scale), NOT_A_NUMBER, bad);
    rounded[3u * unit] = vec4<u32>(words[0], words[1], words[2], words[3]);
    rounded[3u * unit + 1u] = vec4<u32>(words[4], words[5], words[6], words[7]);
    rounded[3u * unit + 2u] =
        vec4<u32>(scale_bits, bitcast<u32>(sums.x), bitcast<u32>(sums.y), 0u);
}
