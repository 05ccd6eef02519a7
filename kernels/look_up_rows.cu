// A step of the device cache of one KV head: slots of the wanted rows, what is missing, what goes.
//
// A block owns a head. It hashes the rows that are held, marks those that are wanted, lets go of
// those that were not used for R steps, lists the free slots in order, and goes through the wanted
// rows: a sum over the threads numbers the rows that are missing, and how many before a row are
// missing says how many are listed. Who enters the table first changes nothing but where in the
// table a row stands.
//
// A thread takes EACH slots or rows at a time, so that what is loaded for one does not wait for
// another, and a block has as many threads as there may be: every device runs fewer blocks than it
// has multiprocessors. What the block loads first, and what it found for the rows, stays in
// registers where one chunk is all there is.
//
// `look_up_rows` has the table and the free slots in shared memory; `look_up_rows_large` has them
// behind what lasts of the state, for caches that do not fit.
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

constexpr u32 THREADS = 1024;
// Slots or rows that a thread takes at a time, and all of them.
constexpr u32 EACH = 4;
constexpr u32 CHUNK = EACH * THREADS;

// The state of a head. Slots are counted by `Index`.
template <typename Index> struct Cache {
    u32* held;
    u32* used;
    u32* steps;
    // At first, for each slot, whether this step wants what it holds.
    Index* free;
    u32* keys;
    Index* slots;
    u32 n_slots;
    u32 last_place;
};

// What lasts of it.
template <typename Index> DEVICE Cache<Index> cache_of(const LookUpRowsArgs& p) {
    const u64 len = 3ull * p.n_slots + 1 + 2ull * p.table_len;
    Cache<Index> cache;
    cache.held = p.state + blockIdx.x * len;
    cache.used = cache.held + p.n_slots;
    cache.steps = cache.used + p.n_slots;
    cache.n_slots = p.n_slots;
    cache.last_place = p.table_len - 1;
    return cache;
}

// What a thread takes of a chunk. A warp has neighbours: what comes before one of them is what
// earlier warps have, and what this one has in earlier rounds and lanes.
struct Part {
    u32 first;
    u32 rounds;
    u32 end;
};

DEVICE Part part_of(u32 chunk, u32 n) {
    const u32 in_chunk = min_of(n - chunk, CHUNK);
    const u32 rounds = (in_chunk + THREADS - 1) / THREADS;
    return {chunk + warp_of_thread() * rounds * WARP + lane_of_thread(), rounds, chunk + in_chunk};
}
DEVICE u32 at_of(const Part& part, u32 i) { return part.first + i * WARP; }
DEVICE bool has(const Part& part, u32 i) { return i < part.rounds && at_of(part, i) < part.end; }

// For each of the thread's elements how many before it are in `set`, which has a bit for each;
// returns how many are in all.
DEVICE u32 count_before(u32 set, u32* parts, u32 (&before)[EACH]) {
    const u32 below = (1u << lane_of_thread()) - 1;
    u32 of_warp = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u32 who = votes((set >> i & 1) != 0);
        before[i] = of_warp + count_bits(who & below);
        of_warp += count_bits(who);
    }
    u32 total;
    const u32 of_others = sum_of_warps<THREADS>(of_warp, parts, total);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        before[i] += of_others;
    }
    return total;
}

// What slots hold and when it was used; a slot that is not there holds nothing.
struct Slots {
    Part part;
    u32 held[EACH];
    u32 used[EACH];
};

template <typename Index>
DEVICE void load_slots(const Cache<Index>& cache, u32 chunk, Slots& slots) {
    slots.part = part_of(chunk, cache.n_slots);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const bool is_there = has(slots.part, i);
        slots.held[i] = is_there ? cache.held[at_of(slots.part, i)] : 0;
        slots.used[i] = is_there ? cache.used[at_of(slots.part, i)] : 0;
    }
}

DEVICE u32 place_of(u32 key, u32 last_place) { return key * 0x9e3779b1u >> 7 & last_place; }

// Enters what slots hold into the table, which is at most half full.
template <typename Index> DEVICE void enter(const Cache<Index>& cache, const Slots& slots) {
    u32 at[EACH];
    u32 left = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        at[i] = place_of(slots.held[i], cache.last_place);
        left |= slots.held[i] != 0 ? 1u << i : 0;
    }
    while (left != 0) {
        u32 there[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if ((left >> i & 1) != 0) {
                there[i] = atomic_cas(&cache.keys[at[i]], 0u, slots.held[i]);
            }
        }
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if ((left >> i & 1) == 0) {
                continue;
            }
            if (there[i] == 0) {
                cache.slots[at[i]] = static_cast<Index>(at_of(slots.part, i));
                left &= ~(1u << i);
            } else {
                at[i] = (at[i] + 1) & cache.last_place;
            }
        }
    }
}

// Rows that are wanted and their slots; n_slots where there is none.
struct Tokens {
    Part part;
    u32 rows[EACH];
    u32 slots[EACH];
};

template <typename Index>
DEVICE void look_up(const Cache<Index>& cache, const Wanted<THREADS>& wanted, u32 chunk,
                    u32 n_tokens, Tokens& tokens) {
    tokens.part = part_of(chunk, n_tokens);
    u32 at[EACH];
    u32 left = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        tokens.rows[i] = 0;
        tokens.slots[i] = cache.n_slots;
        if (i < tokens.part.rounds) {
            tokens.rows[i] = row_of(wanted, at_of(tokens.part, i));
            at[i] = place_of(tokens.rows[i] + 1, cache.last_place);
            left |= has(tokens.part, i) ? 1u << i : 0;
        }
    }
    while (left != 0) {
        u32 keys[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if ((left >> i & 1) != 0) {
                keys[i] = cache.keys[at[i]];
            }
        }
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if ((left >> i & 1) == 0) {
                continue;
            }
            const bool is_found = keys[i] == tokens.rows[i] + 1;
            if (is_found) {
                tokens.slots[i] = cache.slots[at[i]];
            }
            if (is_found || keys[i] == 0) {
                left &= ~(1u << i);
            } else {
                at[i] = (at[i] + 1) & cache.last_place;
            }
        }
    }
}

// Marks the slots of rows that are wanted.
template <typename Index>
DEVICE void mark(const Cache<Index>& cache, const Tokens& tokens, u32 now) {
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        if (tokens.slots[i] < cache.n_slots) {
            cache.used[tokens.slots[i]] = now;
            cache.free[tokens.slots[i]] = 1;
        }
    }
}

// Lets go of rows that were not used for R steps and lists what is free; returns how many. `slots`
// are all of them, if they are one chunk. Barriers come before and after.
template <typename Index>
DEVICE u32 find_free(const LookUpRowsArgs& p, const Cache<Index>& cache, u32 now, Slots& slots,
                     u32* parts) {
    u32 n_free = 0;
    for (u32 chunk = 0; chunk < cache.n_slots; chunk += CHUNK) {
        if (cache.n_slots > CHUNK) {
            load_slots(cache, chunk, slots);
        }
        u32 is_free = 0;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if (!has(slots.part, i)) {
                continue;
            }
            const u32 slot = at_of(slots.part, i);
            const bool is_wanted = cache.free[slot] != 0;
            if (!is_wanted && slots.used[i] + p.cache_steps <= now && slots.held[i] != 0) {
                cache.held[slot] = 0;
                slots.held[i] = 0;
            }
            is_free |= slots.held[i] == 0 ? 1u << i : 0;
        }
        u32 before[EACH];
        // Its barriers come after all marks of this chunk and of those before were read, and the
        // list is never longer than these.
        const u32 total = count_before(is_free, parts, before);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if ((is_free >> i & 1) != 0) {
                cache.free[n_free + before[i]] = static_cast<Index>(at_of(slots.part, i));
            }
        }
        n_free += total;
    }
    return n_free;
}

template <typename Index>
DEVICE void step(const LookUpRowsArgs& p, const Cache<Index>& cache, Wanted<THREADS>& wanted,
                 u32* parts) {
    const u32 head = blockIdx.x;
    Slots slots;
    load_slots(cache, 0, slots);
    const u32 now = *cache.steps + 1;
    const u32 n_before = p.counts[head];
    const u32 n = min_of(p.n_selected[head], p.max_selected);

    for (u32 i = threadIdx.x; i < p.table_len; i += THREADS) {
        cache.keys[i] = 0;
    }
    for (u32 i = threadIdx.x; i < p.n_slots; i += THREADS) {
        cache.free[i] = 0;
    }
    // Its barriers come between clearing and entering.
    u32 n_tokens = load_tile(p, 0, n, wanted, parts);
    enter(cache, slots);
    for (u32 chunk = CHUNK; chunk < p.n_slots; chunk += CHUNK) {
        load_slots(cache, chunk, slots);
        enter(cache, slots);
    }
    __syncthreads();

    // All hits are marked before anything is freed: a row that this step wants must not lose its
    // slot to another one.
    Tokens tokens;
    for (u32 first = 0; first < n; first += THREADS) {
        if (first > 0) {
            n_tokens = load_tile(p, first, n, wanted, parts);
        }
        for (u32 chunk = 0; chunk < n_tokens; chunk += CHUNK) {
            look_up(cache, wanted, chunk, n_tokens, tokens);
            mark(cache, tokens, now);
        }
    }
    __syncthreads();
    const u32 n_free = find_free(p, cache, now, slots, parts);
    __syncthreads();

    const u32 room = min_of(n_free, p.move_stride);
    u32* const src = p.moves + static_cast<u64>(head) * p.move_stride;
    u32* const dst = src + static_cast<u64>(p.n_kv_heads) * p.move_stride;
    u32* const rows = p.rows + static_cast<u64>(head) * p.list_stride;
    const bool is_known = n <= THREADS && n_tokens <= CHUNK;
    u32 n_missing = 0;
    u32 n_done = 0;
    // Sums give out slots and places in the order of the tokens, not of who comes first, so the
    // lists are the same in every run.
    for (u32 first = 0; first < n; first += THREADS) {
        if (n > THREADS) {
            n_tokens = load_tile(p, first, n, wanted, parts);
        }
        for (u32 chunk = 0; chunk < n_tokens; chunk += CHUNK) {
            if (!is_known) {
                look_up(cache, wanted, chunk, n_tokens, tokens);
            }
            u32 missing = 0;
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                const bool is_missing = has(tokens.part, i) && tokens.slots[i] == cache.n_slots;
                missing |= is_missing ? 1u << i : 0;
            }
            u32 before[EACH];
            const u32 total = count_before(missing, parts, before);
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                const u32 number = n_missing + before[i];
                u32 slot = tokens.slots[i];
                if ((missing >> i & 1) != 0 && number < room) {
                    slot = cache.free[number];
                    cache.held[slot] = tokens.rows[i] + 1;
                    cache.used[slot] = now;
                    src[number] = tokens.rows[i];
                    dst[number] = p.first_slot_row + slot;
                }
                // Of the tokens before, those that are missing are listed while there is room.
                const u32 n_listed = n_done + at_of(tokens.part, i) - number;
                const u32 place = n_before + n_listed + min_of(number, room);
                if (slot < cache.n_slots && place < p.list_stride) {
                    rows[place] = p.first_slot_row + slot;
                }
            }
            n_missing += total;
        }
        n_done += n_tokens;
    }
    if (threadIdx.x == 0) {
        const u32 n_moved = min_of(n_missing, room);
        const u32 n_hits = n_done - n_missing;
        const u32 most = p.list_stride > n_before ? p.list_stride : n_before;
        *cache.steps = now;
        p.counts[head] = min_of(n_before + n_hits + n_moved, most);
        p.counts[p.n_kv_heads + head] = n_moved;
        // Nobody else adds to these, and nobody waits for an addition.
        atomic_add(&p.counts[2 * p.n_kv_heads + head], n_hits);
        atomic_add(&p.counts[3 * p.n_kv_heads + head], n_moved);
    }
}

KERNEL(look_up_rows, LookUpRowsArgs, THREADS) {
    SHARED(Wanted<THREADS>, tiles, 1);
    SHARED(u32, parts, THREADS / WARP);
    DYNAMIC_SHARED(u32, table);
    Cache<u16> cache = cache_of<u16>(p);
    cache.keys = table;
    cache.slots = reinterpret_cast<u16*>(table + p.table_len);
    cache.free = cache.slots + p.table_len;
    step(p, cache, tiles[0], parts);
}

KERNEL(look_up_rows_large, LookUpRowsArgs, THREADS) {
    SHARED(Wanted<THREADS>, tiles, 1);
    SHARED(u32, parts, THREADS / WARP);
    Cache<u32> cache = cache_of<u32>(p);
    cache.free = cache.steps + 1;
    cache.keys = cache.free + p.n_slots;
    cache.slots = cache.keys + p.table_len;
    step(p, cache, tiles[0], parts);
}
