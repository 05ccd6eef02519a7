// rows[h] = starts[h, c] - first_row + 0, 1, ... below takes[h, i] for c = clusters[h, i], one i
// after the other, behind the behind[h] entries that a list has (null: none), and n_rows[h] = how
// many with these, at most list_stride: the rows of a selection. starts is [Hkv, cluster_stride],
// clusters and takes [Hkv, max_selected], of which n_selected[h] are in use, rows
// [Hkv, list_stride].
//
// A block owns a head. It goes through the selection in tiles of as many clusters as it has
// threads: a sum over the threads says where in the list each of them begins, then a thread finds
// the cluster of a row by bisection, and neighbours write neighbouring rows.
//
// Bytes: 12 a selected cluster, 4 a row. Bound: latency.
#include "shared/selection.cuh"

struct ClusterRowsArgs {
    const u32* starts;
    const u32* clusters;
    const u32* takes;
    const u32* n_selected;
    const u32* behind;
    u32* rows;
    u32* n_rows;
    u32 cluster_stride;
    u32 max_selected;
    u32 list_stride;
    u32 first_row;
};

constexpr u32 THREADS = 512;

KERNEL(cluster_rows, ClusterRowsArgs, THREADS) {
    SHARED(Wanted<THREADS>, tiles, 1);
    SHARED(u32, parts, THREADS / WARP);
    Wanted<THREADS>& wanted = tiles[0];
    const u32 head = blockIdx.x;
    const u32 n = min_of(p.n_selected[head], p.max_selected);
    u32* const rows = p.rows + static_cast<u64>(head) * p.list_stride;
    u32 n_rows = p.behind == nullptr ? 0 : min_of(p.behind[head], p.list_stride);
    for (u32 first = 0; first < n && n_rows < p.list_stride; first += THREADS) {
        const u32 n_tokens = load_tile(p, first, n, wanted, parts);
        const u32 n_fit = min_of(n_tokens, p.list_stride - n_rows);
        for (u32 at = threadIdx.x; at < n_fit; at += THREADS) {
            rows[n_rows + at] = row_of(wanted, at) - p.first_row;
        }
        n_rows += n_fit;
    }
    if (threadIdx.x == 0) {
        p.n_rows[head] = n_rows;
    }
}
