// Query rows of a KV head in the attention of chunks: how the products of a warp take them, and
// where what was made for them goes. A query row is a token of the chunk and one of the query heads
// that share the KV head; `n` is the first row that is not there. `P` are the arguments of a kernel
// that has q, out, lse, first_token, n_q_heads, n_kv_heads, head_dim, scale and accumulate.
#pragma once
#include "shared/attend.cuh"

// A query row of a KV head among those of the step: token * Hq + head.
template <typename P> DEVICE u64 entry_of(const P& p, u32 kv_head, u32 row) {
    const u32 group = p.n_q_heads / p.n_kv_heads;
    const u64 token = p.first_token + row / group;
    return token * p.n_q_heads + kv_head * group + row % group;
}

// 8 query rows of a warp, in the order of the registers of products.
template <typename T, u32 DIM, typename P>
DEVICE void store_queries(const P& p, u32 kv_head, u32 first, u32 n, uint4* firsts,
                          uint2* thirds) {
    const u32 lane = lane_of_thread();
    const u32 row = first + lane / 4;
    const float* q = p.q + entry_of(p, kv_head, min_of(row, n - 1)) * p.head_dim;
    for (u32 j = 0; j < DIM / 32; j++) {
        const u32 from = (4 * j + lane % 4) * 8;
        float x[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            x[i] = row < n && from < p.head_dim ? p.scale * q[from + i] : 0.0f;
        }
        uint4 ordered[2];
        uint2 third[2];
        order_query<T>(x, ordered, third);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            firsts[(2 * j + half) * WARP + lane] = ordered[half];
            if (NEEDS_THIRD<T>) {
                thirds[(2 * j + half) * WARP + lane] = third[half];
            }
        }
    }
}

// Writes what was made for 8 query rows, together with what is held.
template <u32 UNITS, u32 BLOCKS, typename P>
DEVICE void store_made(const P& p, u32 kv_head, u32 first, u32 n, const Made<BLOCKS>& made) {
    const u32 g = lane_of_thread() / 4;
    const u32 t = lane_of_thread() % 4;
    float l = made.l + shfl_xor(made.l, 1u);
    l += shfl_xor(l, 2u);
    float* lse = p.lse + entry_of(p, kv_head, min_of(first + g, n - 1));
    const Shares both = shares_of(made.m, l, p.accumulate ? *lse : minus_infinity());
    // All have read it.
    warp_sync();
    if (t == 0 && first + g < n) {
        *lse = both.lse;
    }
#pragma unroll
    for (u32 c = 0; c < 2; c++) {
        const float held = shfl(both.held, 8 * t + 4 * c);
        const float share = shfl(both.made, 8 * t + 4 * c);
        const u32 row = first + 2 * t + c;
        if (row >= n) {
            continue;
        }
        float* out = p.out + entry_of(p, kv_head, row) * p.head_dim;
#pragma unroll
        for (u32 i = 0; i < BLOCKS * UNITS * 8; i++) {
            const u32 block = i / (UNITS * 8);
            const u32 unit = i / 8 % UNITS;
            const u32 d = (16 * block + 8 * unit + g) * 8 + i % 8;
            if (d < p.head_dim) {
                const float sum = share * made.o[block][i % 8][2 * unit + c];
                // Nothing held may hold anything.
                out[d] = held == 0.0f ? sum : sum + held * out[d];
            }
        }
    }
}
