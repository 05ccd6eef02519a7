// Halves written at any place: words at the ends keep their other half.

//# import shared/common

struct Params {
    n: u32,
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> source: array<u32>;
@group(0) @binding(2) var<storage, read_write> target_words: array<u32>;

@compute @workgroup_size(64)
fn write_halves(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let item = flat_index(workgroup, grid) * 64u + lane;
    let first = p.offset & 1u;
    if 2u * item >= first + p.n {
        return;
    }
    var mask = 0xffffffffu;
    if item == 0u && first == 1u {
        mask = 0xffff0000u;
    }
    if 2u * item + 1u >= first + p.n {
        mask &= 0x0000ffffu;
    }
    let at = p.offset / 2u + item;
    target_words[at] = (target_words[at] & ~mask) | (source[item] & mask);
}
