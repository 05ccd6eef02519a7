// How attentions over disjoint keys go together. Needs `common`.
//
// An attention in the making is its maximum m of the scores, its sum l of exp(score - m), and the
// sum o of exp(score - m) v. Nothing seen is m = LOWEST, l = 0, o = 0. A finished one is o / l and
// its log-sum-exp m + ln l, minus infinity where nothing was seen.

struct Shares {
    // What the finished one and the o of the new one are multiplied with.
    held: f32,
    made: f32,
    // Log-sum-exp of both.
    lse: f32,
}

// A new attention of maximum m and sum l beside a finished one of log-sum-exp `held`; minus
// infinity comes as a parameter, since WGSL has no word for it.
fn shares(m: f32, l: f32, held: f32, minus_infinity: f32) -> Shares {
    let nothing_held = bitcast<u32>(held) == bitcast<u32>(minus_infinity);
    if l == 0.0 {
        return Shares(select(1.0, 0.0, nothing_held), 0.0, held);
    }
    if nothing_held {
        return Shares(0.0, 1.0 / l, m + log(l));
    }
    let top = max(m, held);
    let a = exp(held - top);
    let b = exp(m - top);
    let sum = a + b * l;
    return Shares(a / sum, b / sum, top + log(sum));
}
