// out[t] = scale * table[ids[t]], widened to f32; an id that no row has gives zeros. The table is
// [V, D], its rows `row_bytes` apart.
//
// A block owns 1024 columns of one token.
//
// Bytes: T D of the table, 4 T D out. Bound: memory.
#include "shared/common.cuh"

struct EmbedArgs {
    const u32* ids;
    const u8* table;
    float* out;
    u64 row_bytes;
    u32 n_tokens;
    u32 width;
    u32 n_vocab;
    float scale;
};

constexpr u32 THREADS = 256;
constexpr u32 PER_THREAD = 4;

template <typename T> DEVICE void embed(const EmbedArgs& p) {
    const u64 token = blockIdx.x;
    const u32 id = p.ids[token];
    const T* row = reinterpret_cast<const T*>(p.table + id * p.row_bytes);
    float* out = p.out + token * p.width;
    const u32 first = blockIdx.y * (THREADS * PER_THREAD) + threadIdx.x;
#pragma unroll
    for (u32 i = 0; i < PER_THREAD; i++) {
        const u32 column = first + i * THREADS;
        if (column < p.width) {
            out[column] = id < p.n_vocab ? p.scale * widen(row[column]) : 0.0f;
        }
    }
}

KERNEL(embed_f32, EmbedArgs, THREADS) { embed<float>(p); }
KERNEL(embed_f16, EmbedArgs, THREADS) { embed<f16>(p); }
KERNEL(embed_bf16, EmbedArgs, THREADS) { embed<bf16>(p); }
