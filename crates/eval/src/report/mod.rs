//! Results files to one self-contained page, plots as SVG and PNG, and a Markdown table.

mod chart;
mod figures;
mod numbers;
mod page;
mod speeds;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

pub use chart::{Axis, Chart, Point, Series, Unit};
pub use figures::Figure;

use crate::policies::title;
use crate::record::{
    Answer, Cache, Failure, Perplexity, PolicyLabel, Probe, Question, Record, Run, Spectrum, Speed,
};
use crate::results::{AnswerKey, parse};
use crate::summary::{Cell, Summary};

/// What can go wrong with a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A file that cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line that is no record.
    #[error("{path}, line {line}: {reason}; is it a results file of `longview eval`?")]
    Line {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing to show.
    #[error("{0}: no results; `longview eval -o FILE` writes some")]
    Empty(PathBuf),
    /// A plot that cannot be drawn.
    #[error("a plot could not be drawn: {0}")]
    Draw(String),
}

impl ReportError {
    fn draw(error: impl std::fmt::Display) -> Self {
        Self::Draw(error.to_string())
    }
}

/// The records of results files, sorted out.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// Who wrote them.
    pub runs: Vec<Run>,
    /// Answers; of an answer that is there twice, the last.
    pub answers: Vec<Answer>,
    /// What failed.
    pub failures: Vec<Failure>,
    /// Probes of the attention.
    pub probes: Vec<Probe>,
    /// Perplexities.
    pub perplexities: Vec<Perplexity>,
    /// What the device cache found.
    pub caches: Vec<Cache>,
    /// Singular values.
    pub spectra: Vec<Spectrum>,
    /// What steps cost.
    pub speeds: Vec<Speed>,
    /// Scores of the answers.
    summary: Summary,
    /// Where each answer is.
    places: HashMap<AnswerKey, usize>,
}

impl Data {
    /// Reads results files. A last line that was cut off (a run that was killed) is passed over.
    pub fn read(paths: &[PathBuf]) -> Result<Self, ReportError> {
        let mut data = Self::default();
        for path in paths {
            let file = |source| ReportError::File { path: path.clone(), source };
            let reader = BufReader::new(fs::File::open(path).map_err(file)?);
            let lines: Vec<String> = reader.lines().collect::<Result<_, _>>().map_err(file)?;
            for (i, line) in lines.iter().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
                match parse(line) {
                    Ok(record) => record.into_iter().for_each(|record| data.add(record)),
                    Err(e) if e.is_eof() && i + 1 == lines.len() => {}
                    Err(e) => {
                        let reason = e.to_string();
                        return Err(ReportError::Line { path: path.clone(), line: i + 1, reason });
                    }
                }
            }
        }
        data.summary = Summary::of(&data.answers);
        let first = paths.first().cloned().unwrap_or_default();
        match data.is_empty() {
            true => Err(ReportError::Empty(first)),
            false => Ok(data),
        }
    }

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
        self.places = self.answers.iter().enumerate().map(|(i, x)| (AnswerKey::of(x), i)).collect();
        self.summary = Summary::of(&self.answers);
        titles.iter().filter(|name| !seen.contains(*name)).cloned().collect()
    }

    fn add(&mut self, record: Record) {
        match record {
            Record::Run(x) => self.runs.push(x),
            Record::Answer(x) => {
                let place = self.places.entry(AnswerKey::of(&x));
                match place {
                    Entry::Occupied(place) => self.answers[*place.get()] = x,
                    Entry::Vacant(place) => {
                        place.insert(self.answers.len());
                        self.answers.push(x);
                    }
                }
            }
            Record::Failure(x) => self.failures.push(x),
            Record::Probe(x) => self.probes.push(x),
            Record::Perplexity(x) => self.perplexities.push(x),
            Record::Cache(x) => self.caches.push(x),
            Record::Spectrum(x) => self.spectra.push(x),
            Record::Speed(x) => self.speeds.push(x),
        }
    }

    fn is_empty(&self) -> bool {
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

    /// Every figure that the data suffices for.
    pub fn figures(&self) -> Vec<Figure> {
        figures::figures(self)
    }

    /// Scores as Markdown: a row for each policy and budget, a column for each task.
    pub fn markdown(&self) -> String {
        page::markdown(self)
    }
}

/// Writes `index.html`, `scores.md` and the plots into `folder`, and says how many plots there are.
pub fn write(data: &Data, folder: &Path) -> Result<usize, ReportError> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| ReportError::File { path, source }
    };
    fs::create_dir_all(folder).map_err(file(folder))?;
    let mut drawn = Vec::new();
    for figure in data.figures() {
        let svg = figure.chart.svg(&figure.title)?;
        let path = folder.join(format!("{}.svg", figure.name));
        fs::write(&path, &svg).map_err(file(&path))?;
        figure.chart.png(&figure.title, &folder.join(format!("{}.png", figure.name)))?;
        drawn.push((figure, svg));
    }
    let path = folder.join("scores.md");
    fs::write(&path, data.markdown()).map_err(file(&path))?;
    let path = folder.join("index.html");
    fs::write(&path, page::html(data, &drawn)).map_err(file(&path))?;
    Ok(drawn.len())
}
