// Elements of the binding X as f32, whatever is stored: KIND is F32, F16, BF16 or I8.
// Needs `common`. Declare the binding as `array<X_unit>`.
//
// With VECTOR, elements come four at a time and `at` is a multiple of 4 (for halves the binding's
// rows begin at multiples of 8 elements, for I8 of 16); without, one at a time from anywhere.

//# if VECTOR
//# if KIND_HALF_LOADS
alias X_unit = vec4<f16>;

fn X_load4(at: u32) -> vec4<f32> {
    return vec4<f32>(X[at / 4u]);
}
//# else
alias X_unit = vec4<u32>;

fn X_load4(at: u32) -> vec4<f32> {
    if KIND == F32 {
        return bitcast<vec4<f32>>(X[at / 4u]);
    }
    if KIND == I8 {
        return vec4<f32>(codes_of(X[at / 16u][at / 4u % 4u]));
    }
    let unit = X[at / 8u];
    let words = select(unit.xy, unit.zw, (at & 4u) != 0u);
    return vec4<f32>(unpack_halves(KIND, words.x), unpack_halves(KIND, words.y));
}
//# end
//# else
alias X_unit = u32;

fn X_load(at: u32) -> f32 {
    if KIND == F32 {
        return bitcast<f32>(X[at]);
    }
    if KIND == I8 {
        return f32(codes_of(X[at / 4u])[at % 4u]);
    }
    let pair = unpack_halves(KIND, X[at / 2u]);
    return select(pair.x, pair.y, (at & 1u) != 0u);
}
//# end
