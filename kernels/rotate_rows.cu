// The first n_rows rows of each KV head, from src to dst, their keys turned: with h = rotary_dim /
// 2, to[i] = x[i] cos[i] - x[i + h] sin[i], to[i + h] = x[i + h] cos[i] + x[i] sin[i] for the first
// rotary_dim elements x of a key; its rest and the value are copied bit for bit. src is [Hkv,
// src_head_stride, 2, Dh] and may be host memory, dst is [Hkv, dst_head_stride, 2, Dh]; the table
// has h cosines, then h sines, for all rows.
//
// A thread owns a pair, or one element of the rest. There are few rows, a head's sinks.
//
// Bytes: 4 Hkv n_rows Dh elements. Bound: the launch, or the bus.
#include "shared/common.cuh"

struct RotateRowsArgs {
    const void* src;
    const float* table;
    void* dst;
    u32 n_kv_heads;
    u32 head_dim;
    u32 rotary_dim;
    u32 n_rows;
    u32 src_head_stride;
    u32 dst_head_stride;
};

constexpr u32 THREADS = 256;

template <typename T> DEVICE void rotate(const RotateRowsArgs& p) {
    const u32 half = p.rotary_dim / 2;
    const u32 width = 2 * p.head_dim;
    const u32 per_row = width - half;
    const u64 item = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    const u64 entry = item / per_row;
    const u32 i = static_cast<u32>(item - entry * per_row);
    const u64 head = entry / p.n_rows;
    if (head >= p.n_kv_heads) {
        return;
    }
    const u64 row = entry - head * p.n_rows;
    const T* from = static_cast<const T*>(p.src) + (head * p.src_head_stride + row) * width;
    T* to = static_cast<T*>(p.dst) + (head * p.dst_head_stride + row) * width;
    if (i >= half) {
        to[half + i] = from[half + i];
        return;
    }
    const float cosine = p.table[i];
    const float sine = p.table[half + i];
    const float a = widen(from[i]);
    const float b = widen(from[half + i]);
    narrow(rotated(a, cosine, -b, sine), to[i]);
    narrow(rotated(b, cosine, a, sine), to[half + i]);
}

KERNEL(rotate_rows_f32, RotateRowsArgs, THREADS) { rotate<float>(p); }
KERNEL(rotate_rows_f16, RotateRowsArgs, THREADS) { rotate<f16>(p); }
KERNEL(rotate_rows_bf16, RotateRowsArgs, THREADS) { rotate<bf16>(p); }
