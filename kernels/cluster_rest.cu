// rest[h, c] = sizes[h, c], less takes[h, i] where clusters[h, i] = c: tokens of each cluster that
// a selection did not take. sizes and rest are [Hkv, cluster_stride], of which n_clusters[h] are in
// use; clusters and takes are [Hkv, max_selected], of which n_selected[h] are.
//
// A block owns 2,048 clusters of a head: it copies their sizes, then goes over the whole selection
// of the head for those that are its own. No cluster is selected twice, so none has two owners.
//
// Bytes: 8 a cluster, and 8 an entry of the selection for each block of its head, from caches.
// Bound: latency.
#include "shared/common.cuh"

struct ClusterRestArgs {
    const u32* sizes;
    const u32* n_clusters;
    const u32* clusters;
    const u32* takes;
    const u32* n_selected;
    u32* rest;
    u32 cluster_stride;
    u32 max_selected;
};

constexpr u32 THREADS = 256;
constexpr u32 PER_THREAD = 8;
// Clusters of a block.
constexpr u32 CLUSTERS = THREADS * PER_THREAD;

KERNEL(cluster_rest, ClusterRestArgs, THREADS) {
    const u32 head = blockIdx.y;
    const u32 n = min_of(p.n_clusters[head], p.cluster_stride);
    const u32 first = blockIdx.x * CLUSTERS;
    if (first >= n) {
        return;
    }
    const u32 n_own = min_of(CLUSTERS, n - first);
    const u64 at = static_cast<u64>(head) * p.cluster_stride + first;
    const u32* sizes = p.sizes + at;
    u32* rest = p.rest + at;
    // All loads come first: for all the compiler knows, a store changes what is loaded.
    u32 own_sizes[PER_THREAD];
#pragma unroll
    for (u32 i = 0; i < PER_THREAD; i++) {
        const u32 own = threadIdx.x + i * THREADS;
        own_sizes[i] = own < n_own ? sizes[own] : 0;
    }
#pragma unroll
    for (u32 i = 0; i < PER_THREAD; i++) {
        const u32 own = threadIdx.x + i * THREADS;
        if (own < n_own) {
            rest[own] = own_sizes[i];
        }
    }
    __syncthreads();
    const u64 entry = static_cast<u64>(head) * p.max_selected;
    const u32 n_selected = min_of(p.n_selected[head], p.max_selected);
    for (u32 i = threadIdx.x; i < n_selected; i += THREADS) {
        // Below the block's clusters this is a large number.
        const u32 own = p.clusters[entry + i] - first;
        if (own < n_own) {
            const u32 size = sizes[own];
            rest[own] = size - min_of(size, p.takes[entry + i]);
        }
    }
}
