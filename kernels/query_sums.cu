// out[h, b] += sum of q[t, head] over the tokens t at positions of block b and over the query heads
// of KV head h. q is [T, Hq, Dh], of which q_len tokens from q_start on count, at positions from
// `position` on; block b has positions [b block, (b + 1) block); out is [Hkv, n_blocks, Dh].
//
// A block of threads owns 32 channels of one sum. All its warps bring queries to shared memory, so
// many loads are under way at once; then a thread adds up a channel in the order of tokens and
// heads. So the result depends neither on who came first nor on how a prompt is cut into chunks.
//
// Bytes: 4 q_len Hq Dh, and 8 an element of a sum. Bound: memory; in a decode step, the launch.
#include "shared/common.cuh"

struct QuerySumsArgs {
    const float* q;
    float* out;
    u32 n_q_heads;
    u32 n_kv_heads;
    u32 head_dim;
    u32 q_start;
    u32 q_len;
    u32 position;
    u32 block;
    u32 n_blocks;
    // The block of the first token.
    u32 first_block;
    u32 unused;
};

constexpr u32 THREADS = 256;
constexpr u32 N_WARPS = THREADS / WARP;
// Queries in shared memory, and those that a warp brings.
constexpr u32 TILE = 128;
constexpr u32 PER_WARP = TILE / N_WARPS;

KERNEL(query_sums, QuerySumsArgs, THREADS) {
    SHARED(float, tile, TILE * WARP);
    const u32 lane = lane_of_thread();
    const u32 channel = blockIdx.z * WARP + lane;
    const bool has_channel = channel < p.head_dim;
    const u32 group = p.n_q_heads / p.n_kv_heads;
    // Its tokens, among those that count.
    const u64 index = static_cast<u64>(p.first_block) + blockIdx.x;
    const u64 begin = index * p.block;
    const u64 end = begin + p.block - p.position;
    const u32 first_token = begin > p.position ? static_cast<u32>(begin - p.position) : 0;
    const u32 end_token = end < p.q_len ? static_cast<u32>(end) : p.q_len;
    const u32 n = (end_token - first_token) * group;
    const u64 token = static_cast<u64>(p.q_start) + first_token;
    const float* q = p.q + (token * p.n_q_heads + blockIdx.y * group) * p.head_dim + channel;
    float* out = p.out + (blockIdx.y * static_cast<u64>(p.n_blocks) + index) * p.head_dim + channel;

    const bool is_owner = warp_of_thread() == 0 && has_channel;
    float sum = is_owner ? *out : 0.0f;
    for (u32 first = 0; first < n; first += TILE) {
        float brought[PER_WARP];
#pragma unroll
        for (u32 i = 0; i < PER_WARP; i++) {
            const u32 query = first + warp_of_thread() + i * N_WARPS;
            const u64 vector = static_cast<u64>(query / group) * p.n_q_heads + query % group;
            brought[i] = has_channel && query < n ? q[vector * p.head_dim] : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < PER_WARP; i++) {
            tile[(warp_of_thread() + i * N_WARPS) * WARP + lane] = brought[i];
        }
        __syncthreads();
        if (is_owner) {
            const u32 n_brought = min_of(TILE, n - first);
#pragma unroll 8
            for (u32 i = 0; i < n_brought; i++) {
                sum += tile[i * WARP + lane];
            }
        }
        __syncthreads();
    }
    if (is_owner) {
        *out = sum;
    }
}
