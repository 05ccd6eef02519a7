//! Reads results files: what was measured twice counts once, the last time; what was mended is no
//! failure any more; what cannot be put together is refused.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::path::{Path, PathBuf};

use longview_core::read_regular;

use super::data::Data;
use super::error::ReportError;
use crate::record::{Failure, PolicyLabel, Record};
use crate::results::{
    AnswerKey, Difference, MAX_RESULTS_BYTES, is_cut_line, other_model, other_setting, parse,
    whole_lines,
};
use crate::summary::Summary;

/// Settings that say something about some tasks alone, by how the names of these begin.
const OF_TASKS: [(&str, &str); 4] = [
    ("--depths", "niah-"),
    ("--squad", "ruler-qa-1"),
    ("--hotpotqa", "ruler-qa-2"),
    ("--longbench", "longbench-"),
];

/// Who should have answered what: task, length, document and, unless it is about all, the policy.
type Asked = (String, usize, usize, Option<PolicyLabel>);

/// Files on their way to [`Data`].
#[derive(Default)]
struct Reader {
    data: Data,
    /// The file of each run in `data`.
    paths: Vec<PathBuf>,
    /// The run that writes the lines at hand.
    run: Option<usize>,
    /// The run whose model the others must have.
    model: Option<usize>,
    /// The first run that answered each task.
    tasks: HashMap<String, usize>,
    /// Failures, each with the number of runs up to it.
    failures: Vec<(usize, Failure)>,
    /// The same number for the last answer to each.
    answered: HashMap<Asked, usize>,
}

impl Data {
    /// Reads results files. A last line that was cut off (a run that was killed) is passed over.
    ///
    /// # Errors
    /// [`ReportError::Mixed`] for numbers of two models, and for answers to one task under two
    /// settings; [`ReportError::File`], [`ReportError::Line`], [`ReportError::Empty`].
    pub fn read(paths: &[PathBuf]) -> Result<Self, ReportError> {
        let mut reader = Reader::default();
        for path in paths {
            reader.file(path)?;
        }
        let data = reader.finish();
        if data.is_empty() {
            return Err(ReportError::Empty(paths.first().cloned().unwrap_or_default()));
        }
        Ok(data)
    }
}

impl Reader {
    fn file(&mut self, path: &Path) -> Result<(), ReportError> {
        let bytes = read_regular(path, MAX_RESULTS_BYTES)
            .map_err(|source| ReportError::File { path: path.to_owned(), source })?;
        self.run = None;
        let (whole, rest) = whole_lines(&bytes);
        let lines = || whole.split_inclusive(|byte| *byte == b'\n');
        for (i, line) in lines().enumerate() {
            let wrong = |reason| ReportError::Line { path: path.to_owned(), line: i + 1, reason };
            if let Some(record) = record_of(line).map_err(wrong)? {
                self.add(record, path)?;
            }
        }
        match record_of(rest) {
            Ok(found) => found.map_or(Ok(()), |record| self.add(record, path)),
            Err(_) if is_cut_line(rest) => Ok(()),
            Err(reason) => {
                let line = lines().count() + 1;
                Err(ReportError::Line { path: path.to_owned(), line, reason })
            }
        }
    }

    fn add(&mut self, record: Record, path: &Path) -> Result<(), ReportError> {
        let data = &mut self.data;
        match record {
            Record::Run(x) => {
                self.run = Some(data.runs.len());
                data.runs.push(x);
                self.paths.push(path.to_owned());
                return Ok(());
            }
            Record::Failure(x) => {
                self.failures.push((data.runs.len(), x));
                return Ok(());
            }
            Record::Answer(x) => {
                let of = |policy| (x.task.clone(), x.length, x.sample, policy);
                for asked in [of(None), of(Some(x.policy.clone()))] {
                    self.answered.insert(asked, data.runs.len());
                }
                let task = x.task.clone();
                data.answers.push(x);
                self.check_task(task)?;
            }
            Record::Probe(x) => data.probes.push(x),
            Record::Perplexity(x) => data.perplexities.push(x),
            Record::Cache(x) => data.caches.push(x),
            Record::Spectrum(x) => data.spectra.push(x),
            Record::Speed(x) => data.speeds.push(x),
        }
        self.check_model()
    }

    /// Fails if the run at hand has another model than those before.
    fn check_model(&mut self) -> Result<(), ReportError> {
        let Some(now) = self.run else { return Ok(()) };
        let first = *self.model.get_or_insert(now);
        let run = |i: usize| &self.data.runs[i];
        if let Some(difference) = other_model(run(first), run(now)) {
            return Err(self.mixed(first, now, difference));
        }
        // One that says more tells more others apart.
        if run(first).fingerprint.is_empty() {
            self.model = Some(now);
        }
        Ok(())
    }

    /// Fails if the run at hand answered a task with other settings than those before.
    fn check_task(&mut self, task: String) -> Result<(), ReportError> {
        let Some(now) = self.run else { return Ok(()) };
        let is_of = |name: &str| {
            let owner = OF_TASKS.iter().find(|(setting, _)| *setting == name);
            owner.is_none_or(|(_, start)| task.starts_with(start))
        };
        let first = self.tasks.get(&task).copied().unwrap_or(now);
        let (before, run) = (&self.data.runs[first], &self.data.runs[now]);
        let names: BTreeSet<&String> = before.settings.keys().chain(run.settings.keys()).collect();
        let names = names.into_iter().filter(|name| first != now && is_of(name));
        if let Some(difference) = other_setting(before, run, names) {
            return Err(self.mixed(first, now, difference));
        }
        self.tasks.entry(task).or_insert(now);
        Ok(())
    }

    fn mixed(&self, first: usize, second: usize, difference: Difference) -> ReportError {
        let (what, found, wanted) = difference;
        let [first, second] = [first, second].map(|i| self.paths[i].clone());
        ReportError::Mixed { first, second, what, found, wanted }
    }

    fn finish(self) -> Data {
        let Self { mut data, failures, answered, .. } = self;
        keep_last(&mut data.answers, AnswerKey::of);
        let answers: HashSet<AnswerKey> = data.answers.iter().map(AnswerKey::of).collect();
        let is_open = |(run, failure): &(usize, Failure)| match key_of(failure) {
            Some(key) => !answers.contains(&key),
            // Of one that does not say which question it was: nobody asked that document again.
            None => answered.get(&asked(failure)).is_none_or(|last| last <= run),
        };
        data.failures = failures.into_iter().filter(is_open).map(|(_, failure)| failure).collect();
        keep_last(&mut data.failures, |x| (asked(x), x.question, x.index, x.seed));
        keep_last(&mut data.probes, |x| {
            (x.text.clone(), x.policy.clone(), x.length, x.layer, x.head)
        });
        keep_last(&mut data.perplexities, |x| (x.text.clone(), x.policy.clone(), x.position));
        keep_last(&mut data.caches, |x| {
            (x.text.clone(), x.policy.clone(), x.cache_steps, x.length, x.layer, x.head)
        });
        keep_last(&mut data.spectra, |x| {
            (x.text.clone(), x.length, x.layer, x.head, x.side.clone())
        });
        keep_last(&mut data.speeds, |x| (x.policy.clone(), x.context, x.steps, x.injected));
        data.summary = Summary::of(&data.answers);
        data
    }
}

/// The record of a line, if it has one of a kind that is known.
fn record_of(line: &[u8]) -> Result<Option<Record>, String> {
    let text = std::str::from_utf8(line).map_err(|error| error.to_string())?;
    match text.trim() {
        "" => Ok(None),
        text => parse(text).map_err(|error| error.to_string()),
    }
}

fn asked(failure: &Failure) -> Asked {
    let Failure { task, policy, length, sample, .. } = failure;
    (task.clone(), *length, *sample, policy.clone())
}

/// The answer that a failure stands for, where it says so.
fn key_of(failure: &Failure) -> Option<AnswerKey> {
    Some(AnswerKey {
        task: failure.task.clone(),
        policy: failure.policy.clone()?,
        length: failure.length,
        sample: failure.sample,
        index: failure.index?,
        seed: failure.seed?,
        question: failure.question?,
    })
}

/// Of those with the same key the last, at the place of the first.
fn keep_last<T, K: Eq + Hash>(all: &mut Vec<T>, key: impl Fn(&T) -> K) {
    let mut places = HashMap::new();
    let mut kept = Vec::with_capacity(all.len());
    for one in all.drain(..) {
        match places.entry(key(&one)) {
            Entry::Occupied(place) => kept[*place.get()] = one,
            Entry::Vacant(place) => {
                place.insert(kept.len());
                kept.push(one);
            }
        }
    }
    *all = kept;
}
