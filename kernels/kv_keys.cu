// out[h, i] = the key of row rows[h, i] of KV head h, widened to f32. src is [Hkv, head_stride, 2,
// Dh] and may be host memory; rows is [Hkv, N], out [Hkv, N, Dh]. With a stride of 0 all heads name
// rows of one pool. A row outside gives zeros.
//
// `unit`: a thread owns 16 bytes of a key, where rows are made of such units. `plain`: one element.
//
// Bytes: Hkv N Dh elements in, 4 Hkv N Dh out. Bound: memory, or the bus.
#include "shared/common.cuh"

struct KvKeysArgs {
    const void* src;
    const u32* rows;
    float* out;
    u32 n_kv_heads;
    u32 head_dim;
    u32 n_rows;
    u32 head_stride;
    // Ids are below it.
    u32 row_limit;
    u32 unused;
};

constexpr u32 THREADS = 256;

// Where the key of an entry begins, in elements; false for a row outside.
DEVICE bool find_key(const KvKeysArgs& p, u64 entry, u64& at) {
    const u64 head = entry / p.n_rows;
    const u32 row = p.rows[entry];
    at = (head * p.head_stride + row) * 2 * p.head_dim;
    return row < p.row_limit;
}

template <typename T> DEVICE void plain(const KvKeysArgs& p) {
    const u64 item = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    const u64 entry = item / p.head_dim;
    if (entry >= static_cast<u64>(p.n_kv_heads) * p.n_rows) {
        return;
    }
    u64 at;
    const bool is_there = find_key(p, entry, at);
    const T* key = static_cast<const T*>(p.src) + at;
    p.out[item] = is_there ? widen(key[item - entry * p.head_dim]) : 0.0f;
}

template <typename T> DEVICE void unit(const KvKeysArgs& p) {
    const u32 key_units = p.head_dim / PER_UNIT<T>;
    const u64 item = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    const u64 entry = item / key_units;
    if (entry >= static_cast<u64>(p.n_kv_heads) * p.n_rows) {
        return;
    }
    u64 at;
    float numbers[PER_UNIT<T>] = {};
    if (find_key(p, entry, at)) {
        const uint4* key = reinterpret_cast<const uint4*>(static_cast<const T*>(p.src) + at);
        unpack(key[item - entry * key_units], numbers, T{});
    }
    float4* out = reinterpret_cast<float4*>(p.out + item * PER_UNIT<T>);
#pragma unroll
    for (u32 i = 0; i < PER_UNIT<T> / 4; i++) {
        const float* of = numbers + 4 * i;
        out[i] = float4{of[0], of[1], of[2], of[3]};
    }
}

KERNEL(kv_keys_plain_f32, KvKeysArgs, THREADS) { plain<float>(p); }
KERNEL(kv_keys_plain_f16, KvKeysArgs, THREADS) { plain<f16>(p); }
KERNEL(kv_keys_plain_bf16, KvKeysArgs, THREADS) { plain<bf16>(p); }
KERNEL(kv_keys_unit_f32, KvKeysArgs, THREADS) { unit<float>(p); }
KERNEL(kv_keys_unit_f16, KvKeysArgs, THREADS) { unit<f16>(p); }
KERNEL(kv_keys_unit_bf16, KvKeysArgs, THREADS) { unit<bf16>(p); }
