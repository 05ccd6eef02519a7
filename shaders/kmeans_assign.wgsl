// label = the centroid of the largest score, score = x . c * factor[c] - shift[c], lowest first:
//
//   cosine         factor = 1 / |c| (0 for c = 0)   shift = 0
//   L2             factor = 1                       shift = |c|^2 / 2
//   inner product  factor = 1                       shift = 0
//
// `terms` makes factor and shift of every centroid and sets the counts of changes to 0; SIDE
// invocations share a centroid. `kmeans_assign` is a matrix product of which only the best of each
// row is kept: a workgroup owns ROWS points and walks over all centroids, ROWS at a time; tiles of
// DEPTH channels lie transposed in shared memory, and an invocation has 8 points times 8 centroids
// in registers.
//
// 2 N C Dh operations on a traffic of N C Dh / 16 bytes (each tile of points is read again for each
// tile of centroids, from caches): bound by arithmetic.
//
// NARROW: at most 64 clusters, half of a tile of centroids, so half of the products.
//
// A point that is not a number gets cluster 0 and a score that is not a number.

//# import shared/common

struct Params {
    n_kv_heads: u32,
    n_points: u32,
    n_clusters: u32,
    head_dim: u32,
    distance: u32,
    points_offset: u32,
    centroids_offset: u32,
    labels_offset: u32,
    scores_offset: u32,
    n_changed_offset: u32,
    // First point of this dispatch.
    start: u32,
}

const COSINE: u32 = 0u;
const L2: u32 = 1u;
const SIDE: u32 = 16u;
const ROWS: u32 = 128u;
const DEPTH: u32 = 16u;
// Vectors of 4 rows.
const QUADS: u32 = ROWS / 4u;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> centroids: array<centroids_unit>;
@group(0) @binding(2) var<storage, read_write> n_changed: array<atomic<u32>>;

//# import shared/row4 X=centroids

//# if TERMS
@group(0) @binding(3) var<storage, read_write> terms: array<vec2<f32>>;

var<workgroup> squares: array<f32, 256>;

@compute @workgroup_size(256)
fn find_terms(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let head = workgroup.y;
    if workgroup.x == 0u && lane == 0u {
        atomicStore(&n_changed[p.n_changed_offset + head], 0u);
    }
    let cluster = workgroup.x * (256u / SIDE) + lane / SIDE;
    var square = 0.0;
    if cluster < p.n_clusters {
        let row = p.centroids_offset + (head * p.n_clusters + cluster) * p.head_dim;
        for (var k = lane % SIDE * 4u; k < p.head_dim; k += SIDE * 4u) {
            let x = centroids_row4(row, k, p.head_dim);
            square += dot(x, x);
        }
    }
    squares[lane] = square;
    workgroupBarrier();
    for (var half = SIDE / 2u; half > 0u; half /= 2u) {
        if lane % SIDE < half {
            squares[lane] += squares[lane + half];
        }
        workgroupBarrier();
    }
    if lane % SIDE != 0u || cluster >= p.n_clusters {
        return;
    }
    square = squares[lane];
    var term = vec2<f32>(1.0, 0.0);
    if p.distance == COSINE {
        term.x = select(1.0 / sqrt(square), 0.0, square == 0.0);
    } else if p.distance == L2 {
        term.y = 0.5 * square;
    }
    terms[head * p.n_clusters + cluster] = term;
}
//# else
@group(0) @binding(3) var<storage, read> terms: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read> points: array<points_unit>;
@group(0) @binding(5) var<storage, read_write> labels: array<u32>;
@group(0) @binding(6) var<storage, read_write> scores: array<f32>;

//# import shared/row4 X=points

// [DEPTH][QUADS]: 16 KiB together. In the end they hold scores and labels, [QUADS][SIDE].
var<workgroup> tile_a: array<vec4<f32>, DEPTH * QUADS>;
var<workgroup> tile_b: array<vec4<f32>, DEPTH * QUADS>;

// Where four rows of a channel lie: neighbours of a column of channels fall into different banks.
fn place(k: u32, quad: u32) -> u32 {
    return k * QUADS + (quad ^ (k / 4u * 2u));
}

// Four channels of one row, zeros beyond the last.
fn load(is_point: bool, start: u32, i: u32, n: u32, k: u32) -> vec4<f32> {
    if i >= n {
        return vec4<f32>(0.0);
    }
    if is_point {
        return points_row4(start + i * p.head_dim, k, p.head_dim);
    }
    return centroids_row4(start + i * p.head_dim, k, p.head_dim);
}

// Half of the workgroup loads points, half centroids, each invocation 4 rows of 4 channels.
fn load_tiles(head: u32, first_point: u32, first_cluster: u32, k0: u32, lane: u32) {
    let depth = lane % 4u * 4u;
    let quad = lane / 4u % QUADS;
    let is_point = lane < 128u;
    let n = select(p.n_clusters, p.n_points, is_point);
    let first = select(first_cluster, first_point, is_point) + quad * 4u;
    let start = select(p.centroids_offset, p.points_offset, is_point) + head * n * p.head_dim;
    let k = k0 + depth;
    let a = load(is_point, start, first, n, k);
    let b = load(is_point, start, first + 1u, n, k);
    let c = load(is_point, start, first + 2u, n, k);
    let d = load(is_point, start, first + 3u, n, k);
    let x = vec4<f32>(a.x, b.x, c.x, d.x);
    let y = vec4<f32>(a.y, b.y, c.y, d.y);
    let z = vec4<f32>(a.z, b.z, c.z, d.z);
    let w = vec4<f32>(a.w, b.w, c.w, d.w);
    let at = place(depth, quad);
    if is_point {
        tile_a[at] = x;
        tile_a[at + QUADS] = y;
        tile_a[at + 2u * QUADS] = z;
        tile_a[at + 3u * QUADS] = w;
    } else {
        tile_b[at] = x;
        tile_b[at + QUADS] = y;
        tile_b[at + 2u * QUADS] = z;
        tile_b[at + 3u * QUADS] = w;
    }
}

// Factors and shifts of four centroids; those beyond the last lose against any.
struct Terms {
    factor: vec4<f32>,
    shift: vec4<f32>,
}

fn term_of(head: u32, cluster: u32) -> vec2<f32> {
    if cluster < p.n_clusters {
        return terms[head * p.n_clusters + cluster];
    }
    return vec2<f32>(0.0, -LOWEST);
}

fn terms_of(head: u32, cluster: u32) -> Terms {
    let a = term_of(head, cluster);
    let b = term_of(head, cluster + 1u);
    let c = term_of(head, cluster + 2u);
    let d = term_of(head, cluster + 3u);
    return Terms(vec4<f32>(a.x, b.x, c.x, d.x), vec4<f32>(a.y, b.y, c.y, d.y));
}

// (score, cluster): the better one, the earlier one of equals. Numbers below 2^24 are exact.
fn better(best: vec2<f32>, score: f32, cluster: f32) -> vec2<f32> {
    return select(best, vec2<f32>(score, cluster), score > best.x);
}

fn best_of(best: vec2<f32>, products: vec4<f32>, t: Terms, cluster: u32) -> vec2<f32> {
    let scores = products * t.factor - t.shift;
    let c = f32(cluster);
    var found = better(best, scores.x, c);
    found = better(found, scores.y, c + 1.0);
    found = better(found, scores.z, c + 2.0);
    return better(found, scores.w, c + 3.0);
}

@compute @workgroup_size(256)
fn kmeans_assign(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let head = workgroup.y;
    let first_point = p.start + workgroup.x * ROWS;
    // 16 x 16 invocations: points 4 y + i and 64 + 4 y + i, centroids 4 x + i and 64 + 4 x + i.
    let x = lane % SIDE;
    let y = lane / SIDE;
    // Arrays that registers hold: only constants index them.
    let none = vec2<f32>(LOWEST, 0.0);
    var best = array<vec2<f32>, 8>(none, none, none, none, none, none, none, none);
    for (var cluster = 0u; cluster < p.n_clusters; cluster += ROWS) {
        // Products with the first and the last four centroids, for each point.
        var lo = array<vec4<f32>, 8>();
//# if NARROW == 0
        var hi = array<vec4<f32>, 8>();
//# end
        for (var k0 = 0u; k0 < p.head_dim; k0 += DEPTH) {
            workgroupBarrier();
            load_tiles(head, first_point, cluster, k0, lane);
            workgroupBarrier();
            for (var k = 0u; k < DEPTH; k++) {
                let a = tile_a[place(k, y)];
                let c = tile_a[place(k, y) + QUADS / 2u];
                let b = tile_b[place(k, x)];
                lo[0] += a.x * b;
                lo[1] += a.y * b;
                lo[2] += a.z * b;
                lo[3] += a.w * b;
                lo[4] += c.x * b;
                lo[5] += c.y * b;
                lo[6] += c.z * b;
                lo[7] += c.w * b;
//# if NARROW == 0
                let d = tile_b[place(k, x) + QUADS / 2u];
                hi[0] += a.x * d;
                hi[1] += a.y * d;
                hi[2] += a.z * d;
                hi[3] += a.w * d;
                hi[4] += c.x * d;
                hi[5] += c.y * d;
                hi[6] += c.z * d;
                hi[7] += c.w * d;
//# end
            }
        }
        let first = cluster + 4u * x;
        var t = terms_of(head, first);
        best[0] = best_of(best[0], lo[0], t, first);
        best[1] = best_of(best[1], lo[1], t, first);
        best[2] = best_of(best[2], lo[2], t, first);
        best[3] = best_of(best[3], lo[3], t, first);
        best[4] = best_of(best[4], lo[4], t, first);
        best[5] = best_of(best[5], lo[5], t, first);
        best[6] = best_of(best[6], lo[6], t, first);
        best[7] = best_of(best[7], lo[7], t, first);
//# if NARROW == 0
        let second = first + ROWS / 2u;
        t = terms_of(head, second);
        best[0] = best_of(best[0], hi[0], t, second);
        best[1] = best_of(best[1], hi[1], t, second);
        best[2] = best_of(best[2], hi[2], t, second);
        best[3] = best_of(best[3], hi[3], t, second);
        best[4] = best_of(best[4], hi[4], t, second);
        best[5] = best_of(best[5], hi[5], t, second);
        best[6] = best_of(best[6], hi[6], t, second);
        best[7] = best_of(best[7], hi[7], t, second);
//# end
    }

    workgroupBarrier();
    tile_a[y * SIDE + x] = vec4<f32>(best[0].x, best[1].x, best[2].x, best[3].x);
    tile_b[y * SIDE + x] = vec4<f32>(best[0].y, best[1].y, best[2].y, best[3].y);
    tile_a[(y + SIDE) * SIDE + x] = vec4<f32>(best[4].x, best[5].x, best[6].x, best[7].x);
    tile_b[(y + SIDE) * SIDE + x] = vec4<f32>(best[4].y, best[5].y, best[6].y, best[7].y);
    workgroupBarrier();
    var changed = 0.0;
    let point = first_point + lane;
    if lane < ROWS && point < p.n_points {
        var found = vec2<f32>(LOWEST, 0.0);
        for (var i = 0u; i < SIDE; i++) {
            let score = tile_a[lane / 4u * SIDE + i][lane % 4u];
            let cluster = tile_b[lane / 4u * SIDE + i][lane % 4u];
            if score > found.x || (score == found.x && cluster < found.y) {
                found = vec2<f32>(score, cluster);
            }
        }
        let at = head * p.n_points + point;
        let label = min(u32(found.y), p.n_clusters - 1u);
        // No score was a number: neither is this.
        var bits = bitcast<u32>(found.x);
        if found.x == LOWEST {
            bits = 0x7fc00000u;
        }
        scores[p.scores_offset + at] = bitcast<f32>(bits);
        if labels[p.labels_offset + at] != label {
            changed = 1.0;
            labels[p.labels_offset + at] = label;
        }
    }
    // Count the changes before one of the workgroup reports them.
    workgroupBarrier();
    tile_a[lane].x = changed;
    workgroupBarrier();
    for (var half = ROWS / 2u; half > 0u; half /= 2u) {
        if lane < half {
            tile_a[lane].x += tile_a[lane + half].x;
        }
        workgroupBarrier();
    }
    if lane == 0u && tile_a[0].x > 0.0 {
        atomicAdd(&n_changed[p.n_changed_offset + head], u32(tile_a[0].x));
    }
}
//# end
