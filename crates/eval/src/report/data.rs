//! The records of results files, as figures and tables want them.

use std::collections::HashSet;

use crate::policies::title;
use crate::record::{
    Answer, Cache, Failure, Perplexity, PolicyLabel, Probe, Question, Run, Spectrum, Speed,
};
use crate::summary::{Cell, Summary};

/// The records of results files, sorted out. Of what was measured twice they hold the last.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// Who wrote them.
    pub runs: Vec<Run>,
    /// Scored answers of all files.
    pub answers: Vec<Answer>,
    /// What failed and has no answer.
    pub failures: Vec<Failure>,
    /// Probes of the attention.
    pub probes: Vec<Probe>,
    /// Perplexities under each policy.
    pub perplexities: Vec<Perplexity>,
    /// What the device cache found.
    pub caches: Vec<Cache>,
    /// Singular values.
    pub spectra: Vec<Spectrum>,
    /// What steps cost.
    pub speeds: Vec<Speed>,
    /// Scores of the answers.
    pub(super) summary: Summary,
}

impl Data {
    /// Drops everything about policies that are not in `titles` ([`crate::policies::title`]), and
    /// says which of these are not in the data. Full attention stays.
    pub fn keep(&mut self, titles: &[String]) -> Vec<String> {
        let mut seen = HashSet::new();
        let mut wanted = |label: &PolicyLabel| {
            let name = title(label);
            let is_wanted = titles.contains(&name);
            let stays = is_wanted || label.budget == 0;
            if is_wanted {
                seen.insert(name);
            }
            stays
        };
        self.answers.retain(|x| wanted(&x.policy));
        self.probes.retain(|x| wanted(&x.policy));
        self.perplexities.retain(|x| wanted(&x.policy));
        self.caches.retain(|x| wanted(&x.policy));
        self.speeds.retain(|x| wanted(&x.policy));
        self.failures.retain(|x| x.policy.as_ref().is_none_or(&mut wanted));
        self.summary = Summary::of(&self.answers);
        titles.iter().filter(|name| !seen.contains(*name)).cloned().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty()
            && self.probes.is_empty()
            && self.perplexities.is_empty()
            && self.caches.is_empty()
            && self.spectra.is_empty()
            && self.speeds.is_empty()
    }

    /// Whether full attention does a task well enough for others to be compared with it; true where
    /// it was not run.
    pub fn is_able(&self, task: &str, length: usize, question: Question) -> bool {
        let cell = Cell { task: task.to_owned(), length, question };
        !self.summary.is_marked(&cell).unwrap_or(false)
    }
}
