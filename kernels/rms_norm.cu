// out = x / sqrt(mean(x^2) + eps) * weight (+ out) for each row of x; x is [n_rows, width].
//
// `wide`: a block owns a row. `narrow`, for norms of heads: a warp owns a row, and nobody waits for
// another warp. The second reading of a row comes from cache.
//
// Bytes: 8 n_rows width, 12 with accumulate. Bound: memory; for the one row of a decode step,
// latency.
#include "shared/common.cuh"

struct RmsNormArgs {
    const float* x;
    const void* weight;
    float* out;
    u32 n_rows;
    u32 width;
    float eps;
    u32 accumulate;
};

constexpr u32 WIDE_THREADS = 512;
constexpr u32 NARROW_THREADS = 256;

// What `n_threads` threads do to one row; `sum` adds up their parts.
template <typename T, typename Sum>
DEVICE void norm_row(const RmsNormArgs& p, u64 row, u32 thread, u32 n_threads, Sum sum) {
    const float* x = p.x + row * p.width;
    const T* weight = static_cast<const T*>(p.weight);
    float* out = p.out + row * p.width;
    float squares = 0;
    for (u32 i = thread; i < p.width; i += n_threads) {
        squares += x[i] * x[i];
    }
    const float scale = 1.0f / sqrtf(sum(squares) / static_cast<float>(p.width) + p.eps);
    for (u32 i = thread; i < p.width; i += n_threads) {
        const float y = x[i] * scale * widen(weight[i]);
        out[i] = p.accumulate ? out[i] + y : y;
    }
}

template <typename T> DEVICE void norm_wide(const RmsNormArgs& p) {
    SHARED(float, parts, WIDE_THREADS / WARP);
    const auto sum = [&](float value) { return block_sum<WIDE_THREADS>(value, parts); };
    norm_row<T>(p, blockIdx.x, threadIdx.x, WIDE_THREADS, sum);
}

template <typename T> DEVICE void norm_narrow(const RmsNormArgs& p) {
    const u64 row = static_cast<u64>(blockIdx.x) * (NARROW_THREADS / WARP) + warp_of_thread();
    if (row < p.n_rows) {
        const auto sum = [](float value) { return warp_sum(value); };
        norm_row<T>(p, row, lane_of_thread(), WARP, sum);
    }
}

KERNEL(rms_norm_wide_f32, RmsNormArgs, WIDE_THREADS) { norm_wide<float>(p); }
KERNEL(rms_norm_wide_f16, RmsNormArgs, WIDE_THREADS) { norm_wide<f16>(p); }
KERNEL(rms_norm_wide_bf16, RmsNormArgs, WIDE_THREADS) { norm_wide<bf16>(p); }
KERNEL(rms_norm_narrow_f32, RmsNormArgs, NARROW_THREADS) { norm_narrow<float>(p); }
KERNEL(rms_norm_narrow_f16, RmsNormArgs, NARROW_THREADS) { norm_narrow<f16>(p); }
KERNEL(rms_norm_narrow_bf16, RmsNormArgs, NARROW_THREADS) { norm_narrow<bf16>(p); }
