// The splits of `attend_list` or `attend_chunk` together, and with accumulate what is held:
//
//     out = sum_s e_s o_s / sum_s e_s l_s,   lse = M + ln sum_s e_s l_s,   e_s = exp(m_s - M)
//
// with M the largest m_s. A workgroup takes a query row: its invocations find M and the e_s of a
// split each, then take one vector of o of every SPLIT_GROUPS-th split.
//
// At most 2048 splits. Shared memory 14 KiB.

//# import shared/common
//# if HAS_SUBGROUPS
//# import shared/subgroups
//# end
//# import shared/reduce X=reduce_sum COMBINE=plus SUBGROUP_COMBINE=subgroupAdd
//# import shared/reduce X=reduce_max COMBINE=max SUBGROUP_COMBINE=subgroupMax
//# import shared/attend_shares

const GROUP: u32 = 256u;
// Vectors of o.
const VECTORS: u32 = (HEAD_DIM + 7u) / 8u * 2u;
const SPLIT_GROUPS: u32 = GROUP / VECTORS;
const MOST_SPLITS: u32 = 2048u;
// Vectors that an invocation loads before it uses them.
const UNROLL: u32 = 4u;

struct Params {
    n_tokens: u32,
    n_q_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    scale: f32,
    accumulate: u32,
    minus_infinity: f32,
    first_token: u32,
    n_rows: u32,
    n_splits: u32,
    out_offset: u32,
    lse_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
// For each query row of the span and split (m, l, -, -), then the vectors of o.
@group(0) @binding(1) var<storage, read> partials: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<storage, read_write> lse: array<f32>;

// The e_s; 0 where a split saw nothing and left its o unwritten.
var<workgroup> weights: array<f32, MOST_SPLITS>;
var<workgroup> sums: array<vec4<f32>, GROUP>;
var<workgroup> final_shares: vec2<f32>;

@compute @workgroup_size(256)
fn attend_merge(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
//# if HAS_SUBGROUPS
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) n_subgroups: u32,
//# end
) {
//# if HAS_SUBGROUPS
    let slot = subgroup_slot(subgroup, subgroup_lane);
//# else
    let slot = 0u;
    let n_subgroups = 1u;
//# end
    let row = flat_index(workgroup, grid);
    if row >= p.n_rows {
        return;
    }
    let n = min(p.n_splits, MOST_SPLITS);
    let begin = row * n * (VECTORS + 1u);
    var top = LOWEST;
    for (var s = lane; s < n; s += GROUP) {
        top = max(top, partials[begin + s * (VECTORS + 1u)].x);
    }
    let m = reduce_max(top, lane, slot, n_subgroups);
    var l_part = 0.0;
    for (var s = lane; s < n; s += GROUP) {
        let state = partials[begin + s * (VECTORS + 1u)];
        let e = select(exp(state.x - m), 0.0, state.y == 0.0);
        weights[s] = e;
        l_part += e * state.y;
    }
    let l = reduce_sum(l_part, lane, slot, n_subgroups);

    let column = begin + 1u + lane % VECTORS;
    let split_group = lane / VECTORS;
    var o = vec4<f32>(0.0);
    if split_group < SPLIT_GROUPS {
        for (var s = split_group; s < n; s += UNROLL * SPLIT_GROUPS) {
            var x = array<vec4<f32>, UNROLL>();
            for (var u = 0u; u < UNROLL; u++) {
                let split = min(s + u * SPLIT_GROUPS, n - 1u);
                x[u] = partials[column + split * (VECTORS + 1u)];
            }
            for (var u = 0u; u < UNROLL; u++) {
                let split = s + u * SPLIT_GROUPS;
                let e = weights[min(split, n - 1u)];
                o += select(vec4<f32>(0.0), e * x[u], split < n && e != 0.0);
            }
        }
    }
    sums[lane] = o;
    if lane == 0u {
        let at = p.lse_offset + p.first_token * p.n_q_heads + row;
        var held = p.minus_infinity;
        if p.accumulate == 1u {
            held = lse[at];
        }
        let both = shares(m, l, held, p.minus_infinity);
        final_shares = vec2<f32>(both.held, both.made);
        lse[at] = both.lse;
    }
    workgroupBarrier();
    if lane < VECTORS {
        var sum = sums[lane];
        for (var i = 1u; i < SPLIT_GROUPS; i++) {
            sum += sums[i * VECTORS + lane];
        }
        let at = p.out_offset + (p.first_token * p.n_q_heads + row) * HEAD_DIM;
        for (var i = 0u; i < 4u; i++) {
            let d = 4u * lane + i;
            if d < HEAD_DIM {
                var x = final_shares.y * sum[i];
                // Nothing held may hold anything.
                if final_shares.x != 0.0 {
                    x += final_shares.x * out[at + d];
                }
                out[at + d] = x;
            }
        }
    }
}
