// Entries that a workgroup of GROUP invocations sorts in shared memory, by rank and then by id: a
// bitonic network, two entries for each invocation. A barrier comes before; none is needed after.

const TILE: u32 = 2u * GROUP;

var<workgroup> tile_ranks: array<u32, TILE>;
var<workgroup> tile_ids: array<u32, TILE>;

fn is_after(rank: u32, id: u32, other_rank: u32, other_id: u32) -> bool {
    return rank > other_rank || (rank == other_rank && id > other_id);
}

// Puts entries i < j of the tile in order; what lies beyond `n` counts as greatest.
fn order_in_tile(i: u32, j: u32, n: u32) {
    if j < n && is_after(tile_ranks[i], tile_ids[i], tile_ranks[j], tile_ids[j]) {
        let rank = tile_ranks[i];
        let id = tile_ids[i];
        tile_ranks[i] = tile_ranks[j];
        tile_ids[i] = tile_ids[j];
        tile_ranks[j] = rank;
        tile_ids[j] = id;
    }
}

// The first step of a merge to runs of `size`: an entry meets its mirror image.
fn mirrored(pair: u32, size: u32) -> vec2<u32> {
    let start = pair / (size / 2u) * size;
    let at = pair % (size / 2u);
    return vec2<u32>(start + at, start + size - 1u - at);
}

fn beside(pair: u32, stride: u32) -> vec2<u32> {
    let first = pair / stride * 2u * stride + pair % stride;
    return vec2<u32>(first, first + stride);
}

// Sorts the first `n` entries.
fn sort_tile(n: u32, lane: u32) {
    for (var size = 2u; size < 2u * n; size *= 2u) {
        let pair = mirrored(lane, size);
        order_in_tile(pair.x, pair.y, n);
        workgroupBarrier();
        for (var stride = size / 4u; stride > 0u; stride /= 2u) {
            let pair = beside(lane, stride);
            order_in_tile(pair.x, pair.y, n);
            workgroupBarrier();
        }
    }
}

// The end of a merge: the steps that stay inside of a tile.
fn merge_tile(n: u32, lane: u32) {
    for (var stride = TILE / 2u; stride > 0u; stride /= 2u) {
        let pair = beside(lane, stride);
        order_in_tile(pair.x, pair.y, n);
        workgroupBarrier();
    }
}
