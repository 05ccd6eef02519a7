// Attention of a chunk of tokens over a run of KV rows of 16 bits: for each query head, and each
// token i over the rows hidden + i <= j < lead + i,
//
//     out = sum_j w_j v_j / sum_j w_j,   lse = ln sum_j w_j,   w_j = exp(scale q . k_j)
//
// A query row is a token and one of the query heads that share a KV head. A warp owns 16
// neighbouring query rows and goes through the run from the first to the last row that one of them
// sees, 16 KV rows at a time, straight from memory to the registers of products; see
// shared/attend.cuh. The 4 warps of a block read the same rows at nearly the same time, so 3 of 4
// reads come from the L1 cache. The blocks with the longest way begin first.
//
// Rows of f32, those that are no whole units of 16 bytes, and heads wider than 128, for which there
// are not enough registers, are `attend_list.cu`'s.
//
// FLOPs: 4 Dh for each query row and KV row that it sees. Products of matrices make more, because
// both factors come in parts: scores cost 2 (f16) or 4 (bf16) times as much as the equation asks
// for, values 2 times at a DIM of 128 and 4 times at 64, where half of V^T is zeros. In all 2 (f16)
// or 3 (bf16) times at 128, and 3 or 4 times at 64. Bound: products of matrices. Dh is at most DIM,
// 64 or 128.
#include "shared/query_rows.cuh"

struct AttendChunkArgs {
    const float* q;
    const void* kv;
    float* out;
    float* lse;
    u32 first_token;
    u32 n_tokens;
    u32 n_q_heads;
    u32 n_kv_heads;
    u32 head_dim;
    u32 head_stride;
    u32 n_rows;
    u32 first_row;
    // Token i sees lead + i rows.
    int lead;
    // The first hidden + i of them are hidden from it.
    int hidden;
    // Blocks that share the query rows of a KV head.
    u32 n_tiles;
    u32 accumulate;
    float scale;
    u32 unused;
};

constexpr u32 THREADS = 128;
constexpr u32 N_WARPS = THREADS / WARP;
// Query rows of a product.
constexpr u32 ROWS = 8;
// KV rows that a warp takes at a time.
constexpr u32 TILE = 16;
// Times 8 query rows of a warp.
constexpr u32 N_SETS = 2;

// Rows of the run that a query row sees.
DEVICE u32 seen_by(const AttendChunkArgs& p, u32 row) {
    const int seen = p.lead + static_cast<int>(row / (p.n_q_heads / p.n_kv_heads));
    return seen < 0 ? 0 : min_of(static_cast<u32>(seen), p.n_rows);
}

// Rows of the run before those that a query row sees.
DEVICE u32 skipped_by(const AttendChunkArgs& p, u32 row) {
    const int skipped = p.hidden + static_cast<int>(row / (p.n_q_heads / p.n_kv_heads));
    return skipped < 0 ? 0 : min_of(static_cast<u32>(skipped), p.n_rows);
}

template <typename T, u32 DIM> DEVICE void attend_chunk(const AttendChunkArgs& p) {
    constexpr u32 STEPS = DIM / 32;
    // Units g and g + 8 of BLOCKS times 16.
    constexpr u32 UNITS = DIM == 64 ? 1 : 2;
    constexpr u32 BLOCKS = DIM / 64 / UNITS;
    // Registers of a set of queries.
    constexpr u32 SET = STEPS * 2 * WARP;
    SHARED(uint4, all_firsts, N_WARPS * N_SETS * SET);
    SHARED(uint2, all_thirds, NEEDS_THIRD<T> ? N_WARPS * N_SETS * SET : N_WARPS * N_SETS);
    const u32 kv_head = blockIdx.x / p.n_tiles;
    const u32 block = p.n_tiles - 1 - blockIdx.x % p.n_tiles;
    const u32 n = p.n_tokens * (p.n_q_heads / p.n_kv_heads);
    const u32 first = (block * N_WARPS + warp_of_thread()) * N_SETS * ROWS;
    if (first >= n) {
        return;
    }
    const u32 g = lane_of_thread() / 4;
    const u32 t = lane_of_thread() % 4;
    uint4* const firsts = all_firsts + warp_of_thread() * N_SETS * SET;
    uint2* const thirds = all_thirds + warp_of_thread() * N_SETS * (NEEDS_THIRD<T> ? SET : 1);
    u32 seen[N_SETS];
    u32 skipped[N_SETS];
    Made<BLOCKS> made[N_SETS];
#pragma unroll
    for (u32 s = 0; s < N_SETS; s++) {
        const u32 row = first + s * ROWS;
        store_queries<T, DIM>(p, kv_head, row, n, firsts + s * SET, thirds + s * SET);
        seen[s] = seen_by(p, min_of(row + g, n - 1));
        skipped[s] = skipped_by(p, min_of(row + g, n - 1));
        made[s] = Made<BLOCKS>{{}, LOWEST, 0};
    }
    warp_sync();

    const u32 row_units = p.head_dim / 4;
    // The tile's rows.
    const uint4* rows = static_cast<const uint4*>(p.kv)
        + (static_cast<u64>(kv_head) * p.head_stride + p.first_row) * row_units;
    const auto load = [](const uint4* from) { return *from; };
    const u32 end = seen_by(p, min_of(first + N_SETS * ROWS, n) - 1);
    const u32 begin = skipped_by(p, first);
    rows += static_cast<u64>(begin) * row_units;
    for (u32 tile = begin; tile < end; tile += TILE) {
        uint4 keys[2][STEPS];
#pragma unroll
        for (u32 i = 0; i < 2 * STEPS; i++) {
            const u32 row = g + i / STEPS * 8;
            const u32 id = tile + row < end ? row : NO_KV_ROW;
            const u32 unit = i % STEPS * 4 + t;
            keys[i / STEPS][i % STEPS] = load_unit(rows, id, row_units, 0, unit, load);
        }
        uint4 values[BLOCKS][UNITS][4];
#pragma unroll
        for (u32 i = 0; i < BLOCKS * UNITS * 4; i++) {
            const u32 row = 2 * t + i % 2 + i / 2 % 2 * 8;
            const u32 id = tile + row < end ? row : NO_KV_ROW;
            const u32 unit = i / 4 * 8 + g;
            values[i / 4 / UNITS][i / 4 % UNITS][i % 4] =
                load_unit(rows, id, row_units, row_units / 2, unit, load);
        }
        rows += static_cast<u64>(TILE) * row_units;
#pragma unroll
        for (u32 s = 0; s < N_SETS; s++) {
            float scores[4];
            score_tile<T, DIM>(keys, firsts + s * SET, thirds + s * SET, scores);
            bool is_seen[4];
#pragma unroll
            for (u32 r = 0; r < 4; r++) {
                const u32 row = tile + 2 * t + r % 2 + r / 2 * 8;
                is_seen[r] = row >= skipped[s] && row < seen[s];
            }
            take_tile<T>(values, scores, is_seen, made[s]);
        }
    }
#pragma unroll
    for (u32 s = 0; s < N_SETS; s++) {
        store_made<UNITS>(p, kv_head, first + s * ROWS, n, made[s]);
    }
}

KERNEL(attend_chunk_f16_64, AttendChunkArgs, THREADS) { attend_chunk<f16, 64>(p); }
KERNEL(attend_chunk_f16_128, AttendChunkArgs, THREADS) { attend_chunk<f16, 128>(p); }

// Before compute capability 8.0 there are no products of bf16, and nobody launches these.
#if HAS_SM80
KERNEL(attend_chunk_bf16_64, AttendChunkArgs, THREADS) { attend_chunk<bf16, 64>(p); }
KERNEL(attend_chunk_bf16_128, AttendChunkArgs, THREADS) { attend_chunk<bf16, 128>(p); }
#else
KERNEL(attend_chunk_bf16_64, AttendChunkArgs, THREADS) {}
KERNEL(attend_chunk_bf16_128, AttendChunkArgs, THREADS) {}
#endif
