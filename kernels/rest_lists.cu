// The clusters that lost tokens, in ascending order, with what is left of each; and for each group
// of clusters its tokens less those of its listed clusters.
//
// A block owns a KV head. Votes and a sum over the warps number the clusters, so the lists are the
// same in every run; differences of whole numbers have no order.
//
// Bytes: 12 a cluster, and 8 a listed one. Bound: latency.
#include "shared/scan.cuh"

struct RestListsArgs {
    const u32* lost;
    const u32* sizes;
    const u32* group_of;
    const u32* n_clusters;
    const u32* group_tokens;
    const u32* n_groups;
    u32* clusters;
    u32* left;
    u32* n_listed;
    u32* rest_of_groups;
    u32 cluster_stride;
    u32 group_stride;
    u32 list_stride;
    u32 unused;
};

constexpr u32 THREADS = 512;
// Clusters that a thread takes at a time, so that what is loaded for one does not wait for another.
constexpr u32 EACH = 4;
constexpr u32 CHUNK = EACH * THREADS;

KERNEL(rest_lists, RestListsArgs, THREADS) {
    SHARED(u32, parts, THREADS / WARP);
    const u32 head = blockIdx.x;
    const u32 n = min_of(p.n_clusters[head], p.cluster_stride);
    const u32 n_groups = min_of(p.n_groups[head], p.group_stride);
    const u64 own = static_cast<u64>(head) * p.cluster_stride;
    const u64 own_groups = static_cast<u64>(head) * p.group_stride;
    u32* const clusters = p.clusters + static_cast<u64>(head) * p.list_stride;
    u32* const left = p.left + static_cast<u64>(head) * p.list_stride;
    u32* const rest = p.rest_of_groups + own_groups;
    for (u32 i = threadIdx.x; i < n_groups; i += THREADS) {
        rest[i] = p.group_tokens[own_groups + i];
    }
    const u32 below = (1u << lane_of_thread()) - 1;
    u32 n_listed = 0;
    for (u32 chunk = 0; chunk < n; chunk += CHUNK) {
        const u32 first = chunk + warp_of_thread() * EACH * WARP + lane_of_thread();
        u32 lost[EACH];
        u32 sizes[EACH];
        u32 groups[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 at = first + i * WARP;
            const bool is_there = at < n;
            lost[i] = is_there ? p.lost[own + at] : 0;
            sizes[i] = is_there ? p.sizes[own + at] : 0;
            groups[i] = is_there ? p.group_of[own + at] : 0;
        }
        u32 before[EACH];
        u32 of_warp = 0;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 who = votes(lost[i] != 0);
            before[i] = of_warp + count_bits(who & below);
            of_warp += count_bits(who);
        }
        u32 total;
        // Its barriers come after all groups were copied.
        const u32 of_others = sum_of_warps<THREADS>(of_warp, parts, total);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 place = n_listed + of_others + before[i];
            if (lost[i] != 0 && place < p.list_stride) {
                clusters[place] = first + i * WARP;
                left[place] = sizes[i] - min_of(sizes[i], lost[i]);
                if (groups[i] < n_groups) {
                    atomic_add(&rest[groups[i]], 0u - sizes[i]);
                }
            }
        }
        n_listed += total;
    }
    if (threadIdx.x == 0) {
        p.n_listed[head] = min_of(n_listed, p.list_stride);
    }
}
