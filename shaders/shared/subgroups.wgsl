// Where a subgroup leaves what its invocations have put together: a slot of its own.
//
// By what WGSL promises alone. Not promised, and not used: that invocations lie in subgroups in the
// order of their indices, that all of a subgroup's invocations are there, the first among them, and
// that every pipeline of a device has subgroups of one size.

const NO_SLOT: u32 = 0xffffffffu;

// The slot for the one invocation of a subgroup that is to write, NO_SLOT for the others. To be
// called by all of them.
fn subgroup_slot(subgroup: u32, subgroup_lane: u32) -> u32 {
    return select(NO_SLOT, subgroup, subgroup_lane == subgroupBroadcastFirst(subgroup_lane));
}
