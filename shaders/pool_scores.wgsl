// out[h, i] = scale * the scores of KV head h's group, made one and pooled over the `kernel`
// neighbours of token i: heads joined (mean or maximum), then neighbours pooled (mean, where what
// lies outside counts as 0, or maximum, where it does not), or with `pool_first` the other way.
//
// An invocation owns one score. It reads group * kernel numbers, which its neighbours read too, so
// nearly all of them come from the first cache.
//
// Bytes: 4 N (Hq + Hkv). Bound: memory, in the first cache.

//# import shared/common

struct Params {
    n_kv_heads: u32,
    group: u32,
    n: u32,
    in_stride: u32,
    out_stride: u32,
    kernel: u32,
    pool: u32,
    group_max: u32,
    pool_first: u32,
    scale: f32,
    x_offset: u32,
    out_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

// Two numbers together: their maximum or their sum.
fn together(is_max: u32, a: f32, b: f32) -> f32 {
    if is_max == 1u {
        return max(a, b);
    }
    return a + b;
}

// Score i of a group, whose first head's scores begin at `start`, as one.
fn joined(start: u32, i: u32) -> f32 {
    var all = x[start + i];
    for (var g = 1u; g < p.group; g++) {
        all = together(p.group_max, all, x[start + g * p.in_stride + i]);
    }
    return select(all / f32(p.group), all, p.group_max == 1u);
}

// The scores from `first` up to `end` of the head whose scores begin at `start`, as one.
fn smoothed(start: u32, first: u32, end: u32) -> f32 {
    var all = x[start + first];
    for (var j = first + 1u; j < end; j++) {
        all = together(p.pool, all, x[start + j]);
    }
    return select(all / f32(p.kernel), all, p.pool == 1u);
}

@compute @workgroup_size(256)
fn pool_scores(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let item = flat_index(workgroup, grid) * 256u + lane;
    let head = item / p.n;
    if head >= p.n_kv_heads {
        return;
    }
    let i = item - head * p.n;
    let half = p.kernel / 2u;
    let first = max(i, half) - half;
    let end = min(i + half + 1u, p.n);
    let start = p.x_offset + head * p.group * p.in_stride;
    var score = 0.0;
    if p.pool_first == 1u {
        score = smoothed(start, first, end);
        for (var g = 1u; g < p.group; g++) {
            let next = smoothed(start + g * p.in_stride, first, end);
            score = together(p.group_max, score, next);
        }
        score = select(score / f32(p.group), score, p.group_max == 1u);
    } else {
        score = joined(start, first);
        for (var j = first + 1u; j < end; j++) {
            score = together(p.pool, score, joined(start, j));
        }
        score = select(score / f32(p.kernel), score, p.pool == 1u);
    }
    out[p.out_offset + head * p.out_stride + i] = p.scale * score;
}
