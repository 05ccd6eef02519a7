// Sum and maximum over a workgroup of GROUP invocations (a power of two, at most 256), given to all
// of them. Call from uniform control flow.

var<workgroup> reduce_parts: array<f32, GROUP>;

//# if HAS_SUBGROUPS
fn reduce_sum(x: f32, lane: u32, subgroup_lane: u32, subgroup_size: u32) -> f32 {
    let part = subgroupAdd(x);
    workgroupBarrier();
    if subgroup_lane == 0u {
        reduce_parts[lane / subgroup_size] = part;
    }
    workgroupBarrier();
    let n = (GROUP + subgroup_size - 1u) / subgroup_size;
    var total = 0.0;
    for (var i = 0u; i < n; i++) {
        total += reduce_parts[i];
    }
    return total;
}

fn reduce_max(x: f32, lane: u32, subgroup_lane: u32, subgroup_size: u32) -> f32 {
    let part = subgroupMax(x);
    workgroupBarrier();
    if subgroup_lane == 0u {
        reduce_parts[lane / subgroup_size] = part;
    }
    workgroupBarrier();
    let n = (GROUP + subgroup_size - 1u) / subgroup_size;
    var total = reduce_parts[0];
    for (var i = 1u; i < n; i++) {
        total = max(total, reduce_parts[i]);
    }
    return total;
}
//# else
fn reduce_sum(x: f32, lane: u32, subgroup_lane: u32, subgroup_size: u32) -> f32 {
    workgroupBarrier();
    reduce_parts[lane] = x;
    workgroupBarrier();
    for (var half = GROUP / 2u; half > 0u; half /= 2u) {
        if lane < half {
            reduce_parts[lane] += reduce_parts[lane + half];
        }
        workgroupBarrier();
    }
    return reduce_parts[0];
}

fn reduce_max(x: f32, lane: u32, subgroup_lane: u32, subgroup_size: u32) -> f32 {
    workgroupBarrier();
    reduce_parts[lane] = x;
    workgroupBarrier();
    for (var half = GROUP / 2u; half > 0u; half /= 2u) {
        if lane < half {
            reduce_parts[lane] = max(reduce_parts[lane], reduce_parts[lane + half]);
        }
        workgroupBarrier();
    }
    return reduce_parts[0];
}
//# end
