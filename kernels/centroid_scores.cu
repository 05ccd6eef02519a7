// Attention mass of each cluster of a KV head, one sequence:
//
//   logit[g, c] = scale * q[g] . centroid[c]
//   mass[g, c]  = w[c] e^logit[g, c] / sum_i w[i] e^logit[g, i]      w: size of c, or 1
//   score[c]    = sum or maximum over the query heads g of the group
//
// or, without a softmax, the sum of the logits over the group, or over all query heads.
//
// `centroid_logits`: a block owns some clusters of a KV head, in tiles of 64, and the query heads
// of its group, HEADS at a time (nearly always all of them, so that a centroid is read once). Eight
// lanes share four centroids, a unit of 16 bytes of each at a time: 4 loads are under way in every
// thread, and what is read of the queries, from shared memory, serves 4 products. The block leaves
// the logits and, for each query head, (maximum, sum of e^(logit - maximum)).
//
// `centroid_pool`: a block joins these pairs over all blocks, then writes its share of the scores.
//
// `centroid_sums`: a sum of products with one centroid is a product with the sum of the queries, so
// it is `centroid_logits` with one query for the group, and what it leaves are the scores.
// `centroid_share` adds up those of all KV heads where these choose alike.
//
// The host knows only the room for clusters: blocks beyond the clusters in use leave at once.
//
// Bytes: the centroids once, 8 bytes for each logit. Bound: memory.
#include "shared/common.cuh"

struct CentroidLogitsArgs {
    // [Hq, Dh]: the sequence's token.
    const float* q;
    const void* centroids;
    const u32* sizes;
    const u32* n_clusters;
    // [Hq, room]
    float* logits;
    // [Hq, n_blocks]
    float2* pairs;
    // [Hkv, id_stride]: the clusters that are scored, all of weight 1; or none, which is all.
    const u32* ids;
    u32 n_q_heads;
    u32 n_kv_heads;
    u32 head_dim;
    u32 cluster_stride;
    // Clusters that all strides leave room for.
    u32 room;
    // Clusters of a block, a multiple of 64.
    u32 per_block;
    u32 n_blocks;
    float scale;
    u32 pooling;
    // Whether every centroid is whole units that begin at 16 bytes.
    u32 is_aligned;
    u32 id_stride;
    // Clusters that a list may name are below this, and elements from one's centroid to the next's.
    u32 id_limit;
    u32 id_width;
    u32 unused;
};

struct CentroidPoolArgs {
    const float* logits;
    const float2* pairs;
    const u32* sizes;
    const u32* n_clusters;
    float* scores;
    u32 n_q_heads;
    u32 n_kv_heads;
    u32 cluster_stride;
    u32 score_stride;
    u32 room;
    u32 per_block;
    u32 n_blocks;
    // Clusters of a block of `centroid_pool`.
    u32 share;
    u32 pooling;
    u32 unused;
};

struct CentroidSumsArgs {
    // [Hq, Dh]: the sequence's token.
    const float* q;
    const void* centroids;
    const u32* n_clusters;
    // [Hkv, sum_stride]
    float* sums;
    u32 n_q_heads;
    u32 n_kv_heads;
    u32 head_dim;
    u32 cluster_stride;
    u32 room;
    u32 per_block;
    u32 sum_stride;
    float scale;
    // As of CentroidLogitsArgs.
    u32 is_aligned;
    u32 unused;
};

struct CentroidShareArgs {
    // [Hkv, room]
    const float* sums;
    const u32* n_clusters;
    float* scores;
    u32 n_kv_heads;
    u32 score_stride;
    u32 room;
    u32 unused;
};

constexpr u32 THREADS = 128;
// Lanes that share centroids, and how many centroids they share.
constexpr u32 LANES = 8;
constexpr u32 SHARED_BY_LANES = 4;
constexpr u32 CLUSTERS = THREADS / LANES * SHARED_BY_LANES;
// Units of the queries in shared memory.
constexpr u32 TILE = 32;
constexpr u32 POOL_THREADS = 256;
constexpr u32 POOL_WARPS = POOL_THREADS / WARP;
constexpr u32 MAX_SOFTMAX = 1;
constexpr u32 SIZE_WEIGHTED = 2;
// A number that no logit reaches; what is e^(LOWEST - logit) is 0.
constexpr float LOWEST = -3.0e38f;

// A code of 8 bits.
struct code {
    signed char value;
};

// An element as a float. (Another overload of `widen` here would hide those of other types.)
template <typename T> DEVICE float number_of(T value) { return widen(value); }
DEVICE float number_of(code c) { return static_cast<float>(c.value); }

// The elements of a unit.
template <typename T, u32 N> DEVICE void numbers_of(uint4 unit, float (&to)[N], T type) {
    unpack(unit, to, type);
}
DEVICE void numbers_of(uint4 unit, float (&to)[16], code) {
    const u32 words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        to[i] = static_cast<float>(static_cast<signed char>(words[i / 4] >> i % 4 * 8));
    }
}

// The largest of some logits, and the sum of their weights times e^(logit - largest).
struct Pair {
    float most;
    float sum;
};

DEVICE Pair join(Pair a, Pair b) {
    const float most = a.most > b.most ? a.most : b.most;
    return Pair{most, a.sum * expf(a.most - most) + b.sum * expf(b.most - most)};
}

DEVICE Pair join_lanes(Pair pair, u32 mask) {
    const float most = shfl_xor(pair.most, mask);
    const float sum = shfl_xor(pair.sum, mask);
    return join(pair, Pair{most, sum});
}

// One more logit, without branches.
DEVICE Pair with(Pair pair, float logit, float weight) {
    const float above = logit - pair.most;
    const float less = expf(-fabsf(above));
    return above > 0 ? Pair{logit, pair.sum * less + weight}
                     : Pair{pair.most, pair.sum + weight * less};
}

DEVICE float weight_of(u32 pooling, const u32* sizes, u64 cluster) {
    return pooling == SIZE_WEIGHTED ? static_cast<float>(sizes[cluster]) : 1.0f;
}

// Of N sums this lane and the one at `mask` add up half each, the lane without the bit the lower.
template <u32 N, u32 ALL> DEVICE void halve(float (&sums)[ALL], u32 mask) {
    const bool is_upper = (threadIdx.x & mask) != 0;
#pragma unroll
    for (u32 i = 0; i < N / 2; i++) {
        const float lower = sums[i];
        const float upper = sums[i + N / 2];
        const float theirs = shfl_xor(is_upper ? lower : upper, mask);
        sums[i] = (is_upper ? upper : lower) + theirs;
    }
}

// Units [first_unit, first_unit + TILE) of the queries from `first_head` on, times the scale;
// quarters of units apart, so that lanes read neighbouring 16 bytes. 0 beyond the last.
template <u32 N, u32 HEADS>
DEVICE void load_queries(const CentroidLogitsArgs& p, u32 first_head, u32 n_heads, u32 first_unit,
                         float* to) {
    for (u32 i = threadIdx.x; i < HEADS * TILE * N; i += THREADS) {
        const u32 g = i / (TILE * N);
        const u32 k = i % (TILE * N);
        const u32 channel = first_unit * N + k;
        float value = 0;
        if (g < n_heads && channel < p.head_dim) {
            value = p.q[static_cast<u64>(first_head + g) * p.head_dim + channel] * p.scale;
        }
        to[((g * (N / 4) + k % N / 4) * TILE + k / N) * 4 + k % 4] = value;
    }
}

// The sum of a group's queries, in the same places.
template <u32 N>
DEVICE void load_sum(const CentroidSumsArgs& p, u32 first_head, u32 n_heads, u32 first_unit,
                     float* to) {
    for (u32 k = threadIdx.x; k < TILE * N; k += THREADS) {
        const u32 channel = first_unit * N + k;
        float value = 0;
        if (channel < p.head_dim) {
            const float* q = p.q + static_cast<u64>(first_head) * p.head_dim + channel;
#pragma unroll 4
            for (u32 g = 0; g < n_heads; g++) {
                value += p.scale * q[static_cast<u64>(g) * p.head_dim];
            }
        }
        to[(k % N / 4 * TILE + k / N) * 4 + k % 4] = value;
    }
}

// A unit of each of the centroids, which begin at elements `rows`: there are fewer than 2^32.
template <typename T, u32 N, typename Args>
DEVICE void load_units(const Args& p, const T* centroids, const u32 (&rows)[SHARED_BY_LANES],
                       u32 unit, float (&to)[SHARED_BY_LANES][N]) {
    if (p.is_aligned) {
        uint4 units[SHARED_BY_LANES];
#pragma unroll
        for (u32 o = 0; o < SHARED_BY_LANES; o++) {
            units[o] = load_once(reinterpret_cast<const uint4*>(centroids + rows[o]) + unit);
        }
#pragma unroll
        for (u32 o = 0; o < SHARED_BY_LANES; o++) {
            numbers_of(units[o], to[o], T{});
        }
        return;
    }
#pragma unroll
    for (u32 o = 0; o < SHARED_BY_LANES; o++) {
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            const u32 channel = unit * N + i;
            const float value = number_of(centroids[rows[o] + min_of(channel, p.head_dim - 1)]);
            to[o][i] = channel < p.head_dim ? value : 0.0f;
        }
    }
}

// Adds what `n_units` units give to the products [centroid][query head].
template <typename T, u32 HEADS, u32 N, typename Args>
DEVICE void add_products(const Args& p, const T* centroids, const u32 (&rows)[SHARED_BY_LANES],
                         u32 first_unit, u32 n_units, const float4* queries,
                         float (&sums)[SHARED_BY_LANES * HEADS]) {
    // Four units under way are enough; more would take the registers of the sums.
#pragma unroll 1
    for (u32 first = 0; first < n_units; first += LANES) {
        // Beyond the last unit, the last again: the queries are 0 there.
        const u32 unit = first + threadIdx.x % LANES;
        float c[SHARED_BY_LANES][N];
        load_units<T, N>(p, centroids, rows, first_unit + min_of(unit, n_units - 1), c);
#pragma unroll
        for (u32 g = 0; g < HEADS; g++) {
#pragma unroll
            for (u32 part = 0; part < N / 4; part++) {
                const float4 x = queries[(g * (N / 4) + part) * TILE + unit];
#pragma unroll
                for (u32 o = 0; o < SHARED_BY_LANES; o++) {
                    const float* k = c[o] + 4 * part;
                    sums[o * HEADS + g] += k[0] * x.x + k[1] * x.y + k[2] * x.z + k[3] * x.w;
                }
            }
        }
    }
}

template <typename T, u32 HEADS> DEVICE void logits(const CentroidLogitsArgs& p) {
    constexpr u32 N = PER_UNIT<T>;
    // Query heads whose sums a lane has in the end.
    constexpr u32 KEPT = HEADS > 1 ? HEADS / 2 : 1;
    SHARED(float4, queries, HEADS * (N / 4) * TILE);
    // Each thread's own, out of the way of the sums.
    SHARED(Pair, pairs, KEPT * THREADS);
    SHARED(Pair, block_pairs, THREADS / WARP * HEADS);
    const u32 head = blockIdx.y;
    const u32 n = min_of(p.n_clusters[head], p.room);
    const u32 start = blockIdx.x * p.per_block;
    if (start >= n) {
        return;
    }
    const u32 end = min_of(start + p.per_block, n);
    const u32 group = p.n_q_heads / p.n_kv_heads;
    const u32 row_units = (p.head_dim + N - 1) / N;
    const u64 first_cluster = static_cast<u64>(head) * p.cluster_stride;
    const T* centroids = static_cast<const T*>(p.centroids) + first_cluster * p.head_dim;
    const u32* ids = p.ids != nullptr ? p.ids + static_cast<u64>(head) * p.id_stride : nullptr;
    // What the lane has in the end: one of the centroids, some of the heads.
    const u32 own_centroid = threadIdx.x / LANES * SHARED_BY_LANES + threadIdx.x % LANES / 2;
    const u32 own_head = HEADS > 1 ? threadIdx.x % 2 * KEPT : 0;
    const bool has_own = HEADS > 1 || threadIdx.x % 2 == 0;

    // A lane has registers for the sums of HEADS query heads; larger groups read the centroids once
    // more for the next ones.
    for (u32 first = 0; first < group; first += HEADS) {
        const u32 n_heads = min_of(HEADS, group - first);
#pragma unroll
        for (u32 i = 0; i < KEPT; i++) {
            pairs[i * THREADS + threadIdx.x] = Pair{LOWEST, 0.0f};
        }
        for (u32 tile = start; tile < end; tile += CLUSTERS) {
            u32 rows[SHARED_BY_LANES];
            float sums[SHARED_BY_LANES * HEADS] = {};
#pragma unroll
            for (u32 o = 0; o < SHARED_BY_LANES; o++) {
                const u32 c = tile + threadIdx.x / LANES * SHARED_BY_LANES + o;
                // Those beyond the last are the last again.
                const u32 entry = min_of(c, n - 1);
                const u32 id = ids != nullptr ? min_of(ids[entry], p.id_limit - 1) : entry;
                rows[o] = id * p.id_width;
            }
            for (u32 unit = 0; unit < row_units; unit += TILE) {
                // Queries of one tile of units stay.
                if (tile == start || row_units > TILE) {
                    __syncthreads();
                    load_queries<N, HEADS>(p, head * group + first, n_heads, unit,
                                           reinterpret_cast<float*>(&queries[0]));
                    __syncthreads();
                }
                const u32 n_units = min_of(TILE, row_units - unit);
                add_products<T, HEADS, N>(p, centroids, rows, unit, n_units, queries, sums);
            }
            halve<4 * HEADS>(sums, 4);
            halve<2 * HEADS>(sums, 2);
            if constexpr (HEADS > 1) {
                halve<HEADS>(sums, 1);
            } else {
                sums[0] += shfl_xor(sums[0], 1u);
            }
            const u32 c = tile + own_centroid;
            if (c >= end) {
                continue;
            }
            // The logit of an empty cluster may be above the largest that counts.
            const float weight = weight_of(p.pooling, p.sizes, first_cluster + c);
            float* to = p.logits + static_cast<u64>(head * group + first + own_head) * p.room + c;
#pragma unroll
            for (u32 i = 0; i < KEPT; i++) {
                if (has_own && own_head + i < n_heads) {
                    to[static_cast<u64>(i) * p.room] = sums[i];
                }
                Pair& pair = pairs[i * THREADS + threadIdx.x];
                pair = weight > 0 ? with(pair, sums[i], weight) : pair;
            }
        }
        // Lanes with the same heads, then warps.
#pragma unroll
        for (u32 i = 0; i < KEPT; i++) {
            Pair pair = pairs[i * THREADS + threadIdx.x];
#pragma unroll
            for (u32 mask = 2; mask < WARP; mask *= 2) {
                pair = join_lanes(pair, mask);
            }
            if (lane_of_thread() < 2 && has_own) {
                block_pairs[warp_of_thread() * HEADS + own_head + i] = pair;
            }
        }
        __syncthreads();
        if (threadIdx.x < n_heads) {
            Pair pair = block_pairs[threadIdx.x];
            for (u32 i = 1; i < THREADS / WARP; i++) {
                pair = join(pair, block_pairs[i * HEADS + threadIdx.x]);
            }
            const u64 row = head * group + first + threadIdx.x;
            p.pairs[row * p.n_blocks + blockIdx.x] = float2{pair.most, pair.sum};
        }
    }
}

#define LOGITS(type, T, heads)                                              \
    KERNEL(centroid_logits_##type##_##heads, CentroidLogitsArgs, THREADS) { \
        logits<T, heads>(p);                                                \
    }

LOGITS(f32, float, 1)
LOGITS(f32, float, 2)
LOGITS(f32, float, 8)
LOGITS(f16, f16, 1)
LOGITS(f16, f16, 2)
LOGITS(f16, f16, 8)
LOGITS(bf16, bf16, 1)
LOGITS(bf16, bf16, 2)
LOGITS(bf16, bf16, 8)
LOGITS(i8, code, 1)
LOGITS(i8, code, 2)
LOGITS(i8, code, 8)

// The pair of a query head over all blocks, on every lane of the warp; the sum as 1 / sum. Without
// any weight all masses are 0.
DEVICE Pair total_of(const CentroidPoolArgs& p, u64 q_head, u32 n) {
    const u32 n_blocks = (n + p.per_block - 1) / p.per_block;
    Pair pair = {LOWEST, 0.0f};
    for (u32 i = lane_of_thread(); i < n_blocks; i += WARP) {
        const float2 part = p.pairs[q_head * p.n_blocks + i];
        pair = join(pair, Pair{part.x, part.y});
    }
#pragma unroll
    for (u32 mask = 1; mask < WARP; mask *= 2) {
        pair = join_lanes(pair, mask);
    }
    return Pair{pair.most, pair.sum > 0 ? 1.0f / pair.sum : 0.0f};
}

KERNEL(centroid_pool, CentroidPoolArgs, POOL_THREADS) {
    SHARED(Pair, totals, POOL_WARPS);
    const u32 head = blockIdx.y;
    const u32 n = min_of(p.n_clusters[head], p.room);
    const u32 start = blockIdx.x * p.share;
    if (start >= n) {
        return;
    }
    const u32 end = min_of(start + p.share, n);
    const u32 group = p.n_q_heads / p.n_kv_heads;
    float* scores = p.scores + static_cast<u64>(head) * p.score_stride;
    // A warp for each of some query heads, then a thread for each cluster.
    for (u32 first = 0; first < group; first += POOL_WARPS) {
        const u32 n_heads = min_of(POOL_WARPS, group - first);
        const u64 first_head = head * group + first;
        // The last again where there is none.
        const Pair total = total_of(p, first_head + min_of(warp_of_thread(), n_heads - 1), n);
        if (lane_of_thread() == 0) {
            totals[warp_of_thread()] = total;
        }
        __syncthreads();
        for (u32 c = start + threadIdx.x; c < end; c += POOL_THREADS) {
            const u64 cluster = static_cast<u64>(head) * p.cluster_stride + c;
            const float weight = weight_of(p.pooling, p.sizes, cluster);
            float pooled = first > 0 ? scores[c] : 0.0f;
            // An empty cluster may have a logit above the largest that counts.
            for (u32 i = 0; i < n_heads && weight > 0; i++) {
                const float logit = p.logits[(first_head + i) * p.room + c];
                const float mass = weight * expf(logit - totals[i].most) * totals[i].sum;
                const float larger = mass > pooled ? mass : pooled;
                pooled = p.pooling == MAX_SOFTMAX ? larger : pooled + mass;
            }
            scores[c] = pooled;
        }
        __syncthreads();
    }
}

template <typename T> DEVICE void raw_sums(const CentroidSumsArgs& p) {
    constexpr u32 N = PER_UNIT<T>;
    SHARED(float4, query, N / 4 * TILE);
    const u32 head = blockIdx.y;
    const u32 n = min_of(p.n_clusters[head], p.room);
    const u32 start = blockIdx.x * p.per_block;
    if (start >= n) {
        return;
    }
    const u32 end = min_of(start + p.per_block, n);
    const u32 group = p.n_q_heads / p.n_kv_heads;
    const u32 row_units = (p.head_dim + N - 1) / N;
    const u64 first_cluster = static_cast<u64>(head) * p.cluster_stride;
    const T* centroids = static_cast<const T*>(p.centroids) + first_cluster * p.head_dim;
    const u32 own_centroid = threadIdx.x / LANES * SHARED_BY_LANES + threadIdx.x % LANES / 2;
    for (u32 tile = start; tile < end; tile += CLUSTERS) {
        u32 rows[SHARED_BY_LANES];
        float sums[SHARED_BY_LANES] = {};
#pragma unroll
        for (u32 o = 0; o < SHARED_BY_LANES; o++) {
            const u32 c = tile + threadIdx.x / LANES * SHARED_BY_LANES + o;
            // Those beyond the last are the last again.
            rows[o] = min_of(c, n - 1) * p.head_dim;
        }
        for (u32 unit = 0; unit < row_units; unit += TILE) {
            // A query of one tile of units stays.
            if (tile == start || row_units > TILE) {
                __syncthreads();
                load_sum<N>(p, head * group, group, unit, reinterpret_cast<float*>(&query[0]));
                __syncthreads();
            }
            const u32 n_units = min_of(TILE, row_units - unit);
            add_products<T, 1, N>(p, centroids, rows, unit, n_units, query, sums);
        }
        halve<4>(sums, 4);
        halve<2>(sums, 2);
        sums[0] += shfl_xor(sums[0], 1u);
        const u32 c = tile + own_centroid;
        if (c < end && threadIdx.x % 2 == 0) {
            p.sums[static_cast<u64>(head) * p.sum_stride + c] = sums[0];
        }
    }
}

KERNEL(centroid_sums_f32, CentroidSumsArgs, THREADS) { raw_sums<float>(p); }
KERNEL(centroid_sums_f16, CentroidSumsArgs, THREADS) { raw_sums<f16>(p); }
KERNEL(centroid_sums_bf16, CentroidSumsArgs, THREADS) { raw_sums<bf16>(p); }

// A thread for each cluster; all heads have as many, or the others would be read where nothing is.
KERNEL(centroid_share, CentroidShareArgs, POOL_THREADS) {
    const u32 c = blockIdx.x * POOL_THREADS + threadIdx.x;
    if (c >= p.room) {
        return;
    }
    float sum = 0;
    for (u32 head = 0; head < p.n_kv_heads; head++) {
        if (c < p.n_clusters[head]) {
            sum += p.sums[static_cast<u64>(head) * p.room + c];
        }
    }
    for (u32 head = 0; head < p.n_kv_heads; head++) {
        if (c < p.n_clusters[head]) {
            p.scores[static_cast<u64>(head) * p.score_stride + c] = sum;
        }
    }
}
