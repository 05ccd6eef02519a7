// Means of neighbouring KV rows, keys and values alike: mean first_mean + i of each KV head is
//
//     out = (1 / n) sum_j row_j,   row_start + i n <= j < row_start + (i + 1) n
//
// An invocation owns an octet of the key or the value of one mean, and adds its rows in their
// order.
//
// Bytes: 2 Hkv Dh size n_means n read, 8 Hkv Dh n_means written. Bound: memory.

//# import shared/common
//# import shared/kv_rows

const GROUP: u32 = 64u;

struct Params {
    n_kv_heads: u32,
    head_dim: u32,
    n_averaged: u32,
    n_means: u32,
    row_start: u32,
    first_mean: u32,
    out_stride: u32,
    head_stride: u32,
    kv_offset: u32,
    out_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> kv: array<KvUnit>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn row_means(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let item = flat_index(workgroup, grid) * GROUP + lane;
    let octet = item % OCTETS;
    let is_value = item / OCTETS % 2u;
    let mean = item / (2u * OCTETS) % p.n_means;
    let kv_head = item / (2u * OCTETS) / p.n_means;
    if kv_head >= p.n_kv_heads {
        return;
    }
    let first = kv_head * p.head_stride + p.row_start + mean * p.n_averaged;
    var sum = Octet(vec4<f32>(0.0), vec4<f32>(0.0));
    for (var i = 0u; i < p.n_averaged; i++) {
        let row = p.kv_offset + (first + i) * ROW_LEN;
        var x = Octet(vec4<f32>(0.0), vec4<f32>(0.0));
        if is_value == 1u {
            x = kv_value(row, octet);
        } else {
            x = kv_key(row, octet);
        }
        sum.low += x.low;
        sum.high += x.high;
    }
    let n = f32(p.n_averaged);
    let at = (kv_head * p.out_stride + p.first_mean + mean) * 2u + is_value;
    for (var i = 0u; i < 4u; i++) {
        let d = 8u * octet + i;
        if d < HEAD_DIM {
            out[p.out_offset + at * HEAD_DIM + d] = sum.low[i] / n;
        }
        if d + 4u < HEAD_DIM {
            out[p.out_offset + at * HEAD_DIM + d + 4u] = sum.high[i] / n;
        }
    }
}
