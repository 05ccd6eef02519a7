// The k largest numbers of each row and their places in it, the largest first. Equals: lower place
// first; not-a-number is above all.
//
// `top_k_row`: a block owns a row, k up to 256.
//
// 1. Numbers become keys, whole numbers of the same order. Up to three rounds over their bits, most
//    significant first, narrow down the k-th: a histogram by the round's bits, summed from the
//    greatest down. They end when the greatest keys that are left fit a tile: mostly after one.
// 2. These are collected as they come. Where more than a tile equal the k-th, the greater ones are,
//    and of those that equal it the lowest places.
// 3. A bitonic network sorts the tile in shared memory.
//
// `top_k_parts` does the same for 8192 neighbours of a row and leaves their places, so that one row
// of logits keeps many multiprocessors busy; `top_k_merge` does it for what all parts left. There,
// too, the lower of two equals comes first.
//
// Bytes: 4 rows V, two to four times, all but the first from caches. Bound: latency.
#include "shared/common.cuh"
#include "shared/rank.cuh"

struct TopKArgs {
    // The bits of numbers.
    const u32* x;
    u32* values;
    u32* ids;
    // [rows, n_parts, k]: places in the row, NONE where a part has fewer than k.
    u32* found;
    u32 width;
    u32 k;
    u32 n_parts;
    u32 per_part;
};

constexpr u32 THREADS = 256;
constexpr u32 NONE = 0xffffffffu;
constexpr u32 NAN_KEY = 0xffffffffu;

// Neighbours in a row.
struct Run {
    const u32* x;
    u32 first;
};

DEVICE u32 id_at(const Run& run, u32 i) { return run.first + i; }
DEVICE u32 key_at(const Run& run, u32 i) { return key_of_bits(run.x[run.first + i], NAN_KEY); }
DEVICE u32 amount_at(const Run&, u32) { return 1; }

// Places in a row.
struct Places {
    const u32* x;
    const u32* ids;
};

DEVICE u32 id_at(const Places& places, u32 i) { return places.ids[i]; }
DEVICE u32 key_at(const Places& places, u32 i) {
    const u32 id = places.ids[i];
    const u32 key = key_of_bits(places.x[id == NONE ? 0 : id], NAN_KEY);
    // No number has key 0.
    return id == NONE ? 0 : key;
}
DEVICE u32 amount_at(const Places&, u32) { return 1; }

// What a block works with, in shared memory.
struct Work {
    Search<THREADS> search;
    Tile<THREADS> tile;
    u32 n_taken;
};

DEVICE void take(Work& work, u32 id, u32 key) {
    const u32 place = atomic_add(&work.n_taken, 1u);
    if (place < Tile<THREADS>::SIZE) {
        work.tile.ids[place] = id;
        // Lower for a greater key.
        work.tile.ranks[place] = ~key;
    }
}

// Of what equals `key`, takes the `count` that come first.
template <typename Source>
DEVICE void take_equal(Work& work, const Source& source, u32 n, u32 key, u32 count) {
    u32 found = 0;
    for (u32 first = 0; first < n && found < count; first += THREADS) {
        const u32 i = first + threadIdx.x;
        const u32 is_equal = i < n && key_at(source, i) == key ? 1 : 0;
        u32 total;
        const u32 before = found + sum_before<THREADS>(is_equal, work.search.parts, total);
        if (is_equal != 0 && before < count) {
            take(work, id_at(source, i), key);
        }
        found += total;
    }
}

// Leaves the `k` largest of `n` elements at the begin of the tile, in order; k is at most n.
template <typename Source>
DEVICE void find_largest(Work& work, const Source& source, u32 n, u32 k) {
    constexpr u32 SIZE = Tile<THREADS>::SIZE;
    if (threadIdx.x == 0) {
        work.n_taken = 0;
    }
    // Bits of the k-th key that are known, how many keys with these bits belong to the first k, and
    // how many keys may.
    u32 key = 0;
    u32 mask = 0;
    u32 count = k;
    u32 n_tile = 0;
    for (u32 round = 0; round < N_ROUNDS; round++) {
        fill_bins(work.search, source, n, mask, key, round);
        find_bin(work.search, count);
        const u32 bin = work.search.found_bin;
        count = work.search.found_left;
        key |= bin << round_shift(round);
        mask |= (round_bins(round) - 1) << round_shift(round);
        n_tile = k - count + work.search.bins[bin];
        // The bins are about to be cleared.
        __syncthreads();
        if (n_tile <= SIZE) {
            break;
        }
    }
    const bool all_fit = n_tile <= SIZE;
    for (u32 first = threadIdx.x; first < n; first += BATCH * THREADS) {
#pragma unroll
        for (u32 j = 0; j < BATCH; j++) {
            const u32 i = min_of(first + j * THREADS, n - 1);
            const u32 own = key_at(source, i);
            const bool is_taken = own > key || (all_fit && own == key);
            if (is_taken && first + j * THREADS < n) {
                take(work, id_at(source, i), own);
            }
        }
    }
    if (!all_fit) {
        n_tile = k;
        take_equal(work, source, n, key, count);
    }
    __syncthreads();
    sort_tile(work.tile, n_tile);
}

DEVICE void write_row(const TopKArgs& p, const Work& work, u64 row) {
    for (u32 i = threadIdx.x; i < p.k; i += THREADS) {
        const u32 id = work.tile.ids[i];
        p.ids[row * p.k + i] = id;
        p.values[row * p.k + i] = p.x[row * p.width + id];
    }
}

KERNEL(top_k_row, TopKArgs, THREADS) {
    SHARED(Work, work, 1);
    const u64 row = blockIdx.x;
    find_largest(work[0], Run{p.x + row * p.width, 0}, p.width, p.k);
    write_row(p, work[0], row);
}

KERNEL(top_k_parts, TopKArgs, THREADS) {
    SHARED(Work, work, 1);
    const u64 row = blockIdx.x;
    const u32 first = blockIdx.y * p.per_part;
    const u32 n = min_of(p.per_part, p.width - first);
    const u32 k = min_of(p.k, n);
    find_largest(work[0], Run{p.x + row * p.width, first}, n, k);
    u32* found = p.found + (row * p.n_parts + blockIdx.y) * p.k;
    for (u32 i = threadIdx.x; i < p.k; i += THREADS) {
        found[i] = i < k ? work[0].tile.ids[i] : NONE;
    }
}

KERNEL(top_k_merge, TopKArgs, THREADS) {
    SHARED(Work, work, 1);
    const u64 row = blockIdx.x;
    const u32 n = p.n_parts * p.k;
    find_largest(work[0], Places{p.x + row * p.width, p.found + row * n}, n, p.k);
    write_row(p, work[0], row);
}
