// Words that the host has for many places of device memory, each to its own: what the host tells
// the device between two ops, in one launch whose arguments stay the same.
//
// A block of host memory of BLOCK_WORDS words, in units of 4: how many entries and words there
// are; then for each entry where it goes (low and high half of the address) and which of the words
// is its first; from unit UNITS_BEFORE on the words, one entry's after the other's. Entries do not
// overlap.
//
// One block, which asks for all that it may need at once: a way to the host's memory and back is
// what this costs. A thread finds the entry of a word by bisection.
//
// Bytes: BLOCK_WORDS words over the bus. Bound: latency.
#include "shared/common.cuh"

struct UploadWordsArgs {
    const uint4* block;
};

constexpr u32 THREADS = 256;
constexpr u32 BLOCK_WORDS = 2048;
constexpr u32 UNITS_BEFORE = 128;
constexpr u32 UNITS = BLOCK_WORDS / 4 - UNITS_BEFORE;
constexpr u32 EACH = (UNITS + THREADS - 1) / THREADS;

DEVICE u32 word_of(uint4 unit, u32 i) {
    return i == 0 ? unit.x : i == 1 ? unit.y : i == 2 ? unit.z : unit.w;
}

KERNEL(upload_words, UploadWordsArgs, THREADS) {
    SHARED(uint4, entries, UNITS_BEFORE);
    uint4 units[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        units[i] = p.block[UNITS_BEFORE + min_of(i * THREADS + threadIdx.x, UNITS - 1)];
    }
    for (u32 i = threadIdx.x; i < UNITS_BEFORE; i += THREADS) {
        entries[i] = p.block[i];
    }
    __syncthreads();
    const u32 n_entries = min_of(entries[0].x, UNITS_BEFORE - 1);
    const u32 n_words = min_of(entries[0].y, 4 * UNITS);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u32 first = 4 * (i * THREADS + threadIdx.x);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 word = first + j;
            if (word >= n_words) {
                break;
            }
            // The last entry that begins at the word or before.
            u32 low = 1;
            u32 high = n_entries;
            while (low < high) {
                const u32 middle = (low + high + 1) / 2;
                if (entries[middle].z <= word) {
                    low = middle;
                } else {
                    high = middle - 1;
                }
            }
            const uint4 entry = entries[low];
            const u64 to = static_cast<u64>(entry.y) << 32 | entry.x;
            reinterpret_cast<u32*>(to)[word - entry.z] = word_of(units[i], j);
        }
    }
}
