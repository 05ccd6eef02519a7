// Attention of a tile of a KV head's queries over a run of KV rows, by a workgroup of GROUP lanes:
//
//     out = sum_j w_j v_j / sum_j w_j,   lse = ln sum_j w_j
//
// It goes through the rows from `begin` to `end`, KEY_TILE at a time, with a running maximum:
//   scores   both operands pass through shared memory in slices of SLICE octets of the head width;
//            an invocation sums up 4 queries x 4 keys;
//   weights  into shared memory, in place of the slices;
//   values   through shared memory, VALUE_ROWS at a time; an invocation holds one octet of 4 or
//            8 queries' sums in registers.
// Vectors of four rows hold rows t, t + ROW_QUADS, t + 2 ROW_QUADS, ..: then neighbours in a
// workgroup read neighbouring rows. Shared memory is one pool of rows of 9 vectors, of which 8 are
// used: so the rows that eight invocations read together lie in different banks, and a place in a
// row is a constant, of which addresses and bounds checks are made once for all loops.
//
// Needs `common`, `kv_rows`, `attend_shares`, the bindings q, kv, and out and lse or `partials`,
// and the parameters n_q_heads, n_kv_heads, scale, accumulate, minus_infinity and offsets. Who
// imports it says which rows count:
//   rows_of(token)         the first row that a token of the chunk attends to, and the one behind
//                          the last;
//   is_left_out(tile, key) whether none of the KEY_TILE rows from `key` on count for the tile: the
//                          same for all invocations;
//   score_of(s, tile, key, unseen, seen)
//                          the scores of four queries for one row, LOWEST where it does not count.
//
// HEAD_DIM <= 256; QUERY_TILE * KEY_TILE = 2048; QUERY_TILE * SLICE is 128 or 256. Shared memory
// 15.8 KiB.

const GROUP: u32 = 128u;
// Queries and keys in fours.
const ROW_QUADS: u32 = QUERY_TILE / 4u;
const KEY_QUADS: u32 = KEY_TILE / 4u;
const SLICES: u32 = (OCTETS + SLICE - 1u) / SLICE;
// Queries of a slice that an invocation brings.
const QUERY_ITEMS: u32 = QUERY_TILE * SLICE / GROUP;
// Where values begin in the pool; keys lie behind the queries, weights begin it.
const VALUES_AT: u32 = 64u;
// Rows whose values are in the pool: 32 / OCTETS times four, less where that is no power of two.
const VALUE_ROWS: u32 = 4u << (u32(OCTETS <= 16u) + u32(OCTETS <= 8u) + u32(OCTETS <= 4u));
// Fours of queries that are summed up at the same time; an invocation has one or two.
const QUAD_GROUPS: u32 = GROUP / OCTETS;
const TWO_QUADS: bool = QUAD_GROUPS < ROW_QUADS;
const NO_QUERY: u32 = 0xffffffffu;

// What a workgroup does.
struct Tile {
    // Queries of the KV head, [token][query head of the group], among those of the chunk: the
    // first, and the first that is no longer the tile's or not there.
    first: u32,
    n_queries: u32,
    // Rows of the run.
    begin: u32,
    end: u32,
    kv_head: u32,
    // The chunk's first token and head among the step's.
    first_entry: u32,
    // Where the run begins in `kv`.
    kv_start: u32,
    split: u32,
    // Where the shares of blocks begin, for those that have any.
    shares: u32,
}

var<workgroup> pool: array<array<vec4<f32>, 9>, 96>;
// By query quad and key quad: maxima, then sums; then by query quad: shares.
var<workgroup> lane_parts: array<vec4<f32>, GROUP>;
var<workgroup> factors: array<vec4<f32>, ROW_QUADS>;

// For each of 4 keys the scores of 4 queries.
struct Scores {
    k0: vec4<f32>,
    k1: vec4<f32>,
    k2: vec4<f32>,
    k3: vec4<f32>,
}

// For each of 4 queries an octet of sums.
struct Sums {
    q0: Octet,
    q1: Octet,
    q2: Octet,
    q3: Octet,
}

// The row among the chunk's tokens and heads of a KV head's query.
fn query_row(query: u32, tile: Tile) -> u32 {
    let group = p.n_q_heads / p.n_kv_heads;
    if query >= tile.n_queries {
        return NO_QUERY;
    }
    return query / group * p.n_q_heads + tile.kv_head * group + query % group;
}

fn query_octet(row: u32, first_entry: u32, octet: u32) -> Octet {
    if row == NO_QUERY || octet >= OCTETS {
        return Octet(vec4<f32>(0.0), vec4<f32>(0.0));
    }
    let at = p.q_offset + (first_entry + row) * HEAD_DIM + 8u * octet;
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

fn stage_keys(slice: u32, key: u32, end: u32, kv_start: u32, lane: u32) {
    for (var i = lane; i < KEY_TILE * SLICE; i += GROUP) {
        let row = i / SLICE;
        let octet = slice * SLICE + i % SLICE;
        var x = Octet(vec4<f32>(0.0), vec4<f32>(0.0));
        if key + row < end && octet < OCTETS {
            x = kv_key(kv_start + (key + row) * ROW_LEN, octet);
        }
        pool[QUERY_TILE + row][i % SLICE * 2u] = x.low;
        pool[QUERY_TILE + row][i % SLICE * 2u + 1u] = x.high;
    }
}

// A pool row for each octet and four values.
fn stage_values(key: u32, end: u32, kv_start: u32, lane: u32) {
    for (var i = lane; i < VALUE_ROWS * OCTETS; i += GROUP) {
        let j = i / OCTETS;
        var x = Octet(vec4<f32>(0.0), vec4<f32>(0.0));
        if key + j < end {
            x = kv_value(kv_start + (key + j) * ROW_LEN, i % OCTETS);
        }
        let row = VALUES_AT + j / 4u * OCTETS + i % OCTETS;
        pool[row][j % 4u] = x.low;
        pool[row][j % 4u + 4u] = x.high;
    }
}

// Adds the products of vector c of the slices' rows.
fn add_scores(s: Scores, tr: u32, tc: u32, c: u32) -> Scores {
    let q0 = pool[tr][c];
    let q1 = pool[tr + ROW_QUADS][c];
    let q2 = pool[tr + 2u * ROW_QUADS][c];
    let q3 = pool[tr + 3u * ROW_QUADS][c];
    let x = vec4<f32>(q0.x, q1.x, q2.x, q3.x);
    let y = vec4<f32>(q0.y, q1.y, q2.y, q3.y);
    let z = vec4<f32>(q0.z, q1.z, q2.z, q3.z);
    let w = vec4<f32>(q0.w, q1.w, q2.w, q3.w);
    let k0 = pool[QUERY_TILE + tc][c];
    let k1 = pool[QUERY_TILE + tc + KEY_QUADS][c];
    let k2 = pool[QUERY_TILE + tc + 2u * KEY_QUADS][c];
    let k3 = pool[QUERY_TILE + tc + 3u * KEY_QUADS][c];
    // Sums of one product at a time become fused multiplications.
    var t = s;
    t.k0 += x * k0.x;
    t.k0 += y * k0.y;
    t.k0 += z * k0.z;
    t.k0 += w * k0.w;
    t.k1 += x * k1.x;
    t.k1 += y * k1.y;
    t.k1 += z * k1.z;
    t.k1 += w * k1.w;
    t.k2 += x * k2.x;
    t.k2 += y * k2.y;
    t.k2 += z * k2.z;
    t.k2 += w * k2.w;
    t.k3 += x * k3.x;
    t.k3 += y * k3.y;
    t.k3 += z * k3.z;
    t.k3 += w * k3.w;
    return t;
}

fn add_values(s: Sums, w: vec4<f32>, v: Octet) -> Sums {
    return Sums(
        Octet(s.q0.low + w.x * v.low, s.q0.high + w.x * v.high),
        Octet(s.q1.low + w.y * v.low, s.q1.high + w.y * v.high),
        Octet(s.q2.low + w.z * v.low, s.q2.high + w.z * v.high),
        Octet(s.q3.low + w.w * v.low, s.q3.high + w.w * v.high),
    );
}

fn scaled(s: Sums, f: vec4<f32>) -> Sums {
    return Sums(
        Octet(s.q0.low * f.x, s.q0.high * f.x),
        Octet(s.q1.low * f.y, s.q1.high * f.y),
        Octet(s.q2.low * f.z, s.q2.high * f.z),
        Octet(s.q3.low * f.w, s.q3.high * f.w),
    );
}

// A score that is hidden weighs nothing, also where nothing else is seen.
fn weight_of(s: vec4<f32>, top: vec4<f32>) -> vec4<f32> {
    return select(exp(s - top), vec4<f32>(0.0), s <= vec4<f32>(LOWEST));
}

fn put_weight(key: u32, tr: u32, w: vec4<f32>) {
    pool[key / 8u * ROW_QUADS + tr][key % 8u] = w;
}

fn attend_tile(tile: Tile, lane: u32) {
    let group = p.n_q_heads / p.n_kv_heads;
    var items = array<u32, QUERY_ITEMS>();
    for (var i = 0u; i < QUERY_ITEMS; i++) {
        items[i] = query_row(tile.first + (lane + i * GROUP) / SLICE, tile);
    }
    // Scores: queries tr + ROW_QUADS * 0..4 and keys tc + KEY_QUADS * 0..4.
    let tr = lane / KEY_QUADS;
    let tc = lane % KEY_QUADS;
    var seen = vec4<u32>(0u);
    var unseen = vec4<u32>(0u);
    for (var r = 0u; r < 4u; r++) {
        let query = tile.first + tr + r * ROW_QUADS;
        if query < tile.n_queries {
            let rows = rows_of(query / group);
            unseen[r] = rows.x;
            seen[r] = rows.y;
        }
    }
    var m = vec4<f32>(LOWEST);
    var l = vec4<f32>(0.0);
    // Values: an octet of the queries of quads quad and quad + QUAD_GROUPS. Lanes that are left
    // over repeat the last quad and do not put its sums.
    let octet = lane % OCTETS;
    let quad = min(lane / OCTETS, ROW_QUADS - 1u);
    let quad1 = min(quad + QUAD_GROUPS, ROW_QUADS - 1u);
    var o0 = Sums();
    var o1 = Sums();

    for (var key = tile.begin; key < tile.end; key += KEY_TILE) {
        if is_left_out(tile, key) {
            continue;
        }
        var s = Scores();
        // Queries are staged again for each tile of keys, slice by slice of the width: all of them
        // and the keys together would not fit into 16 KiB.
        for (var slice = 0u; slice < SLICES; slice++) {
            // The slice before is used up, and at the first one the values of the tile before.
            workgroupBarrier();
            for (var i = 0u; i < QUERY_ITEMS; i++) {
                let c = lane % SLICE;
                let x = query_octet(items[i], tile.first_entry, slice * SLICE + c);
                pool[(lane + i * GROUP) / SLICE][2u * c] = x.low;
                pool[(lane + i * GROUP) / SLICE][2u * c + 1u] = x.high;
            }
            stage_keys(slice, key, tile.end, tile.kv_start, lane);
            workgroupBarrier();
            s = add_scores(s, tr, tc, 0u);
            s = add_scores(s, tr, tc, 1u);
            s = add_scores(s, tr, tc, 2u);
            s = add_scores(s, tr, tc, 3u);
//# if SLICE == 4
            s = add_scores(s, tr, tc, 4u);
            s = add_scores(s, tr, tc, 5u);
            s = add_scores(s, tr, tc, 6u);
            s = add_scores(s, tr, tc, 7u);
//# end
        }

        let j = key + tc;
        s.k0 = score_of(s.k0, tile, j, unseen, seen);
        s.k1 = score_of(s.k1, tile, j + KEY_QUADS, unseen, seen);
        s.k2 = score_of(s.k2, tile, j + 2u * KEY_QUADS, unseen, seen);
        s.k3 = score_of(s.k3, tile, j + 3u * KEY_QUADS, unseen, seen);
        lane_parts[lane] = max(max(s.k0, s.k1), max(s.k2, s.k3));
        workgroupBarrier();
        // Each of the KEY_QUADS lanes that share queries finds the same maximum: no broadcast, and
        // no second barrier.
        var next = m;
        for (var i = 0u; i < KEY_QUADS; i++) {
            next = max(next, lane_parts[tr * KEY_QUADS + i]);
        }
        let factor = exp(m - next);
        m = next;
        let w0 = weight_of(s.k0, m);
        let w1 = weight_of(s.k1, m);
        let w2 = weight_of(s.k2, m);
        let w3 = weight_of(s.k3, m);
        l = l * factor + (w0 + w1) + (w2 + w3);
        put_weight(tc, tr, w0);
        put_weight(tc + KEY_QUADS, tr, w1);
        put_weight(tc + 2u * KEY_QUADS, tr, w2);
        put_weight(tc + 3u * KEY_QUADS, tr, w3);
        if tc == 0u {
            factors[tr] = factor;
        }
        stage_values(key, tile.end, tile.kv_start, lane);
        workgroupBarrier();

        o0 = scaled(o0, factors[quad]);
        if TWO_QUADS {
            o1 = scaled(o1, factors[quad1]);
        }
        // Weights took the place of the slices in the pool and values have what is left, so they
        // come in parts: fewer rows at a time the wider the heads are.
        for (var v = 0u; v < KEY_TILE; v += VALUE_ROWS) {
            if v > 0u {
                workgroupBarrier();
                stage_values(key + v, tile.end, tile.kv_start, lane);
                workgroupBarrier();
            }
            for (var g = 0u; g < VALUE_ROWS; g += 4u) {
                let values = VALUES_AT + g / 4u * OCTETS + octet;
                let weights = (v + g) / 8u * ROW_QUADS;
                // Constant where a slice holds all eight keys of a pool row.
                let half = (g + select(0u, v, VALUE_ROWS < 8u)) % 8u;
                for (var i = 0u; i < 4u; i++) {
                    let x = Octet(pool[values][i], pool[values][i + 4u]);
                    o0 = add_values(o0, pool[weights + quad][half + i], x);
                    if TWO_QUADS {
                        o1 = add_values(o1, pool[weights + quad1][half + i], x);
                    }
                }
            }
        }
    }

    workgroupBarrier();
    lane_parts[lane] = l;
    workgroupBarrier();
    // A lane's own part first, then the next lanes' in a ring.
    for (var i = 1u; i < KEY_QUADS; i++) {
        l += lane_parts[tr * KEY_QUADS + (tc + i) % KEY_QUADS];
    }
    workgroupBarrier();
    // One lane alone reads and writes a query's log-sum-exp.
    if tc == 0u {
        var held_shares = vec4<f32>(0.0);
        var made_shares = vec4<f32>(0.0);
        for (var r = 0u; r < 4u; r++) {
            let row = query_row(tile.first + tr + r * ROW_QUADS, tile);
            if row != NO_QUERY {
//# if PARTIAL
                partials[partial_start(row, tile.split)] = vec4<f32>(m[r], l[r], 0.0, 0.0);
//# else
                let at = p.lse_offset + tile.first_entry + row;
                var held = p.minus_infinity;
                if p.accumulate == 1u {
                    held = lse[at];
                }
                let both = shares(m[r], l[r], held, p.minus_infinity);
                held_shares[r] = both.held;
                made_shares[r] = both.made;
                lse[at] = both.lse;
//# end
            }
        }
        lane_parts[tr] = held_shares;
        lane_parts[ROW_QUADS + tr] = made_shares;
    }
    // Query r of all quads at a time, through shared memory, so that rows are written whole.
    for (var r = 0u; r < 4u; r++) {
        workgroupBarrier();
        if lane / OCTETS < min(QUAD_GROUPS, ROW_QUADS) {
            keep(quad, octet, chosen(o0, r));
            if quad + QUAD_GROUPS < ROW_QUADS {
                keep(quad1, octet, chosen(o1, r));
            }
        }
        workgroupBarrier();
        for (var i = lane; i < ROW_QUADS * 2u * OCTETS; i += GROUP) {
            let t = i / (2u * OCTETS);
            let row = query_row(tile.first + t + r * ROW_QUADS, tile);
            if row != NO_QUERY {
                let x = pool[i / 8u][i % 8u];
//# if PARTIAL
                partials[partial_start(row, tile.split) + 1u + i % (2u * OCTETS)] = x;
//# else
                let w = vec2<f32>(lane_parts[t][r], lane_parts[ROW_QUADS + t][r]);
                put(tile.first_entry + row, i % (2u * OCTETS), w, x);
//# end
            }
        }
    }
}

fn chosen(s: Sums, r: u32) -> Octet {
    switch r {
        case 0u: {
            return s.q0;
        }
        case 1u: {
            return s.q1;
        }
        case 2u: {
            return s.q2;
        }
        default: {
            return s.q3;
        }
    }
}

fn keep(quad: u32, octet: u32, x: Octet) {
    let at = quad * 2u * OCTETS + 2u * octet;
    pool[at / 8u][at % 8u] = x.low;
    pool[at / 8u][at % 8u + 1u] = x.high;
}

//# if PARTIAL
fn partial_start(row: u32, split: u32) -> u32 {
    return (row * p.n_splits + split) * (2u * OCTETS + 1u);
}
//# else
fn put(entry: u32, c: u32, w: vec2<f32>, made: vec4<f32>) {
    let at = p.out_offset + entry * HEAD_DIM;
    for (var i = 0u; i < 4u; i++) {
        let d = 4u * c + i;
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
