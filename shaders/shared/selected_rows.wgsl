// The rows of selected clusters, a tile of GROUP clusters at a time.
//
// Needs the bindings `clusters` and `takes` [Hkv, max_selected] and `starts` [Hkv, cluster_stride]
// with their offsets in `p`. GROUP is 256.

//# import shared/scan

// Tokens before each selected cluster of a tile, and behind the last one.
var<workgroup> before: array<u32, GROUP + 1u>;
// Host row of the first token of each cluster of a tile.
var<workgroup> first_row: array<u32, GROUP>;

// Loads a tile of selected clusters; returns its tokens.
fn load_tile(head: u32, first: u32, n: u32, lane: u32) -> u32 {
    var take = 0u;
    var start = 0u;
    if first + lane < n {
        let entry = head * p.max_selected + first + lane;
        let cluster = min(clusters[p.clusters_offset + entry], p.cluster_stride - 1u);
        take = takes[p.takes_offset + entry];
        start = starts[p.starts_offset + head * p.cluster_stride + cluster];
    }
    let end = scan(take, lane);
    before[lane + 1u] = end;
    first_row[lane] = start;
    if lane == 0u {
        before[0] = 0u;
    }
    return shared_by_all(end, lane, GROUP - 1u);
}

// The host row of token `at` of the tile.
fn row_of(at: u32) -> u32 {
    var low = 0u;
    var high = GROUP - 1u;
    // The last cluster with at most `at` tokens before it.
    for (var step = 0u; step < 8u; step++) {
        let middle = (low + high + 1u) / 2u;
        if before[middle] <= at {
            low = middle;
        } else {
            high = middle - 1u;
        }
    }
    return first_row[low] + at - before[low];
}
