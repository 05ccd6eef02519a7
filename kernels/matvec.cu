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

    // A thread for each element of out.
    const u32 t = threadIdx.x / OUTS;
    const u32 o = first_out + threadIdx.x % OUTS;
    if (t >= min_of(p.n_rows, ROWS) || o >= p.n_out) {
        return;
    }
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < N_WARPS; i++) {
        sum += parts[threadIdx.x * N_WARPS + i];
    }
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
