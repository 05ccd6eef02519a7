// label = the centroid of the largest score, score = x . c * factor[c] - shift[c], lowest first:
//
//   cosine         factor = 1 / |c| (0 for c = 0)   shift = 0
//   L2             factor = 1                       shift = |c|^2 / 2
//   inner product  factor = 1                       shift = 0
//
// Points are [Hkv, N, Dh], centroids [Hkv, C, Dh], f32.
//
// `kmeans_terms`: a warp for each centroid makes its factor and its shift; the counts of changes
// become 0. `kmeans_assign` is a matrix product of which only the best of each row is kept: a block
// owns SIDE points of a head (shared/tile.cuh) and walks over all centroids, SIDE at a time,
// without a pause between them. A thread keeps the best of its columns; the threads of a point meet
// at the end. SIDE is 128, or 64 for few points or clusters.
//
// Products have the precision of f32: rounded to 16 bits, near centroids would change places.
// `kmeans_assign_tensor` (from compute capability 8.0 on, where the launch code says that it gains;
// rows at 16 bytes) has tensor cores make them of tf32, three for each: with x = x1 + x2 and
// c = c1 + c2, all parts tf32, x c is x2 c1 + x1 c2 + x1 c1, added in this order, small ones first;
// x2 c2 is below what an f32 holds. The others multiply f32.
//
// A point that is not a number gets cluster 0 and a score that is not a number. With tf32 that is
// also so for a point, or the first centroid, that holds an infinite number.
//
// Bytes: points and centroids once from memory, centroids again for each SIDE points from the L2
// cache. FLOPs: 2 N C Dh a head, three times that with tf32. Bound: arithmetic.
#include "shared/tile.cuh"

struct KmeansTermsArgs {
    const float* centroids;
    // [Hkv, C]
    float2* terms;
    u32* n_changed;
    u32 n_kv_heads;
    u32 n_clusters;
    u32 head_dim;
    u32 distance;
};

struct KmeansAssignArgs {
    const float* points;
    const float* centroids;
    const float2* terms;
    u32* labels;
    float* scores;
    u32* n_changed;
    u32 n_points;
    u32 n_clusters;
    u32 head_dim;
    // Whether every point and every centroid begins at 16 bytes.
    u32 rows_are_aligned;
};

constexpr u32 COSINE = 0;
constexpr u32 L2 = 1;
constexpr u32 TERMS_THREADS = 256;
constexpr u32 WIDE = 256;
constexpr u32 NARROW = 128;
constexpr u32 NOBODY = 0xffffffffu;

KERNEL(kmeans_terms, KmeansTermsArgs, TERMS_THREADS) {
    const u32 thread = blockIdx.x * TERMS_THREADS + threadIdx.x;
    // A head has a warp for each of its clusters: there are more threads than heads.
    if (thread < p.n_kv_heads) {
        p.n_changed[thread] = 0;
    }
    const u32 centroid = thread / WARP;
    const bool is_there = centroid < p.n_kv_heads * p.n_clusters;
    const float* row = p.centroids + static_cast<u64>(is_there ? centroid : 0) * p.head_dim;
    float square = 0;
    for (u32 k = lane_of_thread(); k < p.head_dim; k += WARP) {
        square += row[k] * row[k];
    }
    square = warp_sum(square);
    if (is_there && lane_of_thread() == 0) {
        float2 term = {1, 0};
        if (p.distance == COSINE) {
            term.x = square == 0 ? 0.0f : 1.0f / sqrtf(square);
        } else if (p.distance == L2) {
            term.y = square / 2;
        }
        p.terms[centroid] = term;
    }
}

// A centroid and its score.
struct Best {
    float score;
    u32 cluster;
};

// The better one; of equals the lower. What is not a number stays where it is: in the end the
// first centroid's place counts.
DEVICE Best better(Best a, Best b) {
    const bool is_lower = b.score == a.score && b.cluster < a.cluster;
    return b.score > a.score || is_lower ? b : a;
}

// Where a block is in its products.
struct Walk {
    // First centroid and first column.
    u32 cluster;
    u32 column;
};

template <u32 THREADS> DEVICE Walk after(Walk at, u32 head_dim) {
    at.column += DEPTH;
    return at.column < head_dim ? at : Walk{at.cluster + SIDE<THREADS>, 0};
}

// Looks for better ones in a finished tile, and clears it.
template <u32 THREADS>
DEVICE void keep_best(const float2* terms, u32 first, u32 n_clusters,
                      float (&sums)[ROWS][COLUMNS<THREADS>], Best (&best)[ROWS]) {
#pragma unroll
    for (u32 j = 0; j < COLUMNS<THREADS>; j++) {
        const u32 cluster = first + column_of_thread<THREADS>(j);
        if (cluster < n_clusters) {
            const float2 term = terms[cluster];
#pragma unroll
            for (u32 i = 0; i < ROWS; i++) {
                const float score = sums[i][j] * term.x - term.y;
                // Clusters come in order: of equals the lower one is there already.
                if (score > best[i].score || cluster == 0) {
                    best[i] = Best{score, cluster};
                }
            }
        }
    }
    clear_sums<THREADS>(sums);
}

// The best of points over LANES lanes that follow each other, on the first of them.
template <u32 LANES, u32 N> DEVICE void meet_lanes(Best (&best)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; i++) {
#pragma unroll
        for (u32 mask = 1; mask < LANES; mask *= 2) {
            Best other;
            other.score = shfl_xor(best[i].score, mask);
            other.cluster = shfl_xor(best[i].cluster, mask);
            best[i] = better(best[i], other);
        }
    }
}

// Nobody is the best so far.
template <u32 N> DEVICE void clear_best(Best (&best)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        best[i] = Best{float_of(0xff800000u), NOBODY};
    }
}

// Writes the labels of a block's points: the best of PARTS warps, [PARTS, SIDE].
template <u32 THREADS, u32 PARTS> DEVICE void write_best(const KmeansAssignArgs& p, Best* bests) {
    __syncthreads();
    // A thread for each point, in whole warps.
    if (threadIdx.x >= SIDE<THREADS>) {
        return;
    }
    const u64 head = blockIdx.y;
    const u32 point = blockIdx.x * SIDE<THREADS> + threadIdx.x;
    bool has_changed = false;
    if (point < p.n_points) {
        Best best = bests[threadIdx.x];
#pragma unroll
        for (u32 i = 1; i < PARTS; i++) {
            best = better(best, bests[i * SIDE<THREADS> + threadIdx.x]);
        }
        const u64 to = head * p.n_points + point;
        has_changed = p.labels[to] != best.cluster;
        p.labels[to] = best.cluster;
        p.scores[to] = best.score;
    }
    const u32 n_changed = count_bits(votes(has_changed));
    if (lane_of_thread() == 0 && n_changed > 0) {
        atomic_add(&p.n_changed[head], n_changed);
    }
}

template <u32 THREADS> DEVICE void assign(const KmeansAssignArgs& p) {
    constexpr u32 UNITS = TILE_UNITS<THREADS>;
    SHARED(float4, tiles, 4 * UNITS);
    SHARED(Best, bests, 2 * SIDE<THREADS>);
    const u64 head = blockIdx.y;
    const u32 first_point = blockIdx.x * SIDE<THREADS>;
    const float* points = p.points + head * p.n_points * p.head_dim;
    const float* centroids = p.centroids + head * p.n_clusters * p.head_dim;
    const float2* terms = p.terms + head * p.n_clusters;
    // Rows beyond the last are the last again.
    const u32 point_brought = min_of(first_point + row_brought(), p.n_points - 1);
    const float* x_row = points + static_cast<u64>(point_brought) * p.head_dim;
    const auto load = [&](Walk at, float(&x)[8], float(&w)[8]) {
        const u32 cluster = min_of(at.cluster + row_brought(), p.n_clusters - 1);
        const float* w_row = centroids + static_cast<u64>(cluster) * p.head_dim;
        const u32 k = at.column + column_brought();
        load_floats<8>(x_row, k, p.head_dim, p.rows_are_aligned, x);
        load_floats<8>(w_row, k, p.head_dim, p.rows_are_aligned, w);
    };
    float x[8];
    float w[8];
    float sums[ROWS][COLUMNS<THREADS>];
    clear_sums<THREADS>(sums);
    Best best[ROWS];
    clear_best(best);
    Walk at = {0, 0};
    load(at, x, w);
    for (u32 step = 0; at.cluster < p.n_clusters; step++) {
        float4* tile = tiles + step % 2 * (2 * UNITS);
        bring(tile, x);
        bring(tile + UNITS, w);
        // The other tile is free behind this: all have used it up.
        __syncthreads();
        const Walk next = after<THREADS>(at, p.head_dim);
        if (next.cluster < p.n_clusters) {
            load(next, x, w);
        }
        add_products<THREADS>(tile, tile + UNITS, sums);
        if (next.cluster != at.cluster) {
            keep_best<THREADS>(terms, at.cluster, p.n_clusters, sums, best);
        }
        at = next;
    }
    meet_lanes<8>(best);
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
        if (lane_of_thread() % 8 == 0) {
            bests[warp_of_thread() % 2 * SIDE<THREADS> + row_of_thread(i)] = best[i];
        }
    }
    write_best<THREADS, 2>(p, bests);
}

#if HAS_SM80

// Units of a row that a matrix instruction takes.
constexpr u32 TENSOR_UNITS = 2;
// Centroids of a warp, which has SIDE / 2 points.
constexpr u32 WARP_CLUSTERS = 32;

template <u32 THREADS> constexpr u32 CLUSTER_WARPS = SIDE<THREADS> / WARP_CLUSTERS;
// Matrices of 16 points of a warp.
template <u32 THREADS> constexpr u32 POINT_TILES = SIDE<THREADS> / 32;

template <u32 THREADS> DEVICE u32 first_point_of_warp() {
    return warp_of_thread() / CLUSTER_WARPS<THREADS> * (SIDE<THREADS> / 2);
}
template <u32 THREADS> DEVICE u32 first_cluster_of_warp() {
    return warp_of_thread() % CLUSTER_WARPS<THREADS> * WARP_CLUSTERS;
}

// Begins the copies of a step: DEPTH columns of SIDE points and of as many centroids behind them.
template <u32 THREADS>
DEVICE void copy_step(const KmeansAssignArgs& p, const float* points, const float* centroids,
                      Walk at, uint4* tile) {
    const u32 unit = threadIdx.x % ROW_UNITS;
    const u32 k = at.column + 4 * unit;
    const bool is_there = k < p.head_dim;
    const u32 column = is_there ? k : 0;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 row = threadIdx.x / ROW_UNITS + i * (THREADS / ROW_UNITS);
        // Rows beyond the last are the last again.
        const u64 point = min_of(blockIdx.x * SIDE<THREADS> + row, p.n_points - 1);
        const u64 cluster = min_of(at.cluster + row, p.n_clusters - 1);
        uint4* const to = tile + unit_at(row, unit);
        copy_async(to, points + point * p.head_dim + column, is_there);
        copy_async(to + TILE_UNITS<THREADS>, centroids + cluster * p.head_dim + column, is_there);
    }
    copies_commit();
}

// Numbers as sums of two of tf32: what is left of the first is exact, and rounded once.
DEVICE void split(const u32 (&bits)[4], u32 (&first)[4], u32 (&second)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        first[i] = float_to_tf32(float_of(bits[i]));
        second[i] = float_to_tf32(float_of(bits[i]) - float_of(first[i]));
    }
}

// Adds the products of a step to the sums of a warp.
template <u32 THREADS>
DEVICE void add_split_products(const uint4* x, const uint4* w,
                               float (&sums)[POINT_TILES<THREADS>][4][4]) {
    const u32 warp_x = first_point_of_warp<THREADS>();
    const u32 warp_w = first_cluster_of_warp<THREADS>();
    // Lane 8 m + r brings row r of matrix m.
    const u32 m = lane_of_thread() / 8;
    const u32 r = lane_of_thread() % 8;
    // One half after the other: else all fragments are loaded first, into twice the registers.
#pragma unroll 1
    for (u32 first = 0; first < ROW_UNITS; first += TENSOR_UNITS) {
        u32 b1[4][2];
        u32 b2[4][2];
#pragma unroll
        for (u32 j = 0; j < 4; j += 2) {
            u32 matrices[4];
            u32 firsts[4];
            u32 seconds[4];
            load_matrices(matrices, &w[unit_at(warp_w + 8 * (j + m / 2) + r, first + m % 2)]);
            split(matrices, firsts, seconds);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                b1[j + i / 2][i % 2] = firsts[i];
                b2[j + i / 2][i % 2] = seconds[i];
            }
        }
#pragma unroll
        for (u32 i = 0; i < POINT_TILES<THREADS>; i++) {
            u32 a[4];
            u32 a1[4];
            u32 a2[4];
            load_matrices(a, &x[unit_at(warp_x + 16 * i + 8 * (m % 2) + r, first + m / 2)]);
            split(a, a1, a2);
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                mma_tf32(sums[i][j], a2, b1[j]);
            }
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                mma_tf32(sums[i][j], a1, b2[j]);
            }
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                mma_tf32(sums[i][j], a1, b1[j]);
            }
        }
    }
}

// Looks for better ones in a finished tile, and clears it. Point 2 i + h of a thread is in row
// 16 i + 8 h + g of its warp.
template <u32 THREADS>
DEVICE void keep_best_of_warp(const float2* terms, u32 first, u32 n_clusters,
                              float (&sums)[POINT_TILES<THREADS>][4][4],
                              Best (&best)[2 * POINT_TILES<THREADS>]) {
    first += first_cluster_of_warp<THREADS>() + lane_of_thread() % 4 * 2;
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            const u32 cluster = first + 8 * j + c;
            const float2 term = cluster < n_clusters ? terms[cluster] : float2{0, 0};
#pragma unroll
            for (u32 i = 0; i < 2 * POINT_TILES<THREADS>; i++) {
                float& sum = sums[i / 2][j][i % 2 * 2 + c];
                const float score = sum * term.x - term.y;
                // Clusters come in order: of equals the lower one is there already.
                const bool is_better = score > best[i].score || cluster == 0;
                if (cluster < n_clusters && is_better) {
                    best[i] = Best{score, cluster};
                }
                sum = 0;
            }
        }
    }
}

template <u32 THREADS> DEVICE void assign_by_tensor_cores(const KmeansAssignArgs& p) {
    constexpr u32 UNITS = TILE_UNITS<THREADS>;
    SHARED(uint4, tiles, 4 * UNITS);
    SHARED(Best, bests, CLUSTER_WARPS<THREADS> * SIDE<THREADS>);
    const u64 head = blockIdx.y;
    const float* points = p.points + head * p.n_points * p.head_dim;
    const float* centroids = p.centroids + head * p.n_clusters * p.head_dim;
    const float2* terms = p.terms + head * p.n_clusters;
    float sums[POINT_TILES<THREADS>][4][4] = {};
    Best best[2 * POINT_TILES<THREADS>];
    clear_best(best);
    Walk at = {0, 0};
    copy_step<THREADS>(p, points, centroids, at, tiles);
    for (u32 step = 0; at.cluster < p.n_clusters; step++) {
        const uint4* tile = tiles + step % 2 * (2 * UNITS);
        copies_wait<0>();
        // The other tile is free behind this: all have used it up.
        __syncthreads();
        const Walk next = after<THREADS>(at, p.head_dim);
        if (next.cluster < p.n_clusters) {
            copy_step<THREADS>(p, points, centroids, next, tiles + (step + 1) % 2 * (2 * UNITS));
        }
        add_split_products<THREADS>(tile, tile + UNITS, sums);
        if (next.cluster != at.cluster) {
            keep_best_of_warp<THREADS>(terms, at.cluster, p.n_clusters, sums, best);
        }
        at = next;
    }
    // The four lanes of a point meet, then the warps of it.
    meet_lanes<4>(best);
    const u32 part = warp_of_thread() % CLUSTER_WARPS<THREADS> * SIDE<THREADS>;
    const u32 row = first_point_of_warp<THREADS>() + lane_of_thread() / 4;
#pragma unroll
    for (u32 i = 0; i < 2 * POINT_TILES<THREADS>; i++) {
        if (lane_of_thread() % 4 == 0) {
            bests[part + row + 8 * i] = best[i];
        }
    }
    write_best<THREADS, CLUSTER_WARPS<THREADS>>(p, bests);
}

#else

// Never chosen for such a device.
template <u32 THREADS> DEVICE void assign_by_tensor_cores(const KmeansAssignArgs&) {}

#endif

KERNEL(kmeans_assign_tensor_wide, KmeansAssignArgs, WIDE) { assign_by_tensor_cores<WIDE>(p); }
KERNEL(kmeans_assign_tensor_narrow, KmeansAssignArgs, NARROW) {
    assign_by_tensor_cores<NARROW>(p);
}
KERNEL(kmeans_assign_wide, KmeansAssignArgs, WIDE) { assign<WIDE>(p); }
KERNEL(kmeans_assign_narrow, KmeansAssignArgs, NARROW) { assign<NARROW>(p); }
