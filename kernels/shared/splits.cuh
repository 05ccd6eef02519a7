// What the splits of a query row's keys left, put together by one block.
#pragma once
#include "shared/attend.cuh"

// Splits whose sums a thread loads together.
constexpr u32 MERGED = 32;

// An element of the sums that MERGED splits left, `width` apart; there are `n` splits.
DEVICE void load_sums(const float* from, u32 width, u32 first, u32 n, float (&sums)[MERGED]) {
#pragma unroll
    for (u32 s = 0; s < MERGED; s++) {
        sums[s] = first + s < n ? from[static_cast<u64>(first + s) * width] : 0.0f;
    }
}

// Maxima and totals of up to MOST splits, WARP apart, of a lane.
template <u32 MOST> struct States {
    static constexpr u32 EACH = MOST / WARP;
    float maxima[EACH];
    float totals[EACH];
};

template <u32 MOST> DEVICE void load_states(const float* from, u32 n, States<MOST>& states) {
#pragma unroll
    for (u32 i = 0; i < States<MOST>::EACH; i++) {
        const u32 s = lane_of_thread() + i * WARP;
        states.maxima[i] = s < n ? from[2 * s] : LOWEST;
        states.totals[i] = s < n ? from[2 * s + 1] : 0.0f;
    }
}

// The factors of `n` splits, beside a finished attention of log-sum-exp `before`; by a warp.
template <u32 MOST>
DEVICE Shares weigh_splits(const States<MOST>& states, u32 n, float before, float* factors) {
    constexpr u32 EACH = States<MOST>::EACH;
    float m = LOWEST;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        m = lane_of_thread() + i * WARP < n ? fmaxf(m, states.maxima[i]) : m;
    }
#pragma unroll
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
        m = fmaxf(m, shfl_xor(m, mask));
    }
    float own[EACH] = {};
    float l = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        if (lane_of_thread() + i * WARP < n) {
            own[i] = states.totals[i] == 0.0f ? 0.0f : expf(states.maxima[i] - m);
            l += own[i] * states.totals[i];
        }
    }
    l = warp_sum(l);
    const Shares both = shares_of(m, l, before);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        if (lane_of_thread() + i * WARP < n) {
            factors[lane_of_thread() + i * WARP] = own[i] * both.made;
        }
    }
    return both;
}
