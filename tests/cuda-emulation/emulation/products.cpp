// Products of matrices whose numbers lie among the lanes of a warp as the PTX manual has them.
//
// They are gathered, multiplied row by row, and given back. Each sum takes its products one after
// the other, each rounded by itself, in the order of the steps.

#define LONGVIEW_EMULATED_SM 80
#include "shared/common.cuh"

namespace lv {

namespace {

constexpr u32 ROWS = 16;
constexpr u32 COLUMNS = 8;

// A row of b and of c.
typedef float Row __attribute__((vector_size(COLUMNS * sizeof(float))));

template <typename T> T in_slot(const u8 (&slot)[SLOT_BYTES]) {
    T value;
    std::memcpy(&value, slot, sizeof(T));
    return value;
}

// Numbers of a word of a register.
float low_half(u32 word) { return half_to_float(static_cast<u16>(word)); }
float high_half(u32 word) { return half_to_float(static_cast<u16>(word >> 16)); }
float low_bfloat(u32 word) { return float_of(word << 16); }
float high_bfloat(u32 word) { return float_of(word & 0xffff0000u); }
// A product takes no notice of bits that tf32 does not have.
float whole(u32 word) { return float_of(word & 0xffffe000u); }
template <u32 AT> float byte_of(u32 word) {
    return static_cast<float>(static_cast<signed char>(word >> (8 * AT)));
}

typedef float (*Take)(u32 word);

// Registers in turn of 8 rows of a each; those behind them hold the next steps. A lane's word has
// `N` numbers, and four lanes a row.
template <typename Number, u32 N_ROWS, u32 STEPS, u32 N, Take... TAKE> void multiply(Side& side) {
    constexpr u32 N_GROUPS = N_ROWS / 8;
    constexpr Take take[N] = {TAKE...};
    // Sums of whole numbers are below 2^24, so exact in f32; what they are added to need not be.
    constexpr bool IS_WHOLE = static_cast<Number>(1) / 2 == 0;
    float a[N_ROWS][STEPS];
    Row b[STEPS];
    Row c[N_ROWS];
    for (u32 lane = 0; lane < LANES; lane++) {
        const auto own = in_slot<Factors<Number>>(side[lane]);
        const u32 group = lane / 4;
        const u32 in_group = lane % 4;
        for (u32 part = 0; part < STEPS / (4 * N); part++) {
            for (u32 i = 0; i < N; i++) {
                const u32 step = N * (4 * part + in_group) + i;
                for (u32 g = 0; g < N_GROUPS; g++) {
                    a[8 * g + group][step] = take[i](own.a[N_GROUPS * part + g]);
                }
                b[step][group] = take[i](own.b[part]);
            }
        }
        for (u32 g = 0; g < N_GROUPS; g++) {
            for (u32 i = 0; i < 2; i++) {
                const float before = IS_WHOLE ? 0.0f : static_cast<float>(own.c[2 * g + i]);
                c[8 * g + group][2 * in_group + i] = before;
            }
        }
    }
    for (u32 row = 0; row < N_ROWS; row++) {
        Row sum = c[row];
        for (u32 step = 0; step < STEPS; step++) {
            sum = sum + a[row][step] * b[step];
        }
        c[row] = sum;
    }
    for (u32 lane = 0; lane < LANES; lane++) {
        auto own = in_slot<Factors<Number>>(side[lane]);
        for (u32 g = 0; g < N_GROUPS; g++) {
            for (u32 i = 0; i < 2; i++) {
                const auto sum = static_cast<Number>(c[8 * g + lane / 4][2 * (lane % 4) + i]);
                Number& to = own.c[2 * g + i];
                to = IS_WHOLE ? to + sum : sum;
            }
        }
        std::memcpy(side[lane], &own, sizeof(own));
    }
}

// Word i of matrix m for a lane has two elements of a row, or of a column.
template <bool TRANSPOSED> void load(Side& side) {
    u16 rows[LANES][8];
    for (u32 lane = 0; lane < LANES; lane++) {
        std::memcpy(rows[lane], in_slot<const u16*>(side[lane]), sizeof(rows[lane]));
    }
    for (u32 lane = 0; lane < LANES; lane++) {
        Loaded loaded;
        for (u32 m = 0; m < 4; m++) {
            u32 word = 0;
            for (u32 i = 0; i < 2; i++) {
                const u32 r = TRANSPOSED ? 2 * (lane % 4) + i : lane / 4;
                const u32 c = TRANSPOSED ? lane / 4 : 2 * (lane % 4) + i;
                word |= static_cast<u32>(rows[8 * m + r][c]) << 16 * i;
            }
            loaded.words[m] = word;
        }
        std::memcpy(side[lane], &loaded, sizeof(loaded));
    }
}

}  // namespace

void count_votes(Side& side) {
    u32 bits = 0;
    for (u32 lane = 0; lane < LANES; lane++) {
        bits |= static_cast<u32>(in_slot<bool>(side[lane])) << lane;
    }
    for (u32 lane = 0; lane < LANES; lane++) {
        std::memcpy(side[lane], &bits, sizeof(bits));
    }
}

void load_rows(Side& side) { load<false>(side); }
void load_columns(Side& side) { load<true>(side); }

void multiply_f16(Side& side) { multiply<float, ROWS, 16, 2, low_half, high_half>(side); }
void multiply_bf16(Side& side) { multiply<float, ROWS, 16, 2, low_bfloat, high_bfloat>(side); }
void multiply_tf32(Side& side) { multiply<float, ROWS, 8, 1, whole>(side); }
void multiply_bytes(Side& side) {
    multiply<int, ROWS, 16, 4, byte_of<0>, byte_of<1>, byte_of<2>, byte_of<3>>(side);
}
void multiply_bytes_wide(Side& side) {
    multiply<int, ROWS, 32, 4, byte_of<0>, byte_of<1>, byte_of<2>, byte_of<3>>(side);
}
void multiply_f16_of_8(Side& side) { multiply<float, ROWS, 8, 2, low_half, high_half>(side); }
void multiply_bytes_of_8(Side& side) {
    multiply<int, 8, 16, 4, byte_of<0>, byte_of<1>, byte_of<2>, byte_of<3>>(side);
}

}  // namespace lv
