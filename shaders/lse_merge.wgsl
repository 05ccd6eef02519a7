// The attention over the keys of both, in place in the first:
//
//     out = (a out + b other) / (a + b),   lse = M + ln(a + b),
//     a = exp(lse - M),   b = exp(other_lse - M),   M = max(lse, other_lse)
//
// A workgroup takes 8 rows, 32 invocations each. Bound: memory, 3 * Dh * 4 bytes a row.

//# import shared/common
//# import shared/attend_shares

struct Params {
    n_rows: u32,
    head_dim: u32,
    minus_infinity: f32,
    other_out_offset: u32,
    other_lse_offset: u32,
    out_offset: u32,
    lse_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> other_out: array<f32>;
@group(0) @binding(2) var<storage, read> other_lse: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;

const LANES: u32 = 32u;
const ROWS: u32 = 8u;

var<workgroup> final_shares: array<vec2<f32>, ROWS>;

@compute @workgroup_size(256)
fn lse_merge(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = flat_index(workgroup, grid) * ROWS + lane / LANES;
    // One lane alone reads and writes a row's log-sum-exp.
    if lane % LANES == 0u && row < p.n_rows {
        let other = other_lse[p.other_lse_offset + row];
        let nothing = bitcast<u32>(other) == bitcast<u32>(p.minus_infinity);
        let l = select(1.0, 0.0, nothing);
        let both = shares(other, l, lse[p.lse_offset + row], p.minus_infinity);
        final_shares[lane / LANES] = vec2<f32>(both.held, both.made);
        lse[p.lse_offset + row] = both.lse;
    }
    workgroupBarrier();
    if row >= p.n_rows {
        return;
    }
    let w = final_shares[lane / LANES];
    for (var d = lane % LANES; d < p.head_dim; d += LANES) {
        let at = row * p.head_dim + d;
        var x = 0.0;
        // What saw nothing may hold anything.
        if w.x != 0.0 {
            x = w.x * out[p.out_offset + at];
        }
        if w.y != 0.0 {
            x += w.y * other_out[p.other_out_offset + at];
        }
        out[p.out_offset + at] = x;
    }
}
