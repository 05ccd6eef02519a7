// closeness = how near a point is to its centroid (greater is nearer); radius = the largest
// distance of a cluster's members from its centroid, 0 without members.
//
//   cosine x . c / (|x| |c|), 0 if either is 0       L2 -|x - c|       inner product x . c
//
// Points are [Hkv, N, Dh], labels [Hkv, N], centroids [Hkv, C, Dh].
//
// 8 lanes share a point, a warp has 4. |x - c| is summed from differences: what is left of the
// squares and the product would lose half of the digits. Radii are maxima of the bits of numbers
// that are not negative, which order as the numbers do; `cluster_radius_clear` makes them 0 first.
//
// Bytes: points once, and from caches a centroid for each. Bound: memory.
#include "shared/rows.cuh"

struct ClusterRadiusClearArgs {
    u32* radius;
    u32 n;
    u32 unused;
};

struct ClusterStatsArgs {
    const float* points;
    const u32* labels;
    const float* centroids;
    float* closeness;
    // The bits of floats.
    u32* radius;
    // Of all heads.
    u32 n_all_points;
    u32 n_points;
    u32 n_clusters;
    u32 head_dim;
    u32 distance;
    // Whether every point and every centroid begins at 16 bytes.
    u32 rows_are_aligned;
};

constexpr u32 COSINE = 0;
constexpr u32 L2 = 1;
constexpr u32 THREADS = 256;
// Lanes of a point, and how many elements each takes at once.
constexpr u32 LANES = 8;
constexpr u32 AT_ONCE = 4;

KERNEL(cluster_radius_clear, ClusterRadiusClearArgs, THREADS) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i < p.n) {
        p.radius[i] = 0;
    }
}

DEVICE float team_sum(float value) {
#pragma unroll
    for (u32 mask = LANES / 2; mask > 0; mask /= 2) {
        value += shfl_xor(value, mask);
    }
    return value;
}

KERNEL(cluster_stats, ClusterStatsArgs, THREADS) {
    const u32 point = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const bool is_point = point < p.n_all_points;
    u32 cluster = 0;
    float product = 0;
    float x_square = 0;
    float c_square = 0;
    float gap_square = 0;
    if (is_point) {
        const u32 label = min_of(p.labels[point], p.n_clusters - 1);
        cluster = point / p.n_points * p.n_clusters + label;
        const float* x_row = p.points + static_cast<u64>(point) * p.head_dim;
        const float* c_row = p.centroids + static_cast<u64>(cluster) * p.head_dim;
        for (u32 k = lane_of_thread() % LANES * AT_ONCE; k < p.head_dim; k += LANES * AT_ONCE) {
            float x[AT_ONCE];
            float c[AT_ONCE];
            load_floats<AT_ONCE>(x_row, k, p.head_dim, p.rows_are_aligned, x);
            load_floats<AT_ONCE>(c_row, k, p.head_dim, p.rows_are_aligned, c);
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                const float gap = x[i] - c[i];
                product += x[i] * c[i];
                x_square += x[i] * x[i];
                c_square += c[i] * c[i];
                gap_square += gap * gap;
            }
        }
    }
    product = team_sum(product);
    x_square = team_sum(x_square);
    c_square = team_sum(c_square);
    const float gap = sqrtf(team_sum(gap_square));
    if (!is_point || lane_of_thread() % LANES != 0) {
        return;
    }
    float near = product;
    if (p.distance == COSINE) {
        const float lengths = sqrtf(x_square) * sqrtf(c_square);
        near = lengths == 0 ? 0.0f : product / lengths;
    } else if (p.distance == L2) {
        near = -gap;
    }
    p.closeness[point] = near;
    // Minus zero is zero.
    atomic_max(&p.radius[cluster], float_bits(gap) & 0x7fffffffu);
}
