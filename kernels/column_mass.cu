// out[h, i] += sum over the query tokens t that see row j = rows[i] of exp(scale q[t, h] . k_j -
// lse[t, h]): the attention that listed rows received, made again from each query's log-sum-exp.
// Token t of those that count sees row j iff j <= t + diagonal and, with a window, j > t + diagonal
// - window. A log-sum-exp of minus infinity adds nothing, nor does an id outside of the rows.
//
// A block owns 64 listed rows of a KV head and goes over all query rows of its group, so that
// nothing is summed twice and no sum has two owners. Query rows come in tiles: `tokens` tokens of
// one query head, or of several, where a tile has room for more than there are tokens. So one token
// of a decode step still fills a tile with the heads of its group.
//
// `mma`, for 16-bit rows of whole units of 16 bytes: each of 4 warps holds 16 keys in registers and
// takes tiles of 8 query rows from shared memory, as `attend_list` does: a query is its rounding to
// 16 bits and what that left, so sums are as near as with f32 products.
// `plain`, for all others and wider heads: a tile of 64 keys by 64 query rows in f32.
//
// Bytes: Dh elements a listed row and KV head, out twice. FLOPs: 2 Dh a listed row, query head and
// token. Bound: arithmetic for the queries of a prompt, memory for those of a decode step.
#include "shared/attend.cuh"
#include "shared/tile.cuh"

struct ColumnMassArgs {
    const float* q;
    const float* lse;
    const void* kv;
    // [Hkv, list_stride] and [Hkv].
    const u32* rows;
    const u32* n_rows;
    float* out;
    u32 n_q_heads;
    u32 n_kv_heads;
    u32 head_dim;
    // Query tokens that count.
    u32 q_start;
    u32 q_len;
    u32 list_stride;
    u32 out_stride;
    u32 head_stride;
    // Ids are below it.
    u32 row_limit;
    int diagonal;
    // 0 for none.
    u32 window;
    float scale;
    // Tokens of a tile of query rows: a power of two.
    u32 tokens;
    // Whether units of 16 bytes can be loaded.
    u32 kv_is_aligned;
    u32 q_is_aligned;
    u32 unused;
};

constexpr u32 THREADS = 128;
// Listed rows of a block.
constexpr u32 BLOCK_ROWS = 64;
// Listed rows of a warp of `mma`, and query rows of its tiles.
constexpr u32 WARP_ROWS = 16;
constexpr u32 TILE_QUERIES = 8;

// The tiles of a group's query rows: all tokens of some heads, then all of the next ones.
struct Tiles {
    u32 of_tokens;
    // Heads of a tile.
    u32 n_heads;
    u32 n;
};

DEVICE Tiles tiles_of(const ColumnMassArgs& p, u32 n_queries) {
    Tiles tiles;
    const u32 group = p.n_q_heads / p.n_kv_heads;
    tiles.of_tokens = (p.q_len + p.tokens - 1) / p.tokens;
    tiles.n_heads = n_queries / p.tokens;
    tiles.n = tiles.of_tokens * ((group + tiles.n_heads - 1) / tiles.n_heads);
    return tiles;
}

// A query row of a tile.
struct Query {
    // Among those that count.
    u32 token;
    // Among the heads of the group.
    u32 head;
    bool is_there;
};

DEVICE Query query_of(const ColumnMassArgs& p, const Tiles& tiles, u32 tile, u32 row) {
    Query query;
    query.token = tile % tiles.of_tokens * p.tokens + row % p.tokens;
    query.head = tile / tiles.of_tokens * tiles.n_heads + row / p.tokens;
    query.is_there =
        tile < tiles.n && query.token < p.q_len && query.head < p.n_q_heads / p.n_kv_heads;
    return query;
}

// A query row among those of q and lse.
DEVICE u64 entry_of(const ColumnMassArgs& p, const Query& query) {
    const u64 first_head = static_cast<u64>(blockIdx.y) * (p.n_q_heads / p.n_kv_heads);
    return static_cast<u64>(p.q_start + query.token) * p.n_q_heads + first_head + query.head;
}

// What a query row sees: rows from `begin` to below `end`. No id is the largest number.
struct Sight {
    u32 begin;
    u32 end;
    float lse;
};

DEVICE u32 clamp_row(long long row) {
    const long long most = 0xffffffffll;
    return static_cast<u32>(row < 0 ? 0 : row > most ? most : row);
}

DEVICE Sight sight_of(const ColumnMassArgs& p, const Query& query) {
    if (!query.is_there) {
        return Sight{0, 0, 0.0f};
    }
    const float lse = p.lse[entry_of(p, query)];
    if (!(lse > minus_infinity())) {
        return Sight{0, 0, 0.0f};
    }
    // Neither sum fits 32 bits where the diagonal is as high as can be.
    const long long end = static_cast<long long>(query.token) + p.diagonal + 1;
    const long long begin = p.window == 0 ? 0 : end - static_cast<long long>(p.window);
    return Sight{clamp_row(begin), clamp_row(end), lse};
}

DEVICE float mass_of(const Sight& sight, u32 id, float score) {
    return id >= sight.begin && id < sight.end ? expf(score - sight.lse) : 0.0f;
}

// Listed rows of this block's KV head.
DEVICE u32 n_listed(const ColumnMassArgs& p) {
    return min_of(p.n_rows[blockIdx.y], p.list_stride);
}

// The id of entry i of the list.
DEVICE u32 id_of(const ColumnMassArgs& p, u32 i, u32 n) {
    if (i >= n) {
        return NO_KV_ROW;
    }
    const u32 id = p.rows[static_cast<u64>(blockIdx.y) * p.list_stride + i];
    return id < p.row_limit ? id : NO_KV_ROW;
}

// The sum of entry i for a head of the group.
DEVICE float* sum_of(const ColumnMassArgs& p, u32 head, u32 i) {
    const u64 first_head = static_cast<u64>(blockIdx.y) * (p.n_q_heads / p.n_kv_heads);
    return p.out + (first_head + head) * p.out_stride + i;
}

// Elements [first, first + N) of a query row with the scale; 0 beyond its end and for none.
template <u32 N>
DEVICE void load_query(const ColumnMassArgs& p, const Query& query, u32 first, float (&to)[N]) {
    // Without a row its width is 0, and nothing is read.
    const u32 width = query.is_there ? p.head_dim : 0;
    const float* row = p.q + (query.is_there ? entry_of(p, query) * p.head_dim : 0);
    load_floats<N>(row, first, width, p.q_is_aligned != 0, to);
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        to[i] *= p.scale;
    }
}

// Tiles `first` to `first` + N of query rows, in the order of the registers of products.
template <typename T, u32 DIM, u32 N>
DEVICE void store_tiles(const ColumnMassArgs& p, const Tiles& tiles, u32 first, uint4* firsts,
                        uint2* thirds, Sight* sights) {
    constexpr u32 STEPS = DIM / 32;
    const u32 n = min_of(N, tiles.n - first);
    for (u32 i = threadIdx.x; i < n * STEPS * WARP; i += THREADS) {
        const u32 lane = i % WARP;
        const Query query = query_of(p, tiles, first + i / (STEPS * WARP), lane / 4);
        float x[8];
        load_query(p, query, (i / WARP % STEPS * 4 + lane % 4) * 8, x);
        uint4 parts[2];
        uint2 rest[2];
        order_query<T>(x, parts, rest);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 at = (i / WARP * 2 + half) * WARP + lane;
            firsts[at] = parts[half];
            if (NEEDS_THIRD<T>) {
                thirds[at] = rest[half];
            }
        }
    }
    for (u32 i = threadIdx.x; i < n * TILE_QUERIES; i += THREADS) {
        const u32 tile = first + i / TILE_QUERIES;
        sights[i] = sight_of(p, query_of(p, tiles, tile, i % TILE_QUERIES));
    }
}

// Adds a warp's sums over the tokens of a tile's heads to `out`, and begins again.
DEVICE void leave_sums(const ColumnMassArgs& p, const Tiles& tiles, u32 tile, u32 first_row,
                       const u32 (&ids)[4], float (&sums)[4]) {
    const u32 g = lane_of_thread() / 4;
    const u32 t = lane_of_thread() % 4;
    for (u32 mask = 1; mask < p.tokens; mask *= 2) {
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            sums[r] += shfl_xor(sums[r], 4 * mask);
        }
    }
    const u32 head = tile / tiles.of_tokens * tiles.n_heads + g / p.tokens;
    const bool is_there = g % p.tokens == 0 && head < p.n_q_heads / p.n_kv_heads;
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        if (is_there && ids[r] != NO_KV_ROW) {
            *sum_of(p, head, first_row + 2 * t + r % 2 + r / 2 * 8) += sums[r];
        }
        sums[r] = 0;
    }
}

template <typename T, u32 DIM> DEVICE void mass_mma(const ColumnMassArgs& p) {
    constexpr u32 STEPS = DIM / 32;
    constexpr u32 TILE_UNITS_16 = STEPS * 2 * WARP;
    // Tiles in shared memory: 16 KiB, and half as much for third parts.
    constexpr u32 BATCH = 512 / DIM;
    SHARED(uint4, firsts, BATCH * TILE_UNITS_16);
    SHARED(uint2, thirds, NEEDS_THIRD<T> ? BATCH * TILE_UNITS_16 : 1);
    SHARED(Sight, sights, BATCH * TILE_QUERIES);
    const u32 n = n_listed(p);
    if (blockIdx.x * BLOCK_ROWS >= n) {
        return;
    }
    const Tiles tiles = tiles_of(p, TILE_QUERIES);
    const u32 g = lane_of_thread() / 4;
    const u32 t = lane_of_thread() % 4;
    const u32 first_row = blockIdx.x * BLOCK_ROWS + warp_of_thread() * WARP_ROWS;
    const u32 id = id_of(p, first_row + lane_of_thread() % WARP_ROWS, n);
    const u32 row_units = p.head_dim / 4;
    const u64 head_units = static_cast<u64>(blockIdx.y) * p.head_stride * row_units;
    const uint4* head = static_cast<const uint4*>(p.kv) + head_units;
    const auto load = [](const uint4* from) { return load_once(from); };
    uint4 keys[2][STEPS];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 key_id = shfl(id, g + 8 * half);
#pragma unroll
        for (u32 j = 0; j < STEPS; j++) {
            keys[half][j] = load_unit(head, key_id, row_units, 0, 4 * j + t, load);
        }
    }
    u32 ids[4];
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        ids[r] = shfl(id, 2 * t + r % 2 + r / 2 * 8);
    }

    float sums[4] = {};
    for (u32 first = 0; first < tiles.n; first += BATCH) {
        __syncthreads();
        store_tiles<T, DIM, BATCH>(p, tiles, first, firsts, thirds, sights);
        __syncthreads();
        const u32 n_tiles = min_of(BATCH, tiles.n - first);
        for (u32 i = 0; i < n_tiles; i++) {
            float scores[4];
            // Without third parts there is nothing behind the first of them.
            const uint2* third = thirds + (NEEDS_THIRD<T> ? i * TILE_UNITS_16 : 0);
            score_tile<T, DIM>(keys, firsts + i * TILE_UNITS_16, third, scores);
            const Sight sight = sights[i * TILE_QUERIES + g];
#pragma unroll
            for (u32 r = 0; r < 4; r++) {
                sums[r] += mass_of(sight, ids[r], scores[r]);
            }
            if ((first + i + 1) % tiles.of_tokens == 0) {
                leave_sums(p, tiles, first + i, first_row, ids, sums);
            }
        }
    }
}

// Columns [first, first + 8) of a key; 0 beyond its end and for no row.
template <typename T>
DEVICE void load_key(const ColumnMassArgs& p, u32 id, u32 first, float (&to)[8]) {
    const u64 head_row = static_cast<u64>(blockIdx.y) * p.head_stride;
    const u32 width = id == NO_KV_ROW ? 0 : p.head_dim;
    const u64 at = id == NO_KV_ROW ? 0 : (head_row + id) * 2 * p.head_dim;
    const T* key = static_cast<const T*>(p.kv) + at;
    if constexpr (sizeof(T) == 4) {
        load_floats<8>(key, first, width, p.kv_is_aligned != 0, to);
    } else {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            to[i] = first + i < width ? widen(key[first + i]) : 0.0f;
        }
    }
}

template <typename T> DEVICE void mass_plain(const ColumnMassArgs& p) {
    constexpr u32 N = SIDE<THREADS>;
    // Lanes that leave masses of 8 query rows and 4 listed rows hit all banks.
    constexpr u32 MASS_STRIDE = BLOCK_ROWS + 4;
    static_assert(N == BLOCK_ROWS);
    SHARED(float4, key_tile, TILE_UNITS<THREADS>);
    SHARED(float4, query_tile, TILE_UNITS<THREADS>);
    SHARED(float, masses, N * MASS_STRIDE);
    SHARED(Sight, sights, N);
    SHARED(u32, ids, BLOCK_ROWS);
    const u32 n = n_listed(p);
    const u32 first_row = blockIdx.x * BLOCK_ROWS;
    if (first_row >= n) {
        return;
    }
    const Tiles tiles = tiles_of(p, N);
    if (threadIdx.x < BLOCK_ROWS) {
        ids[threadIdx.x] = id_of(p, first_row + threadIdx.x, n);
    }
    const u32 own_id = id_of(p, first_row + row_brought(), n);
    for (u32 tile = 0; tile < tiles.n; tile++) {
        if (threadIdx.x < N) {
            sights[threadIdx.x] = sight_of(p, query_of(p, tiles, tile, threadIdx.x));
        }
        const Query query = query_of(p, tiles, tile, row_brought());
        float products[ROWS][COLUMNS<THREADS>];
        clear_sums<THREADS>(products);
        for (u32 first = 0; first < p.head_dim; first += DEPTH) {
            float key[8];
            float x[8];
            load_key<T>(p, own_id, first + column_brought(), key);
            load_query(p, query, first + column_brought(), x);
            // The step before has been used.
            __syncthreads();
            bring(key_tile, key);
            bring(query_tile, x);
            __syncthreads();
            add_products<THREADS>(key_tile, query_tile, products);
        }
#pragma unroll
        for (u32 j = 0; j < COLUMNS<THREADS>; j++) {
            const u32 column = column_of_thread<THREADS>(j);
            const Sight sight = sights[column];
#pragma unroll
            for (u32 i = 0; i < ROWS; i++) {
                const u32 row = row_of_thread(i);
                masses[column * MASS_STRIDE + row] = mass_of(sight, ids[row], products[i][j]);
            }
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < tiles.n_heads * BLOCK_ROWS; i += THREADS) {
            const u32 row = i % BLOCK_ROWS;
            const u32 of_tile = i / BLOCK_ROWS;
            const u32 head = tile / tiles.of_tokens * tiles.n_heads + of_tile;
            if (head < p.n_q_heads / p.n_kv_heads && ids[row] != NO_KV_ROW) {
                float sum = 0;
                for (u32 token = 0; token < p.tokens; token++) {
                    sum += masses[(of_tile * p.tokens + token) * MASS_STRIDE + row];
                }
                *sum_of(p, head, first_row + row) += sum;
            }
        }
    }
}

KERNEL(column_mass_f16_64, ColumnMassArgs, THREADS) { mass_mma<f16, 64>(p); }
KERNEL(column_mass_f16_128, ColumnMassArgs, THREADS) { mass_mma<f16, 128>(p); }

// Before compute capability 8.0 there are no products of bf16, and nobody asks for these.
#if HAS_SM80
KERNEL(column_mass_bf16_64, ColumnMassArgs, THREADS) { mass_mma<bf16, 64>(p); }
KERNEL(column_mass_bf16_128, ColumnMassArgs, THREADS) { mass_mma<bf16, 128>(p); }
#else
KERNEL(column_mass_bf16_64, ColumnMassArgs, THREADS) {}
KERNEL(column_mass_bf16_128, ColumnMassArgs, THREADS) {}
#endif

KERNEL(column_mass_plain_f32, ColumnMassArgs, THREADS) { mass_plain<float>(p); }
KERNEL(column_mass_plain_f16, ColumnMassArgs, THREADS) { mass_plain<f16>(p); }
KERNEL(column_mass_plain_bf16, ColumnMassArgs, THREADS) { mass_plain<bf16>(p); }
