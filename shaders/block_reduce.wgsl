// One landmark for each block of consecutive keys of a KV head. By `summary`:
//
//   MEAN     the mean of the keys
//   MAX      the largest value in every channel
//   MIN_MAX  the largest, then the smallest value in every channel
//   STRIDED  the mean of every stride-th key, n_top of them
//   TOP      the mean of the n_top keys of the largest mass, the lowest index first among equals
//
// Without TOP an invocation owns one channel of one landmark: loads are whole rows, and all
// invocations have work whatever the width of heads. With TOP a workgroup owns a block. Its
// invocations count for each key how many go before it, which is the key's place in the order, and
// then own the channels. Which keys count does not depend on the order of invocations.
//
// Bytes: 4 Hkv N Dh (4 Hkv blocks n_top Dh with STRIDED and TOP). Bound: memory.

//# import shared/common
//# if TOP
//# import shared/order NAN_KEY=0xffffffffu
//# end

struct Params {
    n_kv_heads: u32,
    n_points: u32,
    head_dim: u32,
    block: u32,
    summary: u32,
    n_top: u32,
    n_blocks: u32,
    width: u32,
    stride: u32,
    points_offset: u32,
    mass_offset: u32,
    out_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> points: array<f32>;
// The bits of numbers; read with TOP alone.
@group(0) @binding(2) var<storage, read> mass: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

// The first of a landmark's keys among all heads' keys, and their number.
fn members_of(landmark: u32) -> vec2<u32> {
    let head = landmark / p.n_blocks;
    let first = (landmark - head * p.n_blocks) * p.block;
    return vec2<u32>(head * p.n_points + first, min(p.block, p.n_points - first));
}

//# if TOP
const GROUP: u32 = 64u;
const MAX_TOP: u32 = 32u;

// The keys that stand for the block, in order.
var<workgroup> picks: array<u32, MAX_TOP>;

@compute @workgroup_size(64)
fn block_reduce(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let landmark = flat_index(workgroup, grid);
    if landmark >= p.n_kv_heads * p.n_blocks {
        return;
    }
    let members = members_of(landmark);
    let masses = p.mass_offset + members.x;
    for (var i = lane; i < members.y; i += GROUP) {
        let own = key_of(mass[masses + i]);
        var n_before = 0u;
        for (var j = 0u; j < members.y; j++) {
            let other = key_of(mass[masses + j]);
            n_before += u32(other > own || (other == own && j < i));
        }
        if n_before < p.n_top {
            picks[n_before] = i;
        }
    }
    workgroupBarrier();
    let n = min(p.n_top, members.y);
    for (var c = lane; c < p.head_dim; c += GROUP) {
        var sum = 0.0;
        for (var i = 0u; i < n; i++) {
            sum += points[p.points_offset + (members.x + picks[i]) * p.head_dim + c];
        }
        out[p.out_offset + landmark * p.width + c] = sum / f32(n);
    }
}
//# else
const MAX: u32 = 1u;
const MIN_MAX: u32 = 2u;
const STRIDED: u32 = 3u;

@compute @workgroup_size(256)
fn block_reduce(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let item = flat_index(workgroup, grid) * 256u + lane;
    let landmark = item / p.head_dim;
    if landmark >= p.n_kv_heads * p.n_blocks {
        return;
    }
    let channel = item - landmark * p.head_dim;
    let members = members_of(landmark);
    var step = 1u;
    var n = members.y;
    if p.summary == STRIDED {
        step = p.stride;
        n = min(p.n_top, (n + step - 1u) / step);
    }
    let at = p.points_offset + members.x * p.head_dim + channel;
    let first = points[at];
    // The sum, the largest and the smallest: where memory is the bound, the two that nobody wants
    // cost nothing.
    var all = vec3<f32>(first);
    for (var i = 1u; i < n; i++) {
        let next = points[at + i * step * p.head_dim];
        all = vec3<f32>(all.x + next, max(all.y, next), min(all.z, next));
    }
    let to = p.out_offset + landmark * p.width + channel;
    let is_extreme = p.summary == MAX || p.summary == MIN_MAX;
    out[to] = select(all.x / f32(n), all.y, is_extreme);
    if p.summary == MIN_MAX {
        out[to + p.head_dim] = all.z;
    }
}
//# end
