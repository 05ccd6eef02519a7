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
    out[i] = a * cosine - b * sine;
    out[half + i] = b * cosine + a * sine;
}
