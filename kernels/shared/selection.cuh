// The rows of a KV head's selected clusters, one cluster after the other, for a block of threads.
#pragma once
#include "shared/scan.cuh"

// Selected clusters, as many as a block has threads.
template <u32 THREADS> struct Wanted {
    // Tokens before each cluster.
    u32 before[THREADS];
    // Row of the first token of each.
    u32 first_row[THREADS];
};

// Loads a tile of the `n` clusters that the block's head selected; returns its tokens. `Args` names
// a selection as `SelectClusters` does: [Hkv, cluster_stride] starts, [Hkv, max_selected] clusters
// and takes.
template <u32 THREADS, typename Args>
DEVICE u32 load_tile(const Args& p, u32 first, u32 n, Wanted<THREADS>& wanted, u32* parts) {
    u32 take = 0;
    u32 start = 0;
    if (first + threadIdx.x < n) {
        const u64 entry = static_cast<u64>(blockIdx.x) * p.max_selected + first + threadIdx.x;
        const u32 cluster = min_of(p.clusters[entry], p.cluster_stride - 1);
        take = p.takes[entry];
        start = p.starts[static_cast<u64>(blockIdx.x) * p.cluster_stride + cluster];
    }
    u32 total;
    // Its barriers come after all reads of the tile before.
    wanted.before[threadIdx.x] = sum_before<THREADS>(take, parts, total);
    wanted.first_row[threadIdx.x] = start;
    __syncthreads();
    return total;
}

// The row of token `at` of the tile.
template <u32 THREADS> DEVICE u32 row_of(const Wanted<THREADS>& wanted, u32 at) {
    // The last cluster with at most `at` tokens before it; those beyond the last have no tokens.
    u32 low = 0;
#pragma unroll
    for (u32 step = THREADS / 2; step > 0; step /= 2) {
        low += wanted.before[low + step] <= at ? step : 0;
    }
    return wanted.first_row[low] + at - wanted.before[low];
}
