// counts[h, c] = how many of the chosen tokens cluster c owns, for all clusters in use: of `chosen`
// [Hkv, max_selected] n_selected[h] are, and `owners` [Hkv, owner_stride] has the cluster of each
// token.
//
// A workgroup owns a head: it clears the counts, then adds. Whole numbers have no order.
//
// Bytes: 4 a cluster, and 8 a token. Bound: the launch.

const GROUP: u32 = 256u;

struct Params {
    n_kv_heads: u32,
    owner_stride: u32,
    cluster_stride: u32,
    max_selected: u32,
    owners_offset: u32,
    chosen_offset: u32,
    n_selected_offset: u32,
    n_clusters_offset: u32,
    counts_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> owners: array<u32>;
@group(0) @binding(2) var<storage, read> chosen: array<u32>;
@group(0) @binding(3) var<storage, read> n_selected: array<u32>;
@group(0) @binding(4) var<storage, read> n_clusters: array<u32>;
@group(0) @binding(5) var<storage, read_write> counts: array<atomic<u32>>;

@compute @workgroup_size(GROUP)
fn owner_counts(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let head = workgroup.x;
    let in_use = min(n_clusters[p.n_clusters_offset + head], p.cluster_stride);
    let selected = min(n_selected[p.n_selected_offset + head], p.max_selected);
    let own = p.counts_offset + head * p.cluster_stride;
    for (var i = lane; i < in_use; i += GROUP) {
        atomicStore(&counts[own + i], 0u);
    }
    storageBarrier();
    for (var i = lane; i < selected; i += GROUP) {
        let token = chosen[p.chosen_offset + head * p.max_selected + i];
        if token < p.owner_stride {
            let cluster = owners[p.owners_offset + head * p.owner_stride + token];
            if cluster < in_use {
                atomicAdd(&counts[own + cluster], 1u);
            }
        }
    }
}
