// KV rows of 8 bits as operands of products of matrices: codes become bf16, which holds them
// exactly. Before compute capability 8.0 there are no such products.
#pragma once
#include "shared/attend.cuh"
#include "shared/coded.cuh"

#if HAS_SM80
// The units of a row of 8 bits that a lane takes of a key or a value, 8 codes each; zeros beyond
// its end and for no row. Rows begin at 4 bytes.
DEVICE uint2 load_codes(const u32* head, u32 id, u32 row_words, u32 offset, u32 n_units, u32 unit) {
    if (id == NO_KV_ROW || unit >= n_units) {
        return uint2{0, 0};
    }
    const u32* at = head + static_cast<u64>(id) * row_words + offset + 2 * unit;
    return uint2{at[0], at[1]};
}

// Four codes as bf16, which is exact: the second half of the f32 2^23 + 128 + code has the code.
DEVICE uint2 codes_to_bfloats(u32 codes) {
    const u32 unsigned_codes = codes ^ 0x80808080u;
    u32 bits[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 number = pick_bytes(unsigned_codes, 0x4b000000u, 0x7440u + i);
        bits[i] = float_bits(float_of(number) - 8388736.0f);
    }
    return uint2{pick_bytes(bits[0], bits[1], 0x7632u), pick_bytes(bits[2], bits[3], 0x7632u)};
}

// Scores of the tile for query row g: KV rows 2t, 2t + 1 and 8 on, with the scales of their keys,
// two in a word.
template <u32 DIM>
DEVICE void score_codes(const uint2 (&keys)[2][DIM / 32], const u32 (&scales)[4][DIM / 64],
                        const uint4* firsts, const uint2* thirds, float (&scores)[4]) {
    const u32 lane = lane_of_thread();
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        scores[i] = 0;
    }
#pragma unroll
    for (u32 j = 0; j < DIM / 32; j++) {
        float c[2][4] = {};
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const uint4 first = firsts[(2 * j + half) * WARP + lane];
            const uint2 third = thirds[(2 * j + half) * WARP + lane];
            const u32 a[4] = {first.x, first.y, first.z, first.w};
            const u32 rest[4] = {third.x, 0, third.y, 0};
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                const uint2 key = codes_to_bfloats(half == 0 ? keys[n][j].x : keys[n][j].y);
                const u32 b[2] = {key.x, key.y};
                mma_bf16(c[n], a, b);
                mma_bf16(c[n], rest, b);
            }
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float scale = half_to_float(static_cast<u16>(scales[i][j / 2] >> (j % 2 * 16)));
            scores[i] += scale * (c[i / 2][i % 2] + c[i / 2][i % 2 + 2]);
        }
    }
}
#endif
