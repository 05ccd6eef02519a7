// Elements of the binding X, an `array<u32>`, one at a time; `kind` (F32, F16 or BF16) is known
// only when the kernel runs, which keeps variants few. For what is read little; see `packed`
// otherwise.
// Needs `common`.

fn X_element(kind: u32, at: u32) -> f32 {
    if kind == F32 {
        return bitcast<f32>(X[at]);
    }
    let pair = unpack_halves(kind, X[at / 2u]);
    return select(pair.x, pair.y, (at & 1u) != 0u);
}
