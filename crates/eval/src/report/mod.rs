//! Results files to one self-contained page, plots as SVG and PNG, and a Markdown table.

mod chart;
mod figures;
mod numbers;
mod page;
mod read;
mod speeds;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

pub use chart::{Axis, Chart, Point, Series, Unit};
pub use figures::Figure;

use crate::policies::title;
use crate::record::{
    Answer, Cache, Failure, Perplexity, PolicyLabel, Probe, Question, Run, Spectrum, Speed,
};
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
    /// Numbers that say nothing beside each other.
    #[error(
        "{first} and {second} cannot be put together: {what} {found} in the one, {wanted} in the \
         other; make a report of each"
    )]
    Mixed {
        /// The file that came first.
        first: PathBuf,
        /// The other; the same where one file holds both.
        second: PathBuf,
        /// What differs.
        what: String,
        /// In the first.
        found: String,
        /// In the second.
        wanted: String,
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

/// The records of results files, sorted out. Of what was measured twice they hold the last.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// Who wrote them.
    pub runs: Vec<Run>,
    /// Answers.
    pub answers: Vec<Answer>,
    /// What failed and has no answer.
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
}

impl Data {
    /// Reads results files. A last line that was cut off (a run that was killed) is passed over.
    ///
    /// # Errors
    /// [`ReportError::Mixed`] for numbers of two models, and for answers to one task under two
    /// settings; [`ReportError::File`], [`ReportError::Line`], [`ReportError::Empty`].
    pub fn read(paths: &[PathBuf]) -> Result<Self, ReportError> {
        let data = read::read(paths)?;
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
        self.summary = Summary::of(&self.answers);
        titles.iter().filter(|name| !seen.contains(*name)).cloned().collect()
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
