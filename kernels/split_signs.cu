// out[v] = [max(x[v], 0); min(x[v], 0)]: x is [n, width], out [n, 2 width].
//
// A thread owns an element of x; there are few, the queries of a step.
//
// Bytes: 12 n width. Bound: the launch.
#include "shared/common.cuh"

struct SplitSignsArgs {
    const float* x;
    float* out;
    u64 n;
    u32 width;
    u32 unused;
};

constexpr u32 THREADS = 256;

KERNEL(split_signs, SplitSignsArgs, THREADS) {
    const u64 item = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (item >= p.n) {
        return;
    }
    const u64 vector = item / p.width;
    const float x = p.x[item];
    float* out = p.out + item + vector * p.width;
    out[0] = fmaxf(x, 0.0f);
    out[p.width] = fminf(x, 0.0f);
}
