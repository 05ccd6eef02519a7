// Attention of a chunk of tokens over a run of KV rows of 16 bits: for each query head, and each
// token i over the rows hidden + i <= j < lead + i,
//
//     out = sum_j w_j v_j / sum_j w_j,   lse = ln sum_j w_j,   w_j = exp(scale q . k_j)
//
// A query row is a token and one of the query heads that share a KV head. This is the form of
// FlashAttention-2: a warp owns 16 neighbouring query rows, a block 64. The block goes through the
// run from the first to the last row that one of them sees. A tile of keys and values lies in
// shared memory for all warps, and the next tile arrives by asynchronous copies while this one is
// used. Scores are Q K^T, 16 query rows by 8 KV rows a product. They stay in registers, where the
// weights made of them already lie as the left factor of P V wants them. The blocks with the
// longest way begin first.
//
// Unit u of row r of a tile lies at unit u ^ r % 8 of the row: 8 rows that follow each other hit
// all banks.
//
// Where blocks are too few for the GPU, n_splits of them share a way: each leaves the maximum, the
// sum and the values of its part, and `attend_chunk_merge` puts the parts together.
//
// Rows of f32, those that are no whole units of 16 bytes, and heads wider than 128, for which there
// are not enough registers, are `attend_list.cu`'s.
//
// Both factors of a product have 16 bits, so what was f32 comes in parts that are multiplied one
// after the other: Q in 2 parts with f16 and 3 with bf16, P in 2. With f16, an element of a query
// times the scale must stay below 45000.
//
// FLOPs: 4 Dh for each query row and KV row that it sees. Products make 2 times (f16) or 2.5 times
// (bf16) as many. Bound: products of matrices. Dh is at most DIM, 64 or 128.
#include "shared/query_rows.cuh"

struct AttendChunkArgs {
    const float* q;
    const void* kv;
    float* out;
    float* lse;
    // Of query rows [n_tokens, n_q_heads] with n_splits each: the maximum of the scores times
    // log2 e, and the sum; then values, Dh each. Absent for one split.
    float* states;
    float* sums;
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
    // Blocks that share the KV rows of such a block; no more than the lanes of a warp.
    u32 n_splits;
    u32 accumulate;
    float scale;
};

constexpr u32 THREADS = 128;
constexpr u32 N_WARPS = THREADS / WARP;
// Query rows of a warp.
constexpr u32 ROWS = 16;
constexpr u32 BLOCK_ROWS = N_WARPS * ROWS;
// Tiles in shared memory.
constexpr u32 STAGES = 2;
// KV rows of a tile: 16 KiB of keys and values.
template <u32 DIM> constexpr u32 TILE = DIM == 64 ? 64 : 32;

constexpr float LOG2_E = 1.44269504f;
constexpr float LN_2 = 0.693147181f;
// Weights are 2^(score - maximum + HEADROOM), so that f16 holds weights 2^HEADROOM times smaller
// with all its bits. The largest is 2^15, and f16 ends at 2^16.
constexpr float HEADROOM = 15.0f;

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

// Two numbers to the nearest T, the first in the low half.
DEVICE u32 pack(float low, float high, f16) { return floats_to_halves(low, high); }
#if HAS_SM80
DEVICE u32 pack(float low, float high, bf16) { return floats_to_bfloats(low, high); }
#endif

// The same, and what that leaves of both numbers.
template <typename T> DEVICE u32 take_part(float& low, float& high) {
    const u32 bits = pack(low, high, T{});
    low -= widen(T{static_cast<u16>(bits)});
    high -= widen(T{static_cast<u16>(bits >> 16)});
    return bits;
}

template <u32 DIM> DEVICE u32 unit_at(u32 row, u32 unit) {
    return row * (DIM / 8) + (unit ^ row % 8);
}

// Begins the copies of the tile of rows [first, first + TILE), zeros from `end` on and for units
// beyond a key or a value: keys, then values.
template <u32 DIM>
DEVICE void copy_tile(const AttendChunkArgs& p, const uint4* rows, u32 first, u32 end, uint4* to) {
    constexpr u32 UNITS = DIM / 8;
    // A row of threads for each row of the run.
    constexpr u32 AT_ONCE = THREADS / (2 * UNITS);
    const u32 half = threadIdx.x / UNITS % 2;
    const u32 unit = threadIdx.x % UNITS;
    const u32 half_units = p.head_dim / 8;
#pragma unroll 2
    for (u32 i = 0; i < TILE<DIM> / AT_ONCE; i++) {
        const u32 row = threadIdx.x / (2 * UNITS) + i * AT_ONCE;
        const bool is_there = first + row < end && unit < half_units;
        const u64 row_begin = static_cast<u64>(first + row) * (2 * half_units);
        const u64 from = row_begin + half * half_units + unit;
        copy_async(&to[half * TILE<DIM> * UNITS + unit_at<DIM>(row, unit)],
                   is_there ? rows + from : static_cast<const uint4*>(p.kv), is_there);
    }
}

// Element d of query row `row`, times the scale, for exponents of 2; 0 for one that is not there.
DEVICE float query_at(const AttendChunkArgs& p, u32 kv_head, u32 row, u32 n, u32 d) {
    if (row >= n || d >= p.head_dim) {
        return 0.0f;
    }
    return p.q[entry_of(p, kv_head, row) * p.head_dim + d] * (p.scale * LOG2_E);
}

// 16 query rows, part by part, in the order of the registers of products.
template <typename T, u32 DIM>
DEVICE void load_queries(const AttendChunkArgs& p, u32 kv_head, u32 first, u32 n,
                         u32 (&queries)[2][DIM / 16][4], uint4* thirds) {
    const u32 g = lane_of_thread() / 4;
    const u32 t = lane_of_thread() % 4;
#pragma unroll
    for (u32 k = 0; k < DIM / 16; k++) {
        u32 rest[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 row = first + g + i % 2 * 8;
            const u32 d = 16 * k + 2 * t + i / 2 * 8;
            float low = query_at(p, kv_head, row, n, d);
            float high = query_at(p, kv_head, row, n, d + 1);
            queries[0][k][i] = take_part<T>(low, high);
            queries[1][k][i] = take_part<T>(low, high);
            rest[i] = pack(low, high, T{});
        }
        if (NEEDS_THIRD<T>) {
            u32* const words = reinterpret_cast<u32*>(&thirds[k * WARP]);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                words[i * WARP + lane_of_thread()] = rest[i];
            }
        }
        // Else all are loaded first, into twice the registers.
        warp_sync();
    }
}

// What 16 query rows have made so far: of rows g and g + 8 the maximum, and the part of the sum
// that this lane has summed up; o[j] is columns 2t and 2t + 1 of unit j, of row g and of row g + 8.
template <u32 DIM> struct Sums {
    float o[DIM / 8][4];
    float m[2];
    float l[2];
};

// Scores of a tile: s[j] is KV rows 8 j + 2t and the next, for query rows g and g + 8.
template <typename T, u32 DIM>
DEVICE void score_keys(const uint4* keys, const u32 (&queries)[2][DIM / 16][4],
                       const uint4* thirds, float (&s)[TILE<DIM> / 8][4]) {
    // Lane 8 m + r brings row r of matrix m.
    const u32 m = lane_of_thread() / 8;
    const u32 r = lane_of_thread() % 8;
#pragma unroll
    for (u32 k = 0; k < DIM / 16; k++) {
#pragma unroll
        for (u32 j = 0; j < TILE<DIM> / 8; j += 4) {
            u32 b[4][2];
#pragma unroll
            for (u32 i = 0; i < 4; i += 2) {
                u32 matrices[4];
                load_matrices(matrices,
                              &keys[unit_at<DIM>(8 * (j + i + m / 2) + r, 2 * k + m % 2)]);
                b[i][0] = matrices[0];
                b[i][1] = matrices[1];
                b[i + 1][0] = matrices[2];
                b[i + 1][1] = matrices[3];
            }
            // Part by part, so that no product waits for the one before it.
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                mma_of(s[j + i % 4], queries[i / 4][k], b[i % 4], T{});
            }
            if (NEEDS_THIRD<T>) {
                u32 a[4];
                load_matrices(a, &thirds[k * WARP + lane_of_thread()]);
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    mma_of(s[j + i], a, b[i], T{});
                }
            }
        }
    }
}

// Takes from a tile of 16 query rows' scores those of KV rows that are not seen, and those from
// `end` on.
template <u32 DIM>
DEVICE void hide(const AttendChunkArgs& p, u32 first, u32 n, u32 tile, u32 end,
                 float (&s)[TILE<DIM> / 8][4]) {
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        const u32 row = min_of(first + lane_of_thread() / 4 + 8 * h, n - 1);
        const u32 skipped = skipped_by(p, row);
        const u32 seen = min_of(seen_by(p, row), end);
#pragma unroll
        for (u32 i = 0; i < TILE<DIM> / 4; i++) {
            const u32 kv_row = tile + i / 2 * 8 + lane_of_thread() % 4 * 2 + i % 2;
            float& score = s[i / 2][2 * h + i % 2];
            score = kv_row >= skipped && kv_row < seen ? score : minus_infinity();
        }
    }
}

// Makes weights of scores, and what was made before fit to the new maximum.
template <u32 DIM> DEVICE void weigh(float (&s)[TILE<DIM> / 8][4], Sums<DIM>& sums) {
    float top[2] = {sums.m[0], sums.m[1]};
#pragma unroll
    for (u32 i = 0; i < TILE<DIM> / 2; i++) {
        top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i / 4][i % 4]);
    }
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        top[h] = fmaxf(top[h], shfl_xor(top[h], 1u));
        top[h] = fmaxf(top[h], shfl_xor(top[h], 2u));
    }
    // Rare after the first tiles.
    if (votes(top[0] > sums.m[0] || top[1] > sums.m[1]) != 0) {
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const float factor = exp2_fast(sums.m[h] - top[h]);
            sums.m[h] = top[h];
            sums.l[h] *= factor;
#pragma unroll
            for (u32 j = 0; j < DIM / 8; j++) {
                sums.o[j][2 * h] *= factor;
                sums.o[j][2 * h + 1] *= factor;
            }
        }
    }
    const float base[2] = {top[0] - HEADROOM, top[1] - HEADROOM};
#pragma unroll
    for (u32 i = 0; i < TILE<DIM> / 2; i++) {
        const float weight = exp2_fast(s[i / 4][i % 4] - base[i / 2 % 2]);
        sums.l[i / 2 % 2] += weight;
        s[i / 4][i % 4] = weight;
    }
}

// o += P V.
template <typename T, u32 DIM>
DEVICE void add_values(const uint4* values, float (&weights)[TILE<DIM> / 8][4], Sums<DIM>& sums) {
    const u32 m = lane_of_thread() / 8;
    const u32 r = lane_of_thread() % 8;
#pragma unroll
    for (u32 k = 0; k < TILE<DIM> / 16; k++) {
        u32 parts[2][4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float (&w)[4] = weights[2 * k + i / 2];
            parts[0][i] = take_part<T>(w[i % 2 * 2], w[i % 2 * 2 + 1]);
            parts[1][i] = pack(w[i % 2 * 2], w[i % 2 * 2 + 1], T{});
        }
#pragma unroll
        for (u32 j = 0; j < DIM / 8; j += 4) {
            u32 b[4][2];
#pragma unroll
            for (u32 i = 0; i < 4; i += 2) {
                u32 matrices[4];
                load_matrices_transposed(
                    matrices, &values[unit_at<DIM>(16 * k + m % 2 * 8 + r, j + i + m / 2)]);
                b[i][0] = matrices[0];
                b[i][1] = matrices[1];
                b[i + 1][0] = matrices[2];
                b[i + 1][1] = matrices[3];
            }
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                mma_of(sums.o[j + i % 4], parts[i / 4], b[i % 4], T{});
            }
        }
    }
}

// Writes what was made for query rows [first, first + 16), together with what is held; or the part
// of a split. All lanes of a warp are here.
template <u32 DIM>
DEVICE void store_sums(const AttendChunkArgs& p, u32 kv_head, u32 first, u32 n, u32 split,
                       const Sums<DIM>& sums) {
    const u32 t = lane_of_thread() % 4;
    const bool is_whole = p.n_splits == 1;
    const u64 begin = static_cast<u64>(p.first_token) * p.n_q_heads;
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        const u32 row = first + lane_of_thread() / 4 + 8 * h;
        const u64 entry = entry_of(p, kv_head, min_of(row, n - 1));
        float l = sums.l[h] + shfl_xor(sums.l[h], 1u);
        l += shfl_xor(l, 2u);
        const float m = sums.m[h] - HEADROOM;
        const bool is_held = is_whole && p.accumulate != 0;
        const Shares both = shares_of(m * LN_2, l, is_held ? p.lse[entry] : minus_infinity());
        // All have read it.
        warp_sync();
        if (row >= n) {
            continue;
        }
        const u64 state = (entry - begin) * p.n_splits + split;
        if (t == 0) {
            if (is_whole) {
                p.lse[entry] = both.lse;
            } else {
                p.states[2 * state] = m;
                p.states[2 * state + 1] = l;
            }
        }
        if (!is_whole && l == 0.0f) {
            // Nobody reads what nothing was added to.
            continue;
        }
        float* out = is_whole ? p.out + entry * p.head_dim : p.sums + state * p.head_dim;
        const float share = is_whole ? both.made : 1.0f;
        const float held = is_whole ? both.held : 0.0f;
#pragma unroll
        for (u32 i = 0; i < DIM / 4; i++) {
            const u32 d = i / 2 * 8 + 2 * t + i % 2;
            if (d < p.head_dim) {
                const float sum = share * sums.o[i / 2][2 * h + i % 2];
                // Nothing held may hold anything.
                out[d] = held == 0.0f ? sum : sum + held * out[d];
            }
        }
    }
}

template <typename T, u32 DIM> DEVICE void attend_chunk(const AttendChunkArgs& p) {
    constexpr u32 STEPS = DIM / 16;
    // Units of the keys of a tile; values have as many.
    constexpr u32 UNITS = TILE<DIM> * DIM / 8;
    SHARED(uint4, tiles, STAGES * 2 * UNITS);
    SHARED(uint4, all_thirds, NEEDS_THIRD<T> ? N_WARPS * STEPS * WARP : 1);
    uint4* const thirds = all_thirds + (NEEDS_THIRD<T> ? warp_of_thread() * STEPS * WARP : 0);
    const u32 kv_head = blockIdx.x / p.n_tiles;
    const u32 block = p.n_tiles - 1 - blockIdx.x % p.n_tiles;
    const u32 n = p.n_tokens * (p.n_q_heads / p.n_kv_heads);

    // The block's way, and the part of it that is its split.
    u32 begin = skipped_by(p, block * BLOCK_ROWS);
    u32 end = seen_by(p, min_of((block + 1) * BLOCK_ROWS, n) - 1);
    const u32 n_tiles = begin < end ? (end - begin + TILE<DIM> - 1) / TILE<DIM> : 0;
    const u32 each = (n_tiles + p.n_splits - 1) / p.n_splits;
    begin += min_of(blockIdx.y * each, n_tiles) * TILE<DIM>;
    end = min_of(end, begin + each * TILE<DIM>);

    const uint4* rows = static_cast<const uint4*>(p.kv)
        + (static_cast<u64>(kv_head) * p.head_stride + p.first_row) * (p.head_dim / 4);
    if (begin < end) {
        copy_tile<DIM>(p, rows, begin, end, tiles);
    }
    copies_commit();

    // The warp's query rows. One of them sees a row from `some_begin` to `some_end`, and all of
    // them see the rows from `whole_begin` to `whole_end`.
    const u32 first = block * BLOCK_ROWS + warp_of_thread() * ROWS;
    const u32 last = min_of(first + ROWS, n) - 1;
    const u32 some_begin = skipped_by(p, first);
    const u32 some_end = first < n ? seen_by(p, last) : 0;
    const u32 whole_begin = skipped_by(p, last);
    const u32 whole_end = seen_by(p, first);
    u32 queries[2][STEPS][4];
    load_queries<T, DIM>(p, kv_head, first, n, queries, thirds);
    Sums<DIM> sums = {{}, {LOWEST, LOWEST}, {0, 0}};

    u32 stage = 0;
    for (u32 tile = begin; tile < end; tile += TILE<DIM>) {
        copies_wait<0>();
        // The tile of all threads has come, and all have used up the other one.
        __syncthreads();
        const uint4* keys = tiles + stage * (2 * UNITS);
        stage = 1 - stage;
        if (tile + TILE<DIM> < end) {
            copy_tile<DIM>(p, rows, tile + TILE<DIM>, end, tiles + stage * (2 * UNITS));
        }
        copies_commit();
        if (tile >= some_end || tile + TILE<DIM> <= some_begin) {
            continue;
        }
        float s[TILE<DIM> / 8][4] = {};
        score_keys<T, DIM>(keys, queries, thirds, s);
        if (tile < whole_begin || tile + TILE<DIM> > min_of(whole_end, end)) {
            hide<DIM>(p, first, n, tile, end, s);
        }
        weigh<DIM>(s, sums);
        add_values<T, DIM>(keys + UNITS, s, sums);
    }
    if (first < n) {
        store_sums<DIM>(p, kv_head, first, n, blockIdx.y, sums);
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

// A warp puts together the parts of a query row; lane i weighs split i.
KERNEL(attend_chunk_merge, AttendChunkArgs, THREADS) {
    const u32 row = blockIdx.x * N_WARPS + warp_of_thread();
    if (row >= p.n_tokens * p.n_q_heads) {
        return;
    }
    const u64 first = static_cast<u64>(row) * p.n_splits;
    const u32 lane = lane_of_thread();
    const bool is_split = lane < p.n_splits;
    const float m = is_split ? p.states[2 * (first + lane)] : LOWEST;
    const float l = is_split ? p.states[2 * (first + lane) + 1] : 0.0f;
    float top = m;
#pragma unroll
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
        top = fmaxf(top, shfl_xor(top, mask));
    }
    float factor = l == 0.0f ? 0.0f : exp2_fast(m - top);
    const u64 entry = static_cast<u64>(p.first_token) * p.n_q_heads + row;
    const float held = p.accumulate ? p.lse[entry] : minus_infinity();
    const Shares both = shares_of(top * LN_2, warp_sum(factor * l), held);
    factor *= both.made;
    // All have read it.
    warp_sync();
    if (lane == 0) {
        p.lse[entry] = both.lse;
    }
    for (u32 begin = 0; begin < p.head_dim; begin += WARP) {
        const u32 d = begin + lane;
        float sum = 0;
        for (u32 s = 0; s < p.n_splits; s++) {
            const float share = shfl(factor, s);
            // What nothing was added to is not there.
            if (share != 0.0f && d < p.head_dim) {
                sum += share * p.sums[(first + s) * p.head_dim + d];
            }
        }
        if (d < p.head_dim) {
            float* out = p.out + entry * p.head_dim + d;
            *out = both.held == 0.0f ? sum : sum + both.held * *out;
        }
    }
}
