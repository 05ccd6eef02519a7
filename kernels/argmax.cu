// The index of the largest element of each row: the lowest among equals; a not-a-number wins. Its
// highest bit is set where the element is a not-a-number or plus infinity.
//
// `argmax_parts`: a block finds the best of 4096 neighbours of one row; `argmax_merge`: a warp
// finds the best of a row's parts. One row of logits then keeps many multiprocessors busy.
//
// An element and its index become one number whose order is what is asked for: bits that grow with
// the element above, the index upside down below.
//
// Bytes: 4 rows V. Bound: memory for large V, else latency.
#include "shared/common.cuh"

struct ArgmaxPartsArgs {
    const float* x;
    // [rows, n_parts]
    u64* parts;
    u32 width;
    u32 n_parts;
};

struct ArgmaxMergeArgs {
    const u64* parts;
    u32* out;
    u32 n_rows;
    u32 n_parts;
};

constexpr u32 THREADS = 256;
constexpr u32 PER_THREAD = 16;
constexpr u32 MERGE_THREADS = 32;
// The key of plus infinity; only not-a-number is above.
constexpr u32 INFINITY_KEY = 0xff800000u;
constexpr u32 NOT_FINITE = 0x80000000u;

// Grows with the number; not-a-number is above all, minus zero equals zero.
DEVICE u32 key_of(float value) {
    const u32 bits = float_bits(value);
    const u32 size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return 0xffffffffu;
    }
    const bool is_negative = bits >> 31 != 0 && size != 0;
    return is_negative ? ~bits : size | 0x80000000u;
}

DEVICE u64 larger(u64 a, u64 b) { return a > b ? a : b; }

DEVICE u64 warp_largest(u64 best) {
#pragma unroll
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
        const u32 high = shfl_xor(static_cast<u32>(best >> 32), mask);
        const u32 low = shfl_xor(static_cast<u32>(best), mask);
        best = larger(best, static_cast<u64>(high) << 32 | low);
    }
    return best;
}

KERNEL(argmax_parts, ArgmaxPartsArgs, THREADS) {
    SHARED(u64, bests, THREADS / WARP);
    const u64 row = blockIdx.x;
    const float* x = p.x + row * p.width;
    const u32 first = blockIdx.y * (THREADS * PER_THREAD) + threadIdx.x;
    // Below every element.
    u64 best = 0;
#pragma unroll
    for (u32 i = 0; i < PER_THREAD; i++) {
        const u32 at = first + i * THREADS;
        if (at < p.width) {
            best = larger(best, static_cast<u64>(key_of(x[at])) << 32 | ~at);
        }
    }
    best = warp_largest(best);
    if (lane_of_thread() == 0) {
        bests[warp_of_thread()] = best;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 i = 1; i < THREADS / WARP; i++) {
            best = larger(best, bests[i]);
        }
        p.parts[row * p.n_parts + blockIdx.y] = best;
    }
}

KERNEL(argmax_merge, ArgmaxMergeArgs, MERGE_THREADS) {
    const u64 row = blockIdx.x;
    u64 best = 0;
    for (u32 i = threadIdx.x; i < p.n_parts; i += MERGE_THREADS) {
        best = larger(best, p.parts[row * p.n_parts + i]);
    }
    best = warp_largest(best);
    if (threadIdx.x == 0) {
        const bool is_finite = static_cast<u32>(best >> 32) < INFINITY_KEY;
        p.out[row] = ~static_cast<u32>(best) | (is_finite ? 0 : NOT_FINITE);
    }
}
