//! Whether bounds of what steps left out hold, and how near they are, from records of probes: each
//! bound beside the truth of the same step, layer and query head.

use crate::record::Probe;

/// What was left out must be more than this for a bound to be compared with it: of less than 1 %
/// nobody asks how near.
const LARGE: f64 = 0.01;

/// The share of bounds that a summary of an answer speaks of.
const MOST: f64 = 0.99;

/// Bounds beside the truth: shares of the attention of a step, a layer and a query head.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    cases: Vec<Case>,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    truth: f64,
    bound: f64,
}

impl Case {
    /// The truth is 1 less a sum that is kept in f32.
    fn holds(self) -> bool {
        self.bound >= self.truth * (1.0 - 1e-6) - 1e-7
    }
}

impl Coverage {
    /// Adds the steps of one query head.
    pub fn add(&mut self, probe: &Probe) {
        let steps = probe.mass_steps.iter().zip(&probe.bound_steps);
        let case = |(mass, bound): (&f32, &f32)| Case {
            truth: (1.0 - f64::from(*mass)).max(0.0),
            bound: f64::from(*bound),
        };
        self.cases.extend(steps.map(case));
    }

    /// Steps, layers and query heads.
    pub fn n_cases(&self) -> usize {
        self.cases.len()
    }

    /// Bounds that the truth is not above.
    pub fn n_held(&self) -> usize {
        self.cases.iter().filter(|case| case.holds()).count()
    }

    /// The share of them; `None` without cases.
    pub fn held(&self) -> Option<f64> {
        (self.n_cases() > 0).then(|| self.n_held() as f64 / self.n_cases() as f64)
    }

    fn ratios(&self) -> Vec<f64> {
        let large = self.cases.iter().filter(|case| case.truth > LARGE);
        let mut ratios: Vec<f64> = large.map(|case| case.bound / case.truth).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    /// Cases in which more than 1 % was left out.
    pub fn n_large(&self) -> usize {
        self.ratios().len()
    }

    /// The median of bound over truth where more than 1 % was left out.
    pub fn tightness(&self) -> Option<f64> {
        let ratios = self.ratios();
        ratios.get(ratios.len() / 2).copied()
    }

    /// What the summary of an answer says, that 99 % of the choices left out at most this, and the
    /// share of choices that did; `None` without cases.
    pub fn summary(&self) -> Option<(f64, f64)> {
        let mut bounds: Vec<f64> = self.cases.iter().map(|case| case.bound).collect();
        bounds.sort_by(f64::total_cmp);
        let last = (MOST * bounds.len() as f64).ceil() as usize;
        let most = *bounds.get(last.checked_sub(1)?)?;
        let below = self.cases.iter().filter(|case| case.truth <= most).count();
        Some((most, below as f64 / self.n_cases() as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(cases: &[(f32, f32)]) -> Coverage {
        let mut coverage = Coverage::default();
        coverage.add(&Probe {
            mass_steps: cases.iter().map(|(truth, _)| 1.0 - truth).collect(),
            bound_steps: cases.iter().map(|(_, bound)| *bound).collect(),
            ..Probe::default()
        });
        coverage
    }

    #[test]
    fn bounds_hold_where_they_are_not_below_the_truth() {
        let coverage = of(&[(0.5, 0.6), (0.5, 0.5), (0.5, 0.49), (0.0, 0.0), (0.25, 0.125)]);
        assert_eq!((coverage.n_cases(), coverage.n_held()), (5, 3));
        assert_eq!(coverage.held(), Some(0.6));
    }

    #[test]
    fn only_cases_of_more_than_1_percent_say_how_near_bounds_are() {
        let coverage = of(&[(0.5, 0.75), (0.001, 0.9), (0.25, 0.25), (0.125, 0.5)]);
        assert_eq!((coverage.n_large(), coverage.tightness()), (3, Some(1.5)));
        let none = Coverage::default();
        assert_eq!((none.held(), none.tightness(), none.summary()), (None, None, None));
        assert_eq!(of(&[(0.0, 0.1)]).tightness(), None);
    }

    #[test]
    fn a_summary_is_of_99_bounds_in_100() {
        let mut cases = vec![(0.25, 0.5); 99];
        cases.push((0.75, 0.875));
        assert_eq!(of(&cases).summary(), Some((0.5, 0.99)));
        cases.push((0.75, 0.875));
        assert_eq!(of(&cases).summary(), Some((0.875, 1.0)));
    }
}
