// The clusters of each KV head, best first, until their sizes fill the budget; the last is trimmed.
// Rank: greater score, then lower id; not-a-number last. Empty clusters are never taken.
//
// One workgroup per KV head of a sequence, any number of clusters:
//
// 1. Scores become keys, whole numbers of the same order. Three rounds over their bits, most
//    significant first, find the key at which the budget is reached: a histogram of tokens by the
//    round's bits, summed from the greatest down.
// 2. Greater keys are collected as they come; of those that equal it (mostly one), the lowest ids
//    until the budget is full.
// 3. What was collected is sorted in the output buffers by a bitonic network, tiles of it in shared
//    memory, and the keys give way to the tokens taken.
//
// Reads scores and sizes four times, from caches, BATCH at a time; bound by latency. Comparisons
// are of bits, so nothing depends on how a device treats the smallest numbers. The sizes of a head
// sum up to less than 2^32: they are tokens of a sequence.
//
// With LISTED, what is chosen from are entries of a list: entry i is cluster ids[i]. All of the
// above is then about entries, until the clusters' numbers replace theirs at the end.
//
// With POOL the workgroup first makes the scores, of what `logits` of `centroid_scores` left: a
// dispatch less. They go to `scores`, or with LISTED to the end of `scratch`.

//# import shared/common
//# import shared/order NAN_KEY=0u
//# import shared/radix AMOUNTS_AT=sizes_at
//# import shared/tile_sort

struct Params {
    n_kv_heads: u32,
    score_stride: u32,
    max_selected: u32,
    // Whether the order is that of ids, not of ranks; clusters have one token then.
    by_id: u32,
    // Heads of the sequences before this one.
    first_head: u32,
    cluster_stride: u32,
    scores_offset: u32,
    sizes_offset: u32,
    n_clusters_offset: u32,
    budgets_offset: u32,
    clusters_offset: u32,
    takes_offset: u32,
    n_selected_offset: u32,
    ids_offset: u32,
    // Ids from one head to the next.
    id_stride: u32,
//# if POOL
    // As in `centroid_scores`.
    n_q_heads: u32,
    pooling: u32,
    room: u32,
    n_blocks: u32,
//# end
}

@group(0) @binding(0) var<uniform> p: Params;
// The bits of numbers.
//# if POOL
//# if LISTED
@group(0) @binding(1) var<storage, read_write> scratch: array<u32>;
//# else
@group(0) @binding(1) var<storage, read> scratch: array<u32>;
@group(0) @binding(8) var<storage, read_write> scores: array<u32>;
//# end
//# else
@group(0) @binding(1) var<storage, read> scores: array<u32>;
//# end
@group(0) @binding(2) var<storage, read> sizes: array<u32>;
@group(0) @binding(3) var<storage, read> n_clusters: array<u32>;
@group(0) @binding(4) var<storage, read> budgets: array<u32>;
@group(0) @binding(5) var<storage, read_write> clusters: array<u32>;
@group(0) @binding(6) var<storage, read_write> takes: array<u32>;
@group(0) @binding(7) var<storage, read_write> n_selected: array<u32>;
//# if LISTED
@group(0) @binding(8) var<storage, read> listed: array<u32>;
//# end

const GROUP: u32 = 256u;
// Clusters that an invocation reads together, GROUP apart.
const BATCH: u32 = 4u;
const NONE: u32 = 0xffffffffu;

var<workgroup> n_collected: atomic<u32>;
var<workgroup> n_equal: atomic<u32>;
var<workgroup> equal_id: atomic<u32>;
// Counts, when they are final.
var<workgroup> final_equal: u32;
var<workgroup> n_sorted: u32;
// Tokens taken of the last cluster, at most.
var<workgroup> last_take: u32;

// The score of a cluster, or an entry, as a key.
fn key_at(head: u32, c: u32) -> u32 {
    let at = p.scores_offset + (p.first_head + head) * p.score_stride + c;
//# if POOL
//# if LISTED
    return key_of(scratch[at]);
//# else
    return key_of(scores[at]);
//# end
//# else
    return key_of(scores[at]);
//# end
}

// Keys of BATCH clusters; beyond the last, its own again.
fn keys_at(head: u32, c: u32, n: u32) -> vec4<u32> {
    return vec4<u32>(
        key_at(head, min(c, n - 1u)),
        key_at(head, min(c + GROUP, n - 1u)),
        key_at(head, min(c + 2u * GROUP, n - 1u)),
        key_at(head, min(c + 3u * GROUP, n - 1u)),
    );
}

// The cluster of an entry.
fn cluster_at(head: u32, c: u32) -> u32 {
//# if LISTED
    return min(listed[p.ids_offset + head * p.id_stride + c], p.cluster_stride - 1u);
//# else
    return c;
//# end
}

fn size_at(head: u32, c: u32) -> u32 {
    return sizes[p.sizes_offset + head * p.cluster_stride + cluster_at(head, c)];
}

// Sizes of BATCH clusters; 0 beyond the last.
fn sizes_at(head: u32, c: u32, n: u32) -> vec4<u32> {
    let found = vec4<u32>(
        size_at(head, min(c, n - 1u)),
        size_at(head, min(c + GROUP, n - 1u)),
        size_at(head, min(c + 2u * GROUP, n - 1u)),
        size_at(head, min(c + 3u * GROUP, n - 1u)),
    );
    let all = vec4<u32>(c, c + GROUP, c + 2u * GROUP, c + 3u * GROUP);
    return select(vec4<u32>(0u), found, all < vec4<u32>(n));
}

//# if POOL
fn weight_of(head: u32, cluster: u32) -> f32 {
    if p.pooling == SIZE_WEIGHTED {
        return f32(sizes[p.sizes_offset + head * p.cluster_stride + cluster]);
    }
    return 1.0;
}

// Pairs lie where sums will: shared memory is full.
fn held_pair(lane: u32) -> vec2<f32> {
    return vec2<f32>(bitcast<f32>(sums[2u * lane]), bitcast<f32>(sums[2u * lane + 1u]));
}

fn hold_pair(lane: u32, pair: vec2<f32>) {
    sums[2u * lane] = bitcast<u32>(pair.x);
    sums[2u * lane + 1u] = bitcast<u32>(pair.y);
}

fn number(i: u32) -> f32 {
    return bitcast<f32>(scratch[i]);
}

fn score(head: u32, c: u32) -> f32 {
    let at = p.scores_offset + head * p.score_stride + c;
//# if LISTED
    return bitcast<f32>(scratch[at]);
//# else
    return bitcast<f32>(scores[at]);
//# end
}

fn put_score(head: u32, c: u32, x: f32) {
    let at = p.scores_offset + head * p.score_stride + c;
//# if LISTED
    scratch[at] = bitcast<u32>(x);
//# else
    scores[at] = bitcast<u32>(x);
//# end
}

//# import shared/pool
//# end

fn take(head: u32, cluster: u32, key: u32) {
    let place = atomicAdd(&n_collected, 1u);
    if place < p.max_selected {
        let out = (p.first_head + head) * p.max_selected + place;
        clusters[p.clusters_offset + out] = cluster;
        // Until all are sorted: a rank, lower for a greater key; equal ranks are sorted by id.
        takes[p.takes_offset + out] = select(~key, 0u, p.by_id != 0u);
    }
}

// Takes what is greater than `key`, and notes what equals it.
fn take_greater(head: u32, n: u32, key: u32, lane: u32) {
    for (var c = lane; c < n; c += BATCH * GROUP) {
        let keys = keys_at(head, c, n);
        let counts = sizes_at(head, c, n);
        for (var i = 0u; i < BATCH; i++) {
            if counts[i] > 0u && keys[i] > key {
                take(head, c + i * GROUP, keys[i]);
            } else if counts[i] > 0u && keys[i] == key {
                atomicAdd(&n_equal, 1u);
                atomicStore(&equal_id, c + i * GROUP);
            }
        }
    }
}

// Of what equals `key`, takes the lowest ids until `left` is reached.
fn take_equal(head: u32, n: u32, key: u32, left: u32, lane: u32) {
    // Each invocation has a run of ids.
    let each = (n + GROUP - 1u) / GROUP;
    let start = min(lane * each, n);
    let end = min(start + each, n);
    var own = 0u;
    for (var c = start; c < end; c++) {
        if key_at(head, c) == key {
            own += size_at(head, c);
        }
    }
    var before = sum_before(own, lane);
    for (var c = start; c < end; c++) {
        let size = size_at(head, c);
        if size > 0u && before < left && key_at(head, c) == key {
            take(head, c, key);
            if left - before <= size {
                last_take = left - before;
            }
            before += size;
        }
    }
}

// As order_in_tile, for entries of the output.
fn order_in_output(ids: u32, ranks: u32, i: u32, j: u32, n: u32) {
    if j < n {
        let rank = takes[ranks + i];
        let id = clusters[ids + i];
        let other_rank = takes[ranks + j];
        let other_id = clusters[ids + j];
        if is_after(rank, id, other_rank, other_id) {
            takes[ranks + i] = other_rank;
            clusters[ids + i] = other_id;
            takes[ranks + j] = rank;
            clusters[ids + j] = id;
        }
    }
}

// For each tile: the whole network if `from_start`, else only the end of a merge.
fn sort_tiles(ids: u32, ranks: u32, n: u32, from_start: bool, lane: u32) {
    for (var start = 0u; start < n; start += TILE) {
        let in_tile = min(TILE, n - start);
        for (var i = lane; i < in_tile; i += GROUP) {
            tile_ranks[i] = takes[ranks + start + i];
            tile_ids[i] = clusters[ids + start + i];
        }
        workgroupBarrier();
        if from_start {
            sort_tile(in_tile, lane);
        } else {
            merge_tile(in_tile, lane);
        }
        for (var i = lane; i < in_tile; i += GROUP) {
            takes[ranks + start + i] = tile_ranks[i];
            clusters[ids + start + i] = tile_ids[i];
        }
        storageBarrier();
        workgroupBarrier();
    }
}

// The part of a merge to runs of `size` whose steps are wider than a tile.
fn merge_wide(ids: u32, ranks: u32, n: u32, size: u32, lane: u32) {
    let n_pairs = (n + size - 1u) / size * (size / 2u);
    for (var i = lane; i < n_pairs; i += GROUP) {
        let pair = mirrored(i, size);
        order_in_output(ids, ranks, pair.x, pair.y, n);
    }
    storageBarrier();
    workgroupBarrier();
    for (var stride = size / 4u; stride >= TILE; stride /= 2u) {
        for (var i = lane; i < n_pairs; i += GROUP) {
            let pair = beside(i, stride);
            order_in_output(ids, ranks, pair.x, pair.y, n);
        }
        storageBarrier();
        workgroupBarrier();
    }
}

@compute @workgroup_size(256)
fn select_clusters(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let head = workgroup.x;
    let in_use = n_clusters[p.n_clusters_offset + head];
//# if LISTED
    let n = min(in_use, min(p.id_stride, p.score_stride));
//# else
    let n = min(in_use, min(p.cluster_stride, p.score_stride));
//# end
    let asked = budgets[p.budgets_offset + head];
    // The contract promises room; without it the budget is what surely fits.
    let budget = select(asked, p.max_selected, min(n, asked) > p.max_selected);
    if n == 0u || budget == 0u {
        if lane == 0u {
            n_selected[p.n_selected_offset + p.first_head + head] = 0u;
        }
        return;
    }
    if lane == 0u {
        atomicStore(&n_collected, 0u);
        atomicStore(&n_equal, 0u);
        last_take = NONE;
    }
//# if POOL
    pool_share(head, 0u, n, n, lane);
    storageBarrier();
    workgroupBarrier();
//# end

    // Bits of the key that are known, and the tokens still to be found below what is greater.
    var key = 0u;
    var left = budget;
    var mask = 0u;
    for (var round = 0u; round < 3u; round++) {
        let shift = round_shift(round);
        let n_bins = round_bins(round);
        fill_bins(head, n, mask, key, shift, n_bins, lane);
        find_bin(left, lane);
        let bin = workgroupUniformLoad(&found_bin);
        if bin == NO_BIN {
            // All there is.
            left = NONE;
            break;
        }
        left = workgroupUniformLoad(&found_left);
        key |= bin << shift;
        mask |= (n_bins - 1u) << shift;
    }
    take_greater(head, n, key, lane);
    workgroupBarrier();
    if lane == 0u {
        final_equal = atomicLoad(&n_equal);
    }
    if workgroupUniformLoad(&final_equal) > 1u {
        take_equal(head, n, key, left, lane);
    } else if lane == 0u && final_equal == 1u {
        take(head, atomicLoad(&equal_id), key);
        last_take = left;
    }
    storageBarrier();
    workgroupBarrier();

    if lane == 0u {
        n_sorted = min(atomicLoad(&n_collected), p.max_selected);
        n_selected[p.n_selected_offset + p.first_head + head] = n_sorted;
    }
    let count = workgroupUniformLoad(&n_sorted);
    let out = (p.first_head + head) * p.max_selected;
    let ids = p.clusters_offset + out;
    let ranks = p.takes_offset + out;
    sort_tiles(ids, ranks, count, true, lane);
    for (var size = 2u * TILE; size < 2u * count; size *= 2u) {
        merge_wide(ids, ranks, count, size, lane);
        sort_tiles(ids, ranks, count, false, lane);
    }
    for (var i = lane; i < count; i += GROUP) {
        let entry = clusters[ids + i];
        let size = size_at(head, entry);
        takes[ranks + i] = select(size, min(size, last_take), i + 1u == count);
        clusters[ids + i] = cluster_at(head, entry);
    }
}
