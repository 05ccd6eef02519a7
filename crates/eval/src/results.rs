//! A results file: lines are appended and flushed one by one, so that a run that ends anywhere can
//! go on there.

use std::collections::HashSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::EvalError;
use crate::record::{Answer, PolicyLabel, Question, Record, Run};

/// Which answer a line is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AnswerKey {
    /// Its name on the command line.
    pub task: String,
    /// Who answered.
    pub policy: PolicyLabel,
    /// The length that was asked for.
    pub length: usize,
    /// Number of the document.
    pub sample: usize,
    /// Number of the question.
    pub index: usize,
    /// Seed of the run.
    pub seed: u64,
    /// What the policy knew.
    pub question: Question,
}

impl AnswerKey {
    /// The key of an answer.
    pub fn of(answer: &Answer) -> Self {
        Self {
            task: answer.task.clone(),
            policy: answer.policy.clone(),
            length: answer.length,
            sample: answer.sample,
            index: answer.index,
            seed: answer.seed,
            question: answer.question,
        }
    }
}

/// The longest results file that is read.
pub(crate) const MAX_RESULTS_BYTES: u64 = 1 << 30;

/// What every line begins with.
const LINE_START: &[u8] = b"{\"kind\":";

/// What older programs, which did not say it, ran with.
const BEFORE_IT_WAS_SAID: [(&str, &str); 2] =
    [("--recall", "exact"), ("--rope-scaling", "the model's")];

/// An open results file.
#[derive(Debug)]
pub struct ResultsFile {
    path: PathBuf,
    file: File,
    answers: Vec<Answer>,
    keys: HashSet<AnswerKey>,
}

impl ResultsFile {
    /// Opens or creates the file, reads what it has, and notes in it that `run` goes on. A last
    /// line that was cut off is removed.
    ///
    /// # Errors
    /// [`EvalError::OtherRun`] if the file was written with another model, seed or setting;
    /// [`EvalError::Content`] if it is no results file, which is then as it was;
    /// [`EvalError::File`].
    pub fn open(path: &Path, run: &Run) -> Result<Self, EvalError> {
        let failed = |action| move |source| EvalError::file(path, action, source);
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed("opening"))?;
        lock(&file).map_err(|reason| EvalError::content(path, reason))?;
        let mut bytes = Vec::new();
        (&file).take(MAX_RESULTS_BYTES + 1).read_to_end(&mut bytes).map_err(failed("reading"))?;
        if bytes.len() as u64 > MAX_RESULTS_BYTES {
            return Err(EvalError::content(path, "has more than 1 GiB; go on in another file"));
        }
        let (whole, rest) = whole_lines(&bytes);
        if !is_cut_line(rest) {
            let reason = "its last line is neither whole nor the beginning of a line of a results \
                          file";
            return Err(EvalError::content(path, reason));
        }
        let text = std::str::from_utf8(whole)
            .map_err(|error| EvalError::content(path, format!("is not UTF-8: {error}")))?;
        let (mut answers, mut keys) = (Vec::new(), HashSet::new());
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            match parse(line) {
                Ok(Some(Record::Run(before))) => check_run(path, &before, run)?,
                Ok(Some(Record::Answer(answer))) => {
                    if keys.insert(AnswerKey::of(&answer)) {
                        answers.push(answer);
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    let reason = format!("line {} is no line of a results file: {error}", i + 1);
                    return Err(EvalError::content(path, reason));
                }
            }
        }
        file.set_len(whole.len() as u64).map_err(failed("writing"))?;
        file.seek(SeekFrom::End(0)).map_err(failed("writing"))?;
        let mut results = Self { path: path.to_owned(), file, answers, keys };
        results.append(&Record::Run(run.clone()))?;
        Ok(results)
    }

    /// Writes a line, and returns when the system has it.
    pub fn append(&mut self, record: &Record) -> Result<(), EvalError> {
        let failed = |source| EvalError::file(&self.path, "writing", source);
        let mut line = serde_json::to_vec(record).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        self.file.write_all(&line).and_then(|()| self.file.flush()).map_err(failed)?;
        if let Record::Answer(answer) = record {
            self.keys.insert(AnswerKey::of(answer));
            self.answers.push(answer.clone());
        }
        Ok(())
    }

    /// Whether the file has this answer.
    pub fn has(&self, key: &AnswerKey) -> bool {
        self.keys.contains(key)
    }

    /// All answers, in the order of the file.
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }
}

/// Keeps other runs away as long as the file is open: each would take the other's last line for one
/// that was cut off. Where files cannot be locked nothing keeps them away; on Windows a lock would
/// keep readers away too.
fn lock(file: &File) -> Result<(), &'static str> {
    match cfg!(unix).then(|| file.try_lock()) {
        Some(Err(TryLockError::WouldBlock)) => {
            Err("another run writes to it now; wait for it, or give another file with -o")
        }
        _ => Ok(()),
    }
}

/// The record of a line; `None` for a kind that is not known.
pub(crate) fn parse(line: &str) -> Result<Option<Record>, serde_json::Error> {
    let value: serde_json::Value = serde_json::from_str(line)?;
    let kinds = ["run", "answer", "failure", "probe", "perplexity", "speed", "cache", "spectrum"];
    match value.get("kind").and_then(|kind| kind.as_str()) {
        Some(kind) if !kinds.contains(&kind) => Ok(None),
        _ => serde_json::from_value(value).map(Some),
    }
}

/// The lines of a file that have an end, and what comes after them.
pub(crate) fn whole_lines(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    bytes.split_at(end)
}

/// Whether bytes after the last line may be a line whose writer was stopped; so may none.
pub(crate) fn is_cut_line(bytes: &[u8]) -> bool {
    bytes.starts_with(LINE_START) || LINE_START.starts_with(bytes)
}

/// What differs between two runs, and what each of them has.
pub(crate) type Difference = (String, String, String);

fn differs(what: &str, before: &str, now: &str) -> Option<Difference> {
    (before != now).then(|| (what.to_owned(), before.to_owned(), now.to_owned()))
}

/// In what two runs' models or stored keys and values differ.
pub(crate) fn other_model(before: &Run, now: &Run) -> Option<Difference> {
    let is_known = !before.fingerprint.is_empty() && !now.fingerprint.is_empty();
    differs("model", &before.model, &now.model)
        .or_else(|| {
            let [before, now] = [before, now].map(|run| run.fingerprint.as_str());
            is_known.then(|| differs("a model of fingerprint", before, now)).flatten()
        })
        .or_else(|| differs("--kv-type", &before.kv_type, &now.kv_type))
}

/// In which of the settings `names` two runs differ.
pub(crate) fn other_setting<'a>(
    before: &Run,
    now: &Run,
    names: impl IntoIterator<Item = &'a String>,
) -> Option<Difference> {
    let of = |run: &Run, name: &str| {
        let unsaid = || BEFORE_IT_WAS_SAID.iter().find(|(known, _)| *known == name);
        let said = run.settings.get(name).cloned();
        said.unwrap_or_else(|| unsaid().map_or("nothing", |(_, value)| value).to_owned())
    };
    names.into_iter().find_map(|name| differs(name, &of(before, name), &of(now, name)))
}

fn check_run(path: &Path, before: &Run, run: &Run) -> Result<(), EvalError> {
    let [seed_before, seed] = [before, run].map(|run| run.seed.to_string());
    let difference = other_model(before, run)
        .or_else(|| differs("--seed", &seed_before, &seed))
        .or_else(|| other_setting(before, run, run.settings.keys()));
    let Some((what, found, wanted)) = difference else { return Ok(()) };
    Err(EvalError::OtherRun { path: path.to_owned(), what, found, wanted })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(model: &str, seed: u64) -> Run {
        Run { model: model.to_owned(), seed, ..Run::default() }
    }

    fn answer(sample: usize) -> Answer {
        Answer { task: "t".to_owned(), sample, score: 1.0, ..Answer::default() }
    }

    fn temporary(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("longview-results-{name}-{}", std::process::id()))
    }

    #[test]
    fn what_was_written_is_found_again_and_a_cut_line_is_dropped() {
        let path = temporary("cut");
        let mut file = ResultsFile::open(&path, &run("m", 1)).unwrap();
        file.append(&Record::Answer(answer(0))).unwrap();
        file.append(&Record::Answer(answer(1))).unwrap();
        drop(file);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 10);
        std::fs::write(&path, &bytes).unwrap();
        let mut file = ResultsFile::open(&path, &run("m", 1)).unwrap();
        assert_eq!(file.answers(), [answer(0)]);
        assert!(file.has(&AnswerKey::of(&answer(0))) && !file.has(&AnswerKey::of(&answer(1))));
        file.append(&Record::Answer(answer(1))).unwrap();
        drop(file);
        let text = std::fs::read_to_string(&path).unwrap();
        let kinds: Vec<bool> = text.lines().map(|line| line.contains("\"answer\"")).collect();
        assert_eq!(kinds, [false, true, false, true], "{text}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn two_runs_do_not_write_one_file() {
        let path = temporary("two");
        let first = ResultsFile::open(&path, &run("m", 1)).unwrap();
        let message = ResultsFile::open(&path, &run("m", 1)).unwrap_err().to_string();
        assert!(message.contains("another run writes to it now"), "{message}");
        drop(first);
        drop(ResultsFile::open(&path, &run("m", 1)).unwrap());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_of_something_else_is_left_as_it_is() {
        let path = temporary("else");
        for text in
            [r#"{"kinds":["a"],"kind":"answer"}"#, "[1, 2, 3]", "hello", "\n{\"kind\"}", " "]
        {
            std::fs::write(&path, text).unwrap();
            let message = ResultsFile::open(&path, &run("m", 1)).unwrap_err().to_string();
            assert!(message.contains("its last line is neither whole nor"), "{message}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        for text in ["{\"ki", "{", "{\"kind\":\"answer\",\"task\":\"\u{fc}"] {
            std::fs::write(&path, &text.as_bytes()[..text.len() - usize::from(text.len() > 8)])
                .unwrap();
            drop(ResultsFile::open(&path, &run("m", 1)).unwrap());
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn another_runs_file_is_refused() {
        let path = temporary("other");
        drop(ResultsFile::open(&path, &run("m", 1)).unwrap());
        let message = |run: &Run| ResultsFile::open(&path, run).unwrap_err().to_string();
        assert!(message(&run("n", 1)).contains("was written with model m, this run has n"));
        assert!(message(&run("m", 2)).contains("--seed 1, this run has 2"));
        let mut other = run("m", 1);
        other.settings.insert("--text".to_owned(), "books".to_owned());
        assert!(message(&other).contains("--text nothing, this run has books"));
        // A file that does not say how it recalled did so exactly.
        let recalling = |mode: &str| {
            let mut other = run("m", 1);
            other.settings.insert("--recall".to_owned(), mode.to_owned());
            other
        };
        let speculative = recalling("speculative --recall-gate 0.9");
        let text = message(&speculative);
        assert!(text.contains("--recall exact, this run has speculative --recall-gate"), "{text}");
        drop(ResultsFile::open(&path, &recalling("exact")).unwrap());
        // Another model of the same name; one that older lines do not tell from others may be it.
        let marked = |mark: &str| Run { fingerprint: mark.to_owned(), ..recalling("exact") };
        drop(ResultsFile::open(&path, &marked("12ab")).unwrap());
        let text = message(&marked("34cd"));
        assert!(text.contains("a model of fingerprint 12ab, this run has 34cd"), "{text}");
        std::fs::write(&path, "{\"kind\":\"later\"}\nno json\n").unwrap();
        assert!(message(&run("m", 1)).contains("line 2 is no line of a results file"));
        std::fs::remove_file(&path).unwrap();
    }
}
