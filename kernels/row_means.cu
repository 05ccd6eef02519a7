// Means of neighbouring KV rows, keys and values alike: mean first_mean + i of each KV head is
//
//     out = (1 / n) sum_j row_j,   row_start + i n <= j < row_start + (i + 1) n
//
// A thread owns an element of one mean, and adds its rows in their order: loads of a warp are whole
// pieces of a row.
//
// Bytes: 2 Hkv Dh size n_means n read, 8 Hkv Dh n_means written. Bound: memory.
#include "shared/elements.cuh"

struct RowMeansArgs {
    const void* kv;
    float* out;
    u32 n_kv_heads;
    u32 head_dim;
    u32 n_averaged;
    u32 n_means;
    u32 row_start;
    u32 first_mean;
    u32 out_stride;
    u32 head_stride;
};

constexpr u32 THREADS = 256;

template <typename T> DEVICE void row_means(const RowMeansArgs& p) {
    const u64 item = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    const u32 width = 2 * p.head_dim;
    const u32 element = static_cast<u32>(item % width);
    const u64 mean = item / width;
    if (mean >= static_cast<u64>(p.n_kv_heads) * p.n_means) {
        return;
    }
    const u32 kv_head = static_cast<u32>(mean / p.n_means);
    const u32 i = static_cast<u32>(mean % p.n_means);
    const u64 first = static_cast<u64>(kv_head) * p.head_stride + p.row_start
        + static_cast<u64>(i) * p.n_averaged;
    const T* rows = static_cast<const T*>(p.kv);
    float sum = 0;
    for (u32 j = 0; j < p.n_averaged; j++) {
        sum += row_element(rows, first + j, element, p.head_dim);
    }
    const u64 at = static_cast<u64>(kv_head) * p.out_stride + p.first_mean + i;
    p.out[at * width + element] = sum / static_cast<float>(p.n_averaged);
}

KERNEL(row_means_f32, RowMeansArgs, THREADS) { row_means<float>(p); }
KERNEL(row_means_f16, RowMeansArgs, THREADS) { row_means<f16>(p); }
KERNEL(row_means_bf16, RowMeansArgs, THREADS) { row_means<bf16>(p); }
KERNEL(row_means_q8, RowMeansArgs, THREADS) { row_means<coded>(p); }
