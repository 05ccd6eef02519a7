// What share of a tile's attention each block of the past has, by the means of its parts, relative
// to the block with the most. Of a tile and KV head, for each row r, a token and a query head of
// the group, and block b before the tile's own,
//
//     z[r, b] = max over the parts of b of scale * q_r . mean
//     s[b] = sum_r exp(z[r, b] - max_b z[r, b]),   share[b] = s[b] / max s
//
// The first n_first blocks, the n_recent before the tile's own, that one and all later ones have
// share 1.
//
// A block of threads owns a tile of a KV head, a thread every THREADS-th block of rows. Queries go
// through shared memory, QUERIES at a time, and over each such set the means twice: for the maximum
// of each row, then for the sums, which add up where the shares will be. To leave the scores in
// memory in between would take more than to compute them again. Sums go in the order of the
// queries, so the result has one value.
//
// FLOPs: 4 Dh for each query head, token and part. Bound: arithmetic. Dh is at most 256.
#include "shared/common.cuh"

struct ScoreBlocksArgs {
    const float* q;
    const float* means;
    float* shares;
    u32 n_q_heads;
    u32 n_kv_heads;
    u32 head_dim;
    float scale;
    u32 n_first;
    u32 n_recent;
    u32 n_parts;
    u32 q_start;
    u32 q_len;
    u32 position;
    u32 tile;
    u32 block;
    u32 share_stride;
    u32 n_tiles;
    u32 n_blocks;
    // Means from one head to the next.
    u32 head_stride;
};

constexpr u32 THREADS = 128;
constexpr u32 QUERIES = 16;
constexpr u32 MAX_HEAD_DIM = 256;
// No score is as low; exp(x - LOWEST) overflows nothing where x is LOWEST too.
constexpr float LOWEST = -3.402823466e38f;

// The scores of all queries for a block: the largest of its parts. `means` are those of the head,
// `queries` lie [element][query].
DEVICE void block_scores(const ScoreBlocksArgs& p, const float* means, const float* queries,
                         u32 block, float (&largest)[QUERIES]) {
    for (u32 part = 0; part < p.n_parts; part++) {
        const u64 row = static_cast<u64>(block) * p.n_parts + part;
        const float* key = means + row * 2 * p.head_dim;
        float scores[QUERIES] = {};
        for (u32 d = 0; d < p.head_dim; d++) {
            const float x = key[d];
#pragma unroll
            for (u32 i = 0; i < QUERIES; i++) {
                scores[i] += x * queries[d * QUERIES + i];
            }
        }
#pragma unroll
        for (u32 i = 0; i < QUERIES; i++) {
            largest[i] = part == 0 ? scores[i] : fmaxf(largest[i], scores[i]);
        }
    }
}

KERNEL(score_blocks, ScoreBlocksArgs, THREADS) {
    SHARED(float, queries, MAX_HEAD_DIM * QUERIES);
    SHARED(float, lane_tops, THREADS * QUERIES);
    SHARED(float, tops, QUERIES);
    const u32 kv_head = blockIdx.x / p.n_tiles;
    // The tile's tokens among those of the chunk: tiles end at multiples of their length.
    const u32 whole = (p.position / p.tile + blockIdx.x % p.n_tiles) * p.tile;
    const u32 token = whole > p.position ? whole - p.position : 0;
    const u32 n = min_of(p.tile - (p.position + token) % p.tile, p.q_len - token);
    const u32 own = (p.position + token) / p.block;
    const u32 group = p.n_q_heads / p.n_kv_heads;
    const float* means = p.means + static_cast<u64>(kv_head) * p.head_stride * 2 * p.head_dim;
    float* shares = p.shares + static_cast<u64>(blockIdx.x) * p.share_stride;

    const u32 begin = token * group;
    const u32 end = (token + n) * group;
    for (u32 first = begin; first < end; first += QUERIES) {
        const u32 n_queries = min_of(QUERIES, end - first);
        __syncthreads();
        for (u32 i = threadIdx.x; i < QUERIES * p.head_dim; i += THREADS) {
            const u32 query = first + i / p.head_dim;
            const u64 row = (p.q_start + query / group) * static_cast<u64>(p.n_q_heads)
                + kv_head * group + query % group;
            const u32 d = i % p.head_dim;
            const bool is_there = query < end;
            queries[d * QUERIES + i / p.head_dim] =
                is_there ? p.scale * p.q[row * p.head_dim + d] : 0.0f;
        }
        __syncthreads();
        float top[QUERIES];
#pragma unroll
        for (u32 i = 0; i < QUERIES; i++) {
            top[i] = LOWEST;
        }
        for (u32 block = threadIdx.x; block < own; block += THREADS) {
            float scores[QUERIES] = {};
            block_scores(p, means, queries, block, scores);
#pragma unroll
            for (u32 i = 0; i < QUERIES; i++) {
                top[i] = fmaxf(top[i], scores[i]);
            }
        }
#pragma unroll
        for (u32 i = 0; i < QUERIES; i++) {
            lane_tops[threadIdx.x * QUERIES + i] = top[i];
        }
        __syncthreads();
        if (threadIdx.x < QUERIES) {
            float most = LOWEST;
            for (u32 i = 0; i < THREADS; i++) {
                most = fmaxf(most, lane_tops[i * QUERIES + threadIdx.x]);
            }
            tops[threadIdx.x] = most;
        }
        __syncthreads();
        for (u32 block = threadIdx.x; block < own; block += THREADS) {
            float scores[QUERIES] = {};
            block_scores(p, means, queries, block, scores);
            float sum = first == begin ? 0.0f : shares[block];
#pragma unroll
            for (u32 i = 0; i < QUERIES; i++) {
                sum += i < n_queries ? expf(scores[i] - tops[i]) : 0.0f;
            }
            shares[block] = sum;
        }
    }

    float most = 0;
    for (u32 block = threadIdx.x; block < own; block += THREADS) {
        most = fmaxf(most, shares[block]);
    }
    __syncthreads();
    lane_tops[threadIdx.x] = most;
    __syncthreads();
    for (u32 i = 0; i < THREADS; i++) {
        most = fmaxf(most, lane_tops[i]);
    }
    // Where there are fewer blocks than recent ones, none lies in between.
    const u32 distant = own > p.n_recent ? own - p.n_recent : 0;
    for (u32 block = threadIdx.x; block < p.n_blocks; block += THREADS) {
        const bool is_distant = block >= p.n_first && block < distant;
        shares[block] = is_distant ? shares[block] / most : 1.0f;
    }
}
