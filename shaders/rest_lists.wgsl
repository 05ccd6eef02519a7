// What a choice of single tokens left of their clusters. A workgroup owns a KV head.
//
// list_clusters: the clusters that lost tokens, in ascending order, and what is left of each.
//
// rest_of_groups: the tokens of each group of clusters, less those of its listed clusters. It comes
// after the list. Whole numbers have no order.
//
// Bytes: 4 a cluster, 8 a listed one. Bound: the launch, and a scan for every GROUP clusters.

//# import shared/scan

const GROUP: u32 = 256u;

struct Params {
    n_kv_heads: u32,
    cluster_stride: u32,
    group_stride: u32,
    list_stride: u32,
    sizes_offset: u32,
//# if GROUPS
    group_of_offset: u32,
    group_tokens_offset: u32,
    n_groups_offset: u32,
    clusters_offset: u32,
    n_listed_offset: u32,
    rest_offset: u32,
//# else
    n_clusters_offset: u32,
    lost_offset: u32,
    clusters_offset: u32,
    left_offset: u32,
    n_listed_offset: u32,
//# end
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> sizes: array<u32>;

//# if GROUPS
@group(0) @binding(2) var<storage, read> group_of: array<u32>;
@group(0) @binding(3) var<storage, read> group_tokens: array<u32>;
@group(0) @binding(4) var<storage, read> n_groups: array<u32>;
@group(0) @binding(5) var<storage, read> clusters: array<u32>;
@group(0) @binding(6) var<storage, read> n_listed: array<u32>;
@group(0) @binding(7) var<storage, read_write> rest: array<atomic<u32>>;

@compute @workgroup_size(GROUP)
fn rest_of_groups(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let head = workgroup.x;
    let in_use = min(n_groups[p.n_groups_offset + head], p.group_stride);
    let listed = min(n_listed[p.n_listed_offset + head], p.list_stride);
    let first = head * p.group_stride;
    for (var i = lane; i < in_use; i += GROUP) {
        let tokens = group_tokens[p.group_tokens_offset + first + i];
        atomicStore(&rest[p.rest_offset + first + i], tokens);
    }
    storageBarrier();
    for (var i = lane; i < listed; i += GROUP) {
        let cluster = clusters[p.clusters_offset + head * p.list_stride + i];
        let at = head * p.cluster_stride + min(cluster, p.cluster_stride - 1u);
        let group = group_of[p.group_of_offset + at];
        if group < in_use {
            atomicSub(&rest[p.rest_offset + first + group], sizes[p.sizes_offset + at]);
        }
    }
}
//# else
@group(0) @binding(2) var<storage, read> n_clusters: array<u32>;
@group(0) @binding(3) var<storage, read> lost: array<u32>;
@group(0) @binding(4) var<storage, read_write> clusters: array<u32>;
@group(0) @binding(5) var<storage, read_write> left: array<u32>;
@group(0) @binding(6) var<storage, read_write> n_listed: array<u32>;

@compute @workgroup_size(GROUP)
fn list_clusters(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let head = workgroup.x;
    let in_use = min(n_clusters[p.n_clusters_offset + head], p.cluster_stride);
    let n = shared_by_all(in_use, lane, 0u);
    let own = head * p.list_stride;
    var listed = 0u;
    for (var first = 0u; first < n; first += GROUP) {
        let cluster = first + lane;
        let at = head * p.cluster_stride + cluster;
        var gone = 0u;
        if cluster < n {
            gone = lost[p.lost_offset + at];
        }
        let end = scan(u32(gone > 0u), lane);
        let place = listed + end - 1u;
        if gone > 0u && place < p.list_stride {
            let size = sizes[p.sizes_offset + at];
            clusters[p.clusters_offset + own + place] = cluster;
            left[p.left_offset + own + place] = size - min(size, gone);
        }
        listed += shared_by_all(end, lane, GROUP - 1u);
    }
    if lane == 0u {
        n_listed[p.n_listed_offset + head] = min(listed, p.list_stride);
    }
}
//# end
