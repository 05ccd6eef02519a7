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

// Log-sum-exp of a maximum m and a sum l of exponentials. One that is not finite is none: there was
// a NaN among the scores, of which the exp and log of some implementations make infinity. It stays
// NaN, whose bits come from a parameter because others compute x - x as 0.
fn log_sum_exp(m: f32, l: f32, minus_infinity: f32) -> f32 {
    let nan = bitcast<f32>(bitcast<u32>(minus_infinity) | 0x00400000u);
    return select(nan, m + log(l), l > 0.0 && l < 1e38);
}

// A new attention of maximum m and sum l beside a finished one of log-sum-exp `held`; minus
// infinity comes as a parameter, since WGSL has no word for it.
fn shares(m: f32, l: f32, held: f32, minus_infinity: f32) -> Shares {
    let nothing_held = bitcast<u32>(held) == bitcast<u32>(minus_infinity);
    if l == 0.0 {
        return Shares(select(1.0, 0.0, nothing_held), 0.0, held);
    }
    if nothing_held {
        return Shares(0.0, 1.0 / l, log_sum_exp(m, l, minus_infinity));
    }
    let top = max(m, held);
    let a = exp(held - top);
    let b = exp(m - top);
    let sum = a + b * l;
    return Shares(a / sum, b / sum, log_sum_exp(top, sum, minus_infinity));
}
