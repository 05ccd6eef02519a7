// Products of many rounded rows with quantised weights in tiles of 16 rows (crates/core/src/quant/
// tiles.rs describes a tile) on tensor cores, for every format: out = x W^T (+ bias) (+ out); x is
// [T, n_in], W is [n_out, n_in].
//
// A block owns 8 tiles of W and some rows of x, a warp two of these tiles and all of these rows.
// Columns come in groups of 32, which is what the scales of both sides are for. Those of x and the
// codes of W arrive in shared memory by asynchronous copies, some groups ahead; scales of W are
// made of their parts one group ahead, a thread for each row.
//
// Sums of a group are whole numbers and exact: codes below 2^8 times numbers of 8 bits, 32 of them,
// stay below 2^22. They are added to the bits of 1.5 * 2^23, which makes them the bits of a float
// that is larger by this number, so no conversion is needed: it has an eighth of the speed of a
// sum. A number of 16 bits is 128 high + low, whose two sums meet in one rounding. Then they are
// multiplied by both scales and added up in f32, group after group: what a row of x gives depends
// neither on the other rows nor on their number.
//
// Bytes: W once for each block of rows of x, x once for each 128 rows of W, from caches. Bound:
// arithmetic, most of it that of scales: 3 or 5 operations for the 32 or 64 products of an output.
#include "shared/quantised.cuh"

struct RoundBlocksArgs {
    const float* x;
    u32* blocks;
    u32 n_rows;
    u32 groups_of_row;
    u32 x_is_aligned;
    // 1 for 8 bits, 2 for 16.
    u32 planes;
};

struct TileProductsArgs {
    // Rounded blocks.
    const uint4* x;
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
    // Of rounded groups: 1 for 8 bits, 2 for 16.
    u32 planes;
};

// Rows of a block of rounded rows, and the words of a group of one. First the codes: of row r the
// words t and 4 + t lie side by side at 2 (8 t + r), as `mma_bytes` takes them; then the scales of
// the 8 rows, and these times the sums of the codes of the group; then the codes of a second plane
// as those of the first.
constexpr u32 BLOCK_ROWS = 8;
constexpr u32 SCALES_AT = 8 * BLOCK_ROWS;
constexpr u32 SUMS_AT = 9 * BLOCK_ROWS;
constexpr u32 LOW_AT = 10 * BLOCK_ROWS;
template <u32 PLANES> constexpr u32 BLOCK_UNITS = (8 * PLANES + 2) * BLOCK_ROWS / 4;

constexpr u32 ROUND_THREADS = 128;

// Columns of a lane of `round_blocks`.
constexpr u32 LANE_COLUMNS = COLUMNS * BLOCK_ROWS / WARP;
constexpr u32 ROW_LANES = COLUMNS / LANE_COLUMNS;

// What `round_rows` makes of numbers, in blocks. A warp has a group of a block: reads and writes
// are whole lines. Bytes of a row's group: 128 in, 40 or 72 out. Bound: memory.
KERNEL(round_blocks, RoundBlocksArgs, ROUND_THREADS) {
    const u32 group = blockIdx.x * (ROUND_THREADS / WARP) + warp_of_thread();
    if (group >= p.groups_of_row) {
        return;
    }
    const u32 r = lane_of_thread() / ROW_LANES;
    const u32 quarter = lane_of_thread() % ROW_LANES;
    // What is behind the last row is the last again: nobody looks at it.
    const u64 row = min_of(blockIdx.y * BLOCK_ROWS + r, p.n_rows - 1);
    const u64 first = (row * p.groups_of_row + group) * COLUMNS + LANE_COLUMNS * quarter;
    float x[LANE_COLUMNS];
    load_floats<LANE_COLUMNS>(p.x + first, 0, LANE_COLUMNS, p.x_is_aligned, x);
    u32 most_bits = most_bits_of(x);
#pragma unroll
    for (u32 mask = ROW_LANES / 2; mask > 0; mask /= 2) {
        const u32 bits = shfl_xor(most_bits, mask);
        most_bits = bits > most_bits ? bits : most_bits;
    }
    const Rounding rounding = rounding_of(most_bits, p.planes);
    u32 high[2] = {};
    u32 low[2] = {};
    int sum = 0;
#pragma unroll
    for (u32 i = 0; i < LANE_COLUMNS; i++) {
        sum += round_into(x[i], rounding, p.planes, i % 4, high[i / 4], low[i / 4]);
    }
#pragma unroll
    for (u32 mask = ROW_LANES / 2; mask > 0; mask /= 2) {
        sum += shfl_xor(sum, mask);
    }
    const u32 units = p.planes == 2 ? BLOCK_UNITS<2> : BLOCK_UNITS<1>;
    u32* to = p.blocks + 4 * units * (static_cast<u64>(blockIdx.y) * p.groups_of_row + group);
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 word = 2 * quarter + i;
        const u32 at = 2 * (BLOCK_ROWS * (word % 4) + r) + word / 4;
        to[at] = high[i];
        if (p.planes == 2) {
            to[LOW_AT + at] = low[i];
        }
    }
    if (quarter == 0) {
        to[SCALES_AT + r] = float_bits(rounding.scale);
        to[SUMS_AT + r] = float_bits(rounding.scale * static_cast<float>(sum));
    }
}

constexpr u32 THREADS = 128;
constexpr u32 N_WARPS = THREADS / WARP;
// Tiles of a warp, and of a block.
constexpr u32 TILES = 2;
constexpr u32 BLOCK_TILES = N_WARPS * TILES;
constexpr u32 W_ROWS = BLOCK_TILES * TILE_ROWS;
// Groups in shared memory at once.
constexpr u32 STAGES = 4;

// What 1.5 * 2^23 is made of: its bits plus a whole number below 2^22 are a float larger by it.
constexpr int LARGE_BITS = 0x4b400000;
constexpr float LARGE = 12582912.0f;

// Codes with their sign, four in a word: none but those of a smallest value have an offset then.
template <typename F> DEVICE u32 with_sign(u32 codes) {
    // No byte overflows: a code is below twice the offset, which is below 0x80.
    constexpr u32 LIFT = 0x80u - static_cast<u32>(F::OFFSET);
    return F::OFFSET == 0 ? codes : (codes + LIFT * 0x01010101u) ^ 0x80808080u;
}

DEVICE float number_of(int large) { return float_of(static_cast<u32>(large)) - LARGE; }

// What a lane has of a group of two tiles: words t and 4 + t of rows g and g + 8, and what makes
// values of them.
struct TileGroup {
    u32 codes[TILES][2][2];
    float d[TILES][2];
    float other[TILES][2];
};

template <typename F>
DEVICE TileGroup load_group(const uint4* codes, const float2* scales) {
    const u32 g = lane_of_thread() / 4;
    const u32 t = lane_of_thread() % 4;
    TileGroup to;
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        const u32 tile = warp_of_thread() * TILES + i;
        const u32* words = reinterpret_cast<const u32*>(codes + tile * F::UNITS);
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            to.codes[i][0][r] = with_sign<F>(row_codes<F>(words + g + 8 * r, t));
            to.codes[i][1][r] = with_sign<F>(row_codes<F>(words + g + 8 * r, 4 + t));
            const float2 own = scales[tile * TILE_ROWS + g + 8 * r];
            to.d[i][r] = own.x;
            to.other[i][r] = own.y;
        }
    }
    return to;
}

// Adds what a group gives for 8 rows of x to sums that lie as `mma_bytes` leaves them.
template <typename F, u32 PLANES>
DEVICE void add_block(const TileGroup& w, const uint4* block, float (&sums)[TILES][4]) {
    const u32 g = lane_of_thread() / 4;
    const u32 t = lane_of_thread() % 4;
    const u32* words = reinterpret_cast<const u32*>(block);
    const uint2* pair = reinterpret_cast<const uint2*>(words) + BLOCK_ROWS * t + g;
    const u32 high[2] = {pair->x, pair->y};
    u32 low[2] = {};
    if (PLANES == 2) {
        const uint2 second = pair[LOW_AT / 2];
        low[0] = second.x;
        low[1] = second.y;
    }
    // Of rows 2 t and 2 t + 1 of x.
    const float2 pair_scales = reinterpret_cast<const float2*>(words + SCALES_AT)[t];
    const float s[2] = {pair_scales.x, pair_scales.y};
    float totals[2] = {};
    if (F::HAS_MIN) {
        const float2 pair_sums = reinterpret_cast<const float2*>(words + SUMS_AT)[t];
        totals[0] = pair_sums.x;
        totals[1] = pair_sums.y;
    }
    // Halves of a group that have one d are one sum.
    constexpr u32 N_SUMS = F::HAS_HALVES ? 2 : 1;
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (u32 h = 0; h < N_SUMS; h++) {
            int c[4];
            int c_low[4];
            if (F::HAS_HALVES) {
                mma_bytes(c, w.codes[tile][h], high[h], LARGE_BITS);
            } else {
                mma_bytes_wide(c, w.codes[tile], high, LARGE_BITS);
            }
            if (PLANES == 2 && F::HAS_HALVES) {
                mma_bytes(c_low, w.codes[tile][h], low[h], LARGE_BITS);
            } else if (PLANES == 2) {
                mma_bytes_wide(c_low, w.codes[tile], low, LARGE_BITS);
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                float sum = number_of(c[i]);
                if (PLANES == 2) {
                    sum = fmaf(128.0f, sum, number_of(c_low[i]));
                }
                const float own = h == 0 ? w.d[tile][i / 2] : w.other[tile][i / 2];
                sums[tile][i] = fmaf(own * s[i % 2], sum, sums[tile][i]);
                if (F::HAS_MIN) {
                    sums[tile][i] = fmaf(w.other[tile][i / 2], totals[i % 2], sums[tile][i]);
                }
            }
        }
    }
}

template <typename F, u32 PLANES, u32 BLOCKS> DEVICE void tile_products(const TileProductsArgs& p) {
    constexpr u32 X_UNITS = BLOCK_UNITS<PLANES>;
    constexpr u32 STAGE = BLOCKS * X_UNITS + BLOCK_TILES * F::UNITS;
    DYNAMIC_SHARED(uint4, stages);
    // Two groups of scales in turns, of every row of W.
    SHARED(float2, scales, 2 * W_ROWS);
    const u32 n_tiles = (p.n_out + TILE_ROWS - 1) / TILE_ROWS;
    const u32 n_groups = p.n_in / COLUMNS;
    const u32 first_tile = blockIdx.y * BLOCK_TILES;
    const u32 first_block = blockIdx.x * BLOCKS;
    const u32 n_blocks = min_of((p.n_rows + BLOCK_ROWS - 1) / BLOCK_ROWS - first_block, BLOCKS);

    // What a thread copies of a group: units from the first group on. What is behind the last tile
    // or block is the last again: nobody stores what becomes of it.
    constexpr u32 N_X = BLOCKS * X_UNITS;
    constexpr u32 N_W = BLOCK_TILES * F::UNITS;
    const auto x_at = [&](u32 i) {
        const u32 unit = threadIdx.x + i * THREADS;
        const u32 block = first_block + min_of(unit / X_UNITS, n_blocks - 1);
        return block * n_groups * X_UNITS + unit % X_UNITS;
    };
    const auto w_at = [&](u32 i) {
        const u32 unit = threadIdx.x + i * THREADS;
        const u32 tile = min_of(first_tile + unit / F::UNITS, n_tiles - 1);
        return tile * p.tile_units + unit % F::UNITS;
    };
    const auto copy_group = [&](u32 group) {
        uint4* to = stages + group % STAGES * STAGE + threadIdx.x;
        if (group < n_groups) {
#pragma unroll
            for (u32 i = 0; i < (N_X + THREADS - 1) / THREADS; i++) {
                if (N_X % THREADS == 0 || threadIdx.x + i * THREADS < N_X) {
                    copy_async(to + i * THREADS, p.x + (x_at(i) + group * X_UNITS), true);
                }
            }
#pragma unroll
            for (u32 i = 0; i < (N_W + THREADS - 1) / THREADS; i++) {
                if (N_W % THREADS == 0 || threadIdx.x + i * THREADS < N_W) {
                    copy_async(to + N_X + i * THREADS, p.weight + (w_at(i) + group * F::UNITS),
                               true);
                }
            }
        }
        copies_commit();
    };
    // A thread has a row of W.
    const u64 own_tile = min_of(first_tile + threadIdx.x / TILE_ROWS, n_tiles - 1);
    const u8* own_scales =
        reinterpret_cast<const u8*>(p.weight + own_tile * p.tile_units + p.scales_at);
    const auto scales_of = [&](u32 group) {
        float2 to = {0, 0};
        row_scales_of<F>(own_scales, min_of(group, n_groups - 1), threadIdx.x % TILE_ROWS, to.x,
                         to.y);
        return to;
    };

    for (u32 group = 0; group < STAGES - 1; group++) {
        copy_group(group);
    }
    scales[threadIdx.x] = scales_of(0);
    float sums[BLOCKS][TILES][4] = {};
#pragma unroll 1
    for (u32 group = 0; group < n_groups; group++) {
        // Of the groups that were begun, those behind the next may still be on their way.
        copies_wait<STAGES - 2>();
        __syncthreads();
        copy_group(group + STAGES - 1);
        const float2 next = scales_of(group + 1);
        const uint4* x = stages + group % STAGES * STAGE;
        const TileGroup w =
            load_group<F>(x + BLOCKS * X_UNITS, scales + group % 2 * W_ROWS);
#pragma unroll
        for (u32 j = 0; j < BLOCKS; j++) {
            add_block<F, PLANES>(w, x + j * X_UNITS, sums[j]);
            if (j % 4 == 3) {
                // Else all blocks are loaded first, into more registers than there are.
                warp_sync();
            }
        }
        scales[(group + 1) % 2 * W_ROWS + threadIdx.x] = next;
    }

    const u32 g = lane_of_thread() / 4;
    const u32 t = lane_of_thread() % 4;
#pragma unroll
    for (u32 j = 0; j < BLOCKS; j++) {
#pragma unroll
        for (u32 i = 0; i < TILES * 4; i++) {
            const u32 tile = first_tile + warp_of_thread() * TILES + i / 4;
            const u32 row = (first_block + j) * BLOCK_ROWS + 2 * t + i % 2;
            const u32 o = tile * TILE_ROWS + g + i % 4 / 2 * 8;
            if (row < p.n_rows && o < p.n_out) {
                float sum = sums[j][i / 4][i % 4];
                if (p.bias_kind != KIND_NONE) {
                    sum += element_of(p.bias_kind, p.bias, o);
                }
                float* out = p.out + static_cast<u64>(row) * p.n_out + o;
                *out = p.accumulate ? *out + sum : sum;
            }
        }
    }
}

template <typename F, u32 BLOCKS> DEVICE void products_of(const TileProductsArgs& p) {
    if (p.planes == 2) {
        tile_products<F, 2, BLOCKS>(p);
    } else {
        tile_products<F, 1, BLOCKS>(p);
    }
}

#define TILE_PRODUCTS(name, F) \
    KERNEL(tile_products_##name, TileProductsArgs, THREADS) { products_of<F, 8>(p); }

TILE_PRODUCTS(q4_0, Q4_0)
TILE_PRODUCTS(q4_1, Q4_1)
TILE_PRODUCTS(q5_0, Q5_0)
TILE_PRODUCTS(q5_1, Q5_1)
TILE_PRODUCTS(q8_0, Q8_0)
TILE_PRODUCTS(q4_k, Q4_K)
TILE_PRODUCTS(q5_k, Q5_K)
TILE_PRODUCTS(q6_k, Q6_K)
TILE_PRODUCTS(iq4_nl, Iq4Nl)
TILE_PRODUCTS(mxfp4, Mxfp4)
