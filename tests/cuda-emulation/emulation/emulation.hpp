// The first part of kernels/shared/common.cuh for the CPU: what only a GPU has, made of meetings of
// lanes (machine.hpp) and plain C++.
#pragma once

#include "machine.hpp"
#include "products.hpp"

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

#define votes(say) ::lv::meet<u32>(static_cast<bool>(say), __LINE__, ::lv::count_votes)

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

// On a GPU the rows are read when the lanes meet, not when a lane runs.
static inline void load_matrices_at_(u32 (&to)[4], const void* row, void (*load)(lv::Side&),
                                     int line) {
    expect_aligned(row, 16);
    const auto loaded = lv::meet<lv::Loaded>(row, line, load);
    std::memcpy(to, loaded.words, sizeof(to));
}
#define load_matrices(to, row) load_matrices_at_(to, row, ::lv::load_rows, __LINE__)
#define load_matrices_transposed(to, row) \
    load_matrices_at_(to, row, ::lv::load_columns, __LINE__)

// A product of matrices that the warp holds: what its lanes have of both and of the sum so far.
template <typename Number>
DEVICE void add_product_(Number (&c)[4], const u32* a, u32 n_a, const u32* b, u32 n_b,
                         void (*multiply)(lv::Side&), int line) {
    lv::Factors<Number> factors = {};
    std::memcpy(factors.a, a, n_a * sizeof(u32));
    std::memcpy(factors.b, b, n_b * sizeof(u32));
    std::memcpy(factors.c, c, sizeof(c));
    const auto made = lv::meet<lv::Factors<Number>>(factors, line, multiply);
    std::memcpy(c, made.c, sizeof(c));
}

#if HAS_SM80
#define mma_f16(c, a, b) add_product_(c, a, 4, b, 2, ::lv::multiply_f16, __LINE__)
#define mma_bf16(c, a, b) add_product_(c, a, 4, b, 2, ::lv::multiply_bf16, __LINE__)
#define mma_tf32(c, a, b) add_product_(c, a, 4, b, 2, ::lv::multiply_tf32, __LINE__)

static inline void mma_bytes_at_(int (&c)[4], const u32 (&a)[2], u32 b, int start, int line) {
    for (int& sum : c) {
        sum = start;
    }
    add_product_(c, a, 2, &b, 1, lv::multiply_bytes, line);
}
#define mma_bytes(c, a, b, start) mma_bytes_at_(c, a, b, start, __LINE__)

// Of twice as many steps.
static inline void mma_bytes_wide_at_(int (&c)[4], const u32 (&a)[2][2], const u32 (&b)[2],
                                      int start, int line) {
    for (int& sum : c) {
        sum = start;
    }
    add_product_(c, a[0], 4, b, 2, lv::multiply_bytes_wide, line);
}
#define mma_bytes_wide(c, a, b, start) mma_bytes_wide_at_(c, a, b, start, __LINE__)

#else

// The smaller products, each with its lanes where the PTX manual has them.
static inline void mma_f16_of_8_at_(float (&c)[4], u32 a_low, u32 a_high, u32 b, int line) {
    const u32 a[2] = {a_low, a_high};
    add_product_(c, a, 2, &b, 1, lv::multiply_f16_of_8, line);
}
#define mma_f16_of_8(c, a_low, a_high, b) mma_f16_of_8_at_(c, a_low, a_high, b, __LINE__)

static inline void mma_bytes_of_8_at_(int& c_even, int& c_odd, u32 a, u32 b, int line) {
    int c[4] = {c_even, c_odd, 0, 0};
    add_product_(c, &a, 1, &b, 1, lv::multiply_bytes_of_8, line);
    c_even = c[0];
    c_odd = c[1];
}
#define mma_bytes_of_8(c_even, c_odd, a, b) mma_bytes_of_8_at_(c_even, c_odd, a, b, __LINE__)

#endif
