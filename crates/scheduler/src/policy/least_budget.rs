//! The budget that would do where one is too small: found by asking for each whether it does, so
//! that one change is enough whatever the defaults make of it.

use super::error::PolicyError;
use super::limits::MAX_CONTEXT;
use super::options::{BudgetOption, PolicyOptions};
use super::small_budget::{ALWAYS, AlwaysAttended, SmallBudget};

/// From this budget on no default grows with it any more but a share of it or all that is left, so
/// that a budget above one that does, does too.
const SETTLED: usize = 8_192;

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

/// The same with what would do: `does` says whether options with a budget leave enough.
pub(super) fn advised(
    small: SmallBudget,
    options: &PolicyOptions,
    does: impl Fn(&PolicyOptions, usize) -> bool,
) -> PolicyError {
    let least = |options: &PolicyOptions| {
        least_from(small.budget.saturating_add(1), |tokens| does(options, tokens))
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

/// The least number of at least `from` such that it and all above it do.
fn least_from(from: usize, does: impl Fn(usize) -> bool) -> Option<usize> {
    if from > MAX_CONTEXT {
        return None;
    }
    let settled = from.max(SETTLED);
    if does(settled) {
        // Defaults may grow by leaps below, so that a number does and one above it does not.
        return (from..settled).rev().find(|n| !does(*n)).map_or(Some(from), |n| Some(n + 1));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_that_does_is_one_above_which_all_do() {
        for least in [5, 6, 100, SETTLED - 1, SETTLED, SETTLED + 1, 99_999_999, MAX_CONTEXT] {
            assert_eq!(least_from(5, |n| n >= least), Some(least));
        }
        assert_eq!(least_from(5, |n| n > MAX_CONTEXT), None);
        assert_eq!(least_from(5, |n| n == 6 || n > 9), Some(10), "7 fails again");
        assert_eq!(least_from(MAX_CONTEXT, |n| n > MAX_CONTEXT), None);
        assert_eq!(least_from(MAX_CONTEXT + 1, |_| false), None);
    }
}
