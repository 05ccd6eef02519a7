// Sums over the threads of a block, up to each of them.
#pragma once
#include "shared/common.cuh"

// The sum of `value` over the threads of the block before this one; `total` is that over all. A
// block has `THREADS`; `parts`, a word for each warp, is shared.
template <u32 THREADS> DEVICE u32 sum_before(u32 value, u32* parts, u32& total) {
    u32 sum = value;
#pragma unroll
    for (u32 step = 1; step < WARP; step *= 2) {
        const u32 lower = shfl_up(sum, step);
        sum += lane_of_thread() >= step ? lower : 0;
    }
    // What the sums before left in `parts` has been read.
    __syncthreads();
    if (lane_of_thread() == WARP - 1) {
        parts[warp_of_thread()] = sum;
    }
    __syncthreads();
    u32 before = 0;
    total = 0;
#pragma unroll
    for (u32 i = 0; i < THREADS / WARP; i++) {
        before += i < warp_of_thread() ? parts[i] : 0;
        total += parts[i];
    }
    return before + sum - value;
}
