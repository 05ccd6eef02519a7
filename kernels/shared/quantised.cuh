// Quantised weights in tiles of 16 rows (crates/core/src/quant/tiles.rs describes a tile): formats,
// how a thread gets codes and scales of 4 rows, and how rounded rows of x lie.
//
// Everything in a tile begins at whole units of 16 bytes, and a unit of a plane of codes holds 4
// codes of each of 4 rows.
#pragma once

#include "shared/rows.cuh"

// Columns of a group, as `UNIT` elsewhere; here a unit is what a thread loads.
constexpr u32 COLUMNS = 32;
constexpr u32 TILE_ROWS = 16;
// Threads that share a group of columns, with 4 rows each.
constexpr u32 QUADS = TILE_ROWS / 4;
// Units of a plane of codes.
constexpr u32 PLANE_UNITS = 4;

// What the scales of a tile are.
enum Scales : u32 { F16, BF16, WITH_MIN, SUPER_MIN, SUPER_HALVES };
// What codes stand for.
enum Table : u32 { NONE, IQ4_NL, MXFP4 };

template <u32 BITS_, Scales SCALES_, Table TABLE_ = NONE> struct Format {
    static constexpr u32 BITS = BITS_;
    static constexpr Scales SCALES = SCALES_;
    static constexpr Table TABLE = TABLE_;
    static constexpr u32 UNITS = PLANE_UNITS * BITS;
    // Whether a value is d * code + m; and whether halves of a group have a d of their own.
    static constexpr bool HAS_MIN = SCALES == WITH_MIN || SCALES == SUPER_MIN;
    static constexpr bool HAS_HALVES = SCALES == SUPER_HALVES;
    // What is subtracted from a code. Codes of 8 bits and values of a table have their sign.
    static constexpr int OFFSET = HAS_MIN || TABLE != NONE || BITS == 8 ? 0 : 1 << (BITS - 1);
};

using Q4_0 = Format<4, F16>;
using Q4_1 = Format<4, WITH_MIN>;
using Q5_0 = Format<5, F16>;
using Q5_1 = Format<5, WITH_MIN>;
using Q8_0 = Format<8, F16>;
using Q4_K = Format<4, SUPER_MIN>;
using Q5_K = Format<5, SUPER_MIN>;
using Q6_K = Format<6, SUPER_HALVES>;
using Iq4Nl = Format<4, F16, IQ4_NL>;
using Mxfp4 = Format<4, BF16, MXFP4>;

// Four places in a table of 16 signed bytes, one in each byte of `places`.
template <Table TABLE> DEVICE u32 look_up(u32 places) {
    // The values of IQ4_NL, the lowest byte first; twice those of MXFP4, whose scale is halved.
    constexpr u32 T0 = TABLE == IQ4_NL ? 0xbfad9881u : 0x03020100u;
    constexpr u32 T1 = TABLE == IQ4_NL ? 0xf6eaddcfu : 0x0c080604u;
    constexpr u32 T2 = TABLE == IQ4_NL ? 0x26190d01u : 0xfdfeff00u;
    constexpr u32 T3 = TABLE == IQ4_NL ? 0x71594535u : 0xf4f8fafcu;
    const u32 low_bits = places & 0x07070707u;
    const u32 pairs = low_bits | low_bits >> 4;
    const u32 which = (pairs & 0xffu) | (pairs >> 8 & 0xff00u);
    const u32 is_high = (places >> 3 & 0x01010101u) * 0xffu;
    return (pick_bytes(T0, T1, which) & ~is_high) | (pick_bytes(T2, T3, which) & is_high);
}

// What a thread loads of a group: a plane after the other, of 4 rows.
template <typename F> DEVICE void load_planes(const uint4* from, uint4 (&planes)[F::BITS]) {
#pragma unroll
    for (u32 i = 0; i < F::BITS; i++) {
        planes[i] = load_once(from + PLANE_UNITS * i);
    }
}

// Codes 4 i to 4 i + 3 of each of the 4 rows, one a byte.
template <typename F>
DEVICE void word_codes(const uint4 (&planes)[F::BITS], u32 i, u32 (&codes)[4]) {
    const uint4 plane = planes[F::BITS == 8 ? i : i / 2];
    const u32 words[4] = {plane.x, plane.y, plane.z, plane.w};
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        codes[r] = F::BITS == 8 ? words[r] ^ 0x80808080u : words[r] >> (i % 2 * 4) & 0x0f0f0f0fu;
    }
    if (F::BITS == 5 || F::BITS == 6) {
        const uint4 more = planes[F::BITS == 5 ? 4 : F::BITS - 2 + i / 4];
        const u32 high[4] = {more.x, more.y, more.z, more.w};
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            codes[r] |= F::BITS == 5 ? (high[r] >> i & 0x01010101u) << 4
                                     : (high[r] >> (i % 4 * 2) & 0x03030303u) << 4;
        }
    }
    if (F::TABLE != NONE) {
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            codes[r] = look_up<F::TABLE>(codes[r]);
        }
    }
}

// Byte i of a word with its sign.
DEVICE int signed_byte(u32 word, u32 i) { return static_cast<int>(word << (24 - 8 * i)) >> 24; }

// 16 bits for each of the 4 rows `quad`, of the 16 that begin at `from`.
template <Scales SCALES> DEVICE void row_scales(const u8* from, u32 quad, float (&to)[4]) {
    const uint2 words = *reinterpret_cast<const uint2*>(from + 8 * quad);
    const u32 pairs[2] = {words.x, words.y};
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        const u16 bits = static_cast<u16>(pairs[r / 2] >> (r % 2 * 16));
        to[r] = SCALES == BF16 ? widen(bf16{bits}) : widen(f16{bits});
    }
}

// Where eight groups share d (and the smallest value): bytes of that, and of it with what each has
// of its own, 16 bytes twice.
template <typename F>
constexpr u32 SUPER_SHARED_BYTES = (F::SCALES == SUPER_MIN ? 4 : 2) * TILE_ROWS;
template <typename F> constexpr u32 SUPER_BYTES = SUPER_SHARED_BYTES<F> + 16 * TILE_ROWS;

// What makes values of codes, for 4 rows: d; and, where halves have one of their own, that of the
// second half, or else the smallest value.
template <typename F>
DEVICE void group_scales(const u8* scales, u32 group, u32 quad, float (&d)[4], float (&other)[4]) {
    if (F::SCALES == F16 || F::SCALES == BF16) {
        row_scales<F::SCALES>(scales + 2 * TILE_ROWS * group, quad, d);
        return;
    }
    if (F::SCALES == WITH_MIN) {
        const u8* from = scales + 4 * TILE_ROWS * group;
        row_scales<F16>(from, quad, d);
        row_scales<F16>(from + 2 * TILE_ROWS, quad, other);
        return;
    }
    const u8* from = scales + SUPER_BYTES<F> * (group / 8);
    const u8* bytes = from + SUPER_SHARED_BYTES<F> + 2 * TILE_ROWS * (group % 8) + 4 * quad;
    const u32 first = *reinterpret_cast<const u32*>(bytes);
    const u32 second = *reinterpret_cast<const u32*>(bytes + TILE_ROWS);
    float shared[4];
    row_scales<F16>(from, quad, shared);
    float least[4] = {};
    if (F::HAS_MIN) {
        row_scales<F16>(from + 2 * TILE_ROWS, quad, least);
    }
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        d[r] = shared[r] * static_cast<float>(signed_byte(first, r));
        const float factor = F::HAS_MIN ? -least[r] : shared[r];
        other[r] = factor * static_cast<float>(signed_byte(second, r));
    }
}

// Below this a group counts as zeros: the inverse of its scale would not be finite.
constexpr float SMALLEST = 1e-30f;

// Codes 4 i to 4 i + 3 of one row of a group; its first word is at `row`.
template <typename F> DEVICE u32 row_codes(const u32* row, u32 i) {
    if (F::BITS == 8) {
        return row[TILE_ROWS * i] ^ 0x80808080u;
    }
    u32 codes = row[TILE_ROWS * (i / 2)] >> (i % 2 * 4) & 0x0f0f0f0fu;
    if (F::BITS == 5) {
        codes |= (row[TILE_ROWS * 4] >> i & 0x01010101u) << 4;
    }
    if (F::BITS == 6) {
        codes |= (row[TILE_ROWS * (4 + i / 4)] >> (i % 4 * 2) & 0x03030303u) << 4;
    }
    return F::TABLE == NONE ? codes : look_up<F::TABLE>(codes);
}

// As `group_scales`, of one row.
template <typename F>
DEVICE void row_scales_of(const u8* scales, u32 group, u32 row, float& d, float& other) {
    const auto half = [row](const u8* from) {
        const u16 bits = reinterpret_cast<const u16*>(from)[row];
        return F::SCALES == BF16 ? widen(bf16{bits}) : widen(f16{bits});
    };
    if (F::SCALES == F16 || F::SCALES == BF16) {
        d = half(scales + 2 * TILE_ROWS * group);
        return;
    }
    if (F::SCALES == WITH_MIN) {
        const u8* from = scales + 4 * TILE_ROWS * group;
        d = half(from);
        other = half(from + 2 * TILE_ROWS);
        return;
    }
    const u8* from = scales + SUPER_BYTES<F> * (group / 8);
    const u8* bytes = from + SUPER_SHARED_BYTES<F> + 2 * TILE_ROWS * (group % 8) + row;
    const float shared = half(from);
    d = shared * static_cast<float>(static_cast<signed char>(bytes[0]));
    other = (F::HAS_MIN ? -half(from + 2 * TILE_ROWS) : shared) *
            static_cast<float>(static_cast<signed char>(bytes[TILE_ROWS]));
}

// Units of a group of a row.
DEVICE u32 rounded_units(u32 planes) { return 2 * planes + 1; }

// How the numbers of a group are rounded.
struct Rounding {
    float inverse;
    float scale;
    bool is_zero;
};

// The bits of the largest of these numbers without its sign: so they are in the order of the
// numbers, and what is none comes last.
template <u32 N> DEVICE u32 most_bits_of(const float (&x)[N]) {
    u32 most = 0;
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        const u32 bits = float_bits(x[i]) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most;
}

// By the bits of the largest number without its sign.
DEVICE Rounding rounding_of(u32 most_bits, u32 planes) {
    const bool is_finite = most_bits < 0x7f800000u;
    const float most = float_of(most_bits);
    const bool is_zero = !is_finite || most < SMALLEST;
    const float largest = planes == 2 ? 128.0f * 127.0f : 127.0f;
    // Infinity and not-a-number become not-a-number, and the outputs with them.
    return {is_zero ? 0.0f : largest / most,
            is_finite ? (is_zero ? 0.0f : most / largest) : float_of(0x7fc00000u), is_zero};
}

// Puts a number into byte i of the word of its plane, or of both planes; its code is returned.
DEVICE int round_into(float x, const Rounding& by, u32 planes, u32 i, u32& high_word,
                      u32& low_word) {
    const int code = by.is_zero ? 0 : static_cast<int>(rintf(x * by.inverse));
    // The shift rounds down, so what is left is from -64 to 63.
    const int high = planes == 2 ? (code + 64) >> 7 : code;
    const int low = code - high * 128;
    high_word |= (static_cast<u32>(high) & 0xffu) << (8 * i);
    low_word |= (static_cast<u32>(low) & 0xffu) << (8 * i);
    return code;
}
