// out = gate / (1 + exp(-2 u)) * up with u = sqrt(2 / pi) (gate + 0.044715 gate^3).
//
// A block owns 1024 neighbours, a thread 4 of them 256 apart: loads of a warp are one line, and
// four are under way.
//
// Bytes: 12 n. Bound: memory.
#include "shared/gates.cuh"

struct GeluMulArgs {
    const float* gate;
    const float* up;
    float* out;
    u64 n;
};

constexpr u32 THREADS = 256;
constexpr u32 PER_THREAD = 4;

KERNEL(gelu_mul, GeluMulArgs, THREADS) {
    const u64 first = static_cast<u64>(blockIdx.x) * (THREADS * PER_THREAD) + threadIdx.x;
#pragma unroll
    for (u32 i = 0; i < PER_THREAD; i++) {
        const u64 at = first + i * THREADS;
        if (at < p.n) {
            p.out[at] = gelu_tanh(p.gate[at]) * p.up[at];
        }
    }
}
