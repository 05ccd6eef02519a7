//! Rounding to whole numbers without a call.

/// The nearest whole number, ties to even, of one in -127..=127; not-a-number stays. By an addition
/// after which the last bit is 1: `round_ties_even` is a call where the compiler may not rely on
/// the processor's instruction for it.
#[inline(always)]
pub(crate) fn nearest(x: f32) -> f32 {
    const LAST_BIT_IS_1: f32 = 12_582_912.0;
    (x + LAST_BIT_IS_1) - LAST_BIT_IS_1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_number_is_that_of_the_standard_library() {
        for i in -130_000..=130_000 {
            let x = i as f32 / 1000.0;
            let want = x.round_ties_even().clamp(-127.0, 127.0);
            assert_eq!(nearest(x.clamp(-127.0, 127.0)), want, "{x}");
            let half = (i / 500) as f32 / 2.0;
            let want = half.round_ties_even().clamp(-127.0, 127.0);
            assert_eq!(nearest(half.clamp(-127.0, 127.0)), want, "{half}");
        }
        assert!(nearest(f32::NAN).is_nan());
    }
}
