// out = x W^T (+ bias) (+ out) for many rows of x; x is [T, n_in], W is [n_out, n_in], its rows
// `row_units` units of 16 bytes, filled up with zeros.
//
// A block owns a tile of SIDE x SIDE of out (shared/tile.cuh): 128 with 256 threads, 64 with 128
// where large tiles would leave multiprocessors without work.
//
// W in f16 and bf16: tensor cores. x is rounded to the type of W on its way to shared memory, sums
// are f32; a step is 32 columns. W arrives by asynchronous copies, x through registers. A warp owns
// SIDE / 2 rows of x times 32 of W. With f16, x beyond 65504 becomes infinite, as wherever
// activations are f16.
//
// W in f32, and bf16 before compute capability 8.0, where tensor cores do not know it: f32
// products, with bf16 of x rounded all the same. A product with W in bf16 that must not round x is
// not for these kernels: `matvec.cu` makes it.
//
// x beyond n_in is taken for 0, since not-a-number may follow.
//
// Where a library of the vendor makes the product, `matmul_round` rounds x for it, to rows as long
// as those of W, and `matmul_bias` makes out what the product is added to.
//
// Bytes: W once for each SIDE rows of x, x once for each SIDE rows of W, from the L2 cache where
// the blocks of a column of tiles run together. FLOPs: 2 T n_in n_out. Bound: arithmetic.
#include "shared/tile.cuh"

struct MatmulArgs {
    const float* x;
    const uint4* weight;
    const void* bias;
    float* out;
    u32 n_rows;
    u32 n_in;
    u32 n_out;
    u32 row_units;
    // KIND_NONE where there is none.
    u32 bias_kind;
    u32 accumulate;
    // Whether every row of x begins at 16 bytes.
    u32 x_is_aligned;
    // Whether x is rounded to bf16, for W in bf16: tensor cores always do.
    u32 is_rounding;
};

struct MatmulRoundArgs {
    const float* x;
    uint4* to;
    u32 n_rows;
    u32 n_in;
    u32 row_units;
    // Whether every row of x begins at 16 bytes.
    u32 x_is_aligned;
};

struct MatmulBiasArgs {
    const void* bias;
    float* out;
    u32 n_rows;
    u32 n_out;
    u32 bias_kind;
    u32 accumulate;
};

constexpr u32 WIDE = 256;
constexpr u32 NARROW = 128;
// Of the kernels that prepare a product.
constexpr u32 THREADS = 256;

// Row t of x; rows beyond the last are the last again, since nobody writes their sums.
DEVICE const float* row_of_x(const MatmulArgs& p, u32 t) {
    return p.x + static_cast<u64>(min_of(t, p.n_rows - 1)) * p.n_in;
}

// Row o of W, as above.
DEVICE const uint4* row_of_weight(const MatmulArgs& p, u32 o) {
    return p.weight + static_cast<u64>(min_of(o, p.n_out - 1)) * p.row_units;
}

// Writes an element of out, if there is such a one.
DEVICE void finish(const MatmulArgs& p, u32 t, u32 o, float sum) {
    if (t >= p.n_rows || o >= p.n_out) {
        return;
    }
    if (p.bias_kind != KIND_NONE) {
        sum += element_of(p.bias_kind, p.bias, o);
    }
    float* out = p.out + static_cast<u64>(t) * p.n_out + o;
    *out = p.accumulate ? *out + sum : sum;
}

// Columns [k, k + 8) of row o of W, widened.
template <typename T>
DEVICE void load_weight(const MatmulArgs& p, u32 o, u32 k, float (&to)[8]) {
    constexpr u32 N = PER_UNIT<T>;
    const uint4* row = row_of_weight(p, o);
#pragma unroll
    for (u32 i = 0; i < 8; i += N) {
        const u32 unit = (k + i) / N;
        const uint4 zeros = {0, 0, 0, 0};
        float part[N];
        unpack(unit < p.row_units ? row[unit] : zeros, part, T{});
#pragma unroll
        for (u32 j = 0; j < N; j++) {
            to[i + j] = part[j];
        }
    }
}

// By f32 products.
template <typename T, u32 THREADS> DEVICE void matmul_floats(const MatmulArgs& p) {
    constexpr u32 UNITS = TILE_UNITS<THREADS>;
    SHARED(float4, tiles, 4 * UNITS);
    const u32 first_t = blockIdx.x * SIDE<THREADS>;
    const u32 first_o = blockIdx.y * SIDE<THREADS>;
    const float* x_row = row_of_x(p, first_t + row_brought());
    const u32 o_brought = first_o + row_brought();
    float x[8];
    float w[8];
    float sums[ROWS][COLUMNS<THREADS>];
    clear_sums<THREADS>(sums);
    u32 k = column_brought();
    load_floats<8>(x_row, k, p.n_in, p.x_is_aligned, x);
    round_floats(x, p.is_rounding, T{});
    load_weight<T>(p, o_brought, k, w);
    const u32 n_steps = (p.n_in + DEPTH - 1) / DEPTH;
    // Two tiles in turns: while one is multiplied, the next step's numbers are on their way to
    // registers, so one barrier a step is enough.
    for (u32 step = 0; step < n_steps; step++) {
        float4* tile = tiles + step % 2 * (2 * UNITS);
        bring(tile, x);
        bring(tile + UNITS, w);
        // The other tile is free behind this: all have used it up.
        __syncthreads();
        if (step + 1 < n_steps) {
            k += DEPTH;
            load_floats<8>(x_row, k, p.n_in, p.x_is_aligned, x);
            round_floats(x, p.is_rounding, T{});
            load_weight<T>(p, o_brought, k, w);
        }
        add_products<THREADS>(tile, tile + UNITS, sums);
    }
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
#pragma unroll
        for (u32 j = 0; j < COLUMNS<THREADS>; j++) {
            const u32 t = first_t + row_of_thread(i);
            finish(p, t, first_o + column_of_thread<THREADS>(j), sums[i][j]);
        }
    }
}

// Two numbers in the type of W.
DEVICE u32 pack(float low, float high, f16) {
    return float_to_half(low) | static_cast<u32>(float_to_half(high)) << 16;
}
DEVICE void add_matrices(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], f16) {
    mma_f16(c, a, b);
}
#if HAS_SM80
DEVICE u32 pack(float low, float high, bf16) { return floats_to_bfloats(low, high); }
DEVICE void add_matrices(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], bf16) {
    mma_bf16(c, a, b);
}
#endif

// Columns of a step with elements of 16 bits.
constexpr u32 HALVES_DEPTH = 32;
// Units of a row that a matrix instruction takes.
constexpr u32 HALVES_UNITS = 2;
// Rows of W of a warp.
constexpr u32 WARP_OUTS = 32;

// Begins the copies of unit `threadIdx.x % 4` of columns [k, k + 32) of SIDE rows of W.
template <u32 THREADS>
DEVICE void copy_weight(const MatmulArgs& p, u32 first_o, u32 k, uint4* tile) {
    const u32 unit = threadIdx.x % ROW_UNITS;
    const u32 at = k / 8 + unit;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 row = threadIdx.x / ROW_UNITS + i * (THREADS / ROW_UNITS);
        const uint4* from = row_of_weight(p, first_o + row);
        const bool is_there = at < p.row_units;
        copy_async(&tile[unit_at(row, unit)], is_there ? from + at : p.weight, is_there);
    }
    copies_commit();
}

// Adds the products of a step to the sums of a warp: SIDE / 2 rows of x times 32 of W.
template <typename T, u32 THREADS>
DEVICE void add_step(const uint4* x, const uint4* w, float (&sums)[SIDE<THREADS> / 32][4][4]) {
    constexpr u32 N_WARPS_O = SIDE<THREADS> / WARP_OUTS;
    const u32 warp_t = warp_of_thread() / N_WARPS_O * (SIDE<THREADS> / 2);
    const u32 warp_o = warp_of_thread() % N_WARPS_O * WARP_OUTS;
    // Lane 8 m + r brings row r of matrix m.
    const u32 m = lane_of_thread() / 8;
    const u32 r = lane_of_thread() % 8;
#pragma unroll
    for (u32 first = 0; first < ROW_UNITS; first += HALVES_UNITS) {
        u32 b[4][2];
#pragma unroll
        for (u32 j = 0; j < 4; j += 2) {
            u32 matrices[4];
            load_matrices(matrices, &w[unit_at(warp_o + 8 * (j + m / 2) + r, first + m % 2)]);
            b[j][0] = matrices[0];
            b[j][1] = matrices[1];
            b[j + 1][0] = matrices[2];
            b[j + 1][1] = matrices[3];
        }
#pragma unroll
        for (u32 i = 0; i < SIDE<THREADS> / 32; i++) {
            u32 a[4];
            load_matrices(a, &x[unit_at(warp_t + 16 * i + 8 * (m % 2) + r, first + m / 2)]);
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                add_matrices(sums[i][j], a, b[j], T{});
            }
        }
    }
}

// By tensor cores.
template <typename T, u32 THREADS> DEVICE void matmul_halves(const MatmulArgs& p) {
    constexpr u32 UNITS = TILE_UNITS<THREADS>;
    constexpr u32 N_WARPS_O = SIDE<THREADS> / WARP_OUTS;
    SHARED(uint4, tiles, 4 * UNITS);
    const u32 first_t = blockIdx.x * SIDE<THREADS>;
    const u32 first_o = blockIdx.y * SIDE<THREADS>;
    // Of x a thread brings a unit of two rows.
    const u32 unit = threadIdx.x % ROW_UNITS;
    const u32 row = threadIdx.x / ROW_UNITS;
    float x[2][8];
    const auto load_x = [&](u32 k) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const float* from = row_of_x(p, first_t + row + i * (THREADS / ROW_UNITS));
            load_floats<8>(from, k + 8 * unit, p.n_in, p.x_is_aligned, x[i]);
        }
    };
    float sums[SIDE<THREADS> / 32][4][4] = {};
    load_x(0);
    copy_weight<THREADS>(p, first_o, 0, tiles + UNITS);
    const u32 n_steps = (p.n_in + HALVES_DEPTH - 1) / HALVES_DEPTH;
    // As above; W needs no registers on its way, because copies write to shared memory themselves.
    for (u32 step = 0; step < n_steps; step++) {
        uint4* tile = tiles + step % 2 * (2 * UNITS);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const float(&f)[8] = x[i];
            tile[unit_at(row + i * (THREADS / ROW_UNITS), unit)] =
                uint4{pack(f[0], f[1], T{}), pack(f[2], f[3], T{}), pack(f[4], f[5], T{}),
                      pack(f[6], f[7], T{})};
        }
        copies_wait<0>();
        // The other tile is free behind this: all have used it up.
        __syncthreads();
        if (step + 1 < n_steps) {
            const u32 k = (step + 1) * HALVES_DEPTH;
            copy_weight<THREADS>(p, first_o, k, tiles + (step + 1) % 2 * (2 * UNITS) + UNITS);
            load_x(k);
        }
        add_step<T, THREADS>(tile, tile + UNITS, sums);
    }
    copies_wait<0>();
    const u32 t = first_t + warp_of_thread() / N_WARPS_O * (SIDE<THREADS> / 2);
    const u32 o = first_o + warp_of_thread() % N_WARPS_O * WARP_OUTS;
#pragma unroll
    for (u32 i = 0; i < SIDE<THREADS> / 32; i++) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                const u32 to_t = t + 16 * i + lane_of_thread() / 4 + 8 * (c / 2);
                const u32 to_o = o + 8 * j + lane_of_thread() % 4 * 2 + c % 2;
                finish(p, to_t, to_o, sums[i][j][c]);
            }
        }
    }
}

template <u32 THREADS> DEVICE void matmul(const MatmulArgs& p, float) {
    matmul_floats<float, THREADS>(p);
}
template <u32 THREADS> DEVICE void matmul(const MatmulArgs& p, f16) {
    matmul_halves<f16, THREADS>(p);
}
template <u32 THREADS> DEVICE void matmul(const MatmulArgs& p, bf16) {
#if HAS_SM80
    matmul_halves<bf16, THREADS>(p);
#else
    matmul_floats<bf16, THREADS>(p);
#endif
}

KERNEL(matmul_wide_f32, MatmulArgs, WIDE) { matmul<WIDE>(p, float{}); }
KERNEL(matmul_wide_f16, MatmulArgs, WIDE) { matmul<WIDE>(p, f16{}); }
KERNEL(matmul_wide_bf16, MatmulArgs, WIDE) { matmul<WIDE>(p, bf16{}); }
KERNEL(matmul_narrow_f32, MatmulArgs, NARROW) { matmul<NARROW>(p, float{}); }
KERNEL(matmul_narrow_f16, MatmulArgs, NARROW) { matmul<NARROW>(p, f16{}); }
KERNEL(matmul_narrow_bf16, MatmulArgs, NARROW) { matmul<NARROW>(p, bf16{}); }

// A unit of 8 rounded elements a thread, zeros beyond n_in.
template <typename T> DEVICE void round_rows(const MatmulRoundArgs& p) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    const u32 row = i / p.row_units;
    if (row >= p.n_rows) {
        return;
    }
    float x[8];
    const float* from = p.x + static_cast<u64>(row) * p.n_in;
    load_floats<8>(from, i % p.row_units * 8, p.n_in, p.x_is_aligned, x);
    u32 words[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        T low;
        T high;
        narrow(x[2 * j], low);
        narrow(x[2 * j + 1], high);
        words[j] = low.bits | static_cast<u32>(high.bits) << 16;
    }
    p.to[i] = uint4{words[0], words[1], words[2], words[3]};
}

KERNEL(matmul_round_f16, MatmulRoundArgs, THREADS) { round_rows<f16>(p); }
KERNEL(matmul_round_bf16, MatmulRoundArgs, THREADS) { round_rows<bf16>(p); }

// An element of out a thread.
KERNEL(matmul_bias, MatmulBiasArgs, THREADS) {
    const u64 i = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= static_cast<u64>(p.n_rows) * p.n_out) {
        return;
    }
    const float bias = element_of(p.bias_kind, p.bias, i % p.n_out);
    p.out[i] = p.accumulate ? p.out[i] + bias : bias;
}
