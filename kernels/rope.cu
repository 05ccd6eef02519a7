// Rotates the first `rotary_dim` elements of each head: with h = rotary_dim / 2,
// out[i] = x[i] cos[i] - x[i + h] sin[i], out[i + h] = x[i + h] cos[i] + x[i] sin[i]; the rest is
// copied. x and out are [T, heads, Dh]; a row of the table is the cosines of a token, then the
// sines.
//
// A thread owns a pair, or one element of the rest.
//
// Bytes: 8 T heads Dh. Bound: memory; in a decode step, latency.
#include "shared/common.cuh"

struct RopeArgs {
    const float* x;
    const float* table;
    float* out;
    u32 n_tokens;
    u32 n_heads;
    u32 head_dim;
    u32 rotary_dim;
};

constexpr u32 THREADS = 256;

KERNEL(rope, RopeArgs, THREADS) {
    const u32 half = p.rotary_dim / 2;
    const u32 per_head = p.head_dim - half;
    const u64 item = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    const u64 head = item / per_head;
    const u32 i = static_cast<u32>(item - head * per_head);
    const u64 token = head / p.n_heads;
    if (token >= p.n_tokens) {
        return;
    }
    const float* x = p.x + head * p.head_dim;
    float* out = p.out + head * p.head_dim;
    if (i >= half) {
        out[half + i] = x[half + i];
        return;
    }
    const float* angles = p.table + token * p.rotary_dim;
    const float cosine = angles[i];
    const float sine = angles[half + i];
    const float a = x[i];
    const float b = x[half + i];
    out[i] = rotated(a, cosine, -b, sine);
    out[half + i] = rotated(b, cosine, a, sine);
}

// `norm_rope`: norms of heads where the model has them, as the narrow `rms_norm` does, then the
// rotation, of q and k in one launch, with the bits of the single kernels. A warp owns a head.

struct NormRopeArgs {
    // [T, heads, Dh].
    const float* q;
    const float* k;
    // Null where heads are not normed.
    const void* q_norm;
    const void* k_norm;
    const float* table;
    float* q_out;
    float* k_out;
    u32 n_tokens;
    u32 n_q_heads;
    u32 n_k_heads;
    u32 head_dim;
    u32 rotary_dim;
    u32 q_norm_kind;
    u32 k_norm_kind;
    float eps;
};

KERNEL(norm_rope, NormRopeArgs, THREADS) {
    const u64 all_q = static_cast<u64>(p.n_tokens) * p.n_q_heads;
    const u64 item = static_cast<u64>(blockIdx.x) * (THREADS / WARP) + warp_of_thread();
    const bool is_q = item < all_q;
    const u64 head = is_q ? item : item - all_q;
    const u64 token = head / (is_q ? p.n_q_heads : p.n_k_heads);
    if (token >= p.n_tokens) {
        return;
    }
    const float* x = (is_q ? p.q : p.k) + head * p.head_dim;
    float* out = (is_q ? p.q_out : p.k_out) + head * p.head_dim;
    const void* norm = is_q ? p.q_norm : p.k_norm;
    const u32 kind = is_q ? p.q_norm_kind : p.k_norm_kind;
    float scale = 1;
    if (norm != nullptr) {
        float squares = 0;
        for (u32 i = lane_of_thread(); i < p.head_dim; i += WARP) {
            squares += x[i] * x[i];
        }
        scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(p.head_dim) + p.eps);
    }
    const auto normed = [&](u32 i) {
        return norm == nullptr ? x[i] : x[i] * scale * element_of(kind, norm, i);
    };
    const u32 half = p.rotary_dim / 2;
    const float* angles = p.table + token * p.rotary_dim;
    for (u32 i = lane_of_thread(); i < half; i += WARP) {
        const float cosine = angles[i];
        const float sine = angles[half + i];
        const float a = normed(i);
        const float b = normed(half + i);
        out[i] = rotated(a, cosine, -b, sine);
        out[half + i] = rotated(b, cosine, a, sine);
    }
    for (u32 i = p.rotary_dim + lane_of_thread(); i < p.head_dim; i += WARP) {
        out[i] = normed(i);
    }
}
