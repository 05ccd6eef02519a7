// cosines[h] = mean over the group of q . last / (|q| |last|), 0 for a vector of zeros; last = q.
//
// A workgroup owns one KV head: its GROUP invocations stride over the elements of one query head
// after the other, sum three products, and replace the elements that they read themselves.
//
// Bytes: 12 Hq Dh. Bound: the launch.

//# import shared/common
//# if HAS_SUBGROUPS
//# import shared/subgroups
//# end
//# import shared/reduce X=reduce_sum COMBINE=plus SUBGROUP_COMBINE=subgroupAdd

struct Params {
    n_tokens: u32,
    n_q_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    q_index: u32,
    q_offset: u32,
    last_offset: u32,
    cosines_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read_write> last: array<f32>;
@group(0) @binding(3) var<storage, read_write> cosines: array<f32>;

@compute @workgroup_size(GROUP)
fn query_gate(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
//# if HAS_SUBGROUPS
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) n_subgroups: u32,
//# end
) {
    let kv_head = flat_index(workgroup, grid);
    if kv_head >= p.n_kv_heads {
        return;
    }
//# if HAS_SUBGROUPS
    let place = vec2<u32>(subgroup_slot(subgroup, subgroup_lane), n_subgroups);
//# else
    let place = vec2<u32>(0u, 0u);
//# end
    let group = p.n_q_heads / p.n_kv_heads;
    var sum = 0.0;
    for (var g = 0u; g < group; g++) {
        let head = (kv_head * group + g) * p.head_dim;
        let q_row = p.q_offset + p.q_index * p.n_q_heads * p.head_dim + head;
        let last_row = p.last_offset + head;
        // q . last, q . q, last . last.
        var products = vec3<f32>(0.0);
        for (var i = lane; i < p.head_dim; i += GROUP) {
            let now = q[q_row + i];
            let old = last[last_row + i];
            products += vec3<f32>(now * old, now * now, old * old);
            last[last_row + i] = now;
        }
        let both = reduce_sum(products.x, lane, place.x, place.y);
        let new_square = reduce_sum(products.y, lane, place.x, place.y);
        let old_square = reduce_sum(products.z, lane, place.x, place.y);
        // Two roots: the product of both squares can leave the range of f32.
        let lengths = sqrt(new_square) * sqrt(old_square);
        sum += both / select(lengths, 1.0, lengths == 0.0);
    }
    if lane == 0u {
        cosines[p.cosines_offset + kv_head] = sum / f32(group);
    }
}
