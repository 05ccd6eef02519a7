// What kernels/shared/common.cuh offers, used once each: results come back to be compared. For the
// tests of the emulation; the check of all kernels compiles it as well, so every wrapper is known
// to be valid for every target.
#include "shared/common.cuh"

struct PrimitivesArgs {
    const float* x;
    const u16* halves;
    float* out;
    u32* words;
};

constexpr u32 THREADS = 64;

// words: 8 arrays of 64; out: 8 arrays of 64.
KERNEL(exchange, PrimitivesArgs, THREADS) {
    const u32 i = threadIdx.x;
    const u32 lane = lane_of_thread();
    const float value = p.x[i];
    p.out[i] = shfl(value, (lane + 1) % WARP);
    p.out[64 + i] = shfl_xor(value, 5u);
    p.out[128 + i] = shfl_up(value, 3u);
    p.out[192 + i] = shfl_down(value, 3u);
    p.out[256 + i] = warp_sum(value);
    SHARED(float, parts, THREADS / WARP);
    p.out[320 + i] = block_sum<THREADS>(value, parts);
    p.words[i] = votes(value > 0);
    p.words[64 + i] = count_bits(float_bits(value));
    p.words[128 + i] = leading_zeros(float_bits(value) >> (i % 32));
    p.words[192 + i] = float_to_half(value);
    p.words[256 + i] = float_to_bfloat(value);
    const u32 bits = float_bits(value);
    const u32 other = float_bits(p.x[THREADS - 1 - i]);
    p.words[320 + i] = static_cast<u32>(dot_bytes(bits, other, static_cast<int>(i)));
    p.words[384 + i] = pick_bytes(bits, other, (i * 0x1111u + 0x0246u) & 0x7777u);
    p.out[384 + i] = half_to_float(p.halves[i]);
    // The block's neighbours across the warps.
    DYNAMIC_SHARED(float, all);
    all[i] = value;
    __syncthreads();
    p.out[448 + i] = all[THREADS - 1 - i];
}

// words: the sum and the largest of what all blocks bring, the smallest, blocks seen.
KERNEL(atomics, PrimitivesArgs, THREADS) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    atomic_add(&p.words[0], i);
    atomic_max(&p.words[1], i);
    atomic_min(&p.words[2], i);
    atomic_add(p.out, 1.0f);
    atomic_max(reinterpret_cast<u64*>(p.words) + 2, static_cast<u64>(i) << 32);
    device_fence();
    if (threadIdx.x == 0) {
        atomic_exchange(&p.words[8 + blockIdx.x], 1u);
    }
}

// One warp copies 16 x 16 and 8 x 16 halves to shared memory (the second is b by columns), loads
// fragments and multiplies: out is 16 x 8 of f16, then of bf16 where there is such a thing.
KERNEL(products, PrimitivesArgs, WARP) {
    SHARED(uint4, tiles, 64);
    const u32 lane = threadIdx.x;
    const uint4* from = reinterpret_cast<const uint4*>(p.halves);
    copy_async(&tiles[lane], from + lane, true);
    copies_commit();
    // The upper half gets zeros.
    copy_async(&tiles[32 + lane], from + 32 + lane % 16, lane < 16);
    copies_commit();
    copies_wait<1>();
    copies_wait<0>();
    warp_sync();
    p.words[4 * WARP + lane] = tiles[32 + lane].x;
    const u16* halves = reinterpret_cast<const u16*>(tiles);
    u32 a[4];
    // Matrices in the order of a's registers: rows 0 and 8, then 8 columns on.
    load_matrices(a, halves + (lane % 16) * 16 + lane / 16 * 8);
    u32 columns[4];
    load_matrices(columns, halves + 256 + lane % 8 * 16 + lane / 8 % 2 * 8);
    const u32 b[2] = {columns[0], columns[1]};
    float c[4] = {0, 0, 0, 0};
    mma_f16(c, a, b);
    const u32 row = lane / 4;
    const u32 column = 2 * (lane % 4);
    p.out[row * 8 + column] = c[0];
    p.out[row * 8 + column + 1] = c[1];
    p.out[(row + 8) * 8 + column] = c[2];
    p.out[(row + 8) * 8 + column + 1] = c[3];
#if HAS_SM80
    float d[4] = {0, 0, 0, 0};
    mma_bf16(d, a, b);
    p.out[128 + row * 8 + column] = d[0];
    p.out[128 + row * 8 + column + 1] = d[1];
    p.out[128 + (row + 8) * 8 + column] = d[2];
    p.out[128 + (row + 8) * 8 + column + 1] = d[3];
#endif
    u32 transposed[4];
    load_matrices_transposed(transposed, halves + (lane % 16) * 16 + lane / 16 * 8);
    for (u32 i = 0; i < 4; i++) {
        p.words[i * WARP + lane] = transposed[i];
    }
}

// One warp rounds 192 f32, which lie where halves lie elsewhere, to tf32: words. It adds the
// product of the first 16 x 8 and of the 8 x 8 behind them (by columns) to ones: out, 16 x 8.
KERNEL(tf32_products, PrimitivesArgs, WARP) {
#if HAS_SM80
    SHARED(uint4, units, 48);
    const u32 lane = threadIdx.x;
    for (u32 i = lane; i < 48; i += WARP) {
        const float* from = reinterpret_cast<const float*>(p.halves) + 4 * i;
        units[i] = uint4{float_to_tf32(from[0]), float_to_tf32(from[1]), float_to_tf32(from[2]),
                         float_to_tf32(from[3])};
        const u32 words[4] = {units[i].x, units[i].y, units[i].z, units[i].w};
        for (u32 j = 0; j < 4; j++) {
            p.words[4 * i + j] = words[j];
        }
    }
    warp_sync();
    u32 a[4];
    load_matrices(a, &units[(lane % 16) * 2 + lane / 16]);
    u32 columns[4];
    load_matrices(columns, &units[32 + lane % 8 * 2 + lane / 8 % 2]);
    const u32 b[2] = {columns[0], columns[1]};
    float c[4] = {1, 1, 1, 1};
    mma_tf32(c, a, b);
    for (u32 i = 0; i < 4; i++) {
        p.out[(lane / 4 + i / 2 * 8) * 8 + 2 * (lane % 4) + i % 2] = c[i];
    }
#endif
}

// One warp adds the product of 16 x 16 signed bytes, which lie where halves lie elsewhere, and of
// the 16 x 8 behind them (by columns) to ones: words, 16 x 8. Then that of 16 x 32 and of the
// 32 x 8 behind those to twos.
KERNEL(byte_products, PrimitivesArgs, WARP) {
    const u32 lane = threadIdx.x;
    const u32* words = reinterpret_cast<const u32*>(p.halves);
    const u32 at = lane / 4 * 4 + lane % 4;
    const u32 a[2] = {words[at], words[32 + at]};
    int c[4];
    mma_bytes(c, a, words[64 + at], 1);
    const u32* row = words + lane / 4 * 8 + lane % 4;
    const u32 wide[2][2] = {{row[0], row[64]}, {row[4], row[68]}};
    const u32 right[2] = {row[128], row[132]};
    int d[4];
    mma_bytes_wide(d, wide, right, 2);
    for (u32 i = 0; i < 4; i++) {
        const u32 to = (lane / 4 + i / 2 * 8) * 8 + 2 * (lane % 4) + i % 2;
        p.words[to] = static_cast<u32>(c[i]);
        p.words[128 + to] = static_cast<u32>(d[i]);
    }
}

// Who does not wait for a copy reads what was there.
KERNEL(copy_without_wait, PrimitivesArgs, WARP) {
    SHARED(uint4, units, WARP);
    const u32 lane = threadIdx.x;
    units[lane] = uint4{7, 7, 7, 7};
    warp_sync();
    copy_async(&units[lane], reinterpret_cast<const uint4*>(p.halves) + lane, true);
    copies_commit();
    copies_wait<1>();
    p.words[lane] = units[lane].x;
    copies_wait<0>();
    p.words[WARP + lane] = units[lane].x;
}

// Mistakes, one each; x says which.
KERNEL(mistakes, PrimitivesArgs, THREADS) {
    const u32 i = threadIdx.x;
    const u32 which = static_cast<u32>(*p.x);
    if (which == 0 && i < 40) {
        // Eight lanes of the second warp are not there.
        p.out[i] = shfl_xor(static_cast<float>(i), 1u);
    }
    if (which == 1) {
        if (i < 32) {
            __syncthreads();
        } else {
            __syncthreads();
        }
    }
    if (which == 2) {
        const uint4* from = reinterpret_cast<const uint4*>(p.halves + 1);
        p.words[i] = load_once(from).x;
    }
    if (which == 3) {
        // One element too many.
        p.out[7 * THREADS + i + 1] = 1.0f;
    }
    if (which == 4) {
        // What another thread wrote, without a barrier.
        SHARED(u32, shared_words, THREADS);
        shared_words[i] = i;
        p.words[i] = shared_words[THREADS - 1 - i];
    }
    if (which == 5) {
        // Shared memory has an end too.
        SHARED(u32, few_words, THREADS);
        u32* const words = few_words;
        words[i + 1] = i;
        p.words[i] = words[i];
    }
    if (which == 6) {
        // An array of words is no array of units.
        SHARED(u32, lone_words, 4 * THREADS);
        p.words[i] = reinterpret_cast<const uint4*>(&lone_words[0])[i].x;
    }
}
