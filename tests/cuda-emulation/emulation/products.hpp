// What the lanes of a warp make together (products.cpp): the last one to come makes it for all.
#pragma once

#include "machine.hpp"

namespace lv {

// What a lane has of the factors of a product, as registers, and of the sum that it is added to.
template <typename Number> struct Factors {
    u32 a[4];
    u32 b[2];
    Number c[4];
};

// What a lane gets of four matrices of 8 x 8 halves.
struct Loaded {
    u32 words[4];
};

#pragma GCC visibility push(hidden)

// Of what each lane says, true or false: a word with a bit for each.
void count_votes(Side& side);

// Of the addresses of 8 halves each: `Loaded`.
void load_rows(Side& side);
void load_columns(Side& side);

// Of `Factors`, which get the new sum: a of 16 rows and b of 8 columns, with 16 steps of halves or
// of bfloats; 8 of tf32; 16 or 32 of bytes.
void multiply_f16(Side& side);
void multiply_bf16(Side& side);
void multiply_tf32(Side& side);
void multiply_bytes(Side& side);
void multiply_bytes_wide(Side& side);

// Before compute capability 8.0: 8 steps of halves; 16 of bytes with 8 rows.
void multiply_f16_of_8(Side& side);
void multiply_bytes_of_8(Side& side);

#pragma GCC visibility pop

}  // namespace lv
