// out = [max(x, 0); min(x, 0)] for each vector. An invocation owns one element of x.
//
// Bytes: 4 n width in, twice that out. Bound: memory; for the queries of one token, the launch.

//# import shared/common

struct Params {
    n_vectors: u32,
    width: u32,
    x_offset: u32,
    out_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn split_signs(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let item = flat_index(workgroup, grid) * 256u + lane;
    if item >= p.n_vectors * p.width {
        return;
    }
    let element = x[p.x_offset + item];
    // The vectors before this one have left two elements for each of theirs.
    let at = p.out_offset + item / p.width * p.width + item;
    out[at] = select(0.0, element, element > 0.0);
    out[at + p.width] = select(0.0, element, element < 0.0);
}
