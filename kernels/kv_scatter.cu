// Row rows[t] of every KV head gets k[t, head] and then v[t, head], rounded to the rows' type. k
// and v are [T, Hkv, Dh]; dst is [Hkv, dst_head_stride, 2, Dh]. A row outside is left out.
//
// A thread owns one element of one row.
//
// Bytes: 8 T Hkv Dh in, 2 T Hkv Dh elements out. Bound: memory; in a decode step, latency.
#include "shared/common.cuh"

struct KvScatterArgs {
    const float* k;
    const float* v;
    const u32* rows;
    void* dst;
    u32 n_tokens;
    u32 n_kv_heads;
    u32 head_dim;
    u32 dst_head_stride;
};

constexpr u32 THREADS = 256;

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
    const u32 row = p.rows[token];
    if (row >= p.dst_head_stride) {
        return;
    }
    const u64 from = entry * p.head_dim;
    const float value = i < p.head_dim ? p.k[from + i] : p.v[from + i - p.head_dim];
    T* dst = static_cast<T*>(p.dst);
    narrow(value, dst[(head * p.dst_head_stride + row) * width + i]);
}

KERNEL(kv_scatter_f32, KvScatterArgs, THREADS) { scatter<float>(p); }
KERNEL(kv_scatter_f16, KvScatterArgs, THREADS) { scatter<f16>(p); }
KERNEL(kv_scatter_bf16, KvScatterArgs, THREADS) { scatter<bf16>(p); }
