// What the GROUP lanes of a workgroup find out together.

var<workgroup> sums: array<u32, GROUP>;
var<workgroup> uniform_value: u32;

// What all invocations are to know, from one of them.
fn shared_by_all(value: u32, lane: u32, owner: u32) -> u32 {
    workgroupBarrier();
    if lane == owner {
        uniform_value = value;
    }
    return workgroupUniformLoad(&uniform_value);
}

// The sum over the lanes up to and with this one.
fn scan(value: u32, lane: u32) -> u32 {
    workgroupBarrier();
    sums[lane] = value;
    workgroupBarrier();
    for (var step = 1u; step < GROUP; step *= 2u) {
        var lower = 0u;
        if lane >= step {
            lower = sums[lane - step];
        }
        workgroupBarrier();
        sums[lane] += lower;
        workgroupBarrier();
    }
    return sums[lane];
}
