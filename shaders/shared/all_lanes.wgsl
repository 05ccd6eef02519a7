// X: what all lanes of `attend_list` have, put together and given to all of them. COMBINE puts two
// together, SUBGROUP_COMBINE those of a subgroup. Some lanes first gather what a subgroup or eight
// lanes have; each lane then gathers what those have. `slot` and `n_slots` are as for
// `shared/reduce`.

fn X(
    x: array<vec4<f32>, QUADS>,
    lane: u32,
    slot: u32,
    n_slots: u32,
) -> array<vec4<f32>, QUADS> {
    var all = x;
//# if HAS_SUBGROUPS
    for (var h = 0u; h < QUADS; h++) {
        let part = SUBGROUP_COMBINE(all[h]);
        if slot != NO_SLOT {
            lane_sums[slot * QUADS + h] = part;
        }
    }
    let n = n_slots;
//# else
    for (var h = 0u; h < QUADS; h++) {
        lane_parts[lane * QUADS + h] = all[h];
    }
    workgroupBarrier();
    let n = 8u;
    if lane < n * QUADS {
        let at = lane / QUADS * (GROUP / n * QUADS) + lane % QUADS;
        var part = lane_parts[at];
        for (var i = 1u; i < GROUP / n; i++) {
            part = COMBINE(part, lane_parts[at + i * QUADS]);
        }
        lane_sums[lane] = part;
    }
//# end
    workgroupBarrier();
    for (var h = 0u; h < QUADS; h++) {
        all[h] = lane_sums[h];
        for (var i = 1u; i < n; i++) {
            all[h] = COMBINE(all[h], lane_sums[i * QUADS + h]);
        }
    }
    return all;
}
