// What a block needs to find the greatest of many numbers: their order as whole numbers, a radix
// search for the one at which a sum is reached, and a sort of what was found.
#pragma once
#include "shared/common.cuh"
#include "shared/scan.cuh"

// A whole number that is greater for a greater number, of which the bits are given; the zeros are
// equal, `nan_key` is for not-a-number.
DEVICE u32 key_of_bits(u32 bits, u32 nan_key) {
    const u32 size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return nan_key;
    }
    const bool is_negative = bits >> 31 != 0 && size != 0;
    return is_negative ? ~bits : size | 0x80000000u;
}

// Elements that a thread reads together.
constexpr u32 BATCH = 4;
constexpr u32 BINS = 2048;
constexpr u32 NO_BIN = 0xffffffffu;
constexpr u32 N_ROUNDS = 3;

// The lowest bit and the number of bins of each round: 11, 11 and 10 bits.
DEVICE u32 round_shift(u32 round) { return round == 0 ? 21 : round == 1 ? 10 : 0; }
DEVICE u32 round_bins(u32 round) { return round == 2 ? BINS / 2 : BINS; }

// What a block of `THREADS` searches with, in shared memory.
template <u32 THREADS> struct Search {
    u32 bins[BINS];
    u32 parts[THREADS / WARP];
    u32 found_bin;
    u32 found_left;
};

// A barrier comes after.
template <u32 THREADS> DEVICE void clear_bins(Search<THREADS>& search) {
    for (u32 i = threadIdx.x; i < BINS; i += THREADS) {
        search.bins[i] = 0;
    }
    __syncthreads();
}

// Adds up the amounts of keys whose bits under `mask` are `prefix`, by the bits at `shift`. Source
// says of element i: `key_at(source, i)`, `amount_at(source, i)`.
template <u32 THREADS, typename Source>
DEVICE void fill_bins(Search<THREADS>& search, const Source& source, u32 n, u32 mask, u32 prefix,
                      u32 round) {
    clear_bins(search);
    const u32 shift = round_shift(round);
    const u32 last_bin = round_bins(round) - 1;
    // Neighbours often share a bin (a softmax gives few exponents): one addition for a run of them.
    u32 held = 0;
    u32 amount = 0;
    for (u32 first = threadIdx.x; first < n; first += BATCH * THREADS) {
        u32 keys[BATCH];
        u32 amounts[BATCH];
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) {
            // Beyond the last, the last again.
            const u32 at = min_of(first + i * THREADS, n - 1);
            keys[i] = key_at(source, at);
            amounts[i] = amount_at(source, at);
        }
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) {
            if (first + i * THREADS < n && (keys[i] & mask) == prefix) {
                const u32 bin = keys[i] >> shift & last_bin;
                if (bin != held && amount > 0) {
                    atomic_add(&search.bins[held], amount);
                    amount = 0;
                }
                held = bin;
                amount += amounts[i];
            }
        }
    }
    if (amount > 0) {
        atomic_add(&search.bins[held], amount);
    }
    __syncthreads();
}

// The bin in which the sum from the greatest down reaches `left`, and what is left above it go to
// `found_bin` and `found_left`, seen by all. Where the whole sum is less, NO_BIN.
template <u32 THREADS> DEVICE void find_bin(Search<THREADS>& search, u32 left) {
    constexpr u32 EACH = BINS / THREADS;
    if (threadIdx.x == 0) {
        search.found_bin = NO_BIN;
    }
    u32 amounts[EACH];
    u32 own = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        amounts[i] = search.bins[BINS - 1 - (threadIdx.x * EACH + i)];
        own += amounts[i];
    }
    u32 total;
    u32 before = sum_before<THREADS>(own, search.parts, total);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        if (before < left && left - before <= amounts[i]) {
            search.found_bin = BINS - 1 - (threadIdx.x * EACH + i);
            search.found_left = left - before;
        }
        before += amounts[i];
    }
    __syncthreads();
}

// Entries that a block of `THREADS` sorts in shared memory, by rank and then by id: a bitonic
// network, two entries for each thread.
template <u32 THREADS> struct Tile {
    static constexpr u32 SIZE = 2 * THREADS;
    u32 ranks[SIZE];
    u32 ids[SIZE];
};

// Puts entries i < j in order; what lies beyond `n` counts as greatest.
DEVICE void put_in_order(u32* ranks, u32* ids, u32 i, u32 j, u32 n) {
    if (j >= n) {
        return;
    }
    const u32 rank = ranks[i];
    const u32 id = ids[i];
    const u32 other_rank = ranks[j];
    const u32 other_id = ids[j];
    if (rank > other_rank || (rank == other_rank && id > other_id)) {
        ranks[i] = other_rank;
        ids[i] = other_id;
        ranks[j] = rank;
        ids[j] = id;
    }
}

// The first step of a merge to runs of `size`: an entry meets its mirror image.
DEVICE void put_mirrored_in_order(u32* ranks, u32* ids, u32 pair, u32 size, u32 n) {
    const u32 start = pair / (size / 2) * size;
    const u32 at = pair % (size / 2);
    put_in_order(ranks, ids, start + at, start + size - 1 - at, n);
}

// The other steps: entries `stride` apart.
DEVICE void put_apart_in_order(u32* ranks, u32* ids, u32 pair, u32 stride, u32 n) {
    const u32 first = pair / stride * 2 * stride + pair % stride;
    put_in_order(ranks, ids, first, first + stride, n);
}

// The steps of a merge whose entries are `stride` apart or less. Barriers come before and after.
template <u32 THREADS> DEVICE void merge_tile(Tile<THREADS>& tile, u32 stride, u32 n) {
    for (; stride > 0; stride /= 2) {
        put_apart_in_order(tile.ranks, tile.ids, threadIdx.x, stride, n);
        __syncthreads();
    }
}

// Sorts the first `n` entries. Barriers come before and after.
template <u32 THREADS> DEVICE void sort_tile(Tile<THREADS>& tile, u32 n) {
    for (u32 size = 2; size < 2 * n; size *= 2) {
        put_mirrored_in_order(tile.ranks, tile.ids, threadIdx.x, size, n);
        __syncthreads();
        merge_tile(tile, size / 4, n);
    }
}
