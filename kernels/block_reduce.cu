// out[h, b] = a landmark of keys b * block to (b + 1) * block of KV head h; the last block may have
// fewer. points is [Hkv, N, Dh], out [Hkv, blocks, Dh], or twice as wide for both extremes:
//
//   Mean, Strided, Top   the mean of all keys, of every `stride`-th, of those of the largest mass
//   Max, MinMax          the largest number of every channel; then the smallest ones behind them
//
// `unit`: a thread owns 4 channels of a landmark and goes over its keys, so that neighbours read
// whole lines; 8 keys are under way. `plain`: one channel, where rows are not made of such units.
// `top`: a warp owns a landmark. It finds its keys one after the other, each the largest below the
// last one, ties to the lowest index; then its lanes sum up channels.
//
// Bytes: the points that count, once; 4 Hkv N for the masses. Bound: memory.
#include "shared/rows.cuh"

struct BlockReduceArgs {
    const float* points;
    // [Hkv, N]; read by `top` alone.
    const float* mass;
    float* out;
    u32 n_kv_heads;
    u32 n_points;
    u32 head_dim;
    u32 block;
    u32 n_blocks;
    u32 summary;
    // Keys that stand for a block, at most, and from one to the next.
    u32 n_top;
    u32 stride;
};

constexpr u32 THREADS = 256;
constexpr u32 N_WARPS = THREADS / WARP;
constexpr u32 MAX_TOP = 32;
// Summaries, by number.
constexpr u32 MAX = 1;
constexpr u32 MIN_MAX = 2;
constexpr u32 STRIDED = 3;

// The keys of a landmark.
struct Members {
    u64 first;
    u32 n;
};

DEVICE Members members_of(const BlockReduceArgs& p, u64 landmark) {
    const u64 head = landmark / p.n_blocks;
    const u32 first = static_cast<u32>(landmark - head * p.n_blocks) * p.block;
    return Members{head * p.n_points + first, min_of(p.block, p.n_points - first)};
}

template <u32 N> DEVICE void load_channels(const float* from, float (&to)[N]) {
    load_floats<N>(from, 0, N, true, to);
}
DEVICE void load_channels(const float* from, float (&to)[1]) { to[0] = *from; }

DEVICE void store_channels(const float (&x)[4], float* to) {
    *reinterpret_cast<float4*>(to) = float4{x[0], x[1], x[2], x[3]};
}
DEVICE void store_channels(const float (&x)[1], float* to) { *to = x[0]; }

template <u32 N> DEVICE void reduce(const BlockReduceArgs& p) {
    const u32 n_units = p.head_dim / N;
    const u64 item = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    const u64 landmark = item / n_units;
    if (landmark >= static_cast<u64>(p.n_kv_heads) * p.n_blocks) {
        return;
    }
    const u32 channel = static_cast<u32>(item - landmark * n_units) * N;
    const Members members = members_of(p, landmark);
    const bool is_strided = p.summary == STRIDED;
    const bool is_extreme = p.summary == MAX || p.summary == MIN_MAX;
    const u32 step = is_strided ? p.stride : 1;
    u32 n = (members.n + step - 1) / step;
    n = is_strided ? min_of(n, p.n_top) : n;
    const float* from = p.points + members.first * p.head_dim + channel;
    const u64 key_step = static_cast<u64>(step) * p.head_dim;
    float most[N];
    float least[N];
    load_channels(from, most);
#pragma unroll
    for (u32 c = 0; c < N; c++) {
        least[c] = most[c];
    }
    // The sum or the largest; what is not asked for costs less than asking for every key.
#pragma unroll 8
    for (u32 i = 1; i < n; i++) {
        float key[N];
        load_channels(from + i * key_step, key);
#pragma unroll
        for (u32 c = 0; c < N; c++) {
            most[c] = is_extreme ? fmaxf(most[c], key[c]) : most[c] + key[c];
            least[c] = fminf(least[c], key[c]);
        }
    }
    if (!is_extreme) {
#pragma unroll
        for (u32 c = 0; c < N; c++) {
            most[c] /= static_cast<float>(n);
        }
    }
    const bool has_both = p.summary == MIN_MAX;
    float* out = p.out + landmark * (has_both ? 2 * p.head_dim : p.head_dim) + channel;
    store_channels(most, out);
    if (has_both) {
        store_channels(least, out + p.head_dim);
    }
}

KERNEL(block_reduce_unit, BlockReduceArgs, THREADS) { reduce<4>(p); }
KERNEL(block_reduce_plain, BlockReduceArgs, THREADS) { reduce<1>(p); }

// Greater for a greater mass, for the lower index among equals; never 0.
DEVICE u64 rank_of(float mass, u32 index) {
    const u32 bits = float_bits(mass);
    const u32 key = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
    return static_cast<u64>(key) << 32 | ~index;
}

// The largest over a warp, on every lane.
DEVICE u64 warp_most(u64 value) {
#pragma unroll
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
        const u32 high = shfl_xor(static_cast<u32>(value >> 32), mask);
        const u32 low = shfl_xor(static_cast<u32>(value), mask);
        const u64 other = static_cast<u64>(high) << 32 | low;
        value = other > value ? other : value;
    }
    return value;
}

KERNEL(block_reduce_top, BlockReduceArgs, THREADS) {
    SHARED(u32, picks, N_WARPS * MAX_TOP);
    const u64 landmark = static_cast<u64>(blockIdx.x) * N_WARPS + warp_of_thread();
    if (landmark >= static_cast<u64>(p.n_kv_heads) * p.n_blocks) {
        return;
    }
    const Members members = members_of(p, landmark);
    const float* mass = p.mass + members.first;
    u32* own = picks + warp_of_thread() * MAX_TOP;
    const u32 n = min_of(members.n, p.n_top);
    u64 last = ~0ull;
    for (u32 pick = 0; pick < n; pick++) {
        u64 best = 0;
        for (u32 i = lane_of_thread(); i < members.n; i += WARP) {
            const u64 rank = rank_of(mass[i], i);
            best = rank < last && rank > best ? rank : best;
        }
        last = warp_most(best);
        if (lane_of_thread() == 0) {
            own[pick] = ~static_cast<u32>(last);
        }
    }
    warp_sync();
    for (u32 channel = lane_of_thread(); channel < p.head_dim; channel += WARP) {
        const float* from = p.points + members.first * p.head_dim + channel;
        float sum = 0;
#pragma unroll 4
        for (u32 pick = 0; pick < n; pick++) {
            sum += from[static_cast<u64>(own[pick]) * p.head_dim];
        }
        p.out[landmark * p.head_dim + channel] = sum / static_cast<float>(n);
    }
}
