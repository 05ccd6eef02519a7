// Row dst_rows[h, i] of dst gets the bits of row src_rows[h, i] of src, for i < n_rows[h]. Entries
// beyond a head's count and rows outside are left out. With a stride of 0 all heads name rows of
// one pool.
//
// A warp owns one entry of a list and moves its row in units of 16 bytes where rows and addresses
// allow, else of 4, 2 or 1: neighbours read neighbouring units, so a row of host memory comes over
// the bus in whole lines. Thousands of warps hide the way there and back.
//
// Bytes: the rows, once in and once out. Bound: memory, or the bus where src is host memory.
#include "shared/common.cuh"

struct KvGatherArgs {
    const void* src;
    const u32* src_rows;
    const u32* dst_rows;
    const u32* n_rows;
    void* dst;
    u32 n_kv_heads;
    u32 list_stride;
    u32 src_head_stride;
    u32 dst_head_stride;
    // Ids are below these.
    u32 src_limit;
    u32 dst_limit;
    // Units of a row.
    u32 row_units;
    u32 unused;
};

constexpr u32 THREADS = 256;

DEVICE uint4 load_unit(const uint4* from) { return load_once(from); }
DEVICE u32 load_unit(const u32* from) { return *from; }
DEVICE u16 load_unit(const u16* from) { return *from; }
DEVICE u8 load_unit(const u8* from) { return *from; }

template <typename Unit> DEVICE void gather(const KvGatherArgs& p) {
    const u64 entry = static_cast<u64>(blockIdx.x) * (THREADS / WARP) + warp_of_thread();
    const u64 head = entry / p.list_stride;
    if (head >= p.n_kv_heads || entry - head * p.list_stride >= p.n_rows[head]) {
        return;
    }
    const u32 src_row = p.src_rows[entry];
    const u32 dst_row = p.dst_rows[entry];
    if (src_row >= p.src_limit || dst_row >= p.dst_limit) {
        return;
    }
    const u64 from = (head * p.src_head_stride + src_row) * p.row_units;
    const u64 to = (head * p.dst_head_stride + dst_row) * p.row_units;
    const Unit* src = static_cast<const Unit*>(p.src) + from;
    Unit* dst = static_cast<Unit*>(p.dst) + to;
    for (u32 i = lane_of_thread(); i < p.row_units; i += WARP) {
        dst[i] = load_unit(src + i);
    }
}

KERNEL(kv_gather_16, KvGatherArgs, THREADS) { gather<uint4>(p); }
KERNEL(kv_gather_4, KvGatherArgs, THREADS) { gather<u32>(p); }
KERNEL(kv_gather_2, KvGatherArgs, THREADS) { gather<u16>(p); }
KERNEL(kv_gather_1, KvGatherArgs, THREADS) { gather<u8>(p); }
