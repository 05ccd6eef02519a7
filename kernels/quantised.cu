// Products and lookups of quantised weights in tiles of 16 rows (crates/core/src/quant/tiles.rs
// describes a tile), for every format; and the rounding of activations to 8 or 16 bits.
//
// Everything in a tile begins at whole units of 16 bytes, and a unit of a plane of codes holds 4
// codes of each of 4 rows. So a thread has 4 rows of a tile: a load brings it 4 codes of each, and
// every word of x serves 4 rows.
//
// Products: out = x W^T (+ bias) (+ out); x is [T, n_in], W is [n_out, n_in]. A block owns a tile
// and ROWS rows of x. A thread has 4 rows of the tile and every 64th group of 32 columns; the sums
// of the threads meet at the end, first by shuffles, then in shared memory. Their order depends on
// nothing but the thread: the result of a row of x depends neither on the other rows nor on their
// number.
//
// Rounded rows give d s (sum of codes * rounded - offset * sum of rounded) for each 32 columns,
// whose brackets are whole numbers and so exact, or d s (sum of codes * rounded) + m s (sum of
// rounded). A number of 16 bits is 128 high + low, of 8 bits each, which the same codes multiply.
//
// Bytes: W, once for each ROWS rows of x. Bound: memory; arithmetic where rows are many.
#include "shared/quantised.cuh"

struct RoundRowsArgs {
    const float* x;
    uint4* rounded;
    u64 n_groups;
    u32 x_is_aligned;
    // 1 for 8 bits, 2 for 16.
    u32 planes;
};

struct TileProductArgs {
    // Rounded groups, or rows of f32.
    const void* x;
    const uint4* weight;
    const void* bias;
    float* out;
    u32 n_rows;
    u32 n_in;
    u32 n_out;
    // Units from one tile to the next, and from a tile to its scales.
    u32 tile_units;
    u32 scales_at;
    // KIND_NONE where there is none.
    u32 bias_kind;
    u32 accumulate;
    // Whether every row of f32 begins at 16 bytes.
    u32 x_is_aligned;
    // Of rounded groups: 1 for 8 bits, 2 for 16.
    u32 planes;
    u32 unused;
};

struct TileEmbedArgs {
    const u32* ids;
    const uint4* table;
    float* out;
    u32 n_tokens;
    u32 width;
    u32 n_vocab;
    u32 tile_units;
    u32 scales_at;
    float scale;
};

// The codes of a group for 4 rows: word [i][r] has codes 4 i to 4 i + 3 of row r.
template <typename F> DEVICE void group_codes(const uint4* from, u32 (&codes)[8][4]) {
    uint4 planes[F::BITS];
    load_planes<F>(from, planes);
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        word_codes<F>(planes, i, codes[i]);
    }
}

constexpr u32 ROUND_THREADS = 128;

// A group of one rounded row of x. Without a second plane nothing is in `low`.
struct RoundedGroup {
    u32 words[8];
    u32 low[8];
    float scale;
    int sums[2];
};

DEVICE RoundedGroup round_group(const float* from, bool is_aligned, u32 planes) {
    float x[COLUMNS];
    load_floats<COLUMNS>(from, 0, COLUMNS, is_aligned, x);
    const Rounding rounding = rounding_of(most_bits_of(x), planes);
    RoundedGroup to = {};
    to.scale = rounding.scale;
#pragma unroll
    for (u32 i = 0; i < COLUMNS; i++) {
        to.sums[i / 16] +=
            round_into(x[i], rounding, planes, i % 4, to.words[i / 4], to.low[i / 4]);
    }
    return to;
}

// A group a thread: 32 codes, a plane after the other; the bits of the scale, and the sums of the
// codes of the first and the second half. Bytes: 128 in, 48 or 80 out. Bound: memory.
KERNEL(round_rows, RoundRowsArgs, ROUND_THREADS) {
    const u64 group = static_cast<u64>(blockIdx.x) * ROUND_THREADS + threadIdx.x;
    if (group >= p.n_groups) {
        return;
    }
    const RoundedGroup own = round_group(p.x + group * COLUMNS, p.x_is_aligned, p.planes);
    const u32(&w)[8] = own.words;
    const u32(&l)[8] = own.low;
    uint4* to = p.rounded + rounded_units(p.planes) * group;
    to[0] = uint4{w[0], w[1], w[2], w[3]};
    to[1] = uint4{w[4], w[5], w[6], w[7]};
    if (p.planes == 2) {
        to[2] = uint4{l[0], l[1], l[2], l[3]};
        to[3] = uint4{l[4], l[5], l[6], l[7]};
    }
    const u32 sums[2] = {static_cast<u32>(own.sums[0]), static_cast<u32>(own.sums[1])};
    to[2 * p.planes] = uint4{float_bits(own.scale), sums[0], sums[1], 0};
}

constexpr u32 THREADS = 256;
constexpr u32 N_WARPS = THREADS / WARP;

DEVICE RoundedGroup rounded_group(const void* x, u64 group, u32 planes) {
    const uint4* from = static_cast<const uint4*>(x) + rounded_units(planes) * group;
    const uint4 a = from[0];
    const uint4 b = from[1];
    const uint4 rest = from[2 * planes];
    uint4 c = {};
    uint4 d = {};
    if (planes == 2) {
        c = from[2];
        d = from[3];
    }
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w},
            {c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w},
            float_of(rest.x),
            {static_cast<int>(rest.y), static_cast<int>(rest.z)}};
}

// Adds what a group of columns gives for a row of x to the sums of 4 rows of W.
template <typename F>
DEVICE void add_rounded(const u32 (&codes)[8][4], const float (&d)[4], const float (&other)[4],
                        const RoundedGroup& x, u32 planes, float (&sums)[4]) {
    // Where a group has one d, its second half goes on from the sum of the first.
    constexpr u32 N_SUMS = F::HAS_HALVES ? 2 : 1;
    const int total = x.sums[0] + x.sums[1];
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
#pragma unroll
        for (u32 h = 0; h < N_SUMS; h++) {
            int sum = 0;
#pragma unroll
            for (u32 i = 8 / N_SUMS * h; i < 8 / N_SUMS * (h + 1); i++) {
                sum = dot_bytes(codes[i][r], x.words[i], sum);
            }
            if (planes == 2) {
                sum *= 128;
#pragma unroll
                for (u32 i = 8 / N_SUMS * h; i < 8 / N_SUMS * (h + 1); i++) {
                    sum = dot_bytes(codes[i][r], x.low[i], sum);
                }
            }
            sum -= F::OFFSET * (F::HAS_HALVES ? x.sums[h] : total);
            sums[r] += (h == 0 ? d[r] : other[r]) * x.scale * static_cast<float>(sum);
        }
        if (F::HAS_MIN) {
            sums[r] += other[r] * (x.scale * static_cast<float>(total));
        }
    }
}

// The same for activations as they are.
template <typename F>
DEVICE void add_floats(const u32 (&codes)[8][4], const float (&d)[4], const float (&other)[4],
                       const float (&x)[COLUMNS], float (&sums)[4]) {
    float total = 0;
    if (F::HAS_MIN) {
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++) {
            total += x[i];
        }
    }
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        float halves[2] = {};
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++) {
            const int code = signed_byte(codes[i / 4][r], i % 4) - F::OFFSET;
            halves[i / 16] += static_cast<float>(code) * x[i];
        }
        if (F::HAS_HALVES) {
            sums[r] += d[r] * halves[0];
            sums[r] += other[r] * halves[1];
        } else {
            sums[r] += d[r] * (halves[0] + halves[1]);
        }
        if (F::HAS_MIN) {
            sums[r] += other[r] * total;
        }
    }
}

template <typename F, u32 ROWS, bool ROUNDED> DEVICE void tile_product(const TileProductArgs& p) {
    SHARED(float, parts, N_WARPS * ROWS * TILE_ROWS);
    // Blocks of rows that share a tile follow each other.
    const u32 first_t = blockIdx.x * ROWS;
    const u32 tile = blockIdx.y;
    const u32 quad = threadIdx.x % QUADS;
    const uint4* planes = p.weight + static_cast<u64>(tile) * p.tile_units;
    const u8* scales = reinterpret_cast<const u8*>(planes + p.scales_at);
    const u32 n_groups = p.n_in / COLUMNS;
    float sums[ROWS][4] = {};
    // A group's loads are enough under way; those of several would not fit the registers.
#pragma unroll 1
    for (u32 group = threadIdx.x / QUADS; group < n_groups; group += THREADS / QUADS) {
        u32 codes[8][4];
        float d[4];
        float other[4] = {};
        group_codes<F>(planes + static_cast<u64>(group) * F::UNITS + quad, codes);
        group_scales<F>(scales, group, quad, d, other);
#pragma unroll
        for (u32 t = 0; t < ROWS; t++) {
            // Rows beyond the last are the last again.
            const u64 row = min_of(first_t + t, p.n_rows - 1);
            if (ROUNDED) {
                const RoundedGroup x = rounded_group(p.x, row * n_groups + group, p.planes);
                add_rounded<F>(codes, d, other, x, p.planes, sums[t]);
            } else {
                float x[COLUMNS];
                const float* from = static_cast<const float*>(p.x) + row * p.n_in;
                load_floats<COLUMNS>(from, group * COLUMNS, p.n_in, p.x_is_aligned, x);
                add_floats<F>(codes, d, other, x, sums[t]);
            }
        }
    }
#pragma unroll
    for (u32 t = 0; t < ROWS; t++) {
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            float sum = sums[t][r];
#pragma unroll
            for (u32 mask = WARP / 2; mask >= QUADS; mask /= 2) {
                sum += shfl_xor(sum, mask);
            }
            if (lane_of_thread() < QUADS) {
                parts[(warp_of_thread() * ROWS + t) * TILE_ROWS + 4 * quad + r] = sum;
            }
        }
    }
    __syncthreads();

    // A thread for each element of out.
    const u32 t = first_t + threadIdx.x / TILE_ROWS;
    const u32 o = tile * TILE_ROWS + threadIdx.x % TILE_ROWS;
    if (threadIdx.x >= ROWS * TILE_ROWS || t >= p.n_rows || o >= p.n_out) {
        return;
    }
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < N_WARPS; i++) {
        sum += parts[i * ROWS * TILE_ROWS + threadIdx.x];
    }
    if (p.bias_kind != KIND_NONE) {
        sum += element_of(p.bias_kind, p.bias, o);
    }
    float* out = p.out + static_cast<u64>(t) * p.n_out + o;
    *out = p.accumulate ? *out + sum : sum;
}

constexpr u32 EMBED_THREADS = 256;

// out[t] = scale * table[ids[t]]; an id that no row has gives zeros. A thread owns 4 columns.
template <typename F> DEVICE void tile_embed(const TileEmbedArgs& p) {
    const u64 token = blockIdx.x;
    const u32 column = 4 * (blockIdx.y * EMBED_THREADS + threadIdx.x);
    if (column >= p.width) {
        return;
    }
    float* out = p.out + token * p.width + column;
    const u32 id = p.ids[token];
    if (id >= p.n_vocab) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            out[i] = 0;
        }
        return;
    }
    const u32 group = column / COLUMNS;
    const uint4* planes = p.table + static_cast<u64>(id / TILE_ROWS) * p.tile_units;
    const u8* scales = reinterpret_cast<const u8*>(planes + p.scales_at);
    const u32 place = column % COLUMNS / 4;
    const u32* words = reinterpret_cast<const u32*>(planes + static_cast<u64>(group) * F::UNITS);
    const u32 word = row_codes<F>(words + id % TILE_ROWS, place);
    float d;
    float other = 0;
    row_scales_of<F>(scales, group, id % TILE_ROWS, d, other);
    const float own = F::HAS_HALVES && place >= 4 ? other : d;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const float value = own * static_cast<float>(signed_byte(word, i) - F::OFFSET);
        out[i] = p.scale * (F::HAS_MIN ? value + other : value);
    }
}

// Rows of x that codes which are unpacked serve: decode of one sequence has one.
#define QUANTISED(name, F)                                                                  \
    KERNEL(tile_product_##name##_1, TileProductArgs, THREADS) { tile_product<F, 1, true>(p); } \
    KERNEL(tile_product_##name##_4, TileProductArgs, THREADS) { tile_product<F, 4, true>(p); } \
    KERNEL(tile_product_##name##_floats, TileProductArgs, THREADS) {                        \
        tile_product<F, 2, false>(p);                                                       \
    }                                                                                       \
    KERNEL(tile_embed_##name, TileEmbedArgs, EMBED_THREADS) { tile_embed<F>(p); }

QUANTISED(q4_0, Q4_0)
QUANTISED(q4_1, Q4_1)
QUANTISED(q5_0, Q5_0)
QUANTISED(q5_1, Q5_1)
QUANTISED(q8_0, Q8_0)
QUANTISED(q4_k, Q4_K)
QUANTISED(q5_k, Q5_K)
QUANTISED(q6_k, Q6_K)
QUANTISED(iq4_nl, Iq4Nl)
QUANTISED(mxfp4, Mxfp4)
