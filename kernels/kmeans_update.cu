// centroid = mean of the points with its label; without any it stays. count = their number.
// Points are [Hkv, N, Dh], labels [Hkv, N], centroids [Hkv, C, Dh].
//
// The channels are cut in partitions of 32, one for each lane (ClusterKV, IV-B), the clusters in
// ranges of 32. A block owns a partition and a range of a head. Its 8 warps stride over the points,
// 32 labels at a time; a vote finds the points of the range, and each adds its 32 channels (128
// bytes) to the warp's own sum of its cluster in shared memory. The 8 sums of a cluster meet in the
// end, always in the same order: the result does not depend on who came first. There are no
// atomics on floats, and no scratch.
//
// Bytes: points once, labels once for each block of a head, from caches. Bound: memory.
#include "shared/common.cuh"

struct KmeansUpdateArgs {
    const float* points;
    const u32* labels;
    float* centroids;
    u32* counts;
    u32 n_points;
    u32 n_clusters;
    u32 head_dim;
    u32 unused;
};

constexpr u32 THREADS = 256;
constexpr u32 N_WARPS = THREADS / WARP;
// Clusters of a range.
constexpr u32 CLUSTERS = 32;
constexpr u32 NO_PLACE = 0xffffffffu;
// Points whose loads are under way at once.
constexpr u32 AT_ONCE = 4;

// Adds the points that `members` names, of the 32 from `rows` on; `cluster` is the lane's, within
// the range.
DEVICE void add_members(float* sums, u32 members, u32 cluster, const float* rows, u32 head_dim,
                        bool has_channel) {
    while (members != 0) {
        float values[AT_ONCE];
        u32 places[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            // The lowest one; without any lane 0, which then adds nothing.
            const u32 lowest = members & (0u - members);
            const u32 lane = lowest == 0 ? 0 : WARP - 1 - leading_zeros(lowest);
            const bool is_there = lowest != 0;
            const float* row = rows + static_cast<u64>(lane) * head_dim;
            places[i] = is_there ? shfl(cluster, lane) * WARP : NO_PLACE;
            values[i] = is_there && has_channel ? row[lane_of_thread()] : 0.0f;
            members ^= lowest;
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            if (places[i] != NO_PLACE) {
                sums[places[i] + lane_of_thread()] += values[i];
            }
        }
    }
}

KERNEL(kmeans_update, KmeansUpdateArgs, THREADS) {
    SHARED(float, sums, N_WARPS * CLUSTERS * WARP);
    SHARED(u32, counts, CLUSTERS);
    const u64 head = blockIdx.z;
    const u32 first_cluster = blockIdx.x * CLUSTERS;
    const u32 first_channel = blockIdx.y * WARP;
    const u32 n_clusters = min_of(CLUSTERS, p.n_clusters - first_cluster);
    const bool has_channel = first_channel + lane_of_thread() < p.head_dim;
    for (u32 i = threadIdx.x; i < N_WARPS * CLUSTERS * WARP; i += THREADS) {
        sums[i] = 0;
    }
    if (threadIdx.x < CLUSTERS) {
        counts[threadIdx.x] = 0;
    }
    __syncthreads();

    float* own = sums + warp_of_thread() * (CLUSTERS * WARP);
    for (u32 first = warp_of_thread() * WARP; first < p.n_points; first += THREADS) {
        const u32 point = first + lane_of_thread();
        u32 cluster = n_clusters;
        if (point < p.n_points) {
            // Below the range this is a large number.
            cluster = p.labels[head * p.n_points + point] - first_cluster;
        }
        const bool is_member = cluster < n_clusters;
        if (is_member) {
            atomic_add(&counts[cluster], 1);
        }
        const float* rows = p.points + (head * p.n_points + first) * p.head_dim + first_channel;
        add_members(own, votes(is_member), cluster, rows, p.head_dim, has_channel);
    }
    __syncthreads();

    for (u32 cluster = warp_of_thread(); cluster < n_clusters; cluster += N_WARPS) {
        float sum = 0;
#pragma unroll
        for (u32 warp = 0; warp < N_WARPS; warp++) {
            sum += sums[(warp * CLUSTERS + cluster) * WARP + lane_of_thread()];
        }
        const u32 count = counts[cluster];
        const u64 to = head * p.n_clusters + first_cluster + cluster;
        if (has_channel && count > 0) {
            p.centroids[to * p.head_dim + first_channel + lane_of_thread()] =
                sum / static_cast<float>(count);
        }
        if (blockIdx.y == 0 && lane_of_thread() == 0) {
            p.counts[to] = count;
        }
    }
}
