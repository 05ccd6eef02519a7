// X: one number of all GROUP invocations of a workgroup (a power of two, at most 256), given to
// all of them. COMBINE puts two together, SUBGROUP_COMBINE those of a subgroup; import once for
// each.
// Call from uniform control flow. Needs `common`.

var<workgroup> X_parts: array<f32, GROUP>;

fn X(x: f32, lane: u32, subgroup_lane: u32, subgroup_size: u32) -> f32 {
//# if HAS_SUBGROUPS
    let part = SUBGROUP_COMBINE(x);
    workgroupBarrier();
    if subgroup_lane == 0u {
        X_parts[lane / subgroup_size] = part;
    }
    workgroupBarrier();
    let n = (GROUP + subgroup_size - 1u) / subgroup_size;
    var all = X_parts[0];
    for (var i = 1u; i < n; i++) {
        all = COMBINE(all, X_parts[i]);
    }
    return all;
//# else
    workgroupBarrier();
    X_parts[lane] = x;
    workgroupBarrier();
    for (var half = GROUP / 2u; half > 0u; half /= 2u) {
        if lane < half {
            X_parts[lane] = COMBINE(X_parts[lane], X_parts[lane + half]);
        }
        workgroupBarrier();
    }
    return X_parts[0];
//# end
}
