// out = x W^T (+ bias) (+ out) for up to ROWS rows of x; x is [T, n_in], W is [n_out, n_in], its
// rows `row_units` units of 16 bytes, filled up with zeros.
//
// A block owns 4 rows of W and all rows of x. Its threads walk along the 4 rows side by side, a
// unit of each at a time: 4 loads of 16 bytes are under way in every thread, and every x serves 4
// products. x comes from the L1 cache, which W passes by. The sums of the threads meet at the end,
// first by shuffles, then in shared memory.
//
// W in bf16 rounds x to bf16, if the weight says so: a product of few rows then takes the numbers
// that a product of many takes.
//
// x beyond n_in is taken for 0, since not-a-number may follow. ROWS is 1, 2, 4 or 8; T is at most
// ROWS.
//
// Bytes: W, once. Bound: memory.
#include "shared/gates.cuh"
#include "shared/rows.cuh"

struct MatvecArgs {
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
    // Whether x is rounded to bf16, for W in bf16.
    u32 is_rounding;
};

constexpr u32 THREADS = 128;
constexpr u32 N_WARPS = THREADS / WARP;
// Rows of W that a block owns.
constexpr u32 OUTS = 4;

// Stores each warp's part of every sum (row of x, row of W), where all threads see it.
template <u32 ROWS> DEVICE void store_parts(const float (&sums)[ROWS][OUTS], float* parts) {
#pragma unroll
    for (u32 t = 0; t < ROWS; t++) {
#pragma unroll
        for (u32 o = 0; o < OUTS; o++) {
            const float part = warp_sum(sums[t][o]);
            if (lane_of_thread() == 0) {
                parts[(t * OUTS + o) * N_WARPS + warp_of_thread()] = part;
            }
        }
    }
    __syncthreads();
}

// Sum number `item`, of all warps' parts.
DEVICE float sum_of_parts(const float* parts, u32 item) {
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < N_WARPS; i++) {
        sum += parts[item * N_WARPS + i];
    }
    return sum;
}

template <typename T, u32 ROWS> DEVICE void matvec(const MatvecArgs& p) {
    constexpr u32 N = PER_UNIT<T>;
    SHARED(float, parts, ROWS * OUTS * N_WARPS);
    const u32 first_out = blockIdx.x * OUTS;
    const uint4* rows[OUTS];
    float sums[ROWS][OUTS];
#pragma unroll
    for (u32 o = 0; o < OUTS; o++) {
        // Rows beyond the last are the last again; nobody writes their sums.
        rows[o] = p.weight + static_cast<u64>(min_of(first_out + o, p.n_out - 1)) * p.row_units;
#pragma unroll
        for (u32 t = 0; t < ROWS; t++) {
            sums[t][o] = 0;
        }
    }
    for (u32 unit = threadIdx.x; unit < p.row_units; unit += THREADS) {
        uint4 units[OUTS];
#pragma unroll
        for (u32 o = 0; o < OUTS; o++) {
            units[o] = load_once(rows[o] + unit);
        }
        float w[OUTS][N];
#pragma unroll
        for (u32 o = 0; o < OUTS; o++) {
            unpack(units[o], w[o], T{});
        }
#pragma unroll
        for (u32 t = 0; t < ROWS; t++) {
            float x[N];
            // Rows beyond the last are the last again.
            const float* row = p.x + static_cast<u64>(min_of(t, p.n_rows - 1)) * p.n_in;
            load_floats<N>(row, unit * N, p.n_in, p.x_is_aligned, x);
            round_floats(x, p.is_rounding, T{});
#pragma unroll
            for (u32 o = 0; o < OUTS; o++) {
#pragma unroll
                for (u32 i = 0; i < N; i++) {
                    sums[t][o] += w[o][i] * x[i];
                }
            }
        }
    }
    store_parts(sums, parts);

    // A thread for each element of out.
    const u32 t = threadIdx.x / OUTS;
    const u32 o = first_out + threadIdx.x % OUTS;
    if (t >= min_of(p.n_rows, ROWS) || o >= p.n_out) {
        return;
    }
    float sum = sum_of_parts(parts, threadIdx.x);
    if (p.bias_kind != KIND_NONE) {
        sum += element_of(p.bias_kind, p.bias, o);
    }
    float* out = p.out + static_cast<u64>(t) * p.n_out + o;
    *out = p.accumulate ? *out + sum : sum;
}

#define MATVEC(type, T, rows) \
    KERNEL(matvec_##type##_##rows, MatvecArgs, THREADS) { matvec<T, rows>(p); }

MATVEC(f32, float, 1)
MATVEC(f32, float, 2)
MATVEC(f32, float, 4)
MATVEC(f32, float, 8)
MATVEC(f16, f16, 1)
MATVEC(f16, f16, 2)
MATVEC(f16, f16, 4)
MATVEC(f16, f16, 8)
MATVEC(bf16, bf16, 1)
MATVEC(bf16, bf16, 2)
MATVEC(bf16, bf16, 4)
MATVEC(bf16, bf16, 8)

// Linear layers of the root-mean-square norm of x, for up to ROWS rows of x, in one launch. ROWS is
// 1 or 4: for more, registers do not suffice.
//
// `project`: q, k and v, with RoPE on q and k. Of q and k a block owns the rows i, i + 1 of a head
// and their partners i + h, i + h + 1 (h = rotary_dim / 2), which the rotation mixes; behind the
// elements that rotate, and of v, it owns 4 rows in sequence.
// `gated`: activation(gate) * up. A block owns 2 rows of the gate and the same 2 of up.
//
// The norm is not stored: every block sums the squares of x, which comes from cache, while its
// first elements of W are on their way. What meets W is then what `rms_norm` would have written.
//
// Bytes: W, once. Bound: memory.

struct NormMatvecArgs {
    const float* x;
    const void* norm;
    // [T, rotary_dim]: cosines, then sines; of `project`.
    const float* table;
    // q, k and v; or the gate and up, whose result goes to out_0.
    const uint4* weight_0;
    const uint4* weight_1;
    const uint4* weight_2;
    const void* bias_0;
    const void* bias_1;
    const void* bias_2;
    float* out_0;
    float* out_1;
    float* out_2;
    u32 n_rows;
    u32 n_in;
    u32 n_out_0;
    u32 n_out_1;
    u32 n_out_2;
    u32 row_units;
    u32 norm_kind;
    u32 bias_kind_0;
    u32 bias_kind_1;
    u32 bias_kind_2;
    u32 head_dim;
    u32 rotary_dim;
    float eps;
    u32 x_is_aligned;
    u32 is_rounding;
    u32 mode;
};

constexpr u32 PROJECT = 0;
constexpr u32 SILU = 1;

// The layer that a block works for.
struct NormedLayer {
    const uint4* weight;
    const void* bias;
    float* out;
    u32 n_out;
    u32 bias_kind;
    // Blocks of this layer before this one.
    u32 block;
    bool is_rotated;
};

DEVICE NormedLayer layer_of_block(const NormMatvecArgs& p) {
    const u32 blocks_0 = (p.n_out_0 + OUTS - 1) / OUTS;
    const u32 blocks_1 = (p.n_out_1 + OUTS - 1) / OUTS;
    const u32 block = blockIdx.x;
    if (block < blocks_0) {
        return {p.weight_0, p.bias_0, p.out_0, p.n_out_0, p.bias_kind_0, block, true};
    }
    if (block < blocks_0 + blocks_1) {
        const u32 own = block - blocks_0;
        return {p.weight_1, p.bias_1, p.out_1, p.n_out_1, p.bias_kind_1, own, true};
    }
    const u32 own = block - blocks_0 - blocks_1;
    return {p.weight_2, p.bias_2, p.out_2, p.n_out_2, p.bias_kind_2, own, false};
}

// Row number `o` of the block's four. Half the elements that rotate are a multiple of 2 and the
// rest of a head one of 4, or nothing rotates.
DEVICE u32 normed_row(const NormMatvecArgs& p, const NormedLayer& layer, u32 o) {
    const u32 first = layer.block * OUTS;
    if (!layer.is_rotated || p.rotary_dim == 0) {
        return first + o;
    }
    const u32 head = first / p.head_dim;
    const u32 within = first - head * p.head_dim;
    if (within >= p.rotary_dim) {
        return first + o;
    }
    return head * p.head_dim + within / 2 + o % 2 + o / 2 * (p.rotary_dim / 2);
}

// 1 / rms of each row, seen by all.
template <u32 ROWS> DEVICE void norm_scales(const NormMatvecArgs& p, float* parts, float* scales) {
#pragma unroll
    for (u32 t = 0; t < ROWS; t++) {
        const float* row = p.x + static_cast<u64>(min_of(t, p.n_rows - 1)) * p.n_in;
        float squares = 0;
        for (u32 first = 4 * threadIdx.x; first < p.n_in; first += 4 * THREADS) {
            float x[4];
            load_floats<4>(row, first, p.n_in, p.x_is_aligned, x);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                squares += x[i] * x[i];
            }
        }
        const float sum = warp_sum(squares);
        if (lane_of_thread() == 0) {
            parts[t * N_WARPS + warp_of_thread()] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x < ROWS) {
        const float sum = sum_of_parts(parts, threadIdx.x);
        scales[threadIdx.x] = 1.0f / sqrtf(sum / static_cast<float>(p.n_in) + p.eps);
    }
    __syncthreads();
}

// Elements [first, first + N) of the norm's weight, 0 beyond the last.
template <u32 N> DEVICE void load_norm(const NormMatvecArgs& p, u32 first, float (&to)[N]) {
    const bool is_whole = first + N <= p.n_in;
    if (p.norm_kind == KIND_F32) {
        // The weight begins at 16 bytes, and `first` is a multiple of 4.
        load_floats<N>(static_cast<const float*>(p.norm), first, p.n_in, true, to);
        return;
    }
    const u16* from = static_cast<const u16*>(p.norm) + first;
#pragma unroll
    for (u32 i = 0; i < N; i += 4) {
        u16 bits[4];
        if (is_whole) {
            const uint2 pair = *reinterpret_cast<const uint2*>(from + i);
            bits[0] = static_cast<u16>(pair.x);
            bits[1] = static_cast<u16>(pair.x >> 16);
            bits[2] = static_cast<u16>(pair.y);
            bits[3] = static_cast<u16>(pair.y >> 16);
        } else {
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                bits[j] = first + i + j < p.n_in ? from[i + j] : u16{0};
            }
        }
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            to[i + j] = p.norm_kind == KIND_F16 ? widen(f16{bits[j]}) : widen(bf16{bits[j]});
        }
    }
}

template <typename T, u32 ROWS> DEVICE void norm_matvec(const NormMatvecArgs& p) {
    constexpr u32 N = PER_UNIT<T>;
    SHARED(float, parts, ROWS * OUTS * N_WARPS);
    SHARED(float, square_parts, ROWS * N_WARPS);
    SHARED(float, scales, ROWS);
    const NormedLayer layer = layer_of_block(p);
    const uint4* rows[OUTS];
    float sums[ROWS][OUTS];
#pragma unroll
    for (u32 o = 0; o < OUTS; o++) {
        // Rows beyond the last are the last again; nobody writes their sums.
        if (p.mode == PROJECT) {
            const u32 row = min_of(normed_row(p, layer, o), layer.n_out - 1);
            rows[o] = layer.weight + static_cast<u64>(row) * p.row_units;
        } else {
            const u32 row = min_of(blockIdx.x * 2 + o % 2, p.n_out_0 - 1);
            rows[o] = (o < 2 ? p.weight_0 : p.weight_1) + static_cast<u64>(row) * p.row_units;
        }
#pragma unroll
        for (u32 t = 0; t < ROWS; t++) {
            sums[t][o] = 0;
        }
    }
    // Of one row, elements of W are under way while the squares are summed, and then while those
    // before them are multiplied. Of more rows the sums need the registers.
    constexpr bool IS_AHEAD = ROWS == 1;
    uint4 units[OUTS] = {};
    if (IS_AHEAD && threadIdx.x < p.row_units) {
#pragma unroll
        for (u32 o = 0; o < OUTS; o++) {
            units[o] = load_once(rows[o] + threadIdx.x);
        }
    }
    norm_scales<ROWS>(p, square_parts, scales);
    // Unrolled, it would need more registers than there are.
#pragma unroll 1
    for (u32 unit = threadIdx.x; unit < p.row_units; unit += THREADS) {
        float w[OUTS][N];
#pragma unroll
        for (u32 o = 0; o < OUTS; o++) {
            units[o] = IS_AHEAD ? units[o] : load_once(rows[o] + unit);
        }
#pragma unroll
        for (u32 o = 0; o < OUTS; o++) {
            unpack(units[o], w[o], T{});
        }
        if (IS_AHEAD && unit + THREADS < p.row_units) {
#pragma unroll
            for (u32 o = 0; o < OUTS; o++) {
                units[o] = load_once(rows[o] + unit + THREADS);
            }
        }
        float norm[N];
        load_norm<N>(p, unit * N, norm);
#pragma unroll
        for (u32 t = 0; t < ROWS; t++) {
            float x[N];
            // Rows beyond the last are the last again.
            const float* row = p.x + static_cast<u64>(min_of(t, p.n_rows - 1)) * p.n_in;
            load_floats<N>(row, unit * N, p.n_in, p.x_is_aligned, x);
#pragma unroll
            for (u32 i = 0; i < N; i++) {
                x[i] = x[i] * scales[t] * norm[i];
            }
            round_floats(x, p.is_rounding, T{});
#pragma unroll
            for (u32 o = 0; o < OUTS; o++) {
#pragma unroll
                for (u32 i = 0; i < N; i++) {
                    sums[t][o] += w[o][i] * x[i];
                }
            }
        }
    }
    store_parts(sums, parts);

    // A lane of the first warp for each sum; all its lanes meet, since sums are mixed.
    if (warp_of_thread() > 0) {
        return;
    }
    const u32 item = min_of(threadIdx.x, ROWS * OUTS - 1);
    const u32 t = min_of(item / OUTS, p.n_rows - 1);
    const u32 o = item % OUTS;
    float sum = sum_of_parts(parts, item);
    const bool is_there = threadIdx.x < ROWS * OUTS && item / OUTS < p.n_rows;
    if (p.mode != PROJECT) {
        const u32 row = blockIdx.x * 2 + o % 2;
        const void* bias = o < 2 ? p.bias_0 : p.bias_1;
        const u32 bias_kind = o < 2 ? p.bias_kind_0 : p.bias_kind_1;
        if (bias_kind != KIND_NONE) {
            sum += element_of(bias_kind, bias, min_of(row, p.n_out_0 - 1));
        }
        const float up = shfl_xor(sum, 2u);
        if (is_there && o < 2 && row < p.n_out_0) {
            const float gate = p.mode == SILU ? silu(sum) : gelu_tanh(sum);
            p.out_0[static_cast<u64>(t) * p.n_out_0 + row] = gate * up;
        }
        return;
    }
    const u32 row = normed_row(p, layer, o);
    if (layer.bias_kind != KIND_NONE) {
        sum += element_of(layer.bias_kind, layer.bias, min_of(row, layer.n_out - 1));
    }
    const float partner = shfl_xor(sum, 2u);
    const u32 within = layer.is_rotated && p.rotary_dim > 0 ? row % p.head_dim : p.rotary_dim;
    if (within < p.rotary_dim) {
        const u32 half = p.rotary_dim / 2;
        const float* angles = p.table + static_cast<u64>(t) * p.rotary_dim;
        const float cosine = angles[within % half];
        const float sine = angles[half + within % half];
        sum = rotated(sum, cosine, o < 2 ? -partner : partner, sine);
    }
    if (is_there && row < layer.n_out) {
        layer.out[static_cast<u64>(t) * layer.n_out + row] = sum;
    }
}

#define NORM_MATVEC(type, T, rows) \
    KERNEL(norm_matvec_##type##_##rows, NormMatvecArgs, THREADS) { norm_matvec<T, rows>(p); }

NORM_MATVEC(f32, float, 1)
NORM_MATVEC(f32, float, 4)
NORM_MATVEC(f16, f16, 1)
NORM_MATVEC(f16, f16, 4)
NORM_MATVEC(bf16, bf16, 1)
NORM_MATVEC(bf16, bf16, 4)
