// Types of stored elements, as the variants' constants name them.
const F32: u32 = 0u;
const F16: u32 = 1u;
const BF16: u32 = 2u;
// Bytes of KV rows of 8 bits.
const Q8: u32 = 4u;
// Codes: whole numbers of 8 bits.
const I8: u32 = 5u;

// A number that no sum of attention scores reaches; exp(x - LOWEST) overflows nothing.
const LOWEST: f32 = -3.0e38;

// Two halves packed in a word, the lower element in the lower bits.
fn unpack_halves(kind: u32, word: u32) -> vec2<f32> {
    if kind == F16 {
        return unpack2x16float(word);
    }
    return vec2<f32>(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
}

// The four codes of a word, with their signs.
fn codes_of(word: u32) -> vec4<i32> {
    return vec4<i32>(vec4<u32>(word << 24u, word << 16u, word << 8u, word)) >> vec4<u32>(24u);
}

// Rounds to nearest even, as the host does. Not-a-number stays one.
fn pack_halves(kind: u32, x: vec2<f32>) -> u32 {
    if kind == F16 {
        return f16_bits(x.x) | (f16_bits(x.y) << 16u);
    }
    return bf16_bits(x.x) | (bf16_bits(x.y) << 16u);
}

// In whole numbers: `pack2x16float` rounds as the device likes.
fn f16_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if size > 0x7f800000u {
        return sign | 0x7e00u | ((size >> 13u) & 0x3ffu);
    }
    if size >= 0x477ff000u {
        return sign | 0x7c00u;
    }
    if size >= 0x38800000u {
        return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u);
    }
    // Below 2^-14 the result counts units of 2^-24; half of one and less is nothing.
    if size <= 0x33000000u {
        return sign;
    }
    let shift = 126u - (size >> 23u);
    let mantissa = (size & 0x7fffffu) | 0x800000u;
    let odd = (mantissa >> shift) & 1u;
    return sign | ((mantissa + (1u << (shift - 1u)) - 1u + odd) >> shift);
}

fn bf16_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if (bits & 0x7fffffffu) > 0x7f800000u {
        return (bits >> 16u) | 0x40u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

// Four numbers to the nearest bf16, ties to even. Not-a-number stays one.
fn round4_to_bf16(x: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(x);
    let odd = (bits >> vec4<u32>(16u)) & vec4<u32>(1u);
    let nearest = (bits + odd + vec4<u32>(0x7fffu)) & vec4<u32>(0xffff0000u);
    let is_nan = (bits & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    return bitcast<vec4<f32>>(select(nearest, bits | vec4<u32>(0x400000u), is_nan));
}

// Additions with a name, for imports that take one.
fn plus(a: f32, b: f32) -> f32 {
    return a + b;
}

fn plus4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return a + b;
}

// The number of a workgroup in a grid that may be split over two dimensions.
fn flat_index(workgroup: vec3<u32>, grid: vec3<u32>) -> u32 {
    return workgroup.x + workgroup.y * grid.x;
}
