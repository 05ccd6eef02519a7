// rows[h] = starts[h, c] - first_row, .. + takes[h, i] - 1 for each selected cluster
// c = clusters[h, i], one after the other, behind the behind[h] entries that a list has; n_rows[h]
// with these, at most list_stride.
//
// A workgroup owns a tile of GROUP selected clusters of a head. It sums up what was taken before
// its tile, then lays the tile's clusters end to end: a scan of their takes, in which an invocation
// finds the cluster of the row that it writes. The last tile writes the number of rows. Takes of a
// head sum up to less than 2^32: they are tokens of a sequence.
//
// Bytes: 4 a row out; the takes before a tile, from caches. Bound: memory; with few rows, the
// launch. Shared memory 3.1 KiB.

//# import shared/common
//# import shared/selected_rows

const GROUP: u32 = 256u;

struct Params {
    n_kv_heads: u32,
    cluster_stride: u32,
    max_selected: u32,
    list_stride: u32,
    first_row: u32,
    // Tiles of a head, at least one.
    n_tiles: u32,
    // Whether lists have entries.
    appends: u32,
    starts_offset: u32,
    clusters_offset: u32,
    takes_offset: u32,
    n_selected_offset: u32,
    behind_offset: u32,
    rows_offset: u32,
    n_rows_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> starts: array<u32>;
@group(0) @binding(2) var<storage, read> clusters: array<u32>;
@group(0) @binding(3) var<storage, read> takes: array<u32>;
@group(0) @binding(4) var<storage, read> n_selected: array<u32>;
@group(0) @binding(5) var<storage, read> behind: array<u32>;
@group(0) @binding(6) var<storage, read_write> rows: array<u32>;
@group(0) @binding(7) var<storage, read_write> n_rows: array<u32>;

@compute @workgroup_size(GROUP)
fn cluster_rows(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = flat_index(workgroup, grid);
    let head = number / p.n_tiles;
    if head >= p.n_kv_heads {
        return;
    }
    let tile = (number - head * p.n_tiles) * GROUP;
    let n = min(n_selected[p.n_selected_offset + head], p.max_selected);
    // Where nothing is selected the first tile is the last.
    if tile >= max(n, 1u) {
        return;
    }
    var taken = 0u;
    for (var i = lane; i < tile; i += GROUP) {
        taken += takes[p.takes_offset + head * p.max_selected + i];
    }
    var first = shared_by_all(scan(taken, lane), lane, GROUP - 1u);
    if p.appends != 0u {
        first += min(behind[p.behind_offset + head], p.list_stride);
    }
    let end = min(first + load_tile(head, tile, n, lane), p.list_stride);
    let list = p.rows_offset + head * p.list_stride;
    for (var at = first + lane; at < end; at += GROUP) {
        rows[list + at] = row_of(at - first) - p.first_row;
    }
    if lane == 0u && n - min(tile, n) <= GROUP {
        n_rows[p.n_rows_offset + head] = end;
    }
}
