// The first part of kernels/shared/common.cuh for the CPU: what only a GPU has, made of meetings of
// lanes (machine.hpp) and plain C++.
#pragma once

#include "machine.hpp"

#include <cmath>

#define DEVICE static inline __attribute__((always_inline))

// A kernel registers itself: the wrapper around its file (build.rs) holds `lv_last_kernel`.
#define KERNEL(name, Args, threads)                                                          \
    static void name(const Args& p);                                                         \
    static void name##_run_(const void* args) { name(*static_cast<const Args*>(args)); }     \
    static const ::lv::Registration name##_registration_{                                    \
        ::lv::Kernel{#name, #Args, sizeof(Args), threads, name##_run_, nullptr},             \
        lv_last_kernel};                                                                     \
    static_assert((threads) % WARP == 0 && (threads) <= ::lv::MAX_THREADS);                  \
    static void name(const Args& p)

#define SHARED(type, name, n)                                                         \
    static const char name##_site_ = 0;                                               \
    auto& name = *static_cast<type(*)[n]>(                                            \
        ::lv::shared(&name##_site_, sizeof(type[n]), alignof(type)))

#define DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(::lv::dynamic_shared())

// The wrapper around a file (build.rs) says for which compute capability it is compiled.
#define HAS_SM80 (LONGVIEW_EMULATED_SM >= 80)

#define threadIdx (::lv::current->index)
#define blockIdx (::lv::current_block)
#define blockDim (::lv::current_block_size)
#define gridDim (::lv::current_grid)

#define __syncthreads() ::lv::barrier(__LINE__)

namespace lv {

struct Registration {
    Kernel kernel;

    Registration(const Kernel& declared, const Kernel*& last) : kernel(declared) {
        kernel.next = last;
        last = &kernel;
    }
};

}  // namespace lv

struct alignas(16) uint4 {
    u32 x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    u32 x, y;
};
struct alignas(8) float2 {
    float x, y;
};

DEVICE void expect_aligned(const void* at, u64 align) {
    if (reinterpret_cast<u64>(at) % align != 0) {
        lv::fail("an address that is no multiple of %llu", align);
    }
}

template <typename T> DEVICE T shfl_at_(T value, u32 lane, int line) {
    return lv::meet(value, line)[lane];
}
#define shfl(value, lane) shfl_at_(value, lane, __LINE__)
#define shfl_xor(value, mask) shfl_at_(value, ::lv::current->lane ^ (mask), __LINE__)

template <typename T> DEVICE T shfl_up_at_(T value, u32 delta, int line) {
    const u32 lane = lv::current->lane;
    return lv::meet(value, line)[lane < delta ? lane : lane - delta];
}
#define shfl_up(value, delta) shfl_up_at_(value, delta, __LINE__)

template <typename T> DEVICE T shfl_down_at_(T value, u32 delta, int line) {
    const u32 lane = lv::current->lane;
    return lv::meet(value, line)[lane + delta < WARP ? lane + delta : lane];
}
#define shfl_down(value, delta) shfl_down_at_(value, delta, __LINE__)

static inline u32 votes_at_(bool say, int line) {
    const auto says = lv::meet(say, line);
    u32 bits = 0;
    for (u32 i = 0; i < WARP; i++) {
        bits |= static_cast<u32>(says[i]) << i;
    }
    return bits;
}
#define votes(say) votes_at_(say, __LINE__)

#define warp_sync() static_cast<void>(::lv::meet(u8{0}, __LINE__))

DEVICE u32 atomic_add(u32* at, u32 value) {
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
DEVICE float atomic_add(float* at, float value) {
    float before;
    __atomic_load(at, &before, __ATOMIC_RELAXED);
    for (;;) {
        float after = before + value;
        if (__atomic_compare_exchange(at, &before, &after, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
            return before;
        }
    }
}
// The value that `choose` makes of what is there and `value` takes its place.
template <typename T, typename Choose> T atomic_choose_(T* at, T value, Choose choose) {
    T before = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(at, &before, choose(before, value), false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return before;
}
DEVICE u32 atomic_max(u32* at, u32 value) {
    return atomic_choose_(at, value, [](u32 a, u32 b) { return a > b ? a : b; });
}
DEVICE u32 atomic_min(u32* at, u32 value) {
    return atomic_choose_(at, value, [](u32 a, u32 b) { return a < b ? a : b; });
}
DEVICE u64 atomic_max(u64* at, u64 value) {
    return atomic_choose_(at, value, [](u64 a, u64 b) { return a > b ? a : b; });
}
DEVICE u32 atomic_exchange(u32* at, u32 value) {
    return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);
}
DEVICE u32 atomic_cas(u32* at, u32 expected, u32 value) {
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
DEVICE void device_fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

DEVICE u32 float_bits(float value) {
    u32 bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
DEVICE float float_of(u32 bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

DEVICE u32 count_bits(u32 bits) { return static_cast<u32>(__builtin_popcount(bits)); }
DEVICE u32 leading_zeros(u32 bits) {
    return bits == 0 ? 32 : static_cast<u32>(__builtin_clz(bits));
}

DEVICE int dot_bytes(u32 a, u32 b, int c) {
    for (u32 i = 0; i < 4; i++) {
        c += static_cast<signed char>(a >> (8 * i)) * static_cast<signed char>(b >> (8 * i));
    }
    return c;
}
DEVICE u32 pick_bytes(u32 a, u32 b, u32 which) {
    const u64 bytes = static_cast<u64>(b) << 32 | a;
    u32 picked = 0;
    for (u32 i = 0; i < 4; i++) {
        const u32 place = which >> (4 * i) & 15;
        if (place > 7) {
            // The hardware would repeat a sign.
            lv::fail("byte %u of two words", place);
        }
        picked |= static_cast<u32>(bytes >> (8 * place) & 0xff) << (8 * i);
    }
    return picked;
}

DEVICE float half_to_float(u16 bits) {
    const u32 sign = static_cast<u32>(bits & 0x8000u) << 16;
    const u32 rest = bits & 0x7fffu;
    if (rest >= 0x7c00u) {
        return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    }
    // The exponent is 112 too low, which a product puts right, for the smallest halves too.
    return float_of(float_bits(float_of(rest << 13) * float_of(0x77800000u)) | sign);
}
DEVICE u16 float_to_half(float value) {
    const u32 bits = float_bits(value);
    const u16 sign = static_cast<u16>(bits >> 16 & 0x8000u);
    const u32 size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return static_cast<u16>(sign | 0x7e00u);
    }
    if (size >= 0x477ff000u) {
        return static_cast<u16>(sign | 0x7c00u);
    }
    if (size < 0x38800000u) {
        // Below the normal halves: adding 1/2 leaves the bits of the half at the end, rounded.
        return static_cast<u16>(sign | (float_bits(float_of(size) + 0.5f) - 0x3f000000u));
    }
    const u32 rounded = size - (112u << 23) + 0xfffu + (size >> 13 & 1u);
    return static_cast<u16>(sign | rounded >> 13);
}

DEVICE float exp2_fast(float x) {
    const float value = std::exp2(x);
    return value < 1.17549435e-38f ? 0.0f : value;
}

#if HAS_SM80
DEVICE u32 floats_to_halves(float low, float high) {
    return float_to_half(low) | static_cast<u32>(float_to_half(high)) << 16;
}

DEVICE u32 floats_to_bfloats(float low, float high) {
    const auto round = [](u32 bits) {
        const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        return is_nan ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    };
    return round(float_bits(low)) | round(float_bits(high)) << 16;
}

DEVICE u32 float_to_tf32(float value) {
    const u32 bits = float_bits(value);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return is_nan ? 0x7fffe000u : (bits + 0x1000u) & 0xffffe000u;
}
#endif

DEVICE uint4 load_once(const uint4* from) {
    expect_aligned(from, 16);
    return *from;
}

#if HAS_SM80
// Copies happen when they are waited for and not before: who does not wait reads what was there.
DEVICE void copy_async(void* to_shared, const void* from, bool is_there) {
    expect_aligned(to_shared, 16);
    expect_aligned(from, 16);
    lv::Copies& copies = *lv::current->copies;
    if (copies.n == lv::MAX_COPIES) {
        lv::fail("more than %u copies that nobody waits for", lv::MAX_COPIES);
    }
    copies.list[copies.n++] = lv::Copy{to_shared, is_there ? from : nullptr};
}
DEVICE void copies_commit() {
    lv::Copies& copies = *lv::current->copies;
    if (copies.n_groups == lv::MAX_COPIES) {
        lv::fail("more than %u groups of copies that nobody waits for", lv::MAX_COPIES);
    }
    copies.group_ends[copies.n_groups++] = copies.n;
}
template <u32 N> DEVICE void copies_wait() {
    lv::Copies& copies = *lv::current->copies;
    if (copies.n_groups <= N) {
        return;
    }
    const u32 n_groups = copies.n_groups - N;
    const u32 n = copies.group_ends[n_groups - 1];
    for (u32 i = 0; i < n; i++) {
        uint4 unit = {0, 0, 0, 0};
        if (copies.list[i].from != nullptr) {
            unit = *static_cast<const uint4*>(copies.list[i].from);
        }
        *static_cast<uint4*>(copies.list[i].to) = unit;
    }
    for (u32 i = n; i < copies.n; i++) {
        copies.list[i - n] = copies.list[i];
    }
    for (u32 i = n_groups; i < copies.n_groups; i++) {
        copies.group_ends[i - n_groups] = copies.group_ends[i] - n;
    }
    copies.n -= n;
    copies.n_groups = N;
}
#endif

static inline void load_matrices_at_(u32 (&to)[4], const void* row, bool transposed, int line) {
    expect_aligned(row, 16);
    const auto rows = lv::meet(static_cast<const u16*>(row), line);
    const u32 lane = lv::current->lane;
    for (u32 m = 0; m < 4; m++) {
        u32 word = 0;
        for (u32 i = 0; i < 2; i++) {
            const u32 r = transposed ? 2 * (lane % 4) + i : lane / 4;
            const u32 c = transposed ? lane / 4 : 2 * (lane % 4) + i;
            word |= static_cast<u32>(rows[8 * m + r][c]) << 16 * i;
        }
        to[m] = word;
    }
    // On a GPU the rows are read when the lanes meet, not when a lane runs.
    static_cast<void>(lv::meet(u8{0}, line));
}
#define load_matrices(to, row) load_matrices_at_(to, row, false, __LINE__)
#define load_matrices_transposed(to, row) load_matrices_at_(to, row, true, __LINE__)

#if HAS_SM80
// What a lane brings to a product of the warp, widened once for all who read it.
struct MmaPart_ {
    float a[8];
    float b[4];
};

template <typename Widen>
void mma_at_(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], Widen widen, int line) {
    MmaPart_ mine;
    for (u32 i = 0; i < 8; i++) {
        mine.a[i] = widen(static_cast<u16>(a[i / 2] >> 16 * (i % 2)));
    }
    for (u32 i = 0; i < 4; i++) {
        mine.b[i] = widen(static_cast<u16>(b[i / 2] >> 16 * (i % 2)));
    }
    const auto parts = lv::meet(mine, line);
    const u32 lane = lv::current->lane;
    const u32 column = 2 * (lane % 4);
    // Columns 2 pair and the next of a, or 8 on; rows of b.
    for (u32 half = 0; half < 2; half++) {
        for (u32 pair = 0; pair < 4; pair++) {
            const MmaPart_ left = parts[lane / 4 * 4 + pair];
            const MmaPart_ rights[2] = {parts[4 * column + pair], parts[4 * column + 4 + pair]};
            for (u32 i = 0; i < 4; i++) {
                const float* l = left.a + 4 * half + i / 2 * 2;
                const float* r = rights[i % 2].b + 2 * half;
                c[i] = c[i] + l[0] * r[0] + l[1] * r[1];
            }
        }
    }
}
#define mma_f16(c, a, b) mma_at_(c, a, b, [](u16 h) { return half_to_float(h); }, __LINE__)
#define mma_bf16(c, a, b) \
    mma_at_(c, a, b, [](u16 h) { return float_of(static_cast<u32>(h) << 16); }, __LINE__)

struct Tf32Part_ {
    float a[4];
    float b[2];
};

static inline void mma_tf32_at_(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], int line) {
    // A product takes no notice of bits that tf32 does not have.
    const auto widen = [](u32 bits) { return float_of(bits & 0xffffe000u); };
    const Tf32Part_ mine = {{widen(a[0]), widen(a[1]), widen(a[2]), widen(a[3])},
                            {widen(b[0]), widen(b[1])}};
    const auto parts = lv::meet(mine, line);
    const u32 lane = lv::current->lane;
    for (u32 k = 0; k < 8; k++) {
        const Tf32Part_ left = parts[lane / 4 * 4 + k % 4];
        for (u32 i = 0; i < 4; i++) {
            const Tf32Part_ right = parts[4 * (2 * (lane % 4) + i % 2) + k % 4];
            c[i] = c[i] + left.a[i / 2 + k / 4 * 2] * right.b[k / 4];
        }
    }
}
#define mma_tf32(c, a, b) mma_tf32_at_(c, a, b, __LINE__)

struct BytesPart_ {
    u32 a[2][2];
    u32 b[2];
};

// Products of 16 steps, or of twice as many.
static inline void mma_bytes_at_(int (&c)[4], const BytesPart_& mine, u32 n_halves, int start,
                                 int line) {
    const auto parts = lv::meet(mine, line);
    const u32 lane = lv::current->lane;
    for (u32 i = 0; i < 4; i++) {
        c[i] = start;
        for (u32 k = 0; k < 4 * n_halves; k++) {
            const BytesPart_ left = parts[lane / 4 * 4 + k % 4];
            const BytesPart_ right = parts[4 * (2 * (lane % 4) + i % 2) + k % 4];
            c[i] = dot_bytes(left.a[k / 4][i / 2], right.b[k / 4], c[i]);
        }
    }
}
#define mma_bytes(c, a, b, start) \
    mma_bytes_at_(c, BytesPart_{{{(a)[0], (a)[1]}, {0, 0}}, {b, 0}}, 1, start, __LINE__)
#define mma_bytes_wide(c, a, b, start)                                                         \
    mma_bytes_at_(c,                                                                           \
                  BytesPart_{{{(a)[0][0], (a)[0][1]}, {(a)[1][0], (a)[1][1]}}, {(b)[0], (b)[1]}}, \
                  2, start, __LINE__)

#else

// The smaller products, each with its lanes where the PTX manual has them.
struct MmaOf8Part_ {
    float a[4];
    float b[2];
};

static inline void mma_f16_of_8_at_(float (&c)[4], u32 a_low, u32 a_high, u32 b, int line) {
    const auto low = [](u32 bits) { return half_to_float(static_cast<u16>(bits)); };
    const auto high = [](u32 bits) { return half_to_float(static_cast<u16>(bits >> 16)); };
    const MmaOf8Part_ mine = {{low(a_low), high(a_low), low(a_high), high(a_high)},
                              {low(b), high(b)}};
    const auto parts = lv::meet(mine, line);
    const u32 group = lv::current->lane / 4;
    const u32 in_group = lv::current->lane % 4;
    for (u32 k = 0; k < 8; k += 2) {
        const MmaOf8Part_ left = parts[4 * group + k / 2];
        for (u32 i = 0; i < 4; i++) {
            const MmaOf8Part_ right = parts[4 * (2 * in_group + i % 2) + k / 2];
            const float* row = left.a + i / 2 * 2;
            c[i] = c[i] + row[0] * right.b[0] + row[1] * right.b[1];
        }
    }
}
#define mma_f16_of_8(c, a_low, a_high, b) mma_f16_of_8_at_(c, a_low, a_high, b, __LINE__)

struct BytesOf8Part_ {
    u32 a;
    u32 b;
};

static inline void mma_bytes_of_8_at_(int& c_even, int& c_odd, u32 a, u32 b, int line) {
    const BytesOf8Part_ mine = {a, b};
    const auto parts = lv::meet(mine, line);
    const u32 group = lv::current->lane / 4;
    const u32 in_group = lv::current->lane % 4;
    for (u32 k = 0; k < 16; k += 4) {
        const u32 left = parts[4 * group + k / 4].a;
        c_even = dot_bytes(left, parts[4 * (2 * in_group) + k / 4].b, c_even);
        c_odd = dot_bytes(left, parts[4 * (2 * in_group + 1) + k / 4].b, c_odd);
    }
}
#define mma_bytes_of_8(c_even, c_odd, a, b) mma_bytes_of_8_at_(c_even, c_odd, a, b, __LINE__)

#endif
