// Attention that listed rows received from the queries that count: for each query head and entry
//
//     out[h, i] += sum over queries t that see row i of exp(scale * q[t, h] . k[i] - lse[t, h])
//
// Query t sees row j where first < j - t <= diagonal: both bounds come from the host, so that no
// difference leaves i32.
//
// A workgroup owns TILE entries of a KV head's list and HEADS query heads of its group; an
// invocation owns KEYS entries, whose keys it reads whole, and their sums, which stay in registers
// until all queries have passed. Queries go through shared memory, TOKENS at a time, where all
// invocations read the same one: of a prompt's end many tokens of one head, of a decoded token all
// heads. Keys are read once for each tile of queries, all but the first time from cache. One
// invocation sums up an entry in the order of the queries, so the result has one value.
//
// FLOPs: 2 Dh for each query head, token and row. Bytes of a decoded token: the keys, Dh * size a
// row and KV head. Bound: arithmetic for many queries, memory for one.
// HEAD_DIM * HEADS * TOKENS <= 2048, HEAD_DIM <= 256. Shared memory 8.1 KiB at most.

//# import shared/common
//# import shared/kv_rows

const GROUP: u32 = 64u;
const TILE: u32 = GROUP * KEYS;
const QUERIES: u32 = HEADS * TOKENS;

struct Params {
    n_tokens: u32,
    n_q_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    scale: f32,
    q_start: u32,
    q_len: u32,
    list_stride: u32,
    out_stride: u32,
    diagonal: i32,
    window: u32,
    first: i32,
    head_stride: u32,
    q_offset: u32,
    lse_offset: u32,
    kv_offset: u32,
    rows_offset: u32,
    n_rows_offset: u32,
    out_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> lse: array<f32>;
@group(0) @binding(3) var<storage, read> kv: array<KvUnit>;
@group(0) @binding(4) var<storage, read> rows: array<u32>;
@group(0) @binding(5) var<storage, read> n_rows: array<u32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

// [octet][query, low and high]; query i is head i % HEADS of token i / HEADS of the tile.
var<workgroup> queries: array<array<vec4<f32>, 2u * QUERIES>, OCTETS>;
var<workgroup> query_lse: array<f32, QUERIES>;

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

// Brings the queries of TOKENS tokens from `token` on; those that there are not become queries that
// attended nothing. `head` is the first query head of `n_heads`.
fn load_queries(token: u32, head: u32, n_heads: u32, lane: u32) {
    for (var i = lane; i < 2u * OCTETS * QUERIES; i += GROUP) {
        let query = i / (2u * OCTETS);
        let c = i % (2u * OCTETS);
        let t = token + query / HEADS;
        let h = query % HEADS;
        var quad = vec4<f32>(0.0);
        if t < p.q_len && h < n_heads {
            let row = (p.q_start + t) * p.n_q_heads + head + h;
            quad = p.scale * query_quad(p.q_offset + row * HEAD_DIM, c);
        }
        queries[c / 2u][2u * query + c % 2u] = quad;
    }
    if lane < QUERIES {
        let t = token + lane / HEADS;
        let h = lane % HEADS;
        // e^(x - this) is 0 for every score.
        var found = -LOWEST;
        if t < p.q_len && h < n_heads {
            let own = lse[p.lse_offset + (p.q_start + t) * p.n_q_heads + head + h];
            if own > LOWEST {
                found = own;
            }
        }
        query_lse[lane] = found;
    }
}

@compute @workgroup_size(64)
fn column_mass(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let kv_head = workgroup.y;
    let begin = workgroup.x * TILE;
    let n = min(n_rows[p.n_rows_offset + kv_head], p.list_stride);
    if begin >= n {
        return;
    }
    let group = p.n_q_heads / p.n_kv_heads;
    let n_heads = min(HEADS, group - workgroup.z * HEADS);
    let head = kv_head * group + workgroup.z * HEADS;

    var row = array<u32, KEYS>();
    var key = array<u32, KEYS>();
    for (var k = 0u; k < KEYS; k++) {
        // Lanes without an entry take the last one's, and leave the sum.
        let entry = min(begin + lane + k * GROUP, n - 1u);
        row[k] = rows[p.rows_offset + kv_head * p.list_stride + entry];
        key[k] = p.kv_offset + (kv_head * p.head_stride + row[k]) * ROW_LEN;
    }
    var sums = array<f32, HEADS * KEYS>();
    for (var token = 0u; token < p.q_len; token += TOKENS) {
        workgroupBarrier();
        load_queries(token, head, n_heads, lane);
        workgroupBarrier();
        var scores = array<f32, QUERIES * KEYS>();
        for (var c = 0u; c < OCTETS; c++) {
            var x = array<Octet, KEYS>();
            for (var k = 0u; k < KEYS; k++) {
                x[k] = kv_key(key[k], c);
            }
            for (var i = 0u; i < QUERIES; i++) {
                let low = queries[c][2u * i];
                let high = queries[c][2u * i + 1u];
                for (var k = 0u; k < KEYS; k++) {
                    // One product at a time: such sums become fused multiplications.
                    var sum = scores[KEYS * i + k];
                    sum += x[k].low.x * low.x;
                    sum += x[k].low.y * low.y;
                    sum += x[k].low.z * low.z;
                    sum += x[k].low.w * low.w;
                    sum += x[k].high.x * high.x;
                    sum += x[k].high.y * high.y;
                    sum += x[k].high.z * high.z;
                    sum += x[k].high.w * high.w;
                    scores[KEYS * i + k] = sum;
                }
            }
        }
        for (var i = 0u; i < QUERIES; i++) {
            for (var k = 0u; k < KEYS; k++) {
                let apart = i32(row[k]) - i32(token + i / HEADS);
                let sees = apart <= p.diagonal && apart > p.first;
                let mass = exp(scores[KEYS * i + k] - query_lse[i]);
                sums[KEYS * (i % HEADS) + k] += select(0.0, mass, sees);
            }
        }
    }
    for (var h = 0u; h < HEADS; h++) {
        for (var k = 0u; k < KEYS; k++) {
            let entry = begin + lane + k * GROUP;
            if entry < n && h < n_heads {
                out[p.out_offset + (head + h) * p.out_stride + entry] += sums[KEYS * h + k];
            }
        }
    }
}
