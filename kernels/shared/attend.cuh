// How attentions over disjoint keys go together, and the attention of a warp on products of
// matrices.
#pragma once
#include "shared/common.cuh"

// How attentions over disjoint keys go together. One in the making is its maximum m of the scores,
// its sum l of exp(score - m), and the sum o of exp(score - m) v; nothing seen is m = LOWEST and
// l = 0. A finished one is o / l and its log-sum-exp, minus infinity where nothing was seen.
constexpr float LOWEST = -3.402823466e38f;

DEVICE float minus_infinity() { return float_of(0xff800000u); }

struct Shares {
    // What the finished one and the o of the new one are multiplied with.
    float held;
    float made;
    // Log-sum-exp of both.
    float lse;
};

// A new attention of maximum m and sum l beside a finished one of log-sum-exp `held`.
DEVICE Shares shares_of(float m, float l, float held) {
    const bool nothing_held = held == minus_infinity();
    if (l == 0.0f) {
        return Shares{nothing_held ? 0.0f : 1.0f, 0.0f, held};
    }
    if (nothing_held) {
        return Shares{0.0f, 1.0f / l, m + logf(l)};
    }
    const float top = fmaxf(m, held);
    const float a = expf(held - top);
    const float b = expf(m - top);
    const float sum = a + b * l;
    return Shares{a / sum, b / sum, top + logf(sum)};
}

// Attention of 8 query rows on products of matrices, by a warp with g = lane / 4 and t = lane % 4.
// T is f16 or bf16. A product sees 16 KV rows straight from memory: units of 16 bytes lie in
// registers as they were loaded, since dimensions may stand in any order if both factors agree.
//
// Scores are Q K^T: row g of the 16 of Q is a query rounded to T, row g + 8 what that left of it;
// bf16 has a third part. Values are V^T P^T, P in two parts. With f16, an element of a query times
// the scale must stay below 65504.

// An id of no row.
constexpr u32 NO_KV_ROW = 0xffffffffu;

// A number in parts of T: the nearest, and what is left.
template <typename T> DEVICE u32 take_pair(float& low, float& high) {
    T a;
    T b;
    narrow(low, a);
    narrow(high, b);
    low -= widen(a);
    high -= widen(b);
    return static_cast<u32>(a.bits) | static_cast<u32>(b.bits) << 16;
}

DEVICE void mma_of(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], f16) {
    mma_f16(c, a, b);
}
#if HAS_SM80
DEVICE void mma_of(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], bf16) {
    mma_bf16(c, a, b);
}
#endif

template <typename T> constexpr bool NEEDS_THIRD = false;
template <> constexpr bool NEEDS_THIRD<bf16> = true;

// Unit `unit` of a key or a value, which begins `offset` units behind its row's begin; zeros beyond
// its end and for no row.
template <typename Load>
DEVICE uint4 load_unit(const uint4* head, u32 id, u32 row_units, u32 offset, u32 unit, Load load) {
    if (id == NO_KV_ROW || 2 * unit >= row_units) {
        return uint4{0, 0, 0, 0};
    }
    return load(head + static_cast<u64>(id) * row_units + offset + unit);
}

// Units 4 j + t of query row g, in the order of the registers of two products: `first` and `third`
// get one for each half of the units.
template <typename T>
DEVICE void order_query(float (&x)[8], uint4 (&first)[2], uint2 (&third)[2]) {
    u32 words[3][4];
#pragma unroll
    for (u32 part = 0; part < 3; part++) {
#pragma unroll
        for (u32 w = 0; w < 4; w++) {
            words[part][w] = take_pair<T>(x[2 * w], x[2 * w + 1]);
        }
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 w = 2 * half;
        first[half] = uint4{words[0][w], words[1][w], words[0][w + 1], words[1][w + 1]};
        third[half] = uint2{words[2][w], words[2][w + 1]};
    }
}

DEVICE u32 low_halves(u32 a, u32 b) { return (a & 0xffffu) | b << 16; }
DEVICE u32 high_halves(u32 a, u32 b) { return a >> 16 | (b & 0xffff0000u); }

// Scores of the tile for query row g: KV rows 2t, 2t + 1 and 8 on.
template <typename T, u32 DIM>
DEVICE void score_tile(const uint4 (&keys)[2][DIM / 32], const uint4* firsts, const uint2* thirds,
                       float (&scores)[4]) {
    float c[2][4] = {};
    const u32 lane = lane_of_thread();
#pragma unroll
    for (u32 j = 0; j < DIM / 32; j++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const uint4 first = firsts[(2 * j + half) * WARP + lane];
            const u32 a[4] = {first.x, first.y, first.z, first.w};
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                const uint4 key = keys[n][j];
                const u32 b[2] = {half == 0 ? key.x : key.z, half == 0 ? key.y : key.w};
                mma_of(c[n], a, b, T{});
                if (NEEDS_THIRD<T>) {
                    const uint2 third = thirds[(2 * j + half) * WARP + lane];
                    const u32 rest[4] = {third.x, 0, third.y, 0};
                    mma_of(c[n], rest, b, T{});
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        scores[i] = c[i / 2][i % 2] + c[i / 2][i % 2 + 2];
    }
}

// o += V^T P^T for 16 units of each value: o[i] is element i of unit g (and g + 8) for query rows
// 2t and 2t + 1; `values` are those of KV rows 2t, 2t + 1 and 8 on.
template <typename T, u32 UNITS>
DEVICE void add_values(const uint4 (&values)[UNITS][4], const u32 (&high)[2], const u32 (&low)[2],
                       float (&o)[8][4]) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        u32 a[4] = {0, 0, 0, 0};
#pragma unroll
        for (u32 u = 0; u < UNITS; u++) {
            u32 words[4];
#pragma unroll
            for (u32 r = 0; r < 4; r++) {
                const uint4 v = values[u][r];
                words[r] = i / 2 == 0 ? v.x : i / 2 == 1 ? v.y : i / 2 == 2 ? v.z : v.w;
            }
            a[u] = i % 2 == 0 ? low_halves(words[0], words[1]) : high_halves(words[0], words[1]);
            a[u + 2] = i % 2 == 0 ? low_halves(words[2], words[3])
                                  : high_halves(words[2], words[3]);
        }
        mma_of(o[i], a, high, T{});
        mma_of(o[i], a, low, T{});
    }
}

// The attention of 8 query rows in the making: m is that of row g, l the part of it that this lane
// has summed up, o as `add_values` says.
template <u32 BLOCKS> struct Made {
    float o[BLOCKS][8][4];
    float m;
    float l;
};

// What a tile of 16 KV rows weighs for query row g: KV rows 2t, 2t + 1 and 8 on. What was made
// before is brought to the new maximum, and their sum is added to l.
template <u32 BLOCKS>
DEVICE void weigh_tile(const float (&scores)[4], const bool (&is_seen)[4], Made<BLOCKS>& made,
                       float (&weights)[4]) {
    const u32 t = lane_of_thread() % 4;
    float top = made.m;
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        top = is_seen[r] ? fmaxf(top, scores[r]) : top;
    }
    top = fmaxf(top, shfl_xor(top, 1u));
    top = fmaxf(top, shfl_xor(top, 2u));
    if (votes(top > made.m) != 0) {
        const float factor = expf(made.m - top);
        made.l *= factor;
        made.m = top;
        const float even = shfl(factor, 8 * t);
        const float odd = shfl(factor, 8 * t + 4);
#pragma unroll
        for (u32 i = 0; i < BLOCKS * 8; i++) {
            float (&o)[4] = made.o[i / 8][i % 8];
            o[0] *= even;
            o[1] *= odd;
            o[2] *= even;
            o[3] *= odd;
        }
    }
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        weights[r] = is_seen[r] ? expf(scores[r] - made.m) : 0.0f;
        made.l += weights[r];
    }
}

// Weights in two parts of T, as `add_values` takes them.
template <typename T> DEVICE void part_weights(float (&weights)[4], u32 (&parts)[2][2]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        parts[i / 2][i % 2] = take_pair<T>(weights[2 * (i % 2)], weights[2 * (i % 2) + 1]);
    }
}

// Adds a tile of 16 KV rows.
template <typename T, u32 BLOCKS, u32 UNITS>
DEVICE void take_tile(const uint4 (&values)[BLOCKS][UNITS][4], const float (&scores)[4],
                      const bool (&is_seen)[4], Made<BLOCKS>& made) {
    float weights[4];
    weigh_tile(scores, is_seen, made, weights);
    u32 parts[2][2];
    part_weights<T>(weights, parts);
#pragma unroll
    for (u32 b = 0; b < BLOCKS; b++) {
        add_values<T, UNITS>(values[b], parts[0], parts[1], made.o[b]);
    }
}

// What the warps of a block leave for its end.
struct Parts {
    // [warp][row].
    float* maxima;
    float* totals;
    // [warp][row][DIM].
    float* sums;
    // [warp][row], and [row].
    float* factors;
    float* held;
};

// The maximum and the sum of parts, and what each part's o is multiplied with.
template <u32 N_WARPS>
DEVICE void weigh_parts(float* factors, const float* maxima, const float* totals, u32 stride,
                        float& m, float& l) {
    m = LOWEST;
    for (u32 w = 0; w < N_WARPS; w++) {
        m = fmaxf(m, maxima[w * stride]);
    }
    l = 0;
    for (u32 w = 0; w < N_WARPS; w++) {
        const float total = totals[w * stride];
        const float factor = total == 0.0f ? 0.0f : expf(maxima[w * stride] - m);
        factors[w * stride] = factor;
        l += factor * total;
    }
}
