// centroid = mean of the points with its label; without any it stays. count = their number.
//
// A workgroup owns CLUSTERS clusters and 64 channels of a head. It reads all labels, ROUND at a
// time, and notes its clusters' members as bits in shared memory; a team of 16 invocations then
// adds up the members of its two clusters, 4 channels each, in registers. Members are added in
// order of their number, so the result does not depend on who came first, and no scratch is needed.
//
// Bound by reading the points once (4 N Dh bytes); the labels come from caches, N C / 8 bytes for
// each 64 channels.

struct Params {
    n_kv_heads: u32,
    n_points: u32,
    n_clusters: u32,
    head_dim: u32,
    distance: u32,
    points_offset: u32,
    labels_offset: u32,
    centroids_offset: u32,
    counts_offset: u32,
}

const GROUP: u32 = 256u;
const TEAM: u32 = 16u;
const CLUSTERS: u32 = 2u * GROUP / TEAM;
// A word of bits for each bit of a word.
const WORDS: u32 = 32u;
const ROUND: u32 = 32u * WORDS;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> points: array<points_unit>;
@group(0) @binding(2) var<storage, read> labels: array<u32>;
@group(0) @binding(3) var<storage, read_write> centroids: array<f32>;
@group(0) @binding(4) var<storage, read_write> counts: array<u32>;

//# import shared/row4 X=points

// Bits of the members, and which words of them are not 0.
var<workgroup> members: array<atomic<u32>, CLUSTERS * WORDS>;
var<workgroup> filled: array<atomic<u32>, CLUSTERS>;

struct Sum {
    total: vec4<f32>,
    count: u32,
}

// The point of the lowest of these bits of a word; 0 without.
fn member(bits: u32, word: u32, row: u32, k: u32) -> vec4<f32> {
    if bits == 0u {
        return vec4<f32>(0.0);
    }
    let i = word * 32u + firstTrailingBit(bits);
    return points_row4(row + i * p.head_dim, k, p.head_dim);
}

// Adds the members of a cluster in this round, which begins with the point at `row`.
fn add_members(sum: Sum, cluster: u32, row: u32, k: u32) -> Sum {
    var total = sum.total;
    var count = sum.count;
    // Each turn clears the lowest bits: at most 32 turns.
    for (var words = atomicLoad(&filled[cluster]); words != 0u; words &= words - 1u) {
        let word = firstTrailingBit(words);
        let bits = atomicLoad(&members[cluster * WORDS + word]);
        count += countOneBits(bits);
        // Four at a time: in a large cluster the loads need not wait for each other.
        for (var left = bits; left != 0u;) {
            let second = left & (left - 1u);
            let third = second & (second - 1u);
            let fourth = third & (third - 1u);
            let a = member(left, word, row, k);
            let b = member(second, word, row, k);
            let c = member(third, word, row, k);
            let d = member(fourth, word, row, k);
            total = total + a + b + c + d;
            left = fourth & (fourth - 1u);
        }
    }
    return Sum(total, count);
}

fn put(sum: Sum, head: u32, cluster: u32, k: u32) {
    if cluster >= p.n_clusters {
        return;
    }
    let at = head * p.n_clusters + cluster;
    if k == 0u {
        counts[p.counts_offset + at] = sum.count;
    }
    if sum.count == 0u {
        return;
    }
    let mean = sum.total / f32(sum.count);
    let row = p.centroids_offset + at * p.head_dim;
    for (var i = 0u; i < 4u; i++) {
        if k + i < p.head_dim {
            centroids[row + k + i] = mean[i];
        }
    }
}

@compute @workgroup_size(256)
fn kmeans_update(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = workgroup.x * CLUSTERS;
    let head = workgroup.z;
    let k = workgroup.y * TEAM * 4u + lane % TEAM * 4u;
    let own = lane / TEAM * 2u;
    let points_start = p.points_offset + head * p.n_points * p.head_dim;
    let labels_start = p.labels_offset + head * p.n_points;
    var a = Sum(vec4<f32>(0.0), 0u);
    var b = Sum(vec4<f32>(0.0), 0u);
    for (var start = 0u; start < p.n_points; start += ROUND) {
        for (var i = lane; i < CLUSTERS * WORDS; i += GROUP) {
            atomicStore(&members[i], 0u);
        }
        if lane < CLUSTERS {
            atomicStore(&filled[lane], 0u);
        }
        workgroupBarrier();
        for (var i = lane; i < min(ROUND, p.n_points - start); i += GROUP) {
            let cluster = labels[labels_start + start + i] - first;
            if cluster < CLUSTERS {
                atomicOr(&members[cluster * WORDS + i / 32u], 1u << (i % 32u));
                atomicOr(&filled[cluster], 1u << (i / 32u));
            }
        }
        workgroupBarrier();
        let row = points_start + start * p.head_dim;
        a = add_members(a, own, row, k);
        b = add_members(b, own + 1u, row, k);
        workgroupBarrier();
    }
    put(a, head, first + own, k);
    put(b, head, first + own + 1u, k);
}
