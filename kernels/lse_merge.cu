// The attention over the keys of both, in place in the first; rows of [n_rows, Dh]:
//
//     out = (a out + b other) / (a + b),   lse = M + ln(a + b),
//     a = exp(lse - M),   b = exp(other_lse - M),   M = max(lse, other_lse)
//
// A warp owns a row. What saw nothing may hold anything finite or not: it is not read.
//
// Bytes: 12 n_rows Dh. Bound: memory; for the rows of a decode step, latency.
#include "shared/attend.cuh"

struct LseMergeArgs {
    const float* other_out;
    const float* other_lse;
    float* out;
    float* lse;
    u32 n_rows;
    u32 head_dim;
};

constexpr u32 THREADS = 256;

KERNEL(lse_merge, LseMergeArgs, THREADS) {
    const u64 row = static_cast<u64>(blockIdx.x) * (THREADS / WARP) + warp_of_thread();
    if (row >= p.n_rows) {
        return;
    }
    const float other_lse = p.other_lse[row];
    const float l = other_lse == minus_infinity() ? 0.0f : 1.0f;
    const Shares both = shares_of(other_lse, l, p.lse[row]);
    // All have read it.
    warp_sync();
    if (lane_of_thread() == 0) {
        p.lse[row] = both.lse;
    }
    const float* other = p.other_out + row * p.head_dim;
    float* out = p.out + row * p.head_dim;
    for (u32 d = lane_of_thread(); d < p.head_dim; d += WARP) {
        const float held = both.held == 0.0f ? 0.0f : both.held * out[d];
        out[d] = both.made == 0.0f ? held : held + both.made * other[d];
    }
}
