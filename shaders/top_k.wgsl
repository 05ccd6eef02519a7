// The k largest numbers of each row and their places in it, the largest first. Equals: lower place
// first; not-a-number is above all.
//
// One workgroup per row, k up to 256:
//
// 1. Numbers become keys, whole numbers of the same order. Up to three rounds over their bits, most
//    significant first, narrow down the k-th: a histogram by the round's bits, summed from the
//    greatest down. They end when the greatest keys that are left fit a tile: mostly after one or
//    two.
// 2. These are collected as they come. Where more than a tile equal the k-th, the greater ones are,
//    and of those that equal it the lowest places.
// 3. A bitonic network sorts the tile in shared memory, and the first k give numbers and places.
//
// Bytes: 4 rows V, two to four times (six where most of a row is equal), from caches. Bound:
// latency; a row has one workgroup only. Bits are compared and copied, so nothing depends on how a
// device treats the smallest numbers.

//# import shared/common
//# import shared/order NAN_KEY=0xffffffffu
//# import shared/radix AMOUNTS_AT=ones_at
//# import shared/tile_sort

struct Params {
    n_rows: u32,
    width: u32,
    k: u32,
    x_offset: u32,
    values_offset: u32,
    ids_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
// The bits of numbers.
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;
@group(0) @binding(3) var<storage, read_write> ids: array<u32>;

const GROUP: u32 = 256u;
// Numbers that an invocation reads together, GROUP apart.
const BATCH: u32 = 4u;

var<workgroup> n_taken: atomic<u32>;
// Keys that may be among the greatest k, by the bits that are known.
var<workgroup> n_left: u32;

// Keys of BATCH numbers; beyond the last, its own again.
fn keys_at(row: u32, c: u32, n: u32) -> vec4<u32> {
    let first = p.x_offset + row * n;
    return vec4<u32>(
        key_of(x[first + min(c, n - 1u)]),
        key_of(x[first + min(c + GROUP, n - 1u)]),
        key_of(x[first + min(c + 2u * GROUP, n - 1u)]),
        key_of(x[first + min(c + 3u * GROUP, n - 1u)]),
    );
}

// 1 for each number of the batch that is there.
fn ones_at(row: u32, c: u32, n: u32) -> vec4<u32> {
    let all = vec4<u32>(c, c + GROUP, c + 2u * GROUP, c + 3u * GROUP);
    return select(vec4<u32>(0u), vec4<u32>(1u), all < vec4<u32>(n));
}

fn take(id: u32, key: u32) {
    let place = atomicAdd(&n_taken, 1u);
    if place < TILE {
        tile_ids[place] = id;
        // Lower for a greater key.
        tile_ranks[place] = ~key;
    }
}

// Takes what is greater than `key`, and what equals it if told so.
fn take_greater(row: u32, key: u32, or_equal: bool, lane: u32) {
    for (var c = lane; c < p.width; c += BATCH * GROUP) {
        let keys = keys_at(row, c, p.width);
        for (var i = 0u; i < BATCH; i++) {
            let is_taken = keys[i] > key || (or_equal && keys[i] == key);
            if is_taken && c + i * GROUP < p.width {
                take(c + i * GROUP, keys[i]);
            }
        }
    }
}

// Of what equals `key`, takes the `count` at the lowest places.
fn take_equal(row: u32, key: u32, count: u32, lane: u32) {
    let first = p.x_offset + row * p.width;
    // Each invocation has a run of places.
    let each = (p.width + GROUP - 1u) / GROUP;
    let start = min(lane * each, p.width);
    let end = min(start + each, p.width);
    var own = 0u;
    for (var c = start; c < end; c++) {
        own += u32(key_of(x[first + c]) == key);
    }
    var before = sum_before(own, lane);
    for (var c = start; c < end && before < count; c++) {
        if key_of(x[first + c]) == key {
            take(c, key);
            before += 1u;
        }
    }
}

@compute @workgroup_size(256)
fn top_k(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = flat_index(workgroup, grid);
    if row >= p.n_rows {
        return;
    }
    if lane == 0u {
        atomicStore(&n_taken, 0u);
    }

    // Bits of the k-th key that are known, and how many keys with these bits belong to the first k.
    var key = 0u;
    var count = p.k;
    var mask = 0u;
    var n_tile = 0u;
    for (var round = 0u; round < 3u; round++) {
        let shift = round_shift(round);
        let n_bins = round_bins(round);
        fill_bins(row, p.width, mask, key, shift, n_bins, lane);
        find_bin(count, lane);
        let bin = workgroupUniformLoad(&found_bin);
        count = workgroupUniformLoad(&found_left);
        key |= bin << shift;
        mask |= (n_bins - 1u) << shift;
        if lane == 0u {
            n_left = p.k - count + atomicLoad(&bins[bin]);
        }
        n_tile = workgroupUniformLoad(&n_left);
        if n_tile <= TILE {
            break;
        }
    }
    let all_fit = n_tile <= TILE;
    take_greater(row, key, all_fit, lane);
    if !all_fit {
        n_tile = p.k;
        take_equal(row, key, count, lane);
    }
    workgroupBarrier();
    sort_tile(n_tile, lane);
    if lane < p.k {
        let id = tile_ids[lane];
        ids[p.ids_offset + row * p.k + lane] = id;
        values[p.values_offset + row * p.k + lane] = x[p.x_offset + row * p.width + id];
    }
}
