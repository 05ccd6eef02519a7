// rest[h, c] = sizes[h, c] - takes[h, i] where clusters[h, i] = c, and sizes[h, c] where nothing
// was taken of c, for c < n_clusters[h].
//
// A workgroup owns SEGMENT clusters of a head. It brings their sizes to shared memory, goes through
// the head's whole selection for what was taken of its own, and writes what is left. A cluster is
// selected once at most, so no two invocations meet.
//
// Bytes: 4 a cluster in and out; the selection for each segment, from caches. Bound: memory; with
// few clusters, the launch. Shared memory 4 KiB.

//# import shared/common

const GROUP: u32 = 256u;
const SEGMENT: u32 = 1024u;

struct Params {
    n_kv_heads: u32,
    cluster_stride: u32,
    max_selected: u32,
    // Segments of a head.
    n_segments: u32,
    sizes_offset: u32,
    n_clusters_offset: u32,
    clusters_offset: u32,
    takes_offset: u32,
    n_selected_offset: u32,
    rest_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> sizes: array<u32>;
@group(0) @binding(2) var<storage, read> n_clusters: array<u32>;
@group(0) @binding(3) var<storage, read> clusters: array<u32>;
@group(0) @binding(4) var<storage, read> takes: array<u32>;
@group(0) @binding(5) var<storage, read> n_selected: array<u32>;
@group(0) @binding(6) var<storage, read_write> rest: array<u32>;

var<workgroup> left: array<u32, SEGMENT>;

@compute @workgroup_size(GROUP)
fn cluster_rest(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = flat_index(workgroup, grid);
    let head = number / p.n_segments;
    if head >= p.n_kv_heads {
        return;
    }
    let first = (number - head * p.n_segments) * SEGMENT;
    let in_use = min(n_clusters[p.n_clusters_offset + head], p.cluster_stride);
    if first >= in_use {
        return;
    }
    let n = min(in_use - first, SEGMENT);
    let at = head * p.cluster_stride + first;
    for (var i = lane; i < n; i += GROUP) {
        left[i] = sizes[p.sizes_offset + at + i];
    }
    workgroupBarrier();
    let selected = min(n_selected[p.n_selected_offset + head], p.max_selected);
    for (var i = lane; i < selected; i += GROUP) {
        let entry = head * p.max_selected + i;
        // A cluster before the segment wraps to far behind it.
        let cluster = clusters[p.clusters_offset + entry] - first;
        if cluster < n {
            let size = left[cluster];
            left[cluster] = size - min(size, takes[p.takes_offset + entry]);
        }
    }
    workgroupBarrier();
    for (var i = lane; i < n; i += GROUP) {
        rest[p.rest_offset + at + i] = left[i];
    }
}
