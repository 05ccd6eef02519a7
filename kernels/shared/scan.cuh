// Sums over the threads of a block, up to each of them.
#pragma once
#include "shared/common.cuh"

// The sum of `value` over the lanes of the warp up to this one.
DEVICE u32 sum_up_to_lane(u32 value) {
#pragma unroll
    for (u32 step = 1; step < WARP; step *= 2) {
        const u32 lower = shfl_up(value, step);
        value += lane_of_thread() >= step ? lower : 0;
    }
    return value;
}

// The sum of what the warps before this one have, of which the last lane of each says `of_warp`;
// `total` is that over all. A block has `THREADS`; `parts`, a word for each warp, is shared.
template <u32 THREADS> DEVICE u32 sum_of_warps(u32 of_warp, u32* parts, u32& total) {
    constexpr u32 N_WARPS = THREADS / WARP;
    // What the sums before left in `parts` has been read.
    __syncthreads();
    if (lane_of_thread() == WARP - 1) {
        parts[warp_of_thread()] = of_warp;
    }
    __syncthreads();
    if constexpr (N_WARPS == WARP) {
        // That every thread reads every part would keep shared memory busy: 1024 reads of a warp.
        const u32 part = parts[lane_of_thread()];
        const u32 up_to = sum_up_to_lane(part);
        total = shfl(up_to, WARP - 1);
        return shfl(up_to - part, warp_of_thread());
    }
    u32 before = 0;
    total = 0;
#pragma unroll
    for (u32 i = 0; i < N_WARPS; i++) {
        before += i < warp_of_thread() ? parts[i] : 0;
        total += parts[i];
    }
    return before;
}

// The sum of `value` over the threads of the block before this one; `total` and `parts` as above.
template <u32 THREADS> DEVICE u32 sum_before(u32 value, u32* parts, u32& total) {
    const u32 up_to = sum_up_to_lane(value);
    return sum_of_warps<THREADS>(up_to, parts, total) + up_to - value;
}
