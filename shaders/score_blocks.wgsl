// What share of a tile's attention each block of the past has, by the means of its parts, relative
// to the block with the most. Of a tile and KV head, for each row r, a token and a query head of
// the group, and block b before the tile's own,
//
//     z[r, b] = max over the parts of b of scale * q_r . mean
//     s[b] = sum_r exp(z[r, b] - max_b z[r, b]),   share[b] = s[b] / max s
//
// The first n_first blocks, the n_recent before the tile's own, that one and all later ones have
// share 1.
//
// A workgroup owns a tile of a KV head, an invocation every GROUP-th block. Queries go through
// shared memory, QUERIES at a time, and over each such set the means twice: for the maximum of each
// row, then for the sums, which add up where the shares will be. To leave the scores in memory in
// between would take more than to compute them again. Sums go in the order of the queries, so the
// result has one value.
//
// FLOPs: 4 Dh for each query head, token and part. Bound: arithmetic.
// HEAD_DIM * QUERIES <= 2048, HEAD_DIM <= 256. Shared memory 12.1 KiB at most.

//# import shared/common
//# import shared/kv_rows

const GROUP: u32 = 64u;

struct Params {
    n_tokens: u32,
    n_q_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    scale: f32,
    n_first: u32,
    n_recent: u32,
    n_parts: u32,
    q_start: u32,
    q_len: u32,
    position: u32,
    tile: u32,
    block: u32,
    share_stride: u32,
    n_tiles: u32,
    n_blocks: u32,
    head_stride: u32,
    q_offset: u32,
    kv_offset: u32,
    shares_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
// The means.
@group(0) @binding(2) var<storage, read> kv: array<KvUnit>;
@group(0) @binding(3) var<storage, read_write> shares: array<f32>;

// [octet][query, low and high].
var<workgroup> queries: array<array<vec4<f32>, 2u * QUERIES>, OCTETS>;
// [lane][query], then by query the maximum of all lanes; at the end by lane.
var<workgroup> lane_tops: array<f32, GROUP * QUERIES>;
var<workgroup> tops: array<f32, QUERIES>;

// Elements 4c.. of the query that begins at element `start`.
fn query_quad(start: u32, c: u32) -> vec4<f32> {
    var quad = vec4<f32>(0.0);
    for (var i = 0u; i < 4u; i++) {
        if 4u * c + i < HEAD_DIM {
            quad[i] = q[start + 4u * c + i];
        }
    }
    return quad;
}

// Brings the queries of a KV head from `first` to below `end`, [token][query head of the group].
fn load_queries(first: u32, end: u32, kv_head: u32, lane: u32) {
    let group = p.n_q_heads / p.n_kv_heads;
    for (var i = lane; i < 2u * OCTETS * QUERIES; i += GROUP) {
        let query = first + i / (2u * OCTETS);
        let c = i % (2u * OCTETS);
        var quad = vec4<f32>(0.0);
        if query < end {
            let token = p.q_start + query / group;
            let row = token * p.n_q_heads + kv_head * group + query % group;
            quad = p.scale * query_quad(p.q_offset + row * HEAD_DIM, c);
        }
        queries[c / 2u][2u * (i / (2u * OCTETS)) + c % 2u] = quad;
    }
}

// The scores of all queries for a block: the largest of its parts.
fn block_scores(block: u32, kv_head: u32) -> array<f32, QUERIES> {
    var largest = array<f32, QUERIES>();
    for (var part = 0u; part < p.n_parts; part++) {
        let row = kv_head * p.head_stride + block * p.n_parts + part;
        let key = p.kv_offset + row * ROW_LEN;
        var scores = array<f32, QUERIES>();
        for (var c = 0u; c < OCTETS; c++) {
            let x = kv_key(key, c);
            for (var i = 0u; i < QUERIES; i++) {
                scores[i] += dot(x.low, queries[c][2u * i]) + dot(x.high, queries[c][2u * i + 1u]);
            }
        }
        for (var i = 0u; i < QUERIES; i++) {
            largest[i] = select(max(largest[i], scores[i]), scores[i], part == 0u);
        }
    }
    return largest;
}

@compute @workgroup_size(64)
fn score_blocks(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = flat_index(workgroup, grid);
    if index >= p.n_tiles * p.n_kv_heads {
        return;
    }
    let kv_head = index / p.n_tiles;
    let tile = index % p.n_tiles;
    // The tile's tokens among those of the chunk: tiles end at multiples of their length.
    let whole = (p.position / p.tile + tile) * p.tile;
    let token = max(whole, p.position) - p.position;
    let n = min(p.tile - (p.position + token) % p.tile, p.q_len - token);
    let own = (p.position + token) / p.block;
    let group = p.n_q_heads / p.n_kv_heads;
    let at = p.shares_offset + index * p.share_stride;

    let end = (token + n) * group;
    for (var first = token * group; first < end; first += QUERIES) {
        workgroupBarrier();
        load_queries(first, end, kv_head, lane);
        workgroupBarrier();
        var lane_top = array<f32, QUERIES>();
        for (var i = 0u; i < QUERIES; i++) {
            lane_top[i] = LOWEST;
        }
        for (var block = lane; block < own; block += GROUP) {
            let scores = block_scores(block, kv_head);
            for (var i = 0u; i < QUERIES; i++) {
                lane_top[i] = max(lane_top[i], scores[i]);
            }
        }
        for (var i = 0u; i < QUERIES; i++) {
            lane_tops[lane * QUERIES + i] = lane_top[i];
        }
        workgroupBarrier();
        if lane < QUERIES {
            var top = lane_tops[lane];
            for (var i = 1u; i < GROUP; i++) {
                top = max(top, lane_tops[i * QUERIES + lane]);
            }
            tops[lane] = top;
        }
        workgroupBarrier();
        for (var block = lane; block < own; block += GROUP) {
            let scores = block_scores(block, kv_head);
            var sum = 0.0;
            if first > token * group {
                sum = shares[at + block];
            }
            for (var i = 0u; i < min(QUERIES, end - first); i++) {
                sum += exp(scores[i] - tops[i]);
            }
            shares[at + block] = sum;
        }
    }

    var most = 0.0;
    for (var block = lane; block < own; block += GROUP) {
        most = max(most, shares[at + block]);
    }
    workgroupBarrier();
    lane_tops[lane] = most;
    workgroupBarrier();
    for (var i = 0u; i < GROUP; i++) {
        most = max(most, lane_tops[i]);
    }
    // Where there are fewer blocks than recent ones, none lies in between.
    let distant = max(own, p.n_recent) - p.n_recent;
    for (var block = lane; block < p.n_blocks; block += GROUP) {
        if block >= p.n_first && block < distant {
            shares[at + block] = shares[at + block] / most;
        } else {
            shares[at + block] = 1.0;
        }
    }
}
