// out = x / sqrt(mean(x^2) + eps) * weight (+ out) for each row.
//
// A workgroup owns one row: its GROUP invocations stride over the elements, sum their squares, and
// stride again to write. The second reading comes from the cache.
//
// Bytes: 4 rows width in (8 with accumulate), 4 out. Bound: memory.

//# import shared/common
//# if HAS_SUBGROUPS
//# import shared/subgroups
//# end
//# import shared/reduce X=reduce_sum COMBINE=plus SUBGROUP_COMBINE=subgroupAdd
//# import shared/element X=weight

struct Params {
    n_rows: u32,
    width: u32,
    eps: f32,
    accumulate: u32,
    kind: u32,
    weight_offset: u32,
    x_offset: u32,
    out_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> weight: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(GROUP)
fn rms_norm(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
//# if HAS_SUBGROUPS
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) n_subgroups: u32,
//# end
) {
    let row = flat_index(workgroup, grid);
    if row >= p.n_rows {
        return;
    }
    let start = p.x_offset + row * p.width;
    var squares = 0.0;
    for (var i = lane; i < p.width; i += GROUP) {
        let element = x[start + i];
        squares += element * element;
    }
//# if HAS_SUBGROUPS
    let slot = subgroup_slot(subgroup, subgroup_lane);
    let total = reduce_sum(squares, lane, slot, n_subgroups);
//# else
    let total = reduce_sum(squares, lane, 0u, 0u);
//# end
    let scale = inverseSqrt(total / f32(p.width) + p.eps);
    let to = p.out_offset + row * p.width;
    for (var i = lane; i < p.width; i += GROUP) {
        var y = x[start + i] * scale * weight_element(p.kind, p.weight_offset + i);
        if p.accumulate != 0u {
            y += out[to + i];
        }
        out[to + i] = y;
    }
}
