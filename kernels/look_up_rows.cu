// A step of the device cache of one KV head: slots of the wanted rows, what is missing, what goes.
//
// A block owns a head. It hashes the rows that are held, marks those that are wanted, lets go of
// those that were not used for R steps, lists the free slots in order, and goes through the wanted
// rows in chunks of THREADS: sums over the threads number the rows that are missing and the rows
// that are listed. Who enters the table first changes nothing but where in the table a row stands.
//
// The state of a head: held rows + 1, steps of last use, steps so far, free slots, keys and values
// of the table.
//
// Bytes: of the order of the slots and the budget. Bound: latency.
#include "shared/selection.cuh"

struct LookUpRowsArgs {
    const u32* starts;
    const u32* clusters;
    const u32* takes;
    const u32* n_selected;
    u32* state;
    // [Hkv, list_stride]
    u32* rows;
    // [2, Hkv, move_stride]
    u32* moves;
    // [4, Hkv]
    u32* counts;
    u32 n_kv_heads;
    u32 max_selected;
    u32 cluster_stride;
    u32 list_stride;
    u32 move_stride;
    u32 n_slots;
    u32 first_slot_row;
    u32 cache_steps;
    // A power of two.
    u32 table_len;
    u32 unused;
};

constexpr u32 THREADS = 512;

// The state of a head.
struct Cache {
    u32* held;
    u32* used;
    u32* steps;
    u32* free;
    u32* keys;
    u32* slots;
    u32 n_slots;
    u32 last_place;
};

DEVICE Cache cache_of(const LookUpRowsArgs& p, u32 head) {
    const u64 len = 3ull * p.n_slots + 1 + 2ull * p.table_len;
    Cache cache;
    cache.held = p.state + head * len;
    cache.used = cache.held + p.n_slots;
    cache.steps = cache.used + p.n_slots;
    cache.free = cache.steps + 1;
    cache.keys = cache.free + p.n_slots;
    cache.slots = cache.keys + p.table_len;
    cache.n_slots = p.n_slots;
    cache.last_place = p.table_len - 1;
    return cache;
}

DEVICE u32 place_of(const Cache& cache, u32 key) {
    return key * 0x9e3779b1u >> 7 & cache.last_place;
}

// Enters a slot into the table, which is at most half full.
DEVICE void enter(const Cache& cache, u32 key, u32 slot) {
    u32 at = place_of(cache, key);
    while (atomic_cas(&cache.keys[at], 0u, key) != 0) {
        at = (at + 1) & cache.last_place;
    }
    cache.slots[at] = slot;
}

// The slot that holds a host row, or n_slots.
DEVICE u32 slot_of(const Cache& cache, u32 row) {
    u32 at = place_of(cache, row + 1);
    for (;;) {
        const u32 key = cache.keys[at];
        if (key == row + 1) {
            return cache.slots[at];
        }
        if (key == 0) {
            return cache.n_slots;
        }
        at = (at + 1) & cache.last_place;
    }
}

// Lets go of rows that were not used for R steps and lists what is free; returns how many.
DEVICE u32 find_free(const LookUpRowsArgs& p, const Cache& cache, u32 now, u32* parts) {
    u32 n_free = 0;
    for (u32 first = 0; first < p.n_slots; first += THREADS) {
        const u32 slot = first + threadIdx.x;
        bool is_free = false;
        if (slot < p.n_slots) {
            if (cache.used[slot] + p.cache_steps <= now) {
                cache.held[slot] = 0;
            }
            is_free = cache.held[slot] == 0;
        }
        u32 total;
        const u32 before = sum_before<THREADS>(is_free, parts, total);
        if (is_free) {
            cache.free[n_free + before] = slot;
        }
        n_free += total;
    }
    return n_free;
}

KERNEL(look_up_rows, LookUpRowsArgs, THREADS) {
    SHARED(Wanted<THREADS>, tiles, 1);
    SHARED(u32, parts, THREADS / WARP);
    Wanted<THREADS>& wanted = tiles[0];
    const u32 head = blockIdx.x;
    const Cache cache = cache_of(p, head);
    const u32 now = *cache.steps + 1;
    const u32 n = min_of(p.n_selected[head], p.max_selected);

    for (u32 i = threadIdx.x; i < p.table_len; i += THREADS) {
        cache.keys[i] = 0;
    }
    __syncthreads();
    for (u32 slot = threadIdx.x; slot < p.n_slots; slot += THREADS) {
        if (cache.held[slot] != 0) {
            enter(cache, cache.held[slot], slot);
        }
    }
    __syncthreads();

    // All hits are marked as used before anything is freed: a row that this step wants must not
    // lose its slot to another one.
    for (u32 first = 0; first < n; first += THREADS) {
        const u32 n_tokens = load_tile(p, first, n, wanted, parts);
        for (u32 at = threadIdx.x; at < n_tokens; at += THREADS) {
            const u32 slot = slot_of(cache, row_of(wanted, at));
            if (slot < p.n_slots) {
                cache.used[slot] = now;
            }
        }
    }
    __syncthreads();
    const u32 n_free = find_free(p, cache, now, parts);
    __syncthreads();

    const u32 room = min_of(n_free, p.move_stride);
    const u32 n_before = p.counts[head];
    const u64 first_move = static_cast<u64>(head) * p.move_stride;
    u32* const src = p.moves + first_move;
    u32* const dst = src + static_cast<u64>(p.n_kv_heads) * p.move_stride;
    u32* const rows = p.rows + static_cast<u64>(head) * p.list_stride;
    u32 n_missing = 0;
    u32 n_listed = n_before;
    // Prefix sums give out slots and places in the order of the tokens, not of who comes first, so
    // the lists are the same in every run.
    for (u32 first = 0; first < n; first += THREADS) {
        const u32 n_tokens = load_tile(p, first, n, wanted, parts);
        for (u32 chunk = 0; chunk < n_tokens; chunk += THREADS) {
            const bool is_token = chunk + threadIdx.x < n_tokens;
            const u32 row = is_token ? row_of(wanted, chunk + threadIdx.x) : 0;
            u32 slot = is_token ? slot_of(cache, row) : p.n_slots;
            const bool is_missing = is_token && slot == p.n_slots;
            u32 total;
            const u32 number = n_missing + sum_before<THREADS>(is_missing, parts, total);
            n_missing += total;
            const bool is_moved = is_missing && number < room;
            if (is_moved) {
                slot = cache.free[number];
                cache.held[slot] = row + 1;
                cache.used[slot] = now;
                src[number] = row;
                dst[number] = p.first_slot_row + slot;
            }
            const bool is_listed = is_token && slot < p.n_slots;
            const u32 place = n_listed + sum_before<THREADS>(is_listed, parts, total);
            n_listed += total;
            if (is_listed && place < p.list_stride) {
                rows[place] = p.first_slot_row + slot;
            }
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 n_moved = min_of(n_missing, room);
        const u32 most = p.list_stride > n_before ? p.list_stride : n_before;
        *cache.steps = now;
        p.counts[head] = min_of(n_listed, most);
        p.counts[p.n_kv_heads + head] = n_moved;
        p.counts[2 * p.n_kv_heads + head] += n_listed - n_before - n_moved;
        p.counts[3 * p.n_kv_heads + head] += n_moved;
    }
}
