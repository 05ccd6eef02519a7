// cosines[h] = mean over the group of q . last / (|q| |last|), 0 for a vector of zeros; last = q.
//
// A block owns a KV head, a warp every 4th of its query heads: its lanes go over the elements,
// replace what they have read, and sum up three products. One token of q [T, Hq, Dh] counts.
//
// Bytes: 12 Hq Dh. Bound: the launch.
#include "shared/common.cuh"

struct QueryGateArgs {
    const float* q;
    float* last;
    float* cosines;
    u32 q_index;
    u32 n_q_heads;
    u32 n_kv_heads;
    u32 head_dim;
};

constexpr u32 THREADS = 128;
constexpr u32 N_WARPS = THREADS / WARP;

KERNEL(query_gate, QueryGateArgs, THREADS) {
    SHARED(float, parts, N_WARPS);
    const u32 kv_head = blockIdx.x;
    const u32 group = p.n_q_heads / p.n_kv_heads;
    float sum = 0;
    for (u32 g = warp_of_thread(); g < group; g += N_WARPS) {
        const u64 head = static_cast<u64>(kv_head) * group + g;
        const float* q = p.q + (static_cast<u64>(p.q_index) * p.n_q_heads + head) * p.head_dim;
        float* last = p.last + head * p.head_dim;
        float both = 0;
        float new_square = 0;
        float old_square = 0;
        for (u32 i = lane_of_thread(); i < p.head_dim; i += WARP) {
            const float now = q[i];
            const float old = last[i];
            both += now * old;
            new_square += now * now;
            old_square += old * old;
            last[i] = now;
        }
        both = warp_sum(both);
        new_square = warp_sum(new_square);
        old_square = warp_sum(old_square);
        // Two roots: the product of both squares can leave the range of f32.
        const float lengths = sqrtf(new_square) * sqrtf(old_square);
        sum += lengths == 0.0f ? 0.0f : both / lengths;
    }
    if (lane_of_thread() == 0) {
        parts[warp_of_thread()] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 w = 1; w < N_WARPS; w++) {
            sum += parts[w];
        }
        p.cosines[kv_head] = sum / static_cast<float>(group);
    }
}
