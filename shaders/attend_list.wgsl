// One query token over a list of KV rows (LISTED) or over a run of them: for each query head
//
//     out = sum_j w_j v_j / sum_j w_j,   lse = ln sum_j w_j,   w_j = exp(scale * q . k_j)
//
// The rows of a KV head are cut into splits. A workgroup takes one split for ROWS query heads of
// the KV head, so that keys and values are read once for all of them. It goes through the split in
// tiles of GROUP * KEYS rows:
//   scores   an invocation takes KEYS rows whole and sums up their dot products with all queries;
//   softmax  the maximum over the tile, the running maximum, weights into shared memory;
//   values   an invocation takes one octet of every ROW_GROUPS-th row, so that loads are whole
//            rows, and its sums stay in registers to the end of the split.
//
// With WEIGHTED an entry of a list stands for several keys, and w_j is that many times as great; an
// entry that stands for none is not there.
//
// With PARTIAL the splits' results go to `partials` for `attend_merge`; without there is one split,
// whose result goes to `out` and `lse`.
//
// Bound: memory, a row's 2 * Dh * size bytes (of Q8 ROW_LEN) a KV head for 4 * Dh * Hq / Hkv
// operations.
// HEAD_DIM <= 256, ROWS <= 8, KEYS <= 2. Shared memory 15.1 KiB at most.

//# if HAS_SUBGROUPS
//# import shared/subgroups
//# else
const slot: u32 = 0u;
const n_subgroups: u32 = 0u;
//# end
//# import shared/common
//# import shared/kv_rows
//# import shared/attend_shares

const GROUP: u32 = 64u;
const TILE: u32 = GROUP * KEYS;
// Query heads in fours.
const QUADS: u32 = (ROWS + 3u) / 4u;
const ROW_GROUPS: u32 = GROUP / OCTETS;
// Values that an invocation loads before it uses them.
const UNROLL: u32 = 4u;
// The row of weights that are 0.
const NOTHING: u32 = 2u * GROUP;

struct Params {
    n_tokens: u32,
    n_q_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    scale: f32,
    accumulate: u32,
    minus_infinity: f32,
    // The span: its first token, the workgroups that share a KV head's query heads, the rows.
    first_token: u32,
    n_parts: u32,
    head_stride: u32,
    split_rows: u32,
    n_splits: u32,
    // Entries from one head's list to the next, or rows of the run and the first of them.
    n_rows: u32,
    first_row: u32,
    // Token i of the span sees lead + i rows of the run.
    lead: i32,
    // The first hidden + i of them are hidden from it.
    hidden: i32,
    q_offset: u32,
    kv_offset: u32,
//# if PARTIAL
//# else
    out_offset: u32,
    lse_offset: u32,
//# end
//# if LISTED
    rows_offset: u32,
    counts_offset: u32,
//# end
//# if WEIGHTED
    key_counts_offset: u32,
//# end
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> kv: array<KvUnit>;
//# if PARTIAL
// For each query row of the span and split (m, l, -, -), then the octets of o.
@group(0) @binding(3) var<storage, read_write> partials: array<vec4<f32>>;
//# if LISTED
@group(0) @binding(4) var<storage, read> rows: array<u32>;
@group(0) @binding(5) var<storage, read> counts: array<u32>;
//# end
//# if WEIGHTED
// Keys that each entry of a list stands for.
@group(0) @binding(6) var<storage, read> key_counts: array<u32>;
//# end
//# else
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;
//# if LISTED
@group(0) @binding(5) var<storage, read> rows: array<u32>;
@group(0) @binding(6) var<storage, read> counts: array<u32>;
//# end
//# if WEIGHTED
@group(0) @binding(7) var<storage, read> key_counts: array<u32>;
//# end
//# end

// [octet][query head, low and high]: constant places in rows that vary, of which addresses and
// bounds checks are made once for all query heads.
var<workgroup> queries: array<array<vec4<f32>, 2u * ROWS>, OCTETS>;
// [row of the tile][query head], and zeros; at the end the sums of the row groups.
var<workgroup> weights: array<array<vec4<f32>, QUADS>, 2u * GROUP + 1u>;
// The element at which each row begins.
var<workgroup> starts: array<u32, TILE>;
var<workgroup> lane_parts: array<vec4<f32>, GROUP * QUADS>;
var<workgroup> lane_sums: array<vec4<f32>, GROUP / 4u * QUADS>;
var<workgroup> final_shares: array<vec2<f32>, ROWS>;

// A lane's scores: for each of its keys those of the query heads.
alias Sums = array<f32, 4u * QUADS * KEYS>;

// Two vectors of o for each query head.
alias Outs = array<vec4<f32>, 8u * QUADS>;

// Rows that a token of the span attends to.
fn attended(token: u32, kv_head: u32) -> u32 {
//# if LISTED
    return min(counts[p.counts_offset + kv_head], p.n_rows);
//# else
    return min(u32(max(p.lead + i32(token), 0)), p.n_rows);
//# end
}

// Rows before the first that a token of the span attends to.
fn skipped(token: u32) -> u32 {
//# if LISTED
    return 0u;
//# else
    return min(u32(max(p.hidden + i32(token), 0)), p.n_rows);
//# end
}

fn row_start(kv_head: u32, i: u32) -> u32 {
//# if LISTED
    let row = rows[p.rows_offset + kv_head * p.n_rows + i];
//# else
    let row = p.first_row + i;
//# end
    return p.kv_offset + (kv_head * p.head_stride + row) * ROW_LEN;
}

//# if WEIGHTED
// What the score of entry i grows by; LOWEST for an entry that is not there.
fn log_weight(kv_head: u32, i: u32) -> f32 {
    let n = key_counts[p.key_counts_offset + kv_head * p.n_rows + i];
    return select(log(f32(max(n, 1u))), LOWEST, n == 0u);
}
//# end

// Elements 4c.. of the query that begins at element `start`.
fn query_quad(start: u32, c: u32) -> vec4<f32> {
    var x = vec4<f32>(0.0);
    for (var i = 0u; i < 4u; i++) {
        if 4u * c + i < HEAD_DIM {
            x[i] = q[start + 4u * c + i];
        }
    }
    return x;
}

// Adds octet c of a lane's key k to its products with all queries, one product at a time: such sums
// become fused multiplications.
fn add_scores(sums: ptr<function, Sums>, k: u32, c: u32, x: Octet) {
    for (var g = 0u; g < ROWS; g++) {
        let low = queries[c][2u * g];
        let high = queries[c][2u * g + 1u];
        var sum = (*sums)[4u * QUADS * k + g];
        sum += x.low.x * low.x;
        sum += x.low.y * low.y;
        sum += x.low.z * low.z;
        sum += x.low.w * low.w;
        sum += x.high.x * high.x;
        sum += x.high.y * high.y;
        sum += x.high.z * high.z;
        sum += x.high.w * high.w;
        (*sums)[4u * QUADS * k + g] = sum;
    }
}

// Adds an octet of the value of a row of the tile.
fn add_values(o: ptr<function, Outs>, row: u32, v: Octet) {
    for (var h = 0u; h < QUADS; h++) {
        let w = weights[row][h];
        (*o)[8u * h] += w.x * v.low;
        (*o)[8u * h + 1u] += w.x * v.high;
        (*o)[8u * h + 2u] += w.y * v.low;
        (*o)[8u * h + 3u] += w.y * v.high;
        (*o)[8u * h + 4u] += w.z * v.low;
        (*o)[8u * h + 5u] += w.z * v.high;
        (*o)[8u * h + 6u] += w.w * v.low;
        (*o)[8u * h + 7u] += w.w * v.high;
    }
}

@compute @workgroup_size(64)
fn attend_list(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
//# if HAS_SUBGROUPS
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) n_subgroups: u32,
//# end
) {
//# if HAS_SUBGROUPS
    let slot = subgroup_slot(subgroup, subgroup_lane);
//# end
    let split = workgroup.x;
    let part = workgroup.y % p.n_parts;
    let kv_head = workgroup.y / p.n_parts % p.n_kv_heads;
    let token = workgroup.y / (p.n_parts * p.n_kv_heads);
    let group = p.n_q_heads / p.n_kv_heads;
    let n_heads = min(ROWS, group - min(part * ROWS, group));
    // The first query row in the span.
    let first = token * p.n_q_heads + kv_head * group + part * ROWS;
    let n = attended(token, kv_head);
    let begin = max(min(split * p.split_rows, n), skipped(token));
    let end = min((split + 1u) * p.split_rows, n);
//# if PARTIAL
    if begin >= end {
        if lane < n_heads {
            partials[partial_start(first + lane, split)] = vec4<f32>(LOWEST, 0.0, 0.0, 0.0);
        }
        return;
    }
//# end

    let q_start = p.q_offset + (p.first_token * p.n_q_heads + first) * HEAD_DIM;
    for (var i = lane; i < 2u * OCTETS * ROWS; i += GROUP) {
        let head = i / (2u * OCTETS);
        let c = i % (2u * OCTETS);
        var x = vec4<f32>(0.0);
        if head < n_heads {
            x = p.scale * query_quad(q_start + head * HEAD_DIM, c);
        }
        queries[c / 2u][2u * head + c % 2u] = x;
    }
    if lane < QUADS {
        weights[NOTHING][lane] = vec4<f32>(0.0);
    }
    workgroupBarrier();

    var o = Outs();
    var l = array<vec4<f32>, QUADS>();
    var m = array<vec4<f32>, QUADS>();
    for (var h = 0u; h < QUADS; h++) {
        m[h] = vec4<f32>(LOWEST);
    }
    let octet = lane % OCTETS;
    let row_group = lane / OCTETS;

    for (var tile = begin; tile < end; tile += TILE) {
        let n_tile = min(end - tile, TILE);
        // Lanes without a row take the last one's, whose weight is then left out.
        var key = array<u32, KEYS>();
        for (var k = 0u; k < KEYS; k++) {
            key[k] = row_start(kv_head, tile + min(lane + k * GROUP, n_tile - 1u));
        }
//# if WEIGHTED
        var log_weights = array<f32, KEYS>();
        for (var k = 0u; k < KEYS; k++) {
            log_weights[k] = log_weight(kv_head, tile + min(lane + k * GROUP, n_tile - 1u));
        }
//# end
        var sums = Sums();
        // Two octets at a time, so that more loads are under way.
        for (var c = 0u; c < OCTETS; c += 2u) {
            var x = array<Octet, 2u * KEYS>();
            for (var k = 0u; k < KEYS; k++) {
                x[2u * k] = kv_key(key[k], c);
                x[2u * k + 1u] = kv_key(key[k], min(c + 1u, OCTETS - 1u));
            }
            for (var k = 0u; k < KEYS; k++) {
                add_scores(&sums, k, c, x[2u * k]);
            }
            if c + 1u < OCTETS {
                for (var k = 0u; k < KEYS; k++) {
                    add_scores(&sums, k, c + 1u, x[2u * k + 1u]);
                }
            }
        }

        var scores = array<vec4<f32>, QUADS * KEYS>();
        var top = array<vec4<f32>, QUADS>();
        for (var h = 0u; h < QUADS; h++) {
            top[h] = vec4<f32>(LOWEST);
            for (var k = 0u; k < KEYS; k++) {
                let i = 4u * (QUADS * k + h);
                let s = vec4<f32>(sums[i], sums[i + 1u], sums[i + 2u], sums[i + 3u]);
//# if WEIGHTED
                let is_there = lane + k * GROUP < n_tile && log_weights[k] > LOWEST;
                scores[QUADS * k + h] = select(vec4<f32>(LOWEST), s + log_weights[k], is_there);
//# else
                scores[QUADS * k + h] = select(vec4<f32>(LOWEST), s, lane + k * GROUP < n_tile);
//# end
                top[h] = max(top[h], scores[QUADS * k + h]);
            }
        }
        // Its barriers also part tiles: every lane has read what is written below.
        top = all_max(top, lane, slot, n_subgroups);
        // Online softmax: what was summed before shrinks by how much the maximum grew.
        for (var h = 0u; h < QUADS; h++) {
            let next = max(m[h], top[h]);
            let factor = exp(m[h] - next);
            m[h] = next;
            l[h] *= factor;
            for (var i = 0u; i < 4u; i++) {
                o[8u * h + 2u * i] *= factor[i];
                o[8u * h + 2u * i + 1u] *= factor[i];
            }
            for (var k = 0u; k < KEYS; k++) {
                let s = scores[QUADS * k + h];
                let w = select(exp(s - next), vec4<f32>(0.0), s <= vec4<f32>(LOWEST));
                l[h] += w;
                weights[lane + k * GROUP][h] = w;
            }
        }
        for (var k = 0u; k < KEYS; k++) {
            starts[lane + k * GROUP] = key[k];
        }
        workgroupBarrier();

        // Now an octet of the value a lane, for every ROW_GROUPS-th row. Several rows are loaded
        // before one is used, so that loads overlap; behind the last it comes again, unweighted.
        if row_group < ROW_GROUPS {
            for (var j = row_group; j < n_tile; j += UNROLL * ROW_GROUPS) {
                var x = array<Octet, UNROLL>();
                for (var u = 0u; u < UNROLL; u++) {
                    x[u] = kv_value(starts[min(j + u * ROW_GROUPS, n_tile - 1u)], octet);
                }
                for (var u = 0u; u < UNROLL; u++) {
                    let row = j + u * ROW_GROUPS;
                    add_values(&o, select(NOTHING, row, row < n_tile), x[u]);
                }
            }
        }
    }

    l = all_sum(l, lane, slot, n_subgroups);
    // From here on a lane for each head, which alone reads and writes its log-sum-exp.
    if lane == 0u {
        for (var h = 0u; h < QUADS; h++) {
            lane_parts[h] = m[h];
            lane_parts[QUADS + h] = l[h];
        }
    }
    workgroupBarrier();
    if lane < n_heads {
        let m_head = lane_parts[lane / 4u][lane % 4u];
        let l_head = lane_parts[QUADS + lane / 4u][lane % 4u];
//# if PARTIAL
        partials[partial_start(first + lane, split)] = vec4<f32>(m_head, l_head, 0.0, 0.0);
//# else
        let at = p.lse_offset + p.first_token * p.n_q_heads + first + lane;
        var held = p.minus_infinity;
        if p.accumulate == 1u {
            held = lse[at];
        }
        let both = shares(m_head, l_head, held, p.minus_infinity);
        final_shares[lane] = vec2<f32>(both.held, both.made);
        lse[at] = both.lse;
//# end
    }
    // One query head at a time through `weights`, to save memory; row groups are added in order.
    for (var g = 0u; g < ROWS; g++) {
        workgroupBarrier();
        weights[2u * lane][0] = o[2u * g];
        weights[2u * lane + 1u][0] = o[2u * g + 1u];
        workgroupBarrier();
        if g < n_heads && lane < 2u * OCTETS {
            var sum = vec4<f32>(0.0);
            for (var i = lane; i < 2u * OCTETS * ROW_GROUPS; i += 2u * OCTETS) {
                sum += weights[i][0];
            }
            let row = first + g;
//# if PARTIAL
            partials[partial_start(row, split) + 1u + lane] = sum;
//# else
            let at = p.out_offset + (p.first_token * p.n_q_heads + row) * HEAD_DIM;
            for (var i = 0u; i < 4u; i++) {
                let d = 4u * lane + i;
                if d < HEAD_DIM {
                    var x = final_shares[g].y * sum[i];
                    // Nothing held may hold anything.
                    if final_shares[g].x != 0.0 {
                        x += final_shares[g].x * out[at + d];
                    }
                    out[at + d] = x;
                }
            }
//# end
        }
    }
}

//# if PARTIAL
fn partial_start(row: u32, split: u32) -> u32 {
    return (row * p.n_splits + split) * (2u * OCTETS + 1u);
}
//# end

//# import shared/all_lanes X=all_max COMBINE=max SUBGROUP_COMBINE=subgroupMax
//# import shared/all_lanes X=all_sum COMBINE=plus4 SUBGROUP_COMBINE=subgroupAdd
