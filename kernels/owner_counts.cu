// counts[h, c] = how many of the chosen tokens cluster c owns, for all clusters in use.
//
// A block owns a KV head: it clears the counts, then adds. Whole numbers have no order.
//
// Bytes: 4 a cluster, and 8 a token. Bound: latency.
#include "shared/common.cuh"

struct OwnerCountsArgs {
    const u32* owners;
    const u32* chosen;
    const u32* n_selected;
    const u32* n_clusters;
    u32* counts;
    u32 owner_stride;
    u32 cluster_stride;
    u32 max_selected;
    u32 unused;
};

constexpr u32 THREADS = 512;
// Tokens that a thread takes at a time, so that what is loaded for one does not wait for another.
constexpr u32 EACH = 4;
constexpr u32 CHUNK = EACH * THREADS;

KERNEL(owner_counts, OwnerCountsArgs, THREADS) {
    const u32 head = blockIdx.x;
    const u32 n_clusters = min_of(p.n_clusters[head], p.cluster_stride);
    const u32 n = min_of(p.n_selected[head], p.max_selected);
    const u32* const owners = p.owners + static_cast<u64>(head) * p.owner_stride;
    const u32* const chosen = p.chosen + static_cast<u64>(head) * p.max_selected;
    u32* const counts = p.counts + static_cast<u64>(head) * p.cluster_stride;
    for (u32 i = threadIdx.x; i < n_clusters; i += THREADS) {
        counts[i] = 0;
    }
    __syncthreads();
    for (u32 chunk = threadIdx.x; chunk < n; chunk += CHUNK) {
        u32 of_token[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 at = chunk + i * THREADS;
            const u32 token = at < n ? chosen[at] : p.owner_stride;
            of_token[i] = token < p.owner_stride ? owners[token] : n_clusters;
        }
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if (of_token[i] < n_clusters) {
                atomic_add(&counts[of_token[i]], 1u);
            }
        }
    }
}
