// The clusters of each KV head, best first, until their sizes fill the budget; the last is trimmed.
// Rank: greater score, then lower id; not-a-number last. Empty clusters are never taken.
//
// A block owns a KV head of one sequence, with any number of clusters. A thread loads the scores
// and sizes of EACH entries together and keeps them, so that up to CHUNK clusters are read once;
// more are read again by each step.
//
// 1. Scores become keys, whole numbers of the same order. Three rounds over their bits, most
//    significant first, find the key at which the budget is reached: a histogram of tokens by the
//    round's bits, summed from the greatest down.
// 2. After two rounds few keys are left beside the greater ones. If that makes FEW entries or less,
//    or there are no more from the start, they are collected, and each counts the entries and the
//    tokens before its own: that is its place, and what it may take. Done.
// 3. Else greater keys than that of the third round are collected as they come; of those that equal
//    it (mostly one), the lowest ids until the budget is full.
// 4. What was collected is sorted in the output by a bitonic network, tiles of it in shared memory,
//    and the keys give way to the tokens taken.
//
// Who collects first changes nothing: the order has one answer. The sizes of a head sum up to less
// than 2^32: they are tokens of a sequence.
//
// With a list, what is chosen from are its entries: entry i is cluster ids[i]. All of the above is
// then about entries, until the clusters' numbers replace theirs at the end.
//
// Bytes: scores and sizes, once. Bound: latency.
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

constexpr u32 THREADS = 1024;
constexpr u32 NONE = 0xffffffffu;
// Entries that a thread holds, and a block.
constexpr u32 EACH = 8;
constexpr u32 CHUNK = EACH * THREADS;
// Entries that are counted rather than sorted.
constexpr u32 FEW = 256;

struct Head {
    const u32* scores;
    const u32* sizes;
    // Null where entries are clusters.
    const u32* ids;
    u32 n_clusters;
    // Entries that there is memory for, and those that there are.
    u32 room;
    u32 n;
    u32 budget;
};

DEVICE u32 cluster_at(const Head& head, u32 i) {
    return head.ids == nullptr ? i : min_of(head.ids[i], head.n_clusters - 1);
}
DEVICE u32 size_at(const Head& head, u32 i) { return head.sizes[cluster_at(head, i)]; }

// The thread's entries of a chunk, `THREADS` apart.
struct Held {
    u32 keys[EACH];
    u32 sizes[EACH];
};

DEVICE u32 entry_of(u32 chunk, u32 i) { return chunk + i * THREADS + threadIdx.x; }

// Loads entries, whether there are so many or not.
DEVICE void load_all(const Head& head, u32 chunk, Held& held) {
    u32 clusters[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u32 at = min_of(entry_of(chunk, i), head.room - 1);
        held.keys[i] = head.scores[at];
        clusters[i] = cluster_at(head, at);
    }
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        held.sizes[i] = head.sizes[clusters[i]];
    }
}

// Makes keys of scores; what is not there has no tokens.
DEVICE void make_keys(const Head& head, u32 chunk, Held& held) {
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        held.keys[i] = key_of_bits(held.keys[i], 0);
        held.sizes[i] = entry_of(chunk, i) < head.n ? held.sizes[i] : 0;
    }
}

// The entries of a chunk, which are held if there is no other one.
DEVICE void hold(const Head& head, u32 chunk, Held& held) {
    if (head.n > CHUNK) {
        load_all(head, chunk, held);
        make_keys(head, chunk, held);
    }
}

// Adds up the sizes of entries whose keys' bits under `mask` are `prefix`, by the round's bits.
DEVICE void fill_bins(Search<THREADS>& search, const Head& head, Held& held, u32 mask, u32 prefix,
                      u32 round) {
    clear_bins(search);
    const u32 shift = round_shift(round);
    const u32 last_bin = round_bins(round) - 1;
    for (u32 chunk = 0; chunk < head.n; chunk += CHUNK) {
        hold(head, chunk, held);
        // Entries of a thread may share a bin (a softmax gives few exponents): one addition for a
        // run of them.
        u32 bin = 0;
        u32 amount = 0;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if (held.sizes[i] == 0 || (held.keys[i] & mask) != prefix) {
                continue;
            }
            const u32 own = held.keys[i] >> shift & last_bin;
            if (own != bin && amount > 0) {
                atomic_add(&search.bins[bin], amount);
                amount = 0;
            }
            bin = own;
            amount += held.sizes[i];
        }
        if (amount > 0) {
            atomic_add(&search.bins[bin], amount);
        }
    }
    __syncthreads();
}

// A few entries in shared memory.
struct Few {
    // Lower for a greater key, then for a lower id.
    u64 orders[FEW];
    u32 sizes[FEW];
    // How many; more than FEW if they do not fit.
    u32 count;
};

// Collects the entries whose keys are not below `key` under `mask`, which has the highest bits; the
// budget is reached among them, or they are all there are. Barriers come before and after.
DEVICE void collect_few(const Head& head, Held& held, u32 mask, u32 key, Few& few) {
    for (u32 chunk = 0; chunk < head.n; chunk += CHUNK) {
        hold(head, chunk, held);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if (held.sizes[i] == 0 || (held.keys[i] & mask) < key) {
                continue;
            }
            const u32 place = atomic_add(&few.count, 1u);
            if (place < FEW) {
                few.orders[place] = static_cast<u64>(~held.keys[i]) << 32 | entry_of(chunk, i);
                few.sizes[place] = held.sizes[i];
            }
        }
    }
    __syncthreads();
}

// Writes those of a few entries that the budget has room for, in order.
DEVICE void rank_few(const SelectClustersArgs& p, const Head& head, const Few& few) {
    // Neighbours that count for one entry.
    constexpr u32 TEAM = THREADS / FEW;
    const u32 count = few.count;
    const u32 own = threadIdx.x / TEAM;
    const bool is_there = own < count;
    const u64 order = is_there ? few.orders[own] : 0;
    const u32 size = is_there ? few.sizes[own] : 0;
    u32 place = 0;
    u32 tokens = 0;
    if (is_there) {
#pragma unroll 4
        for (u32 i = threadIdx.x % TEAM; i < count; i += TEAM) {
            const bool is_before = few.orders[i] < order;
            place += is_before ? 1 : 0;
            tokens += is_before ? few.sizes[i] : 0;
        }
    }
#pragma unroll
    for (u32 mask = 1; mask < TEAM; mask *= 2) {
        place += shfl_xor(place, mask);
        tokens += shfl_xor(tokens, mask);
    }
    if (count == 0 && threadIdx.x == 0) {
        p.n_selected[blockIdx.x] = 0;
    }
    const bool is_first = threadIdx.x % TEAM == 0;
    if (!is_there || !is_first || tokens >= head.budget || place >= p.max_selected) {
        return;
    }
    const u32 left = head.budget - tokens;
    const u64 out = static_cast<u64>(blockIdx.x) * p.max_selected + place;
    p.takes[out] = min_of(size, left);
    p.clusters[out] = cluster_at(head, static_cast<u32>(order));
    if (left <= size || place + 1 == min_of(count, p.max_selected)) {
        p.n_selected[blockIdx.x] = place + 1;
    }
}

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
DEVICE void take_equal(const Head& head, Held& held, u32 key, u32 left, const Taken& taken,
                       u32* parts, u32* last_take) {
    u32 found = 0;
    for (u32 chunk = 0; chunk < head.n && found < left; chunk += CHUNK) {
        hold(head, chunk, held);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 size = held.keys[i] == key ? held.sizes[i] : 0;
            u32 total;
            const u32 before = found + sum_before<THREADS>(size, parts, total);
            if (size > 0 && before < left) {
                take(taken, entry_of(chunk, i), key);
                if (left - before <= size) {
                    *last_take = left - before;
                }
            }
            found += total;
        }
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

// Collects what the budget has room for, of which `left` tokens go to what equals `key`, sorts it,
// and writes it.
DEVICE void sort_many(const SelectClustersArgs& p, const Head& head, Held& held, u32 key, u32 left,
                      Search<THREADS>& search, Tile<THREADS>& tile, u32* words) {
    const u64 out = static_cast<u64>(blockIdx.x) * p.max_selected;
    const Taken taken = {p.clusters + out, p.takes + out, &words[0], p.max_selected, p.by_id != 0};
    for (u32 chunk = 0; chunk < head.n; chunk += CHUNK) {
        hold(head, chunk, held);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if (held.sizes[i] > 0 && held.keys[i] > key) {
                take(taken, entry_of(chunk, i), held.keys[i]);
            } else if (held.sizes[i] > 0 && held.keys[i] == key) {
                atomic_add(&words[1], 1u);
                atomic_exchange(&words[2], entry_of(chunk, i));
            }
        }
    }
    __syncthreads();
    if (words[1] > 1) {
        take_equal(head, held, key, left, taken, search.parts, &words[3]);
    } else if (threadIdx.x == 0 && words[1] == 1) {
        take(taken, words[2], key);
        words[3] = left;
    }
    __syncthreads();

    const u32 count = min_of(words[0], p.max_selected);
    if (threadIdx.x == 0) {
        p.n_selected[blockIdx.x] = count;
    }
    sort_taken(tile, taken, count);
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const u32 entry = taken.ids[i];
        const u32 size = size_at(head, entry);
        p.takes[out + i] = i + 1 == count ? min_of(size, words[3]) : size;
        p.clusters[out + i] = cluster_at(head, entry);
    }
}

DEVICE Head head_of(const SelectClustersArgs& p) {
    const u32 index = blockIdx.x;
    return {
        p.scores + static_cast<u64>(index) * p.score_stride,
        p.sizes + static_cast<u64>(index) * p.cluster_stride,
        p.ids == nullptr ? nullptr : p.ids + static_cast<u64>(index) * p.id_stride,
        p.cluster_stride,
        min_of(p.ids == nullptr ? p.cluster_stride : p.id_stride, p.score_stride),
        p.n_clusters[index],
        p.budgets[index],
    };
}

KERNEL(select_clusters, SelectClustersArgs, THREADS) {
    SHARED(Search<THREADS>, searches, 1);
    SHARED(Tile<THREADS>, tiles, 1);
    SHARED(Few, fews, 1);
    // Taken so far, what equals the last key, one of these, what is taken of the last cluster.
    SHARED(u32, words, 4);
    Search<THREADS>& search = searches[0];
    Few& few = fews[0];
    Head head = head_of(p);
    Held held;
    // Before it is known how many there are, which is loaded as well.
    if (head.room > 0 && p.cluster_stride > 0) {
        load_all(head, 0, held);
    } else {
        head.n = 0;
    }
    head.n = min_of(head.n, head.room);
    // The contract promises room; without it the budget is what surely fits.
    if (min_of(head.n, head.budget) > p.max_selected) {
        head.budget = p.max_selected;
    }
    if (head.n == 0 || head.budget == 0) {
        if (threadIdx.x == 0) {
            p.n_selected[blockIdx.x] = 0;
        }
        return;
    }
    make_keys(head, 0, held);
    if (threadIdx.x < 4) {
        words[threadIdx.x] = threadIdx.x == 3 ? NONE : 0;
        few.count = 0;
    }
    __syncthreads();
    if (head.n <= FEW && p.by_id == 0) {
        collect_few(head, held, 0, 0, few);
        rank_few(p, head, few);
        return;
    }

    // Bits of the key that are known, and the tokens still to be found below what is greater.
    u32 key = 0;
    u32 mask = 0;
    u32 left = head.budget;
    for (u32 round = 0; round < N_ROUNDS; round++) {
        fill_bins(search, head, held, mask, key, round);
        find_bin(search, left);
        if (search.found_bin == NO_BIN) {
            // All there is.
            left = NONE;
            break;
        }
        left = search.found_left;
        key |= search.found_bin << round_shift(round);
        mask |= (round_bins(round) - 1) << round_shift(round);
        if (round == 1 && p.by_id == 0) {
            collect_few(head, held, mask, key, few);
            if (few.count <= FEW) {
                rank_few(p, head, few);
                return;
            }
        }
    }
    sort_many(p, head, held, key, left, search, tiles[0], words);
}
