// out[h, i] = scale * the scores of the group's query heads at i and its neighbours, pooled over
// `kernel` neighbours and over the group, in either order. x is [Hkv G, in_stride], out
// [Hkv, out_stride]; a mean over neighbours takes those outside for 0, a maximum leaves them out.
//
// A thread owns a score. It reads what its neighbours read too, from the L1 cache, which costs less
// than a tile of shared memory would for up to a few dozen neighbours.
//
// Bytes: 4 G n a KV head in, 4 n out. Bound: memory.
#include "shared/common.cuh"

struct PoolScoresArgs {
    const float* x;
    float* out;
    u32 group;
    // Scores of a head.
    u32 n;
    u32 in_stride;
    u32 out_stride;
    u32 kernel;
    // 1: neighbours become their maximum; 0: their mean.
    u32 pool;
    u32 group_max;
    u32 pool_first;
    float scale;
    u32 unused;
};

constexpr u32 THREADS = 256;

DEVICE float lowest() { return float_of(0xff800000u); }

// Score i over the group.
DEVICE float join_group(const PoolScoresArgs& p, const float* x, u32 i) {
    float joined = p.group_max != 0 ? lowest() : 0.0f;
    for (u32 g = 0; g < p.group; g++) {
        const float score = x[static_cast<u64>(g) * p.in_stride + i];
        joined = p.group_max != 0 ? fmaxf(joined, score) : joined + score;
    }
    return p.group_max != 0 ? joined : joined / static_cast<float>(p.group);
}

// Scores [begin, end) over the neighbours; `score` says what they are.
template <typename Score>
DEVICE float join_near(const PoolScoresArgs& p, u32 begin, u32 end, Score score) {
    float joined = p.pool != 0 ? lowest() : 0.0f;
#pragma unroll 4
    for (u32 i = begin; i < end; i++) {
        const float one = score(i);
        joined = p.pool != 0 ? fmaxf(joined, one) : joined + one;
    }
    return p.pool != 0 ? joined : joined / static_cast<float>(p.kernel);
}

KERNEL(pool_scores, PoolScoresArgs, THREADS) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= p.n) {
        return;
    }
    const u32 half = p.kernel / 2;
    const u32 begin = i - min_of(i, half);
    const u32 end = i + min_of(p.n - 1 - i, half) + 1;
    const u64 head = blockIdx.y;
    const float* x = p.x + head * p.group * p.in_stride;
    float pooled;
    if (p.pool_first == 0) {
        pooled = join_near(p, begin, end, [&](u32 at) { return join_group(p, x, at); });
    } else {
        pooled = p.group_max != 0 ? lowest() : 0.0f;
        for (u32 g = 0; g < p.group; g++) {
            const float* own = x + static_cast<u64>(g) * p.in_stride;
            const float score = join_near(p, begin, end, [&](u32 at) { return own[at]; });
            pooled = p.group_max != 0 ? fmaxf(pooled, score) : pooled + score;
        }
        pooled = p.group_max != 0 ? pooled : pooled / static_cast<float>(p.group);
    }
    p.out[head * p.out_stride + i] = p.scale * pooled;
}
