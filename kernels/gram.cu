// out[h / G] += sum over tokens and over the group's heads of x x^T; x is [T, H, Dh], out is
// [H / G, Dh, Dh].
//
// A block owns a tile of 32 x 32 of one matrix and loops over all vectors of its group, 32 at a
// time through shared memory. A thread owns 4 x 2 elements: 6 loads from shared memory in 2
// instructions serve 8 products.
//
// Bytes: 4 T H Dh for each tile of 32 columns, from caches. FLOPs: 2 T H Dh^2. Bound: arithmetic.
#include "shared/common.cuh"

struct GramArgs {
    const float* x;
    float* out;
    u32 n_tokens;
    u32 n_heads;
    u32 group;
    u32 head_dim;
};

constexpr u32 THREADS = 128;
constexpr u32 TILE = 32;
// Elements of a thread: rows, columns.
constexpr u32 DOWN = 4;
constexpr u32 ACROSS = 2;

// Brings 32 columns of 32 vectors to shared memory, a vector by each warp at a time; 0 where there
// is none.
DEVICE void bring(const GramArgs& p, u32 first_head, u32 first_vector, u32 column, float* tile) {
    for (u32 i = warp_of_thread(); i < TILE; i += THREADS / WARP) {
        const u32 vector = first_vector + i;
        float value = 0;
        if (vector < p.n_tokens * p.group && column < p.head_dim) {
            const u64 token = vector / p.group;
            const u32 head = first_head + vector % p.group;
            value = p.x[(token * p.n_heads + head) * p.head_dim + column];
        }
        tile[i * TILE + lane_of_thread()] = value;
    }
}

KERNEL(gram, GramArgs, THREADS) {
    SHARED(float4, row_tile, TILE * TILE / 4);
    SHARED(float4, column_tile, TILE * TILE / 4);
    float* rows = reinterpret_cast<float*>(row_tile);
    float* columns = reinterpret_cast<float*>(column_tile);
    const u32 matrix = blockIdx.z;
    const u32 first_row = blockIdx.y * TILE;
    const u32 first_column = blockIdx.x * TILE;
    const u32 row = threadIdx.x / (TILE / ACROSS) * DOWN;
    const u32 column = threadIdx.x % (TILE / ACROSS) * ACROSS;
    const u32 n_vectors = p.n_tokens * p.group;
    float sums[DOWN][ACROSS] = {};
    for (u32 first = 0; first < n_vectors; first += TILE) {
        bring(p, matrix * p.group, first, first_row + lane_of_thread(), rows);
        bring(p, matrix * p.group, first, first_column + lane_of_thread(), columns);
        __syncthreads();
#pragma unroll 8
        for (u32 i = 0; i < TILE; i++) {
            const float4 a = *reinterpret_cast<const float4*>(rows + i * TILE + row);
            const float2 b = *reinterpret_cast<const float2*>(columns + i * TILE + column);
            const float down[DOWN] = {a.x, a.y, a.z, a.w};
            const float across[ACROSS] = {b.x, b.y};
#pragma unroll
            for (u32 r = 0; r < DOWN; r++) {
#pragma unroll
                for (u32 c = 0; c < ACROSS; c++) {
                    sums[r][c] += down[r] * across[c];
                }
            }
        }
        __syncthreads();
    }
    float* out = p.out + static_cast<u64>(matrix) * p.head_dim * p.head_dim;
#pragma unroll
    for (u32 r = 0; r < DOWN; r++) {
#pragma unroll
        for (u32 c = 0; c < ACROSS; c++) {
            const u32 to_row = first_row + row + r;
            const u32 to_column = first_column + column + c;
            if (to_row < p.head_dim && to_column < p.head_dim) {
                out[static_cast<u64>(to_row) * p.head_dim + to_column] += sums[r][c];
            }
        }
    }
}
