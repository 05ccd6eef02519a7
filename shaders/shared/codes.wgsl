// Codes of 8 bits and their scales, as numbers.

// The four bytes of a word with their signs.
fn signed_bytes(word: u32) -> vec4<i32> {
    let high = vec4<u32>(word) << vec4<u32>(24u, 16u, 8u, 0u);
    return bitcast<vec4<i32>>(high) >> vec4<u32>(24u);
}

// An f16 from its bits. In whole numbers, because scales of real models are often below the least
// normal f16, which `unpack2x16float` may take for 0.
fn scale_of_half(half: u32) -> f32 {
    let size = half & 0x7fffu;
    let small = f32(size) * 5.9604645e-8;
    let normal = bitcast<f32>((size << 13u) + 0x38000000u);
    let value = select(normal, small, size < 0x400u);
    return select(value, -value, half >= 0x8000u);
}
