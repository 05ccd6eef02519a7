// Rounds activations for products with quantised weights: 32 in a row become codes
// round(x LARGEST / max |x|), ties to even, and the scale max |x| / LARGEST. LARGEST is 127 where
// PLANES is 1; 128 * 127 where it is 2, and then a code is 128 high + low, of 8 bits each.
//
// An invocation owns a unit of 32 and writes 2 PLANES + 1 vectors: 32 codes, 4 in each word, the
// high ones first; then the bits of the scale, and the sums of the codes of the first and the
// second half. x may be several rows, as their widths are whole units.
//
// Bytes: 128 in, 48 or 80 out for each unit. Bound: memory.

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
const LARGEST: f32 = select(127.0, 16256.0, PLANES == 2u);
const NOT_A_NUMBER: u32 = 0x7fc00000u;

fn is_not_finite(bits: vec4<u32>) -> bool {
    return any((bits & vec4<u32>(0x7f800000u)) == vec4<u32>(0x7f800000u));
}

// The lowest bytes of four numbers.
fn packed(numbers: vec4<i32>) -> u32 {
    let bytes = bitcast<vec4<u32>>(numbers) & vec4<u32>(0xffu);
    return bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
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
    let inverse = select(LARGEST / size, 0.0, is_zero);
    let scale = select(size / LARGEST, 0.0, is_zero);

    var words: array<u32, 8u * PLANES>;
    var sums = vec2<i32>(0);
    for (var i = 0u; i < 8u; i++) {
        var codes = vec4<i32>(0);
        if !is_zero {
            codes = vec4<i32>(round(x_row4(row, 4u * i, 32u) * inverse));
        }
//# if PLANES == 2
        // The shift rounds down, so what is left is from -64 to 63.
        let high = (codes + vec4<i32>(64)) >> vec4<u32>(7u);
        words[i] = packed(high);
        words[8u + i] = packed(codes - (high << vec4<u32>(7u)));
//# else
        words[i] = packed(codes);
//# end
        sums[i / 4u] += codes.x + codes.y + codes.z + codes.w;
    }
    // Infinity and not-a-number become not-a-number, and the outputs with them.
    let scale_bits = select(bitcast<u32>(scale), NOT_A_NUMBER, bad);
    let to = (2u * PLANES + 1u) * unit;
    for (var i = 0u; i < 2u * PLANES; i++) {
        let j = 4u * i;
        rounded[to + i] = vec4<u32>(words[j], words[j + 1u], words[j + 2u], words[j + 3u]);
    }
    rounded[to + 2u * PLANES] =
        vec4<u32>(scale_bits, bitcast<u32>(sums.x), bitcast<u32>(sums.y), 0u);
}
