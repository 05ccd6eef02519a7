// closeness = how near a point is to its centroid (greater is nearer); radius = the largest
// distance of a cluster's members from its centroid, 0 without members.
//
//   cosine x . c / (|x| |c|), 0 if either is 0       L2 -|x - c|       inner product x . c
//
// LANES invocations share a point. |x - c| is summed from differences: what is left of the squares
// and the product would lose half of the digits. Radii are maxima of the bits of numbers that are
// not negative, which order as the numbers do; `clear` makes them 0 first.
//
// Bound by reading the points once and, from caches, a centroid for each.

//# import shared/common

struct Params {
    n_kv_heads: u32,
    n_points: u32,
    n_clusters: u32,
    head_dim: u32,
    distance: u32,
    radius_offset: u32,
    points_offset: u32,
    labels_offset: u32,
    centroids_offset: u32,
    closeness_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> radius: array<atomic<u32>>;

//# if CLEAR
@compute @workgroup_size(256)
fn clear(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat_index(workgroup, grid) * 256u + lane;
    if i < p.n_kv_heads * p.n_clusters {
        atomicStore(&radius[p.radius_offset + i], 0u);
    }
}
//# else
const LANES: u32 = 8u;
const POINTS: u32 = 256u / LANES;
const COSINE: u32 = 0u;
const L2: u32 = 1u;

@group(0) @binding(2) var<storage, read> points: array<points_unit>;
@group(0) @binding(3) var<storage, read> labels: array<u32>;
@group(0) @binding(4) var<storage, read> centroids: array<centroids_unit>;
@group(0) @binding(5) var<storage, read_write> closeness: array<f32>;

//# import shared/row4 X=points
//# import shared/row4 X=centroids

// x . c, x . x, c . c, |x - c|^2.
var<workgroup> sums: array<vec4<f32>, 256>;

@compute @workgroup_size(256)
fn cluster_stats(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let point = flat_index(workgroup, grid) * POINTS + lane / LANES;
    let is_point = point < p.n_kv_heads * p.n_points;
    var cluster = 0u;
    var sum = vec4<f32>(0.0);
    if is_point {
        let label = min(labels[p.labels_offset + point], p.n_clusters - 1u);
        cluster = point / p.n_points * p.n_clusters + label;
        let x_row = p.points_offset + point * p.head_dim;
        let c_row = p.centroids_offset + cluster * p.head_dim;
        for (var k = lane % LANES * 4u; k < p.head_dim; k += LANES * 4u) {
            let x = points_row4(x_row, k, p.head_dim);
            let c = centroids_row4(c_row, k, p.head_dim);
            sum += vec4<f32>(dot(x, c), dot(x, x), dot(c, c), dot(x - c, x - c));
        }
    }
    sums[lane] = sum;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if lane % LANES < half {
            sums[lane] += sums[lane + half];
        }
        workgroupBarrier();
    }
    if lane % LANES != 0u || !is_point {
        return;
    }
    sum = sums[lane];
    let gap = sqrt(sum.w);
    var near = sum.x;
    if p.distance == COSINE {
        let lengths = sqrt(sum.y) * sqrt(sum.z);
        near = select(sum.x / lengths, 0.0, lengths == 0.0);
    } else if p.distance == L2 {
        near = -gap;
    }
    closeness[p.closeness_offset + point] = near;
    atomicMax(&radius[p.radius_offset + cluster], bitcast<u32>(gap) & 0x7fffffffu);
}
//# end
