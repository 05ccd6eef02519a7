//! Variable tracking: which variables a value reached through a chain of assignments.

use std::collections::BTreeSet;

use longview_core::SplitMix64;

use super::super::task::{Setting, Task};
use super::answer::{Answer, sample};
use crate::error::EvalError;
use crate::haystack;
use crate::sample::Sample;
use crate::score::Metric;
use crate::words;

/// Assignments from one variable to the next.
const HOPS: usize = 4;
const MAX_NEW: usize = 30;
/// Lines of noise in the solved example that stands first: about 500 tokens with the rest.
const EXAMPLE_LINES: usize = 12;

pub(super) struct Variables;

/// A chain of variables with its value.
struct Chain {
    value: String,
    names: Vec<String>,
}

impl Chain {
    /// Names of `n_letters` capitals that no chain before has.
    fn new(n_letters: usize, taken: &mut BTreeSet<String>, rng: &mut SplitMix64) -> Self {
        let value = words::number(5, rng);
        let mut names = Vec::with_capacity(HOPS + 1);
        while names.len() <= HOPS {
            let name = words::letters(n_letters, 'A', 'Z', rng);
            if taken.insert(name.clone()) {
                names.push(name);
            }
        }
        Self { value, names }
    }

    fn assignments(&self) -> Vec<String> {
        let first = format!("VAR {} = {}", self.names[0], self.value);
        let others =
            self.names.windows(2).map(|pair| format!("VAR {} = VAR {} ", pair[1], pair[0]));
        std::iter::once(first).chain(others).collect()
    }

    /// `n` lines of noise with the assignments at random places, in order.
    fn context(&self, n: usize, rng: &mut SplitMix64) -> String {
        let assignments = self.assignments();
        let mut places: Vec<usize> = assignments
            .iter()
            .map(|_| (f64::from(rng.next_f32()) * (n + 1) as f64) as usize)
            .collect();
        places.sort_unstable();
        let mut lines = vec![haystack::NOISE.to_owned(); n];
        for (place, assignment) in places.into_iter().zip(assignments).rev() {
            lines.insert(place, assignment);
        }
        lines.join("\n")
    }

    fn document(&self, context: &str) -> String {
        format!(
            "Memorize and track the chain(s) of variable assignment hidden in the following \
             text.\n\n{context}"
        )
    }

    fn ask(&self) -> String {
        let value = &self.value;
        format!(
            "\nQuestion: Find all variables that are assigned the value {value} in the text above."
        )
    }

    /// The published prefix, its spelling included.
    fn lead(&self) -> String {
        format!(
            " Answer: According to the chain(s) of variable assignment in the text above, {} \
             variables are assgined the value {}, they are: ",
            self.names.len(),
            self.value
        )
    }
}

impl Task for Variables {
    fn name(&self) -> &str {
        "ruler-vt"
    }

    fn about(&self) -> String {
        "the 5 variables that got a value through 4 assignments, in noise".to_owned()
    }

    fn sample(&self, setting: &Setting<'_>) -> Result<Sample, EvalError> {
        let mut rng = setting.rng(self.name());
        let mut taken = BTreeSet::new();
        let solved = Chain::new(3, &mut taken, &mut rng);
        let context = solved.context(EXAMPLE_LINES, &mut rng);
        let example = format!(
            "{}{}{}{}\n\n",
            solved.document(&context),
            solved.ask(),
            solved.lead(),
            solved.names.join(" ")
        );
        let chain = Chain::new(5, &mut taken, &mut rng);
        let seed = rng.next_u64();
        setting.largest(self.name(), 1, usize::MAX, &|n| {
            let context = chain.context(n, &mut SplitMix64::new(seed));
            let document = format!("{example}{}", chain.document(&context));
            let answer = Answer {
                references: chain.names.clone(),
                max_new: MAX_NEW,
                metric: Metric::MatchAll,
                depth: None,
            };
            sample(document, chain.ask(), chain.lead(), answer)
        })
    }
}
