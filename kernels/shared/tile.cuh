// A tile of x W^T, kept in registers: f32 products, and what all tiles share.
//
// A block of THREADS owns a tile of SIDE = THREADS / 2 rows of x and as many of W. Along the
// columns it goes in steps: SIDE rows of x and of W, 64 bytes of each row (4 units of 16 bytes),
// lie in shared memory, twice, so that the next ones arrive while these are used. Unit u of row r
// lies at `unit_at(r, u)`: 8 rows that follow each other hit all banks.
//
// With f32 a step is DEPTH = 16 columns, and a thread owns 8 rows of x times COLUMNS rows of W: one
// load of 16 bytes from shared memory serves about 11 or 16 products. A warp owns 32 rows of x and
// SIDE / 2 of W, so warps lie two to a row.
#pragma once

#include "shared/rows.cuh"

constexpr u32 ROW_UNITS = 4;
constexpr u32 DEPTH = 16;
// Rows of x of a thread.
constexpr u32 ROWS = 8;

template <u32 THREADS> constexpr u32 SIDE = THREADS / 2;
// Rows of W of a thread.
template <u32 THREADS> constexpr u32 COLUMNS = THREADS / 32;
// Units of one operand of a step.
template <u32 THREADS> constexpr u32 TILE_UNITS = SIDE<THREADS> * ROW_UNITS;

DEVICE u32 unit_at(u32 row, u32 unit) { return row * ROW_UNITS + (unit ^ (row / 2 % ROW_UNITS)); }

// The row of x of a thread that is its number i.
DEVICE u32 row_of_thread(u32 i) {
    return warp_of_thread() / 2 * 32 + lane_of_thread() / 8 + 4 * i;
}
// The row of W of a thread that is its number j.
template <u32 THREADS> DEVICE u32 column_of_thread(u32 j) {
    return warp_of_thread() % 2 * (SIDE<THREADS> / 2) + lane_of_thread() % 8 + 8 * j;
}

// Of an operand a thread brings 8 columns of one row to shared memory.
DEVICE u32 row_brought() { return threadIdx.x / 2; }
DEVICE u32 column_brought() { return threadIdx.x % 2 * 8; }

DEVICE void bring(float4* tile, const float (&part)[8]) {
    const u32 unit = threadIdx.x % 2 * 2;
    tile[unit_at(row_brought(), unit)] = float4{part[0], part[1], part[2], part[3]};
    tile[unit_at(row_brought(), unit + 1)] = float4{part[4], part[5], part[6], part[7]};
}

template <u32 THREADS> DEVICE void clear_sums(float (&sums)[ROWS][COLUMNS<THREADS>]) {
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
#pragma unroll
        for (u32 j = 0; j < COLUMNS<THREADS>; j++) {
            sums[i][j] = 0;
        }
    }
}

// Adds the products of a step.
template <u32 THREADS>
DEVICE void add_products(const float4* x, const float4* w, float (&sums)[ROWS][COLUMNS<THREADS>]) {
    // One unit after the other: else all are loaded first, into twice the registers.
#pragma unroll 1
    for (u32 unit = 0; unit < ROW_UNITS; unit++) {
        float4 a[ROWS];
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) {
            a[i] = x[unit_at(row_of_thread(i), unit)];
        }
#pragma unroll
        for (u32 j = 0; j < COLUMNS<THREADS>; j++) {
            const float4 b = w[unit_at(column_of_thread<THREADS>(j), unit)];
#pragma unroll
            for (u32 i = 0; i < ROWS; i++) {
                sums[i][j] += a[i].x * b.x;
                sums[i][j] += a[i].y * b.y;
                sums[i][j] += a[i].z * b.z;
                sums[i][j] += a[i].w * b.w;
            }
        }
    }
}
