// Loading rows of f32 whose width may be anything.
#pragma once

#include "shared/common.cuh"

// Elements [first, first + N) of a row of `width`, 0 beyond it: not-a-number may follow a row.
// `is_aligned` says that the row begins at 16 bytes; `first` and N are multiples of 4.
template <u32 N>
DEVICE void load_floats(const float* row, u32 first, u32 width, bool is_aligned, float (&to)[N]) {
    const float* from = row + first;
    if (is_aligned && first + N <= width) {
#pragma unroll
        for (u32 i = 0; i < N; i += 4) {
            const float4 v = *reinterpret_cast<const float4*>(from + i);
            to[i] = v.x;
            to[i + 1] = v.y;
            to[i + 2] = v.z;
            to[i + 3] = v.w;
        }
        return;
    }
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        to[i] = first + i < width ? from[i] : 0.0f;
    }
}

// x as it meets weights of the last argument's type: those of bf16 may ask for numbers of bf16.
template <u32 N> DEVICE void round_floats(float (&)[N], u32, float) {}
template <u32 N> DEVICE void round_floats(float (&)[N], u32, f16) {}
template <u32 N> DEVICE void round_floats(float (&x)[N], u32 is_rounding, bf16) {
    if (is_rounding) {
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            x[i] = widen(bf16{float_to_bfloat(x[i])});
        }
    }
}
