// out = gate / (1 + exp(-2 u)) * up with u = sqrt(2 / pi) (gate + 0.044715 gate^3), one element per
// invocation.

//# import shared/common
//# import shared/gelu

struct Params {
    n: u32,
    gate_offset: u32,
    up_offset: u32,
    out_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read> up: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn gelu_mul(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat_index(workgroup, grid) * 256u + lane;
    if i >= p.n {
        return;
    }
    let g = gate[p.gate_offset + i];
    out[p.out_offset + i] = gelu(g) * up[p.up_offset + i];
}
