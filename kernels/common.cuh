// What every kernel starts from: types, the two macros that declare kernels and shared memory, and
// wrappers of what only a GPU has.
//
// A kernel uses plain C++, `threadIdx.x`, `blockIdx`, `gridDim`, and the names below; nothing else
// of CUDA. The same source then runs on the CPU, where `emulation.hpp` of the tests gives the names
// of the first part another meaning. There are no other headers: NVRTC needs nothing but this text.
//
// The rules that make both readings agree:
// - A block has one dimension, of whole warps. A warp's lanes meet in `shfl*`, `votes`, `mma*` all
//   together: no lane may have left. `__syncthreads` is met by every thread that has not left.
// - A kernel takes one struct of arguments, pointers before numbers, without padding. Its Rust twin
//   has the same fields (crates/cuda/src/args.rs); a test compares names and offsets.
// - Shared memory comes from SHARED and DYNAMIC_SHARED and holds nothing at the start.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Lanes of a warp.
constexpr u32 WARP = 32;

#ifdef LONGVIEW_EMULATED

#include "emulation.hpp"

#else

#define DEVICE __device__ __forceinline__

// A kernel: its name, the type of its arguments `p`, the threads of a block. The body follows.
#define KERNEL(name, Args, threads) \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Args p)

// An array of shared memory, of a size known here.
#define SHARED(type, name, n) __shared__ type name[n]

// All shared memory that the launch asked for, aligned to 16 bytes.
#define DYNAMIC_SHARED(type, name)                         \
    extern __shared__ __align__(16) u8 dynamic_shared_[];  \
    type* const name = reinterpret_cast<type*>(dynamic_shared_)

// Whether mma on bf16 and asynchronous copies exist; without them the wrappers below cost more or
// are not there.
#define HAS_SM80 (__CUDA_ARCH__ >= 800)

constexpr u32 ALL_LANES = 0xffffffffu;

// Exchange between the lanes of a warp, of any type of 4 bytes.
template <typename T> DEVICE T shfl(T value, u32 lane) {
    return __shfl_sync(ALL_LANES, value, static_cast<int>(lane));
}
template <typename T> DEVICE T shfl_xor(T value, u32 mask) {
    return __shfl_xor_sync(ALL_LANES, value, static_cast<int>(mask));
}
// From the lane `delta` below; lanes below `delta` keep their own.
template <typename T> DEVICE T shfl_up(T value, u32 delta) {
    return __shfl_up_sync(ALL_LANES, value, delta);
}
// From the lane `delta` above; the last `delta` lanes keep their own.
template <typename T> DEVICE T shfl_down(T value, u32 delta) {
    return __shfl_down_sync(ALL_LANES, value, delta);
}
// Bit i is set where lane i says so.
DEVICE u32 votes(bool say) { return __ballot_sync(ALL_LANES, say); }
// What other lanes wrote to shared memory before is seen after.
DEVICE void warp_sync() { __syncwarp(ALL_LANES); }

// Atomics; each returns what was there before.
DEVICE u32 atomic_add(u32* at, u32 value) { return atomicAdd(at, value); }
DEVICE float atomic_add(float* at, float value) { return atomicAdd(at, value); }
DEVICE u32 atomic_max(u32* at, u32 value) { return atomicMax(at, value); }
DEVICE u32 atomic_min(u32* at, u32 value) { return atomicMin(at, value); }
DEVICE u64 atomic_max(u64* at, u64 value) { return atomicMax(at, value); }
DEVICE u32 atomic_exchange(u32* at, u32 value) { return atomicExch(at, value); }
// Writes `value` where `expected` is.
DEVICE u32 atomic_cas(u32* at, u32 expected, u32 value) { return atomicCAS(at, expected, value); }
// Writes before are seen by other blocks before writes after.
DEVICE void device_fence() { __threadfence(); }

// Bits of a number, and back.
DEVICE u32 float_bits(float value) { return __float_as_uint(value); }
DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }

// Set bits, and zeros above the highest one.
DEVICE u32 count_bits(u32 bits) { return static_cast<u32>(__popc(bits)); }
DEVICE u32 leading_zeros(u32 bits) { return static_cast<u32>(__clz(static_cast<int>(bits))); }

DEVICE float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
// To the nearest, ties to even.
DEVICE u16 float_to_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// 16 bytes that this kernel never writes, read once: they pass by the L1 cache, which is left to
// what is read again.
DEVICE uint4 load_once(const uint4* from) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(from));
    return v;
}

// Copies 16 bytes to shared memory without registers, seen by this thread after `copies_wait`. An
// absent source gives zeros; its address must be valid all the same.
DEVICE void copy_async(void* to_shared, const void* from, bool is_there) {
#if HAS_SM80
    const u32 to = static_cast<u32>(__cvta_generic_to_shared(to_shared));
    const u32 n = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(n) : "memory");
#else
    const uint4 zeros = {0, 0, 0, 0};
    *static_cast<uint4*>(to_shared) = is_there ? *static_cast<const uint4*>(from) : zeros;
#endif
}
// Closes a group of copies.
DEVICE void copies_commit() {
#if HAS_SM80
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for all groups but the last `N`.
template <u32 N> DEVICE void copies_wait() {
#if HAS_SM80
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
#endif
}

// Four 8 x 8 matrices of 16-bit elements: lane 8 m + r says where row r of matrix m is (16 bytes of
// shared memory), register m of lane l gets elements 2 (l % 4) and the next of row l / 4.
DEVICE void load_matrices(u32 (&to)[4], const void* row) {
    const u32 from = static_cast<u32>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}
// The same matrices transposed.
DEVICE void load_matrices_transposed(u32 (&to)[4], const void* row) {
    const u32 from = static_cast<u32>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

// c += a b by a warp: a is 16 x 16, b is 16 x 8, c is 16 x 8. With g = lane / 4 and t = lane % 4:
// a[0] is row g, columns 2t and 2t + 1; a[1] row g + 8; a[2] and a[3] the same, 8 columns on;
// b[0] is column g, rows 2t and 2t + 1; b[1] 8 rows on; c[0], c[1] are row g, columns 2t, 2t + 1;
// c[2], c[3] row g + 8. The first of two elements is in the low half of its register.
DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if HAS_SM80
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}
#if HAS_SM80
// The same on bf16; there is none before compute capability 8.0.
DEVICE void mma_bf16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Two numbers to the nearest bf16, the first in the low half.
DEVICE u32 floats_to_bfloats(float low, float high) {
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
#endif

#endif

// From here on plain C++, the same on both sides.

// Elements as they are stored.
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

DEVICE float widen(float value) { return value; }
DEVICE float widen(f16 value) { return half_to_float(value.bits); }
DEVICE float widen(bf16 value) { return float_of(static_cast<u32>(value.bits) << 16); }

DEVICE u16 float_to_bfloat(float value) {
    const u32 bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        // Not-a-number stays one, whatever bits are cut off.
        return static_cast<u16>(bits >> 16 | 0x40u);
    }
    return static_cast<u16>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

DEVICE void narrow(float value, float& to) { to = value; }
DEVICE void narrow(float value, f16& to) { to.bits = float_to_half(value); }
DEVICE void narrow(float value, bf16& to) { to.bits = float_to_bfloat(value); }

// Elements of T in 16 bytes: what a thread loads at once.
template <typename T> constexpr u32 PER_UNIT = 16 / sizeof(T);

// The elements of a unit.
DEVICE void unpack(uint4 unit, float (&to)[4], float) {
    to[0] = float_of(unit.x);
    to[1] = float_of(unit.y);
    to[2] = float_of(unit.z);
    to[3] = float_of(unit.w);
}
template <typename T> DEVICE void unpack(uint4 unit, float (&to)[8], T) {
    const u32 words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        to[2 * i] = widen(T{static_cast<u16>(words[i])});
        to[2 * i + 1] = widen(T{static_cast<u16>(words[i] >> 16)});
    }
}

// Types by number, where a choice at run time costs nothing.
constexpr u32 KIND_F32 = 0;
constexpr u32 KIND_F16 = 1;
constexpr u32 KIND_BF16 = 2;
constexpr u32 KIND_NONE = 3;

// Element i of an array of any type.
DEVICE float element_of(u32 kind, const void* array, u64 i) {
    if (kind == KIND_F32) {
        return static_cast<const float*>(array)[i];
    }
    const u16 bits = static_cast<const u16*>(array)[i];
    return kind == KIND_F16 ? widen(f16{bits}) : widen(bf16{bits});
}

DEVICE u32 min_of(u32 a, u32 b) { return a < b ? a : b; }

DEVICE u32 lane_of_thread() { return threadIdx.x % WARP; }
DEVICE u32 warp_of_thread() { return threadIdx.x / WARP; }

// The sum over a warp, on every lane.
DEVICE float warp_sum(float value) {
#pragma unroll
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
        value += shfl_xor(value, mask);
    }
    return value;
}

// The sum over a block of `THREADS`, on every thread; `parts` is shared. Nobody may write to
// `parts` again before a barrier.
template <u32 THREADS> DEVICE float block_sum(float value, float* parts) {
    constexpr u32 N_WARPS = THREADS / WARP;
    value = warp_sum(value);
    if (lane_of_thread() == 0) {
        parts[warp_of_thread()] = value;
    }
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < N_WARPS; i++) {
        sum += parts[i];
    }
    return sum;
}

// How attentions over disjoint keys go together. One in the making is its maximum m of the scores,
// its sum l of exp(score - m), and the sum o of exp(score - m) v; nothing seen is m = LOWEST and
// l = 0. A finished one is o / l and its log-sum-exp, minus infinity where nothing was seen.
constexpr float LOWEST = -3.402823466e38f;

DEVICE float minus_infinity() { return float_of(0xff800000u); }

struct Shares {
    // What the finished one and the o of the new one are multiplied with.
    float held;
    float made;
    // Log-sum-exp of both.
    float lse;
};

// A new attention of maximum m and sum l beside a finished one of log-sum-exp `held`.
DEVICE Shares shares_of(float m, float l, float held) {
    const bool nothing_held = held == minus_infinity();
    if (l == 0.0f) {
        return Shares{nothing_held ? 0.0f : 1.0f, 0.0f, held};
    }
    if (nothing_held) {
        return Shares{0.0f, 1.0f / l, m + logf(l)};
    }
    const float top = fmaxf(m, held);
    const float a = expf(held - top);
    const float b = expf(m - top);
    const float sum = a + b * l;
    return Shares{a / sum, b / sum, top + logf(sum)};
}

// Attention of 8 query rows on products of matrices, by a warp with g = lane / 4 and t = lane % 4.
// T is f16 or bf16. A product sees 16 KV rows straight from memory: units of 16 bytes lie in
// registers as they were loaded, since dimensions may stand in any order if both factors agree.
//
// Scores are Q K^T: row g of the 16 of Q is a query rounded to T, row g + 8 what that left of it;
// bf16 has a third part. Values are V^T P^T, P in two parts.

// An id of no row.
constexpr u32 NO_KV_ROW = 0xffffffffu;

// A number in parts of T: the nearest, and what is left.
template <typename T> DEVICE u32 take_pair(float& low, float& high) {
    T a;
    T b;
    narrow(low, a);
    narrow(high, b);
    low -= widen(a);
    high -= widen(b);
    return static_cast<u32>(a.bits) | static_cast<u32>(b.bits) << 16;
}

DEVICE void mma_of(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], f16) {
    mma_f16(c, a, b);
}
#if HAS_SM80
DEVICE void mma_of(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], bf16) {
    mma_bf16(c, a, b);
}
#endif

template <typename T> constexpr bool NEEDS_THIRD = false;
template <> constexpr bool NEEDS_THIRD<bf16> = true;

// Unit `unit` of a key or a value, which begins `offset` units behind its row's begin; zeros beyond
// its end and for no row.
template <typename Load>
DEVICE uint4 load_unit(const uint4* head, u32 id, u32 row_units, u32 offset, u32 unit, Load load) {
    if (id == NO_KV_ROW || 2 * unit >= row_units) {
        return uint4{0, 0, 0, 0};
    }
    return load(head + static_cast<u64>(id) * row_units + offset + unit);
}

// Units 4 j + t of query row g, in the order of the registers of two products: `first` and `third`
// get one for each half of the units.
template <typename T>
DEVICE void order_query(float (&x)[8], uint4 (&first)[2], uint2 (&third)[2]) {
    u32 words[3][4];
#pragma unroll
    for (u32 part = 0; part < 3; part++) {
#pragma unroll
        for (u32 w = 0; w < 4; w++) {
            words[part][w] = take_pair<T>(x[2 * w], x[2 * w + 1]);
        }
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 w = 2 * half;
        first[half] = uint4{words[0][w], words[1][w], words[0][w + 1], words[1][w + 1]};
        third[half] = uint2{words[2][w], words[2][w + 1]};
    }
}

DEVICE u32 low_halves(u32 a, u32 b) { return (a & 0xffffu) | b << 16; }
DEVICE u32 high_halves(u32 a, u32 b) { return a >> 16 | (b & 0xffff0000u); }

// Scores of the tile for query row g: KV rows 2t, 2t + 1 and 8 on.
template <typename T, u32 DIM>
DEVICE void score_tile(const uint4 (&keys)[2][DIM / 32], const uint4* firsts, const uint2* thirds,
                       float (&scores)[4]) {
    float c[2][4] = {};
    const u32 lane = lane_of_thread();
#pragma unroll
    for (u32 j = 0; j < DIM / 32; j++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const uint4 first = firsts[(2 * j + half) * WARP + lane];
            const u32 a[4] = {first.x, first.y, first.z, first.w};
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                const uint4 key = keys[n][j];
                const u32 b[2] = {half == 0 ? key.x : key.z, half == 0 ? key.y : key.w};
                mma_of(c[n], a, b, T{});
                if (NEEDS_THIRD<T>) {
                    const uint2 third = thirds[(2 * j + half) * WARP + lane];
                    const u32 rest[4] = {third.x, 0, third.y, 0};
                    mma_of(c[n], rest, b, T{});
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        scores[i] = c[i / 2][i % 2] + c[i / 2][i % 2 + 2];
    }
}

// o += V^T P^T for 16 units of each value: o[i] is element i of unit g (and g + 8) for query rows
// 2t and 2t + 1; `values` are those of KV rows 2t, 2t + 1 and 8 on.
template <typename T, u32 UNITS>
DEVICE void add_values(const uint4 (&values)[UNITS][4], const u32 (&high)[2], const u32 (&low)[2],
                       float (&o)[8][4]) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        u32 a[4] = {0, 0, 0, 0};
#pragma unroll
        for (u32 u = 0; u < UNITS; u++) {
            u32 words[4];
#pragma unroll
            for (u32 r = 0; r < 4; r++) {
                const uint4 v = values[u][r];
                words[r] = i / 2 == 0 ? v.x : i / 2 == 1 ? v.y : i / 2 == 2 ? v.z : v.w;
            }
            a[u] = i % 2 == 0 ? low_halves(words[0], words[1]) : high_halves(words[0], words[1]);
            a[u + 2] = i % 2 == 0 ? low_halves(words[2], words[3])
                                  : high_halves(words[2], words[3]);
        }
        mma_of(o[i], a, high, T{});
        mma_of(o[i], a, low, T{});
    }
}

// The attention of 8 query rows in the making: m is that of row g, l the part of it that this lane
// has summed up, o as `add_values` says.
template <u32 BLOCKS> struct Made {
    float o[BLOCKS][8][4];
    float m;
    float l;
};

// Adds a tile of 16 KV rows.
template <typename T, u32 BLOCKS, u32 UNITS>
DEVICE void take_tile(const uint4 (&values)[BLOCKS][UNITS][4], const float (&scores)[4],
                      const bool (&is_seen)[4], Made<BLOCKS>& made) {
    const u32 t = lane_of_thread() % 4;
    float top = made.m;
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        top = is_seen[r] ? fmaxf(top, scores[r]) : top;
    }
    top = fmaxf(top, shfl_xor(top, 1u));
    top = fmaxf(top, shfl_xor(top, 2u));
    if (votes(top > made.m) != 0) {
        const float factor = expf(made.m - top);
        made.l *= factor;
        made.m = top;
        const float even = shfl(factor, 8 * t);
        const float odd = shfl(factor, 8 * t + 4);
#pragma unroll
        for (u32 i = 0; i < BLOCKS * 8; i++) {
            float (&o)[4] = made.o[i / 8][i % 8];
            o[0] *= even;
            o[1] *= odd;
            o[2] *= even;
            o[3] *= odd;
        }
    }
    float weights[4];
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        weights[r] = is_seen[r] ? expf(scores[r] - made.m) : 0.0f;
        made.l += weights[r];
    }
    u32 parts[2][2];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        parts[i / 2][i % 2] = take_pair<T>(weights[2 * (i % 2)], weights[2 * (i % 2) + 1]);
    }
#pragma unroll
    for (u32 b = 0; b < BLOCKS; b++) {
        add_values<T, UNITS>(values[b], parts[0], parts[1], made.o[b]);
    }
}
