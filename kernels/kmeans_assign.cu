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
// owns SIDE points of a head (tile.cuh) and walks over all centroids, SIDE at a time, without a
// pause between them. A thread keeps the best of its columns; the 16 threads of a point meet at the
// end. SIDE is 128, or 64 for few points or clusters.
//
// Products are f32: rounded to 16 bits, near centroids would change places.
//
// A point that is not a number gets cluster 0 and a score that is not a number.
//
// Bytes: points and centroids once from memory, centroids again for each SIDE points from the L2
// cache. FLOPs: 2 N C Dh a head. Bound: arithmetic.
#include "tile.cuh"

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

// The best of a point over the threads that share it, by the one with its first column. Threads of
// two warps share a point: `bests` is [2, SIDE].
template <u32 THREADS> DEVICE void meet_best(Best (&best)[ROWS], Best* bests) {
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
#pragma unroll
        for (u32 mask = 1; mask < 8; mask *= 2) {
            Best other;
            other.score = shfl_xor(best[i].score, mask);
            other.cluster = shfl_xor(best[i].cluster, mask);
            best[i] = better(best[i], other);
        }
        if (lane_of_thread() % 8 == 0) {
            bests[warp_of_thread() % 2 * SIDE<THREADS> + row_of_thread(i)] = best[i];
        }
    }
    __syncthreads();
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
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
        best[i] = Best{float_of(0xff800000u), NOBODY};
    }
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
    meet_best<THREADS>(best, bests);

    // A thread for each point, in whole warps.
    if (threadIdx.x >= SIDE<THREADS>) {
        return;
    }
    const u32 point = first_point + threadIdx.x;
    bool has_changed = false;
    if (point < p.n_points) {
        const Best all = better(bests[threadIdx.x], bests[SIDE<THREADS> + threadIdx.x]);
        const u64 to = head * p.n_points + point;
        has_changed = p.labels[to] != all.cluster;
        p.labels[to] = all.cluster;
        p.scores[to] = all.score;
    }
    const u32 n_changed = count_bits(votes(has_changed));
    if (lane_of_thread() == 0 && n_changed > 0) {
        atomic_add(&p.n_changed[head], n_changed);
    }
}

KERNEL(kmeans_assign_wide, KmeansAssignArgs, WIDE) { assign<WIDE>(p); }
KERNEL(kmeans_assign_narrow, KmeansAssignArgs, NARROW) { assign<NARROW>(p); }
