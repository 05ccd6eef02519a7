// Row rows[t] of every KV head gets k[t, head] and then v[t, head], rounded to the rows' type. k
// and v are [T, Hkv, Dh]; dst is [Hkv, dst_head_stride, 2, Dh]. A row outside is left out.
//
// With a second destination the same goes there too, to rows of its own: what a decoded token's row
// comes to on the device and in the host store.
//
// A thread owns one element of one row; of rows of 8 bits (shared/coded.cuh) a warp owns a row. The
// second dimension of the grid is the destination.
//
// Bytes: 8 T Hkv Dh in, 2 T Hkv Dh elements out. Bound: memory; in a decode step, latency.
#include "shared/coded.cuh"

struct KvScatterArgs {
    const float* k;
    const float* v;
    const u32* rows;
    void* dst;
    const u32* more_rows;
    void* more_dst;
    u32 n_tokens;
    u32 n_kv_heads;
    u32 head_dim;
    u32 dst_head_stride;
    u32 more_head_stride;
    u32 unused;
};

constexpr u32 THREADS = 256;

// Where a block writes.
struct Destination {
    const u32* rows;
    void* dst;
    u32 head_stride;
};

DEVICE Destination destination_of_block(const KvScatterArgs& p) {
    if (blockIdx.y == 0) {
        return {p.rows, p.dst, p.dst_head_stride};
    }
    return {p.more_rows, p.more_dst, p.more_head_stride};
}

template <typename T> DEVICE void scatter(const KvScatterArgs& p) {
    const u32 width = 2 * p.head_dim;
    const u64 item = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    const u64 entry = item / width;
    const u32 i = static_cast<u32>(item - entry * width);
    const u64 token = entry / p.n_kv_heads;
    if (token >= p.n_tokens) {
        return;
    }
    const u64 head = entry - token * p.n_kv_heads;
    const Destination to_rows = destination_of_block(p);
    const u32 row = to_rows.rows[token];
    if (row >= to_rows.head_stride) {
        return;
    }
    const u64 from = entry * p.head_dim;
    const float value = i < p.head_dim ? p.k[from + i] : p.v[from + i - p.head_dim];
    T* dst = static_cast<T*>(to_rows.dst);
    narrow(value, dst[(head * to_rows.head_stride + row) * width + i]);
}

// The largest size of numbers by their bits, where not-a-number and infinity are the largest of
// all, on every lane.
DEVICE u32 largest_of(const float* x, u32 n) {
    u32 most = 0;
    for (u32 i = lane_of_thread(); i < n; i += WARP) {
        const u32 size = float_bits(x[i]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
#pragma unroll
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
        const u32 other = shfl_xor(most, mask);
        most = other > most ? other : most;
    }
    return most;
}

// Writes the codes of numbers that share a scale, and the scale. Numbers that are not finite make
// it not-a-number.
DEVICE void encode_block(const float* x, u32 n, coded* codes, u8* scale) {
    const u32 most = largest_of(x, n);
    const u16 bits = most < 0x7f800000u ? float_to_half(float_of(most) / 127.0f) : u16{0x7e00};
    const bool has_codes = bits != 0 && bits < 0x7c00;
    const float inverse = has_codes ? 1.0f / half_to_float(bits) : 0.0f;
    for (u32 i = lane_of_thread(); i < n; i += WARP) {
        const float code = has_codes ? rintf(x[i] * inverse) : 0.0f;
        const float inside = fminf(fmaxf(code, -127.0f), 127.0f);
        codes[i].bits = static_cast<u8>(static_cast<int>(inside));
    }
    if (lane_of_thread() == 0) {
        *reinterpret_cast<u16*>(scale) = bits;
    }
}

KERNEL(kv_scatter_q8, KvScatterArgs, THREADS) {
    const u64 entry = static_cast<u64>(blockIdx.x) * (THREADS / WARP) + warp_of_thread();
    const u64 token = entry / p.n_kv_heads;
    if (token >= p.n_tokens) {
        return;
    }
    const u64 head = entry - token * p.n_kv_heads;
    const Destination to_rows = destination_of_block(p);
    const u32 row = to_rows.rows[token];
    if (row >= to_rows.head_stride) {
        return;
    }
    const u32 width = coded_row(p.head_dim);
    coded* to = static_cast<coded*>(to_rows.dst) + (head * to_rows.head_stride + row) * width;
    u8* scales = reinterpret_cast<u8*>(to + 2 * p.head_dim);
    const u32 n_key_scales = key_scales(p.head_dim);
    const float* k = p.k + entry * p.head_dim;
    for (u32 i = 0; i < n_key_scales; i++) {
        const u32 first = i * KEY_BLOCK;
        const u32 n = min_of(KEY_BLOCK, p.head_dim - first);
        encode_block(k + first, n, to + first, scales + 2 * i);
    }
    const float* v = p.v + entry * p.head_dim;
    encode_block(v, p.head_dim, to + p.head_dim, scales + 2 * n_key_scales);
    const u32 used = 2 * p.head_dim + 2 * n_key_scales + 2;
    if (used + lane_of_thread() < width) {
        to[used + lane_of_thread()].bits = 0;
    }
}

KERNEL(kv_scatter_f32, KvScatterArgs, THREADS) { scatter<float>(p); }
KERNEL(kv_scatter_f16, KvScatterArgs, THREADS) { scatter<f16>(p); }
KERNEL(kv_scatter_bf16, KvScatterArgs, THREADS) { scatter<bf16>(p); }
