//! What is committed of every compilation: `kernels/compiled.txt`.
//!
//! For each file and target it holds the key of everything that went in (see [`super::compile`]), a
//! hash of the PTX that came out, and what its kernels take. So CI compiles what is new, and of the
//! rest a sample, which another commit draws otherwise: what is committed is proved over commits,
//! and what changed at once. The archives must hold what is recorded, all of it, every time.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::archive;
use super::compile::{Compiled, Job};
use super::ptxas::Resources;
use crate::process::root;

const RECORD: &str = "kernels/compiled.txt";

const HEAD: &str = "\
What came out of every file for every target, made by `cargo xtask kernels`: a hash of all that went in
(source, headers, options, compilers), a hash of the PTX, and for each kernel registers, bytes of static
shared memory, of locals in memory, and spilled.
";

/// One in so many of what needs no compiler is compiled all the same.
const SAMPLE: u64 = 8;

/// Stem of a file, and architecture.
type Name = (String, String);

/// What came out of a file for a target, and of what.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    key: String,
    ptx: String,
    /// By name.
    kernels: Vec<(String, Resources)>,
}

impl Entry {
    pub(super) fn of(key: &str, compiled: &Compiled) -> Self {
        let ptx = archive::hash(&compiled.ptx);
        Self { key: key.to_owned(), ptx, kernels: compiled.kernels.clone() }
    }
}

/// Everything that is recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Record(BTreeMap<Name, Entry>);

/// What a run believes without a compiler.
pub(super) enum Trust {
    Nothing,
    /// What is recorded of the same key.
    All,
    /// The same, but for a sample that this text draws.
    AllBut(String),
}

impl Trust {
    /// The sample is that of the commit; where there is none, always the same.
    pub(super) fn of_this_commit() -> Self {
        let head = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()).output();
        let head = head.ok().filter(|output| output.status.success());
        Self::AllBut(head.map_or_else(String::new, |output| {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }))
    }

    fn covers(&self, (source, target): &Job<'_>) -> bool {
        let draw = match self {
            Self::Nothing => return false,
            Self::All => return true,
            Self::AllBut(draw) => draw,
        };
        let hash = blake3::hash(format!("{draw} {} {}", source.stem, target.arch).as_bytes());
        let number = hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        !number.is_multiple_of(SAMPLE)
    }
}

fn name((source, target): &Job<'_>) -> Name {
    (source.stem.clone(), target.arch.to_owned())
}

impl Record {
    /// What is committed; nothing where there is no record yet.
    pub(super) fn read() -> Result<Self> {
        let path = root().join(RECORD);
        if !path.exists() {
            return Ok(Self::default());
        }
        Self::parse(&fs::read_to_string(path).context(RECORD)?).context(RECORD)
    }

    pub(super) fn write(&self) -> Result<()> {
        fs::write(root().join(RECORD), self.text()).context(RECORD)
    }

    pub(super) fn add(&mut self, job: &Job<'_>, entry: Entry) {
        self.0.insert(name(job), entry);
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Whether `job`, whose input has this `key`, needs no compiler.
    pub(super) fn answers(&self, job: &Job<'_>, key: &str, trust: &Trust) -> bool {
        self.0.get(&name(job)).is_some_and(|entry| entry.key == key) && trust.covers(job)
    }

    /// What is recorded of `job`, with its PTX if that is committed. An archive that holds another
    /// is an error.
    pub(super) fn recall(&self, job: &Job<'_>, archives: &archive::ByTarget) -> Result<Compiled> {
        let (source, target) = job;
        let entry = self.0.get(&name(job)).context("it is not recorded")?;
        let mut ptx = String::new();
        if source.ships && target.ships {
            let file = format!("{}.ptx", source.stem);
            let text = archives.get(&target.compute()).and_then(|texts| texts.get(&file));
            ptx.clone_from(text.with_context(|| format!("{file} is not in the archive"))?);
            if archive::hash(&ptx) != entry.ptx {
                bail!("{file} in the archive is not the one that {RECORD} records");
            }
        }
        Ok(Compiled { ptx, kernels: entry.kernels.clone() })
    }

    /// How this record, of everything that was asked for, differs from what is committed. Without
    /// `is_all` only what it names is compared.
    pub(super) fn differences(&self, committed: &Self, is_all: bool) -> Vec<String> {
        let is_same = |name: &Name, entry: &Entry| committed.0.get(name) == Some(entry);
        let changed = self.0.iter().filter(|(name, entry)| !is_same(name, entry));
        let told = |(stem, arch): &Name, what| format!("{RECORD}: {stem} for sm_{arch} {what}");
        let mut found: Vec<_> =
            changed.map(|(name, _)| told(name, "is not what the compilers give")).collect();
        if is_all {
            let stale = committed.0.keys().filter(|name| !self.0.contains_key(*name));
            found.extend(stale.map(|name| told(name, "has no source")));
        }
        found
    }

    /// The entry of `job`, to be taken over.
    pub(super) fn entry(&self, job: &Job<'_>) -> Option<&Entry> {
        self.0.get(&name(job))
    }

    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        let mut last = "";
        for ((stem, arch), entry) in &self.0 {
            if stem != last {
                text.push('\n');
            }
            last = stem;
            let _ = writeln!(text, "{} {}  {stem} sm_{arch}", entry.key, entry.ptx);
            for (kernel, r) in &entry.kernels {
                let numbers = format!("{} {} {} {}", r.registers, r.shared, r.stack, r.spilled);
                let _ = writeln!(text, "  {kernel} {numbers}");
            }
        }
        text
    }

    fn parse(text: &str) -> Result<Self> {
        let body = text.strip_prefix(HEAD).context("it does not begin as it should")?;
        let mut entries: Vec<(Name, Entry)> = Vec::new();
        for line in body.lines().filter(|line| !line.is_empty()) {
            let words: Vec<_> = line.split_whitespace().collect();
            match (line.starts_with("  "), words.as_slice(), entries.last_mut()) {
                (true, [kernel, numbers @ ..], Some((_, entry))) => {
                    let resources = resources(numbers).with_context(|| line.to_owned())?;
                    entry.kernels.push(((*kernel).to_owned(), resources));
                }
                (false, [key, ptx, stem, arch], _) => {
                    let arch = arch.strip_prefix("sm_").with_context(|| line.to_owned())?;
                    let (key, ptx) = ((*key).to_owned(), (*ptx).to_owned());
                    let entry = Entry { key, ptx, kernels: Vec::new() };
                    entries.push((((*stem).to_owned(), arch.to_owned()), entry));
                }
                _ => bail!("what is this: {line}"),
            }
        }
        Ok(Self(entries.into_iter().collect()))
    }
}

fn resources(numbers: &[&str]) -> Option<Resources> {
    let numbers: Vec<u32> = numbers.iter().filter_map(|word| word.parse().ok()).collect();
    let [registers, shared, stack, spilled] = *numbers.as_slice() else { return None };
    Some(Resources { registers, shared, stack, spilled })
}

#[cfg(test)]
mod tests {
    use super::super::source::{Source, Target};
    use super::*;

    const SHIPPED: Target = Target { arch: "80", early: true, ships: true };
    const OTHER: Target = Target { arch: "120", early: false, ships: false };

    fn source(stem: &str) -> Source {
        Source { stem: stem.into(), text: String::new(), ships: true }
    }

    fn compiled(ptx: &str) -> Compiled {
        let resources = Resources { registers: 21, shared: 64, ..Default::default() };
        Compiled { ptx: ptx.into(), kernels: vec![("add_f32".into(), resources)] }
    }

    fn record(source: &Source) -> Record {
        let mut record = Record::default();
        record.add(&(source, &SHIPPED), Entry::of("key", &compiled("ptx")));
        record.add(&(source, &OTHER), Entry::of("late-key", &compiled("other ptx")));
        record
    }

    fn archives(ptx: &str) -> archive::ByTarget {
        let texts = [("add.ptx".to_owned(), ptx.to_owned())];
        [(SHIPPED.compute(), texts.into())].into()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let record = record(&source("add"));
        assert_eq!(Record::parse(&record.text()).unwrap(), record);
        let damaged = record.text().replace(" 64 ", " 64, ");
        assert!(Record::parse(&damaged).is_err());
        assert!(Record::parse("").is_err());
    }

    #[test]
    fn what_is_recorded_of_the_same_key_needs_no_compiler_but_for_a_sample() {
        let source = source("add");
        let (record, job) = (record(&source), (&source, &SHIPPED));
        let trust = (0..).map(|i| Trust::AllBut(i.to_string()));
        let draws: Vec<_> = trust.take(800).collect();
        let answers = |key| draws.iter().filter(|draw| record.answers(&job, key, draw)).count();
        assert_eq!(answers("another-key"), 0);
        assert!((660..740).contains(&answers("key")), "{} of 800", answers("key"));
        assert!(!record.answers(&job, "key", &Trust::Nothing));
    }

    /// Every pair is drawn in its turn, not the same ones by every commit.
    #[test]
    fn each_commit_draws_its_own_sample() {
        let sources: Vec<_> = (0..40).map(|i| source(&i.to_string())).collect();
        let sample = |draw: &str| -> Vec<bool> {
            let trust = Trust::AllBut(draw.into());
            sources.iter().map(|source| trust.covers(&(source, &OTHER))).collect()
        };
        assert_eq!(sample("one"), sample("one"));
        assert_ne!(sample("one"), sample("another"));
    }

    #[test]
    fn an_archive_with_another_text_is_found_whatever_the_sample() {
        let source = source("add");
        let (record, job) = (record(&source), (&source, &SHIPPED));
        assert_eq!(record.recall(&job, &archives("ptx")).unwrap(), compiled("ptx"));
        let error = record.recall(&job, &archives("ptx with something else")).unwrap_err();
        assert!(error.to_string().contains("is not the one"), "{error}");
        assert!(record.recall(&job, &archive::ByTarget::new()).is_err(), "it is not there at all");
        let late = record.recall(&(&source, &OTHER), &archives("ptx")).unwrap();
        assert_eq!(late.kernels, compiled("").kernels);
    }

    #[test]
    fn a_record_that_the_compilers_do_not_give_is_found() {
        let source = source("add");
        let committed = record(&source);
        let mut made = committed.clone();
        assert!(made.differences(&committed, true).is_empty());
        made.add(&(&source, &OTHER), Entry::of("late-key", &compiled("changed")));
        assert_eq!(made.differences(&committed, true).len(), 1);
        let more = record(&self::source("sub"));
        let mut all = committed.clone();
        all.extend(more);
        assert_eq!(committed.differences(&all, true).len(), 2, "of a file that is gone");
        assert!(committed.differences(&all, false).is_empty());
    }
}
