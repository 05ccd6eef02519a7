// A chunk of query tokens over a run of KV rows: for each token i and query head
//
//     out = sum_j w_j v_j / sum_j w_j,   lse = ln sum_j w_j,   w_j = exp(scale * q . k_j)
//
// over the rows j < lead + i. The queries of a KV head, [token][query head of the group], are cut
// into tiles of QUERY_TILE. A workgroup takes one tile and goes through the rows that its last
// token sees, KEY_TILE at a time, with a running maximum:
//   scores   both operands pass through shared memory in slices of SLICE octets of the head width;
//            an invocation sums up 4 queries x 4 keys;
//   weights  into shared memory, transposed, in place of the slices;
//   values   through shared memory some rows at a time; an invocation holds one octet of 4 or 8
//            queries' sums in registers.
// Vectors of four rows hold rows t, t + ROW_QUADS, t + 2 ROW_QUADS, ..: then neighbours in a
// workgroup read neighbouring vectors. Places in shared memory are mixed with the row by
// exclusive-or, so that the columns that eight invocations read together lie in different banks.
//
// With PARTIAL the run is cut into splits, the grid's third dimension, whose results go to
// `partials` for `attend_merge`; without, the result goes to `out` and `lse`.
//
// Bound: multiplications, 4 * Dh for each query head, token and row that it sees.
// HEAD_DIM <= 256; QUERY_TILE * KEY_TILE = 2048. Shared memory 15 KiB.

//# import common
//# import kv_rows
//# import attend_shares

const GROUP: u32 = 128u;
// Queries and keys in fours.
const ROW_QUADS: u32 = QUERY_TILE / 4u;
const KEY_QUADS: u32 = KEY_TILE / 4u;
// Vectors of a row in a slice: 4 or 8.
const WIDTH: u32 = 2u * SLICE;
const SLICES: u32 = (OCTETS + SLICE - 1u) / SLICE;
// Where keys and values begin in the pool; queries and weights begin it.
const KEYS_AT: u32 = QUERY_TILE * WIDTH;
const VALUES_AT: u32 = KEY_TILE * ROW_QUADS;
// Rows of values in shared memory.
const VALUE_ROWS: u32 = 128u / OCTETS;
// Fours of queries that are summed up at the same time, and by one invocation.
const QUAD_GROUPS: u32 = GROUP / OCTETS;
const LANE_QUADS: u32 = (ROW_QUADS + QUAD_GROUPS - 1u) / QUAD_GROUPS;
const NO_QUERY: u32 = 0xffffffffu;

struct Params {
    n_tokens: u32,
    n_q_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    scale: f32,
    accumulate: u32,
    minus_infinity: f32,
    // The span: its first token, its tokens, and tiles of a KV head's queries.
    first_token: u32,
    q_len: u32,
    n_tiles: u32,
    head_stride: u32,
    split_rows: u32,
    n_splits: u32,
    n_rows: u32,
    first_row: u32,
    // Token i of the span sees lead + i rows of the run.
    lead: i32,
    q_offset: u32,
    kv_offset: u32,
//# if PARTIAL
//# else
    out_offset: u32,
    lse_offset: u32,
//# end
}

@group(0) @binding(0) var<uniform> p: Params;
//# if QUERY_VECTOR
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
//# else
@group(0) @binding(1) var<storage, read> q: array<f32>;
//# end
@group(0) @binding(2) var<storage, read> kv: array<KvUnit>;
//# if PARTIAL
// For each query row of the span and split (m, l, -, -), then the octets of o.
@group(0) @binding(3) var<storage, read_write> partials: array<vec4<f32>>;
//# else
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;
//# end

var<workgroup> pool: array<vec4<f32>, 768>;
// By query quad and key quad: maxima, then sums.
var<workgroup> lane_parts: array<vec4<f32>, GROUP>;
var<workgroup> factors: array<vec4<f32>, ROW_QUADS>;
// The query row of the span, or NO_QUERY.
var<workgroup> query_rows: array<u32, QUERY_TILE>;
var<workgroup> final_shares: array<vec2<f32>, QUERY_TILE>;

// Rows that a token of the span attends to.
fn attended(token: u32) -> u32 {
    return min(u32(max(p.lead + i32(token), 0)), p.n_rows);
}

fn query_octet(row: u32, octet: u32) -> Octet {
    if row == NO_QUERY || octet >= OCTETS {
        return Octet(vec4<f32>(0.0), vec4<f32>(0.0));
    }
    let at = p.q_offset + (p.first_token * p.n_q_heads + row) * HEAD_DIM + 8u * octet;
//# if QUERY_VECTOR
    return Octet(p.scale * q[at / 4u], p.scale * q[at / 4u + 1u]);
//# else
    return Octet(query_quad(at, 8u * octet), query_quad(at + 4u, 8u * octet + 4u));
//# end
}

//# if QUERY_VECTOR
//# else
fn query_quad(at: u32, d: u32) -> vec4<f32> {
    var x = vec4<f32>(0.0);
    for (var i = 0u; i < 4u; i++) {
        if d + i < HEAD_DIM {
            x[i] = p.scale * q[at + i];
        }
    }
    return x;
}
//# end

// Where vector c of a row of a slice lies: the last bits of c are mixed with the row's, eight
// vectors being what shared memory gives at a time.
fn mixed(row: u32, c: u32) -> u32 {
    return row * WIDTH + (c ^ (row / (8u / WIDTH) % WIDTH));
}

fn weight_at(key: u32, quad: u32) -> u32 {
    return key * ROW_QUADS + (quad ^ (key % 8u));
}

fn stage_slice(slice: u32, key: u32, end: u32, kv_start: u32, lane: u32) {
    for (var i = lane; i < QUERY_TILE * SLICE; i += GROUP) {
        let x = query_octet(query_rows[i / SLICE], slice * SLICE + i % SLICE);
        pool[mixed(i / SLICE, i % SLICE * 2u)] = x.low;
        pool[mixed(i / SLICE, i % SLICE * 2u + 1u)] = x.high;
    }
    for (var i = lane; i < KEY_TILE * SLICE; i += GROUP) {
        let octet = slice * SLICE + i % SLICE;
        var x = Octet(vec4<f32>(0.0), vec4<f32>(0.0));
        if key + i / SLICE < end && octet < OCTETS {
            x = kv_octet(kv_start + (key + i / SLICE) * (2u * HEAD_DIM), octet);
        }
        pool[KEYS_AT + mixed(i / SLICE, i % SLICE * 2u)] = x.low;
        pool[KEYS_AT + mixed(i / SLICE, i % SLICE * 2u + 1u)] = x.high;
    }
}

// Values of the rows from `key`, lower halves of all octets of a row first.
fn stage_values(key: u32, end: u32, kv_start: u32, lane: u32) {
    for (var i = lane; i < VALUE_ROWS * OCTETS; i += GROUP) {
        let j = i / OCTETS;
        var x = Octet(vec4<f32>(0.0), vec4<f32>(0.0));
        if key + j < end {
            x = kv_octet(kv_start + (key + j) * (2u * HEAD_DIM) + HEAD_DIM, i % OCTETS);
        }
        let at = VALUES_AT + j * (2u * OCTETS) + i % OCTETS;
        pool[at] = x.low;
        pool[at + OCTETS] = x.high;
    }
}

@compute @workgroup_size(128)
fn attend_chunk(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = flat_index(workgroup, grid);
    if index >= p.n_tiles * p.n_kv_heads {
        return;
    }
    let kv_head = index % p.n_kv_heads;
    // The last tiles see most rows: they begin first.
    let tile = p.n_tiles - 1u - index / p.n_kv_heads;
    let split = workgroup.z;
    let group = p.n_q_heads / p.n_kv_heads;
    let n_queries = p.q_len * group;
    let first = tile * QUERY_TILE;
    let limit = attended((min(first + QUERY_TILE, n_queries) - 1u) / group);
    let begin = min(split * p.split_rows, limit);
    let end = min(begin + p.split_rows, limit);
    let kv_start = p.kv_offset + (kv_head * p.head_stride + p.first_row) * (2u * HEAD_DIM);

    for (var i = lane; i < QUERY_TILE; i += GROUP) {
        let query = first + i;
        let row = query / group * p.n_q_heads + kv_head * group + query % group;
        query_rows[i] = select(NO_QUERY, row, query < n_queries);
    }

    // Scores: queries tr + ROW_QUADS * 0..4 and keys tc + KEY_QUADS * 0..4.
    let tr = lane / KEY_QUADS;
    let tc = lane % KEY_QUADS;
    let mine = vec4<u32>(first + tr) + ROW_QUADS * vec4<u32>(0u, 1u, 2u, 3u);
    var seen = vec4<u32>(0u);
    for (var r = 0u; r < 4u; r++) {
        if mine[r] < n_queries {
            seen[r] = attended(mine[r] / group);
        }
    }
    var m = vec4<f32>(LOWEST);
    var l = vec4<f32>(0.0);
    // Values: an octet of the queries of quads quad_group + QUAD_GROUPS * 0..LANE_QUADS.
    let octet = lane % OCTETS;
    // Lanes that are left over get none.
    let quad_group = select(ROW_QUADS, lane / OCTETS, lane < QUAD_GROUPS * OCTETS);
    var o = array<vec4<f32>, 8u * LANE_QUADS>();

    for (var key = begin; key < end; key += KEY_TILE) {
        var s0 = vec4<f32>(0.0);
        var s1 = vec4<f32>(0.0);
        var s2 = vec4<f32>(0.0);
        var s3 = vec4<f32>(0.0);
        for (var slice = 0u; slice < SLICES; slice++) {
            workgroupBarrier();
            stage_slice(slice, key, end, kv_start, lane);
            workgroupBarrier();
            for (var c = 0u; c < WIDTH; c++) {
                let qa = mixed(tr, c);
                let q0 = pool[qa];
                let q1 = pool[qa + ROW_QUADS * WIDTH];
                let q2 = pool[qa + 2u * ROW_QUADS * WIDTH];
                let q3 = pool[qa + 3u * ROW_QUADS * WIDTH];
                let ka = KEYS_AT + mixed(tc, c);
                let k0 = pool[ka];
                let k1 = pool[ka + KEY_QUADS * WIDTH];
                let k2 = pool[ka + 2u * KEY_QUADS * WIDTH];
                let k3 = pool[ka + 3u * KEY_QUADS * WIDTH];
                s0 += vec4<f32>(dot(q0, k0), dot(q1, k0), dot(q2, k0), dot(q3, k0));
                s1 += vec4<f32>(dot(q0, k1), dot(q1, k1), dot(q2, k1), dot(q3, k1));
                s2 += vec4<f32>(dot(q0, k2), dot(q1, k2), dot(q2, k2), dot(q3, k2));
                s3 += vec4<f32>(dot(q0, k3), dot(q1, k3), dot(q2, k3), dot(q3, k3));
            }
        }

        let j = vec4<u32>(key + tc);
        let hidden = vec4<f32>(LOWEST);
        s0 = select(hidden, s0, j < seen);
        s1 = select(hidden, s1, j + KEY_QUADS < seen);
        s2 = select(hidden, s2, j + 2u * KEY_QUADS < seen);
        s3 = select(hidden, s3, j + 3u * KEY_QUADS < seen);
        lane_parts[lane] = max(max(s0, s1), max(s2, s3));
        workgroupBarrier();
        var next = m;
        for (var i = 0u; i < KEY_QUADS; i++) {
            next = max(next, lane_parts[tr * KEY_QUADS + i]);
        }
        let factor = exp(m - next);
        m = next;
        let w0 = weight_of(s0, m);
        let w1 = weight_of(s1, m);
        let w2 = weight_of(s2, m);
        let w3 = weight_of(s3, m);
        l = l * factor + (w0 + w1) + (w2 + w3);
        pool[weight_at(tc, tr)] = w0;
        pool[weight_at(tc + KEY_QUADS, tr)] = w1;
        pool[weight_at(tc + 2u * KEY_QUADS, tr)] = w2;
        pool[weight_at(tc + 3u * KEY_QUADS, tr)] = w3;
        if tc == 0u {
            factors[tr] = factor;
        }
        stage_values(key, end, kv_start, lane);
        workgroupBarrier();

        for (var i = 0u; i < LANE_QUADS; i++) {
            let f = factors[min(quad_group + i * QUAD_GROUPS, ROW_QUADS - 1u)];
            o[8u * i] *= f.x;
            o[8u * i + 1u] *= f.x;
            o[8u * i + 2u] *= f.y;
            o[8u * i + 3u] *= f.y;
            o[8u * i + 4u] *= f.z;
            o[8u * i + 5u] *= f.z;
            o[8u * i + 6u] *= f.w;
            o[8u * i + 7u] *= f.w;
        }
        for (var v = 0u; v < KEY_TILE; v += VALUE_ROWS) {
            if v > 0u {
                workgroupBarrier();
                stage_values(key + v, end, kv_start, lane);
                workgroupBarrier();
            }
            let n = min(VALUE_ROWS, KEY_TILE - v);
            for (var i = 0u; i < LANE_QUADS; i++) {
                let quad = quad_group + i * QUAD_GROUPS;
                if quad < ROW_QUADS {
                    for (var j = 0u; j < n; j++) {
                        let w = pool[weight_at(v + j, quad)];
                        let low = pool[VALUES_AT + j * (2u * OCTETS) + octet];
                        let high = pool[VALUES_AT + j * (2u * OCTETS) + OCTETS + octet];
                        o[8u * i] += w.x * low;
                        o[8u * i + 1u] += w.x * high;
                        o[8u * i + 2u] += w.y * low;
                        o[8u * i + 3u] += w.y * high;
                        o[8u * i + 4u] += w.z * low;
                        o[8u * i + 5u] += w.z * high;
                        o[8u * i + 6u] += w.w * low;
                        o[8u * i + 7u] += w.w * high;
                    }
                }
            }
        }
    }

    workgroupBarrier();
    lane_parts[lane] = l;
    workgroupBarrier();
    // One lane alone reads and writes a query's log-sum-exp.
    if tc == 0u {
        for (var i = 1u; i < KEY_QUADS; i++) {
            l += lane_parts[tr * KEY_QUADS + i];
        }
        for (var r = 0u; r < 4u; r++) {
            let row = query_rows[tr + r * ROW_QUADS];
            if row != NO_QUERY {
//# if PARTIAL
                partials[partial_start(row, split)] = vec4<f32>(m[r], l[r], 0.0, 0.0);
//# else
                let at = p.lse_offset + p.first_token * p.n_q_heads + row;
                var held = p.minus_infinity;
                if p.accumulate == 1u {
                    held = lse[at];
                }
                let both = shares(m[r], l[r], held, p.minus_infinity);
                final_shares[tr + r * ROW_QUADS] = vec2<f32>(both.held, both.made);
                lse[at] = both.lse;
//# end
            }
        }
    }
    workgroupBarrier();
    for (var i = 0u; i < LANE_QUADS; i++) {
        let quad = quad_group + i * QUAD_GROUPS;
        if quad < ROW_QUADS {
            for (var r = 0u; r < 4u; r++) {
                let x = Octet(o[8u * i + 2u * r], o[8u * i + 2u * r + 1u]);
                put(quad + r * ROW_QUADS, split, octet, x);
            }
        }
    }
}

// A score that is hidden weighs nothing, also where nothing else is seen.
fn weight_of(s: vec4<f32>, top: vec4<f32>) -> vec4<f32> {
    return select(exp(s - top), vec4<f32>(0.0), s <= vec4<f32>(LOWEST));
}

//# if PARTIAL
fn partial_start(row: u32, split: u32) -> u32 {
    return (row * p.n_splits + split) * (2u * OCTETS + 1u);
}

fn put(query: u32, split: u32, octet: u32, x: Octet) {
    let row = query_rows[query];
    if row != NO_QUERY {
        let at = partial_start(row, split) + 1u + 2u * octet;
        partials[at] = x.low;
        partials[at + 1u] = x.high;
    }
}
//# else
fn put(query: u32, split: u32, octet: u32, x: Octet) {
    let row = query_rows[query];
    if row != NO_QUERY {
        let w = final_shares[query];
        put_quad(row, 8u * octet, w, x.low);
        put_quad(row, 8u * octet + 4u, w, x.high);
    }
}

fn put_quad(row: u32, first: u32, w: vec2<f32>, made: vec4<f32>) {
    let at = p.out_offset + (p.first_token * p.n_q_heads + row) * HEAD_DIM;
    for (var i = 0u; i < 4u; i++) {
        let d = first + i;
        if d < HEAD_DIM {
            var x = w.y * made[i];
            // Nothing held may hold anything.
            if w.x != 0.0 {
                x += w.x * out[at + d];
            }
            out[at + d] = x;
        }
    }
}
//# end
