// Attention of a chunk of tokens over a run of KV rows, of which each tile of tokens attends the
// blocks that count: for each token and query head
//
//     out = sum_j w_j v_j / sum_j w_j,   lse = ln sum_j w_j,   w_j = weight * exp(scale q . k_j)
//
// Row j of the sequence is part of block j / rows_per_block. With `is_kept` a row is a token, and
// counts where its block's share is at least the threshold and it is not behind the query; without,
// a row is the mean of `weight` tokens, and counts where the share is below the threshold.
//
// A query row is a token and one of the query heads that share a KV head. Those of a tile are cut
// into parts; a block of threads takes one part and a warp some rows of it, over all rows of the
// run but for those of which no block counts.
//
// `mma`, for kept 16-bit rows of whole units of 16 bytes: a warp owns 16 query rows and takes 16 KV
// rows at a time, as `attend_chunk` does; see shared/attend.cuh.
// `plain`, for all others, also of 8 bits: a warp owns 4 query rows and takes 32 KV rows at a time.
// A lane makes the scores of one KV row, and then owns every 32nd channel of the values.
//
// FLOPs: 4 Dh for each query row and KV row that it attends. Bound: arithmetic. Dh is at most DIM.
#include "shared/elements.cuh"
#include "shared/query_rows.cuh"

struct AttendBlocksArgs {
    const float* q;
    const void* kv;
    // [Hkv, n_tiles, share_stride].
    const float* shares;
    float* out;
    float* lse;
    u32 n_q_heads;
    u32 n_kv_heads;
    u32 head_dim;
    float scale;
    u32 accumulate;
    u32 first_token;
    u32 q_len;
    u32 position;
    u32 tile;
    u32 share_stride;
    float threshold;
    u32 is_kept;
    u32 rows_per_block;
    u32 row_start;
    u32 first_row;
    u32 n_rows;
    u32 head_stride;
    // Tiles, and blocks of threads for each.
    u32 n_tiles;
    u32 n_parts;
    // What the weight adds to a score: its logarithm.
    float bias;
};

constexpr u32 THREADS = 128;
constexpr u32 N_WARPS = THREADS / WARP;
// Query rows of a product.
constexpr u32 ROWS = 8;
// KV rows that a warp of `mma` takes at a time.
constexpr u32 TILE = 16;
// Times 8 query rows of a warp.
constexpr u32 N_SETS = 2;
// Query rows of a warp of `plain`.
constexpr u32 PLAIN_ROWS = 4;

// What a block of threads does.
struct Part {
    u32 kv_head;
    // Query rows of the KV head among those of the chunk: the first, and the first that is no
    // longer the tile's.
    u32 first;
    u32 end;
    // Of the blocks, for this tile.
    const float* shares;
};

// The part of this block of threads, which has `n_rows` query rows.
DEVICE Part part_of_block(const AttendBlocksArgs& p, u32 n_rows) {
    Part part;
    part.kv_head = blockIdx.x % p.n_kv_heads;
    const u32 index = blockIdx.x / p.n_kv_heads;
    // The last tiles have most rows: they begin first.
    const u32 tile = p.n_tiles - 1 - index / p.n_parts;
    // The tile's tokens among those of the chunk: tiles end at multiples of their length.
    const u32 whole = (p.position / p.tile + tile) * p.tile;
    const u32 token = whole > p.position ? whole - p.position : 0;
    const u32 n = min_of(p.tile - (p.position + token) % p.tile, p.q_len - token);
    const u32 group = p.n_q_heads / p.n_kv_heads;
    part.first = token * group + index % p.n_parts * n_rows;
    part.end = (token + n) * group;
    part.shares = p.shares + (static_cast<u64>(part.kv_head) * p.n_tiles + tile) * p.share_stride;
    return part;
}

// Rows of the run that a query row may attend.
DEVICE u32 seen_by(const AttendBlocksArgs& p, u32 row) {
    if (!p.is_kept) {
        return p.n_rows;
    }
    const u32 end = p.position + row / (p.n_q_heads / p.n_kv_heads) + 1;
    return end > p.first_row ? min_of(end - p.first_row, p.n_rows) : 0;
}

// Whether the block of a row of the run counts.
DEVICE bool counts(const AttendBlocksArgs& p, const Part& part, u32 row) {
    const float share = part.shares[(p.first_row + row) / p.rows_per_block];
    return (share >= p.threshold) == (p.is_kept != 0);
}

template <typename T, u32 DIM> DEVICE void attend_mma(const AttendBlocksArgs& p) {
    constexpr u32 STEPS = DIM / 32;
    // Units g and g + 8 of BLOCKS times 16.
    constexpr u32 UNITS = DIM == 64 ? 1 : 2;
    constexpr u32 BLOCKS = DIM / 64 / UNITS;
    // Registers of a set of queries.
    constexpr u32 SET = STEPS * 2 * WARP;
    SHARED(uint4, all_firsts, N_WARPS * N_SETS * SET);
    SHARED(uint2, all_thirds, NEEDS_THIRD<T> ? N_WARPS * N_SETS * SET : N_WARPS * N_SETS);
    const Part part = part_of_block(p, N_WARPS * N_SETS * ROWS);
    const u32 first = part.first + warp_of_thread() * N_SETS * ROWS;
    if (first >= part.end) {
        return;
    }
    const u32 g = lane_of_thread() / 4;
    const u32 t = lane_of_thread() % 4;
    uint4* const firsts = all_firsts + warp_of_thread() * N_SETS * SET;
    uint2* const thirds = all_thirds + warp_of_thread() * N_SETS * (NEEDS_THIRD<T> ? SET : 1);
    u32 seen[N_SETS];
    Made<BLOCKS> made[N_SETS];
#pragma unroll
    for (u32 s = 0; s < N_SETS; s++) {
        const u32 row = first + s * ROWS;
        store_queries<T, DIM>(p, part.kv_head, row, part.end, firsts + s * SET, thirds + s * SET);
        seen[s] = seen_by(p, min_of(row + g, part.end - 1));
        made[s] = Made<BLOCKS>{{}, LOWEST, 0};
    }
    warp_sync();

    const u32 row_units = p.head_dim / 4;
    const uint4* rows = static_cast<const uint4*>(p.kv)
        + (static_cast<u64>(part.kv_head) * p.head_stride + p.row_start) * row_units;
    const auto load = [](const uint4* from) { return *from; };
    const u32 end = seen_by(p, min_of(first + N_SETS * ROWS, part.end) - 1);
    for (u32 tile = 0; tile < end; tile += TILE) {
        const u32 own = tile + lane_of_thread() % TILE;
        // Bit r: whether row r of the tile counts.
        const u32 which = votes(own < end && counts(p, part, own));
        if (which == 0) {
            continue;
        }
        uint4 keys[2][STEPS];
#pragma unroll
        for (u32 i = 0; i < 2 * STEPS; i++) {
            const u32 row = g + i / STEPS * 8;
            const u32 id = which >> row & 1u ? tile + row : NO_KV_ROW;
            keys[i / STEPS][i % STEPS] =
                load_unit(rows, id, row_units, 0, i % STEPS * 4 + t, load);
        }
        uint4 values[BLOCKS][UNITS][4];
#pragma unroll
        for (u32 i = 0; i < BLOCKS * UNITS * 4; i++) {
            const u32 row = 2 * t + i % 2 + i / 2 % 2 * 8;
            const u32 id = which >> row & 1u ? tile + row : NO_KV_ROW;
            values[i / 4 / UNITS][i / 4 % UNITS][i % 4] =
                load_unit(rows, id, row_units, row_units / 2, i / 4 * 8 + g, load);
        }
#pragma unroll
        for (u32 s = 0; s < N_SETS; s++) {
            float scores[4];
            score_tile<T, DIM>(keys, firsts + s * SET, thirds + s * SET, scores);
            bool is_seen[4];
#pragma unroll
            for (u32 r = 0; r < 4; r++) {
                const u32 row = 2 * t + r % 2 + r / 2 * 8;
                is_seen[r] = (which >> row & 1u) != 0 && tile + row < seen[s];
            }
            take_tile<T>(values, scores, is_seen, made[s]);
        }
    }
#pragma unroll
    for (u32 s = 0; s < N_SETS; s++) {
        store_made<UNITS>(p, part.kv_head, first + s * ROWS, part.end, made[s]);
    }
}

// The maximum over a warp, on every lane.
DEVICE float warp_max(float value) {
#pragma unroll
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
        value = fmaxf(value, shfl_xor(value, mask));
    }
    return value;
}

// Every 32nd element of a value from the lane's own on; 0 beyond its end.
template <typename T, u32 N>
DEVICE void load_value(const T* rows, u64 row, u32 head_dim, float (&to)[N]) {
    const T* value = rows + row * 2 * head_dim + head_dim;
#pragma unroll
    for (u32 c = 0; c < N; c++) {
        const u32 d = lane_of_thread() + c * WARP;
        to[c] = d < head_dim ? widen(value[d]) : 0.0f;
    }
}
template <u32 N>
DEVICE void load_value(const coded* rows, u64 row, u32 head_dim, float (&to)[N]) {
    const coded* from = rows + row * coded_row(head_dim);
    const float scale = scale_of(from, head_dim, key_scales(head_dim));
#pragma unroll
    for (u32 c = 0; c < N; c++) {
        const u32 d = lane_of_thread() + c * WARP;
        to[c] = d < head_dim ? scale * number_of(from[head_dim + d].bits) : 0.0f;
    }
}

template <typename T, u32 DIM> DEVICE void attend_plain(const AttendBlocksArgs& p) {
    // Channels of a lane.
    constexpr u32 CHANNELS = DIM / WARP;
    // [element][query row], by warp.
    SHARED(float, all_queries, N_WARPS * PLAIN_ROWS * DIM);
    const Part part = part_of_block(p, N_WARPS * PLAIN_ROWS);
    const u32 first = part.first + warp_of_thread() * PLAIN_ROWS;
    if (first >= part.end) {
        return;
    }
    const u32 lane = lane_of_thread();
    float* queries = all_queries + warp_of_thread() * PLAIN_ROWS * DIM;
    u32 seen[PLAIN_ROWS];
#pragma unroll
    for (u32 r = 0; r < PLAIN_ROWS; r++) {
        // Rows that are not there repeat the last one, and leave nothing.
        const u32 row = min_of(first + r, part.end - 1);
        const float* q = p.q + entry_of(p, part.kv_head, row) * p.head_dim;
        for (u32 d = lane; d < p.head_dim; d += WARP) {
            queries[d * PLAIN_ROWS + r] = p.scale * q[d];
        }
        seen[r] = seen_by(p, row);
    }
    warp_sync();

    const T* rows = static_cast<const T*>(p.kv);
    const u64 row_start = static_cast<u64>(part.kv_head) * p.head_stride + p.row_start;
    const u32 end = seen[PLAIN_ROWS - 1];
    float o[PLAIN_ROWS][CHANNELS] = {};
    float m[PLAIN_ROWS];
    float l[PLAIN_ROWS] = {};
#pragma unroll
    for (u32 r = 0; r < PLAIN_ROWS; r++) {
        m[r] = LOWEST;
    }
    for (u32 from = 0; from < end; from += WARP) {
        const u32 own = from + lane;
        const bool is_taken = own < end && counts(p, part, own);
        const u32 which = votes(is_taken);
        if (which == 0) {
            continue;
        }
        float scores[PLAIN_ROWS] = {};
        if (is_taken) {
#pragma unroll 1
            for (u32 d = 0; d < p.head_dim; d++) {
                const float x = row_element(rows, row_start + own, d, p.head_dim);
#pragma unroll
                for (u32 r = 0; r < PLAIN_ROWS; r++) {
                    scores[r] += x * queries[d * PLAIN_ROWS + r];
                }
            }
        }
        float weights[PLAIN_ROWS];
#pragma unroll
        for (u32 r = 0; r < PLAIN_ROWS; r++) {
            const bool is_seen = is_taken && own < seen[r];
            const float score = scores[r] + p.bias;
            const float top = warp_max(is_seen ? fmaxf(m[r], score) : m[r]);
            const float factor = expf(m[r] - top);
            m[r] = top;
            weights[r] = is_seen ? expf(score - top) : 0.0f;
            l[r] = l[r] * factor + weights[r];
#pragma unroll
            for (u32 c = 0; c < CHANNELS; c++) {
                o[r][c] *= factor;
            }
        }
        // One row after the other: else the rows of several wait in registers.
#pragma unroll 1
        for (u32 j = 0; j < WARP; j++) {
            if ((which >> j & 1u) == 0) {
                continue;
            }
            float value[CHANNELS];
            load_value(rows, row_start + from + j, p.head_dim, value);
#pragma unroll
            for (u32 r = 0; r < PLAIN_ROWS; r++) {
                const float weight = shfl(weights[r], j);
#pragma unroll
                for (u32 c = 0; c < CHANNELS; c++) {
                    o[r][c] += weight * value[c];
                }
            }
        }
    }

#pragma unroll
    for (u32 r = 0; r < PLAIN_ROWS; r++) {
        const float total = warp_sum(l[r]);
        const bool is_there = first + r < part.end;
        const u64 entry = entry_of(p, part.kv_head, is_there ? first + r : part.end - 1);
        const Shares both = shares_of(m[r], total, p.accumulate ? p.lse[entry] : minus_infinity());
        // All have read it.
        warp_sync();
        if (is_there && lane == 0) {
            p.lse[entry] = both.lse;
        }
#pragma unroll
        for (u32 c = 0; c < CHANNELS; c++) {
            const u32 d = lane + c * WARP;
            if (is_there && d < p.head_dim) {
                float* out = p.out + entry * p.head_dim + d;
                const float sum = both.made * o[r][c];
                // Nothing held may hold anything.
                *out = both.held == 0.0f ? sum : sum + both.held * *out;
            }
        }
    }
}

KERNEL(attend_blocks_f16_64, AttendBlocksArgs, THREADS) { attend_mma<f16, 64>(p); }
KERNEL(attend_blocks_f16_128, AttendBlocksArgs, THREADS) { attend_mma<f16, 128>(p); }

// Before compute capability 8.0 there are no products of bf16, and nobody launches these.
#if HAS_SM80
KERNEL(attend_blocks_bf16_64, AttendBlocksArgs, THREADS) { attend_mma<bf16, 64>(p); }
KERNEL(attend_blocks_bf16_128, AttendBlocksArgs, THREADS) { attend_mma<bf16, 128>(p); }
#else
KERNEL(attend_blocks_bf16_64, AttendBlocksArgs, THREADS) {}
KERNEL(attend_blocks_bf16_128, AttendBlocksArgs, THREADS) {}
#endif

KERNEL(attend_blocks_plain_f32_128, AttendBlocksArgs, THREADS) { attend_plain<float, 128>(p); }
KERNEL(attend_blocks_plain_f32_256, AttendBlocksArgs, THREADS) { attend_plain<float, 256>(p); }
KERNEL(attend_blocks_plain_f16_128, AttendBlocksArgs, THREADS) { attend_plain<f16, 128>(p); }
KERNEL(attend_blocks_plain_f16_256, AttendBlocksArgs, THREADS) { attend_plain<f16, 256>(p); }
KERNEL(attend_blocks_plain_bf16_128, AttendBlocksArgs, THREADS) { attend_plain<bf16, 128>(p); }
KERNEL(attend_blocks_plain_bf16_256, AttendBlocksArgs, THREADS) { attend_plain<bf16, 256>(p); }
KERNEL(attend_blocks_plain_q8_128, AttendBlocksArgs, THREADS) { attend_plain<coded, 128>(p); }
KERNEL(attend_blocks_plain_q8_256, AttendBlocksArgs, THREADS) { attend_plain<coded, 256>(p); }
