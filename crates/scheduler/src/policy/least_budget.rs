//! The budget that would do where one is too small: found by asking for each whether it does, so
//! that one change is enough whatever the defaults make of it.

use super::error::PolicyError;
use super::limits::MAX_CONTEXT;
use super::options::{BudgetOption, PolicyOptions};
use super::small_budget::{ALWAYS, AlwaysAttended, SmallBudget};

/// From this budget on no default grows with it any more but a share of it or all that is left, so
/// that a budget above one that does, does too.
const SETTLED: usize = 8_192;

/// What is always attended grows with the budget, and so does what it needs; but a share of it is
/// rounded, so that less of it may need this many tokens more.
const ROUNDED: usize = 1;

/// The error of a budget that is no more than what is always attended, before it is known what
/// would do.
pub(super) fn too_small(
    options: &PolicyOptions,
    budget: usize,
    always: AlwaysAttended,
) -> PolicyError {
    PolicyError::BudgetTooSmall(Box::new(SmallBudget {
        preset: options.preset,
        budget,
        always,
        least: None,
        given: Vec::new(),
        is_auto: matches!(options.budget, None | Some(BudgetOption::Auto)),
    }))
}

/// The same with what would do: `needs` says of options with a budget what would be enough for what
/// they always attend. It is more than the budget where that does not do.
pub(super) fn advised(
    small: SmallBudget,
    options: &PolicyOptions,
    needs: impl Fn(&PolicyOptions, usize) -> usize,
) -> PolicyError {
    let least = |options: &PolicyOptions| {
        least_from(small.budget.saturating_add(1), |tokens| needs(options, tokens))
    };
    let all = options.given();
    let mut given: Vec<_> =
        ALWAYS.iter().map(|(name, _)| *name).filter(|name| all.contains(name)).collect();
    let found = least(options);
    if found.is_none() {
        // The option without which a budget does; where there is none, one of those to blame.
        let helps = |name: &&'static str| {
            let mut options = options.clone();
            options.omit(name);
            least(&options).is_some()
        };
        let name = given.iter().copied().find(|name| helps(name));
        given = name.or(given.first().copied()).into_iter().collect();
    }
    PolicyError::BudgetTooSmall(Box::new(SmallBudget { least: found, given, ..small }))
}

/// The least number of at least `from` such that it and all above it do, which is that they need no
/// more than themselves.
fn least_from(from: usize, needs: impl Fn(usize) -> usize) -> Option<usize> {
    let does = |n| needs(n) <= n;
    if from > MAX_CONTEXT {
        return None;
    }
    let settled = from.max(SETTLED);
    if does(settled) {
        return Some(least_of_all(from, settled, needs));
    }
    let (mut fails, mut works) = (settled, MAX_CONTEXT);
    if !does(works) {
        return None;
    }
    while works - fails > 1 {
        let middle = fails + (works - fails) / 2;
        if does(middle) { works = middle } else { fails = middle }
    }
    Some(works)
}

/// The same of numbers up to `does`, which does. Defaults may grow by leaps, so that a number does
/// and one above it does not: all are looked at, from above, but for those down to what one needs,
/// as a smaller one needs no more.
fn least_of_all(from: usize, does: usize, needs: impl Fn(usize) -> usize) -> usize {
    let (mut least, mut enough) = (does, needs(does));
    while least > from {
        let next = enough.saturating_add(ROUNDED).min(least - 1).max(from);
        enough = needs(next);
        if enough > next {
            return next + 1;
        }
        least = next;
    }
    from
}

#[cfg(test)]
mod tests {
    use longview_core::SplitMix64;

    use super::super::preset::Preset;
    use super::super::random::Setting;
    use super::super::resolve::needs;
    use super::*;

    /// Of numbers of which no more is known than whether they do.
    fn least_that(from: usize, does: impl Fn(usize) -> bool) -> Option<usize> {
        least_from(from, |n| if does(n) { n } else { n + 1 })
    }

    #[test]
    fn the_least_that_does_is_one_above_which_all_do() {
        for least in [5, 6, 100, SETTLED - 1, SETTLED, SETTLED + 1, 99_999_999, MAX_CONTEXT] {
            assert_eq!(least_that(5, |n| n >= least), Some(least));
            assert_eq!(least_from(5, |_| least), Some(least));
        }
        assert_eq!(least_that(5, |n| n > MAX_CONTEXT), None);
        assert_eq!(least_that(5, |n| n == 6 || n > 9), Some(10), "7 fails again");
        assert_eq!(least_that(MAX_CONTEXT, |n| n > MAX_CONTEXT), None);
        assert_eq!(least_that(MAX_CONTEXT + 1, |_| false), None);
    }

    #[test]
    fn a_search_by_needs_finds_what_one_number_by_number_finds() {
        let (mut rng, mut n_found) = (SplitMix64::new(0x1ea5), 0);
        for (preset, name) in Preset::ALL {
            for _ in 0..100 {
                let setting = Setting::draw(&mut rng, *preset, 1 << 14);
                let options = setting.options();
                let from = 1 + rng.below(600);
                let needs = |tokens| needs(&options, setting.context, tokens);
                let expected = least_that(from, |tokens| needs(tokens) <= tokens);
                assert_eq!(least_from(from, needs), expected, "{name}: {}", options.text());
                n_found += usize::from(expected.is_some_and(|least| least > from));
            }
        }
        assert!(n_found > 200, "{n_found} above the first number");
    }
}
