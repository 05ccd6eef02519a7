// What every kernel starts from: types, the two macros that declare kernels and shared memory, and
// wrappers of what only a GPU has.
//
// A kernel uses plain C++, `threadIdx.x`, `blockIdx`, `gridDim`, and the names below; nothing else
// of CUDA. The same source then runs on the CPU, where `emulation.hpp` of the tests gives the names
// of the first part another meaning. What some kernels share beyond it lies in the other `.cuh` of
// this folder; there are no headers of CUDA, so NVRTC needs nothing but these texts.
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

// An array of shared memory, of a size known here; as aligned as its type asks for, no more.
#define SHARED(type, name, n) __shared__ type name[n]

// All shared memory that the launch asked for, aligned to 16 bytes.
#define DYNAMIC_SHARED(type, name)                         \
    extern __shared__ __align__(16) u8 dynamic_shared_[];  \
    type* const name = reinterpret_cast<type*>(dynamic_shared_)

// Whether mma on bf16 and tf32, mma of 16 steps and asynchronous copies exist. Without them the
// second part makes what it can of what there is.
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

// `c` and the products of four signed bytes.
DEVICE int dot_bytes(u32 a, u32 b, int c) {
    int sum;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}
// Four of the 8 bytes of `a` and `b`, those of `a` first: digit i of `which`, in base 16 and below
// 8, says which is byte i.
DEVICE u32 pick_bytes(u32 a, u32 b, u32 which) { return __byte_perm(a, b, which); }

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

// 2^x within 2 ulp; what would be subnormal is 0.
DEVICE float exp2_fast(float x) {
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
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

#if HAS_SM80
// Copies 16 bytes to shared memory without registers, seen by this thread after `copies_wait`. An
// absent source gives zeros; its address must be valid all the same.
DEVICE void copy_async(void* to_shared, const void* from, bool is_there) {
    const u32 to = static_cast<u32>(__cvta_generic_to_shared(to_shared));
    const u32 n = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(n) : "memory");
}
// Closes a group of copies.
DEVICE void copies_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for all groups but the last `N`.
template <u32 N> DEVICE void copies_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
#endif

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
// c[2], c[3] row g + 8. The first of two elements is in the low half of its register. Volatile: all
// lanes must be there, so no compiler may move a product to where only some need its result.
#if HAS_SM80
DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// c = start + a b by a warp on signed bytes, four in a register, with whole sums: a is 16 x 16, b
// is 16 x 8, c as above. a[0] is row g, columns 4t to 4t + 3; a[1] row g + 8; b is column g, rows
// 4t to 4t + 3. What sums start with may stay in one register for many products.
DEVICE void mma_bytes(int (&c)[4], const u32 (&a)[2], u32 b, int start) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 "
                 "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b), "r"(start));
}
// The same with an a of 16 x 32 and a b of 32 x 8: a[1] and b[1] are 16 columns and rows on.
DEVICE void mma_bytes_wide(int (&c)[4], const u32 (&a)[2][2], const u32 (&b)[2], int start) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a[0][0]), "r"(a[0][1]), "r"(a[1][0]), "r"(a[1][1]), "r"(b[0]), "r"(b[1]),
                   "r"(start));
}
// The same on bf16; there is none before compute capability 8.0.
DEVICE void mma_bf16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// c += a b on tf32: a is 16 x 8, b is 8 x 8, c as above. a[0] is row g, column t; a[1] row g + 8;
// a[2] and a[3] the same, 4 columns on; b[0] is column g, row t; b[1] 4 rows on. `load_matrices`
// loads them so, four elements for a row of 16 bytes.
DEVICE void mma_tf32(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// To the nearest tf32, which has 10 bits behind the point; ties away from zero. What is below them
// is undefined behind the conversion, and becomes 0: the result is an f32 too.
DEVICE u32 float_to_tf32(float value) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits & 0xffffe000u;
}
// Two numbers to the nearest f16, the first in the low half.
DEVICE u32 floats_to_halves(float low, float high) {
    u32 bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
// Two numbers to the nearest bf16, the first in the low half.
DEVICE u32 floats_to_bfloats(float low, float high) {
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
#else
// c += a b by a warp as `mma_f16`, with an a of 16 x 8 and a b of 8 x 8: one register less of each
// for the columns that are not there.
DEVICE void mma_f16_of_8(float (&c)[4], u32 a_low, u32 a_high, u32 b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a_low), "r"(a_high), "r"(b));
}
// c += a b by a warp on bytes as `mma_bytes`, with an a of 8 x 16 and a c of 8 x 8.
DEVICE void mma_bytes_of_8(int& c_even, int& c_odd, u32 a, u32 b) {
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 "
                 "{%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(c_even), "+r"(c_odd) : "r"(a), "r"(b));
}
#endif

#endif

// From here on plain C++, the same on both sides.

#if !HAS_SM80
// What a GPU before compute capability 8.0 has to make of smaller products and plain copies.

DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    mma_f16_of_8(c, a[0], a[1], b[0]);
    mma_f16_of_8(c, a[2], a[3], b[1]);
}
DEVICE void mma_bytes(int (&c)[4], const u32 (&a)[2], u32 b, int start) {
    c[0] = c[1] = c[2] = c[3] = start;
    mma_bytes_of_8(c[0], c[1], a[0], b);
    mma_bytes_of_8(c[2], c[3], a[1], b);
}
DEVICE void mma_bytes_wide(int (&c)[4], const u32 (&a)[2][2], const u32 (&b)[2], int start) {
    mma_bytes(c, a[0], b[0], start);
    mma_bytes_of_8(c[0], c[1], a[1][0], b[1]);
    mma_bytes_of_8(c[2], c[3], a[1][1], b[1]);
}
DEVICE u32 floats_to_halves(float low, float high) {
    return float_to_half(low) | static_cast<u32>(float_to_half(high)) << 16;
}
// The copy is done when this returns.
DEVICE void copy_async(void* to_shared, const void* from, bool is_there) {
    const uint4 zeros = {0, 0, 0, 0};
    *static_cast<uint4*>(to_shared) = is_there ? *static_cast<const uint4*>(from) : zeros;
}
DEVICE void copies_commit() {}
template <u32 N> DEVICE void copies_wait() {}
#endif

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

// x cosine + partner sine. Which of two products a compiler fuses with their sum depends on what
// stands around them; the kernels that rotate must agree to the bit, so it is said here.
DEVICE float rotated(float x, float cosine, float partner, float sine) {
    return fmaf(x, cosine, partner * sine);
}

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
