// KV rows of 8 bits: Dh codes of the key, Dh codes of the value, then scales of f16, one for each
// KEY_BLOCK codes of the key and one for the value, filled up to a multiple of 4 bytes.
#pragma once
#include "shared/common.cuh"

// A byte of such a row.
struct coded { u8 bits; };

constexpr u32 KEY_BLOCK = 32;

DEVICE u32 key_scales(u32 head_dim) { return (head_dim + KEY_BLOCK - 1) / KEY_BLOCK; }

// Bytes of a row.
DEVICE u32 coded_row(u32 head_dim) { return (2 * head_dim + 2 * key_scales(head_dim) + 5) / 4 * 4; }

DEVICE float number_of(u32 code) { return static_cast<float>(static_cast<signed char>(code)); }

// Scale i of a row, which may begin at any byte.
DEVICE float scale_of(const coded* row, u32 head_dim, u32 i) {
    const coded* at = row + 2 * head_dim + 2 * i;
    return half_to_float(static_cast<u16>(at[0].bits | at[1].bits << 8));
}
