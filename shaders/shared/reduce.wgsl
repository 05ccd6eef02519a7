// X: one number of all GROUP invocations of a workgroup (a power of two, at most 256), given to
// all of them. COMBINE puts two together, SUBGROUP_COMBINE those of a subgroup; import once for
// each.
// `slot` is where the invocation's subgroup leaves its part (of `shared/subgroups`), `n_slots` how
// many subgroups there are; without subgroups both are ignored.
// Call from uniform control flow. Needs `common`.

var<workgroup> X_parts: array<f32, GROUP>;

fn X(x: f32, lane: u32, slot: u32, n_slots: u32) -> f32 {
//# if HAS_SUBGROUPS
    let part = SUBGROUP_COMBINE(x);
    workgroupBarrier();
    if slot != NO_SLOT {
        X_parts[slot] = part;
    }
    workgroupBarrier();
    var all = X_parts[0];
    for (var i = 1u; i < n_slots; i++) {
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
