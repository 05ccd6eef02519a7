// The clusters of each KV head, best first, until their sizes fill the budget; the last is trimmed.
// Rank: greater score, then lower id; not-a-number last. Empty clusters are never taken.
//
// A block owns a KV head of one sequence, with any number of clusters:
//
// 1. Scores become keys, whole numbers of the same order. Three rounds over their bits, most
//    significant first, find the key at which the budget is reached: a histogram of tokens by the
//    round's bits, summed from the greatest down.
// 2. Greater keys are collected as they come; of those that equal it (mostly one), the lowest ids
//    until the budget is full.
// 3. What was collected is sorted in the output by a bitonic network, tiles of it in shared memory,
//    and the keys give way to the tokens taken.
//
// Who collects first changes nothing: the sort has one answer. The sizes of a head sum up to less
// than 2^32: they are tokens of a sequence.
//
// With a list, what is chosen from are its entries: entry i is cluster ids[i]. All of the above is
// then about entries, until the clusters' numbers replace theirs at the end.
//
// Bytes: scores and sizes, four times, from caches. Bound: latency.
#include "shared/common.cuh"
#include "shared/rank.cuh"

struct SelectClustersArgs {
    // The bits of numbers, [Hkv, score_stride].
    const u32* scores;
    const u32* sizes;
    const u32* n_clusters;
    const u32* budgets;
    // [Hkv, max_selected]
    u32* clusters;
    u32* takes;
    u32* n_selected;
    // [Hkv, id_stride]; null where there is no list.
    const u32* ids;
    u32 score_stride;
    u32 cluster_stride;
    u32 max_selected;
    // Whether the order is that of ids, not of ranks; clusters have one token then.
    u32 by_id;
    u32 id_stride;
    u32 unused;
};

constexpr u32 THREADS = 512;
constexpr u32 NONE = 0xffffffffu;

struct Head {
    const u32* scores;
    const u32* sizes;
    // Null where entries are clusters.
    const u32* ids;
    u32 n_clusters;
};

DEVICE u32 cluster_at(const Head& head, u32 i) {
    return head.ids == nullptr ? i : min_of(head.ids[i], head.n_clusters - 1);
}
DEVICE u32 size_at(const Head& head, u32 i) { return head.sizes[cluster_at(head, i)]; }
DEVICE u32 key_at(const Head& head, u32 i) { return key_of_bits(head.scores[i], 0); }
DEVICE u32 amount_at(const Head& head, u32 i) { return size_at(head, i); }

// What is taken.
struct Taken {
    u32* ids;
    // Lower for a greater key, until all are sorted.
    u32* ranks;
    // How many, in shared memory.
    u32* count;
    u32 room;
    // All ranks are alike, so that ids alone are sorted.
    bool by_id;
};

DEVICE void take(const Taken& taken, u32 cluster, u32 key) {
    const u32 place = atomic_add(taken.count, 1u);
    if (place < taken.room) {
        taken.ids[place] = cluster;
        taken.ranks[place] = taken.by_id ? 0 : ~key;
    }
}

// Of what equals `key`, takes the lowest ids until `left` is reached; `last_take` is then what is
// taken of the last one.
DEVICE void take_equal(const Head& head, u32 n, u32 key, u32 left, const Taken& taken, u32* parts,
                       u32* last_take) {
    u32 found = 0;
    for (u32 first = 0; first < n && found < left; first += THREADS) {
        const u32 c = first + threadIdx.x;
        const u32 size = c < n && key_at(head, c) == key ? size_at(head, c) : 0;
        u32 total;
        const u32 before = found + sum_before<THREADS>(size, parts, total);
        if (size > 0 && before < left) {
            take(taken, c, key);
            if (left - before <= size) {
                *last_take = left - before;
            }
        }
        found += total;
    }
}

// For each tile of the output: the whole network if `from_start`, else only the end of a merge.
DEVICE void sort_tiles(Tile<THREADS>& tile, const Taken& taken, u32 n, bool from_start) {
    constexpr u32 SIZE = Tile<THREADS>::SIZE;
    for (u32 start = 0; start < n; start += SIZE) {
        const u32 in_tile = min_of(SIZE, n - start);
        for (u32 i = threadIdx.x; i < in_tile; i += THREADS) {
            tile.ranks[i] = taken.ranks[start + i];
            tile.ids[i] = taken.ids[start + i];
        }
        __syncthreads();
        if (from_start) {
            sort_tile(tile, in_tile);
        } else {
            merge_tile(tile, SIZE / 2, in_tile);
        }
        for (u32 i = threadIdx.x; i < in_tile; i += THREADS) {
            taken.ranks[start + i] = tile.ranks[i];
            taken.ids[start + i] = tile.ids[i];
        }
        __syncthreads();
    }
}

// Sorts what was taken by key, then by id. Barriers come before and after.
DEVICE void sort_taken(Tile<THREADS>& tile, const Taken& taken, u32 n) {
    constexpr u32 SIZE = Tile<THREADS>::SIZE;
    sort_tiles(tile, taken, n, true);
    for (u32 size = 2 * SIZE; size < 2 * n; size *= 2) {
        // The steps that are wider than a tile.
        const u32 n_pairs = (n + size - 1) / size * (size / 2);
        for (u32 i = threadIdx.x; i < n_pairs; i += THREADS) {
            put_mirrored_in_order(taken.ranks, taken.ids, i, size, n);
        }
        __syncthreads();
        for (u32 stride = size / 4; stride >= SIZE; stride /= 2) {
            for (u32 i = threadIdx.x; i < n_pairs; i += THREADS) {
                put_apart_in_order(taken.ranks, taken.ids, i, stride, n);
            }
            __syncthreads();
        }
        sort_tiles(tile, taken, n, false);
    }
}

KERNEL(select_clusters, SelectClustersArgs, THREADS) {
    SHARED(Search<THREADS>, searches, 1);
    SHARED(Tile<THREADS>, tiles, 1);
    // Taken so far, what equals the last key, one of these, what is taken of the last cluster.
    SHARED(u32, words, 4);
    Search<THREADS>& search = searches[0];
    const u32 index = blockIdx.x;
    const u32 room = p.ids == nullptr ? p.cluster_stride : p.id_stride;
    const u32 n = min_of(p.n_clusters[index], min_of(room, p.score_stride));
    // The contract promises room; without it the budget is what surely fits.
    const u32 asked = p.budgets[index];
    const u32 budget = min_of(n, asked) > p.max_selected ? p.max_selected : asked;
    if (n == 0 || budget == 0) {
        if (threadIdx.x == 0) {
            p.n_selected[index] = 0;
        }
        return;
    }
    const u64 out = static_cast<u64>(index) * p.max_selected;
    const Taken taken = {p.clusters + out, p.takes + out, &words[0], p.max_selected, p.by_id != 0};
    const Head head = {
        p.scores + static_cast<u64>(index) * p.score_stride,
        p.sizes + static_cast<u64>(index) * p.cluster_stride,
        p.ids == nullptr ? nullptr : p.ids + static_cast<u64>(index) * p.id_stride,
        p.cluster_stride,
    };
    if (threadIdx.x < 4) {
        words[threadIdx.x] = threadIdx.x == 3 ? NONE : 0;
    }

    // Bits of the key that are known, and the tokens still to be found below what is greater.
    u32 key = 0;
    u32 mask = 0;
    u32 left = budget;
    for (u32 round = 0; round < N_ROUNDS; round++) {
        fill_bins(search, head, n, mask, key, round);
        find_bin(search, left);
        if (search.found_bin == NO_BIN) {
            // All there is.
            left = NONE;
            break;
        }
        left = search.found_left;
        key |= search.found_bin << round_shift(round);
        mask |= (round_bins(round) - 1) << round_shift(round);
    }

    for (u32 first = threadIdx.x; first < n; first += BATCH * THREADS) {
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) {
            const u32 c = min_of(first + i * THREADS, n - 1);
            const u32 own = key_at(head, c);
            const bool is_there = first + i * THREADS < n && size_at(head, c) > 0;
            if (is_there && own > key) {
                take(taken, c, own);
            } else if (is_there && own == key) {
                atomic_add(&words[1], 1u);
                atomic_exchange(&words[2], c);
            }
        }
    }
    __syncthreads();
    if (words[1] > 1) {
        take_equal(head, n, key, left, taken, search.parts, &words[3]);
    } else if (threadIdx.x == 0 && words[1] == 1) {
        take(taken, words[2], key);
        words[3] = left;
    }
    __syncthreads();

    const u32 count = min_of(words[0], p.max_selected);
    if (threadIdx.x == 0) {
        p.n_selected[index] = count;
    }
    sort_taken(tiles[0], taken, count);
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const u32 entry = taken.ids[i];
        const u32 size = size_at(head, entry);
        p.takes[out + i] = i + 1 == count ? min_of(size, words[3]) : size;
        p.clusters[out + i] = cluster_at(head, entry);
    }
}
