// How the logits of a KV head's clusters become scores: see `centroid_scores`. A workgroup of 256
// invocations joins the (maximum, sum) pairs of all blocks, then writes its share of the scores.
//
// Needs `common`, the parameters n_q_heads, n_kv_heads, room, n_blocks and pooling, weight_of(head,
// cluster), and memory of the importer for 256 pairs: held_pair(lane) and hold_pair(lane, pair).
// With POOL also number(i), element i of what `logits` left, and score(head, c) and put_score(head,
// c, x) for the scores.

// Clusters of a block.
const BLOCK: u32 = 64u;
// Query heads whose blocks are joined at once: 32 invocations for each.
const JOINED: u32 = 8u;
const MAX_SOFTMAX: u32 = 1u;
const SIZE_WEIGHTED: u32 = 2u;

// (maximum, sum of e^(x - maximum)) of two sets of numbers together.
fn join(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let most = max(a.x, b.x);
    return vec2<f32>(most, a.y * exp(a.x - most) + b.y * exp(b.x - most));
}

// Joins the pairs of 32 invocations each; the first of them gets the result.
fn join_pairs(pair: vec2<f32>, lane: u32) -> vec2<f32> {
    hold_pair(lane, pair);
    workgroupBarrier();
    for (var half = 16u; half > 0u; half /= 2u) {
        if lane % 32u < half {
            hold_pair(lane, join(held_pair(lane), held_pair(lane + half)));
        }
        workgroupBarrier();
    }
    return held_pair(lane);
}

//# if POOL
var<workgroup> totals: array<vec2<f32>, JOINED>;

// Maximum and 1 / sum over all clusters of query head `first + lane / 32` of the group.
fn find_totals(kv_head: u32, first: u32, group: u32, n: u32, lane: u32) {
    let g = first + lane / 32u;
    var pair = vec2<f32>(LOWEST, 0.0);
    if g < group {
        let n_blocks = (n + BLOCK - 1u) / BLOCK;
        let at = p.n_q_heads * p.room + 2u * (kv_head * group + g) * p.n_blocks;
        for (var i = lane % 32u; i < n_blocks; i += 32u) {
            pair = join(pair, vec2<f32>(number(at + 2u * i), number(at + 2u * i + 1u)));
        }
    }
    pair = join_pairs(pair, lane);
    if lane % 32u == 0u {
        // Without any weight all masses are 0.
        totals[lane / 32u] = vec2<f32>(pair.x, select(1.0 / pair.y, 0.0, pair.y == 0.0));
    }
    workgroupBarrier();
}

// Writes the scores of clusters [start, end) of the n of a KV head.
fn pool_share(head: u32, start: u32, end: u32, n: u32, lane: u32) {
    let group = p.n_q_heads / p.n_kv_heads;
    for (var first = 0u; first < group; first += JOINED) {
        find_totals(head, first, group, n, lane);
        let n_heads = min(JOINED, group - first);
        for (var c = start + lane; c < end; c += 256u) {
            let weight = weight_of(head, c);
            var pooled = 0.0;
            if first > 0u {
                pooled = score(head, c);
            }
            for (var i = 0u; i < n_heads; i++) {
                let logit = number((head * group + first + i) * p.room + c);
                let mass = weight * exp(logit - totals[i].x) * totals[i].y;
                pooled = select(pooled + mass, max(pooled, mass), p.pooling == MAX_SOFTMAX);
            }
            put_score(head, c, pooled);
        }
        workgroupBarrier();
    }
}
//# end
