// Attention mass of each cluster of a KV head, one sequence:
//
//   logit[g, c] = scale * q[g] . centroid[c]
//   mass[g, c]  = w[c] e^logit[g, c] / sum_i w[i] e^logit[g, i]      w: size of c, or 1
//   score[c]    = sum or maximum over the query heads g of the group
//
// or, without a softmax, score[c] = sum_g logit[g, c], over the group or over all heads.
//
// `logits`: a workgroup owns BLOCK clusters of a KV head and HEADS query heads of the group (nearly
// always all of them, so that a centroid is read once); LANES invocations share a centroid, 8
// channels at a time. It leaves the logits and, per query head, its block's (maximum, sum). With
// LISTED, c is an entry of a list of clusters, all of weight 1.
// `pool`: a workgroup joins these pairs over all blocks and then writes its share of the scores.
// `logits` with RAW: sums of products with one centroid are a product with the sum of the queries,
// so that there is one query and its logits are the scores.
// `share`: an invocation adds up one cluster's scores of all KV heads and gives them to all.
//
// Bound by the bytes of the centroids. The host knows only the room for clusters: workgroups beyond
// the clusters in use leave at once. Clusters in use come from the device.

//# import shared/common

struct Params {
    n_tokens: u32,
    n_q_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    score_stride: u32,
    scale: f32,
    pooling: u32,
    q_index: u32,
    cluster_stride: u32,
    // Clusters that both strides leave room for: from one head's logits to the next.
    room: u32,
    n_blocks: u32,
    // First score of the sequence, and scores of a workgroup.
    first_score: u32,
    share: u32,
    // Where RAW puts the sums, and from one head's to the next.
    first_sum: u32,
    sum_stride: u32,
    q_offset: u32,
    centroids_offset: u32,
    sizes_offset: u32,
    n_clusters_offset: u32,
    ids_offset: u32,
    // Ids from one head to the next.
    id_stride: u32,
    // Where the centroid of cluster 0 of a list lies, and from one to the next.
    first_placed: u32,
    placed_step: u32,
}

const LANES: u32 = 4u;
// Channels of the queries in shared memory, as vectors.
const TILE: u32 = 32u;

@group(0) @binding(0) var<uniform> p: Params;

@group(0) @binding(1) var<storage, read> sizes: array<u32>;
@group(0) @binding(2) var<storage, read> n_clusters: array<u32>;

fn in_use(head: u32) -> u32 {
    return min(n_clusters[p.n_clusters_offset + head], p.room);
}

fn weight_of(head: u32, cluster: u32) -> f32 {
    if p.pooling == SIZE_WEIGHTED {
        return f32(sizes[p.sizes_offset + head * p.cluster_stride + cluster]);
    }
    return 1.0;
}

var<workgroup> pairs: array<vec2<f32>, 256>;

fn held_pair(lane: u32) -> vec2<f32> {
    return pairs[lane];
}

fn hold_pair(lane: u32, pair: vec2<f32>) {
    pairs[lane] = pair;
}

//# import shared/pool

//# if POOL
@group(0) @binding(3) var<storage, read> scratch: array<f32>;
@group(0) @binding(4) var<storage, read_write> scores: array<f32>;

fn number(i: u32) -> f32 {
    return scratch[i];
}

fn score(head: u32, c: u32) -> f32 {
    return scores[p.first_score + head * p.score_stride + c];
}

fn put_score(head: u32, c: u32, x: f32) {
    scores[p.first_score + head * p.score_stride + c] = x;
}

@compute @workgroup_size(256)
fn pool(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let head = workgroup.y;
    let n = in_use(head);
    let start = workgroup.x * p.share;
    if start >= n {
        return;
    }
    pool_share(head, start, min(start + p.share, n), n, lane);
}
//# else
//# if SHARE
@group(0) @binding(3) var<storage, read> sums: array<f32>;
@group(0) @binding(4) var<storage, read_write> scores: array<f32>;

@compute @workgroup_size(256)
fn share(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let c = workgroup.x * 256u + lane;
    // All heads have as many clusters as the first.
    if c >= in_use(0u) {
        return;
    }
    var sum = 0.0;
    for (var head = 0u; head < p.n_kv_heads; head++) {
        sum += sums[p.first_sum + head * p.sum_stride + c];
    }
    for (var head = 0u; head < p.n_kv_heads; head++) {
        scores[p.first_score + head * p.score_stride + c] = sum;
    }
}
//# else
//# import shared/packed X=centroids KIND=CENTROID_KIND

@group(0) @binding(3) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read> centroids: array<centroids_unit>;
//# if RAW
@group(0) @binding(5) var<storage, read_write> sums_out: array<f32>;
//# else
@group(0) @binding(5) var<storage, read_write> scratch: array<f32>;
//# end
//# if LISTED
@group(0) @binding(6) var<storage, read> ids: array<u32>;
//# end

var<workgroup> q_tile: array<vec4<f32>, HEADS * TILE>;
// Partial products, [HEADS][BLOCK][LANES].
var<workgroup> parts: array<f32, HEADS * BLOCK * LANES>;

// Channels k to k + 3 of the centroid at `row`; 0 beyond its width.
fn centroid4(row: u32, k: u32) -> vec4<f32> {
//# if VECTOR
    return centroids_load4(row + k);
//# else
    var x = vec4<f32>(0.0);
    if k < p.head_dim {
        x.x = centroids_load(row + k);
    }
    if k + 1u < p.head_dim {
        x.y = centroids_load(row + k + 1u);
    }
    if k + 2u < p.head_dim {
        x.z = centroids_load(row + k + 2u);
    }
    if k + 3u < p.head_dim {
        x.w = centroids_load(row + k + 3u);
    }
    return x;
//# end
}

fn query(row: u32, k: u32) -> f32 {
    if k >= p.head_dim {
        return 0.0;
    }
//# if RAW
    var sum = 0.0;
    for (var g = 0u; g < p.n_q_heads / p.n_kv_heads; g++) {
        sum += q[row + g * p.head_dim + k];
    }
    return sum * p.scale;
//# else
    return q[row + k] * p.scale;
//# end
}

@compute @workgroup_size(256)
fn logits(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let head = workgroup.y;
    let n = in_use(head);
    let start = workgroup.x * BLOCK;
    if start >= n {
        return;
    }
    let group = p.n_q_heads / p.n_kv_heads;
    let first = workgroup.z * HEADS;
    let n_heads = min(HEADS, group - first);
    let first_q = head * group + first;
    let q_row = p.q_offset + (p.q_index * p.n_q_heads + first_q) * p.head_dim;
    // Rows beyond the last read the last again.
    var cluster = min(start + lane / LANES, n - 1u);
//# if LISTED
    cluster = p.first_placed + ids[p.ids_offset + head * p.id_stride + cluster] * p.placed_step;
    cluster = min(cluster, p.cluster_stride - 1u);
//# end
    let row = p.centroids_offset + (head * p.cluster_stride + cluster) * p.head_dim;

    var sums: array<f32, HEADS>;
    for (var g = 0u; g < HEADS; g++) {
        sums[g] = 0.0;
    }
    for (var k0 = 0u; k0 < p.head_dim; k0 += 4u * TILE) {
        workgroupBarrier();
        for (var i = lane; i < n_heads * TILE; i += 256u) {
            let at = q_row + i / TILE * p.head_dim;
            let k = k0 + i % TILE * 4u;
            q_tile[i] =
                vec4<f32>(query(at, k), query(at, k + 1u), query(at, k + 2u), query(at, k + 3u));
        }
        workgroupBarrier();
        let width = min(4u * TILE, p.head_dim - k0);
        for (var k = lane % LANES * 8u; k < width; k += LANES * 8u) {
            let a = centroid4(row, k0 + k);
            let b = centroid4(row, k0 + k + 4u);
            for (var g = 0u; g < HEADS; g++) {
                let at = g * TILE + k / 4u;
                sums[g] += dot(a, q_tile[at]) + dot(b, q_tile[at + 1u]);
            }
        }
    }
    for (var g = 0u; g < HEADS; g++) {
        parts[g * BLOCK * LANES + lane] = sums[g];
    }
    workgroupBarrier();

//# if RAW
    if lane < min(BLOCK, n - start) {
        let at = lane * LANES;
        let logit = (parts[at] + parts[at + 1u]) + (parts[at + 2u] + parts[at + 3u]);
        sums_out[p.first_sum + head * p.sum_stride + start + lane] = logit;
    }
//# else
    // 32 invocations for each query head, two clusters each.
    let g = lane / 32u;
    var pair = vec2<f32>(LOWEST, 0.0);
    if g < n_heads {
        for (var i = lane % 32u; i < min(BLOCK, n - start); i += 32u) {
            let at = (g * BLOCK + i) * LANES;
            let logit = (parts[at] + parts[at + 1u]) + (parts[at + 2u] + parts[at + 3u]);
            scratch[(first_q + g) * p.room + start + i] = logit;
            pair = join(pair, vec2<f32>(logit, weight_of(head, start + i)));
        }
    }
    pair = join_pairs(pair, lane);
    if g < n_heads && lane % 32u == 0u {
        let at = p.n_q_heads * p.room + 2u * ((first_q + g) * p.n_blocks + workgroup.x);
        scratch[at] = pair.x;
        scratch[at + 1u] = pair.y;
    }
//# end
}
//# end
//# end
