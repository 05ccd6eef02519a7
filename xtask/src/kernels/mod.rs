//! `cargo xtask kernels`: compiles every CUDA kernel for every target, without a GPU.
//!
//! The compilers are pinned wheels (NVRTC, ptxas) that pip fetches into `target/` and checks. The
//! PTX that the binary embeds comes from an early toolkit, so that drivers of its age load it; what
//! that toolkit does not know is compiled by a late one. ptxas then says what each kernel takes: a
//! kernel that spills registers fails, the rest is written down in `kernels/resources.txt`. What
//! was compiled before from the same sources by the same compilers is taken from `target/` (see
//! [`compile`]).
//!
//! Without `--check` the PTX is packed ([`archive`]), and the table and what came out of every
//! compilation ([`record`]) are written; with it they must hold what is committed. CI believes what
//! is recorded of the same sources, headers, options and compilers, but for a sample.

mod archive;
mod compile;
mod nvrtc;
mod ptxas;
mod record;
mod source;
mod toolchain;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::args::{Parsed, UsageError};
use crate::process::root;
use archive::ByTarget;
use compile::{Compiled, Compilers, Done, How, Job};
use ptxas::Resources;
use record::{Entry, Record, Trust};
use source::{Source, Target};

pub(crate) const OPTIONS: &str = "[--check] [--only STEM]";
pub(crate) const ABOUT: &str = "compiles kernels/*.cu for every target, writes the PTX that is \
                                embedded and what each kernel takes; --check compares instead";

const TARGETS: &[Target] = &[
    Target { arch: "75", early: true, ships: true },
    Target { arch: "80", early: true, ships: true },
    Target { arch: "86", early: true, ships: false },
    Target { arch: "89", early: true, ships: false },
    Target { arch: "90", early: true, ships: true },
    Target { arch: "100", early: false, ships: false },
    Target { arch: "120", early: false, ships: false },
];

/// Folders of kernels; only those of the first ship.
const FOLDERS: [&str; 2] = ["kernels", "tests/cuda-emulation/kernels"];
/// Where the parts are that kernels share.
const SHARED: &str = "shared";
const RESOURCES: &str = "kernels/resources.txt";

/// What came out for all files that ship: by name, so that order is always the same.
#[derive(Default)]
struct Outcome {
    ptx: ByTarget,
    /// File and kernel; one for each target.
    resources: BTreeMap<(String, String), Vec<Resources>>,
    record: Record,
    failures: Vec<String>,
}

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse(args, &["--check"], &["--only"])?;
    run_with(parsed.has("--check"), parsed.value("--only"), &Trust::Nothing)
}

/// The stage of CI.
pub(crate) fn stage() -> Result<()> {
    run_with(true, None, &Trust::of_this_commit())
}

fn run_with(check: bool, only: Option<&str>, trust: &Trust) -> Result<()> {
    let mut sources = sources()?;
    if let Some(stem) = only {
        sources.retain(|source| source.stem == stem);
        if sources.is_empty() {
            return Err(UsageError(format!("there is no {}/{stem}.cu", FOLDERS[0])).into());
        }
    }
    let jobs: Vec<Job<'_>> = sources
        .iter()
        .flat_map(|source| TARGETS.iter().map(move |target| (source, target)))
        .collect();
    let committed = Record::read()?;
    let is_answered = |job: &Job<'_>, key: &str| committed.answers(job, key, trust);
    let done = Compilers::new(headers()?)?.compile_all(&jobs, is_answered)?;
    let told_of_origin = told_of_origin(&jobs, &done, &committed);
    let outcome = &mut Outcome::of(&jobs, done, &committed)?;
    for source in &sources {
        println!("{}.cu: {}", source.stem, told(source, outcome));
    }
    if check {
        compare(outcome, &committed, only)?;
    } else if outcome.failures.is_empty() {
        write(outcome, committed, only)?;
    }
    outcome.failures.iter().for_each(|failure| println!("FAILED {failure}"));
    let n_kernels = outcome.resources.len();
    let n_failed = outcome.failures.len();
    println!("{n_kernels} kernels x {} targets, {n_failed} failed", TARGETS.len());
    println!("{told_of_origin}");
    if n_failed > 0 {
        bail!("{n_failed} failures; the committed PTX is made by `cargo xtask kernels`");
    }
    Ok(())
}

/// What was compiled, and what was not.
fn told_of_origin(jobs: &[Job<'_>], done: &[Done], committed: &Record) -> String {
    let count = |how| done.iter().filter(|done| done.how == how).count();
    let mut text = format!(
        "{} compilations: {} made, {} known from before, {} as recorded",
        jobs.len(),
        count(How::Compiled),
        count(How::Kept),
        count(How::Answered)
    );
    // What is recorded of the same input was compiled to prove the record.
    let is_sample = |(job, done): &(&Job<'_>, &Done)| {
        done.how == How::Compiled && committed.answers(job, &done.key, &Trust::All)
    };
    let sample: Vec<_> = jobs.iter().zip(done).filter(is_sample).collect();
    if count(How::Answered) > 0 {
        let names = sample.iter().map(|((s, t), _)| format!("{} sm_{}", s.stem, t.arch));
        let names: Vec<_> = names.collect();
        text += &format!("\n{} of the made are a sample: {}", names.len(), names.join(", "));
    }
    text
}

/// What kernels include: every `.cuh`, by its path from the folder of kernels, with its text.
fn headers() -> Result<Vec<(String, String)>> {
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let read = |path: PathBuf| Ok((format!("{SHARED}/{}", name(&path)), read(&path)?));
    files_of(&format!("{}/{SHARED}", FOLDERS[0]), "cuh")?.into_iter().map(read).collect()
}

/// Every `.cu`, by name.
fn sources() -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for (i, folder) in FOLDERS.iter().enumerate() {
        for path in files_of(folder, "cu")? {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            sources.push(Source { stem, text: read(&path)?, ships: i == 0 });
        }
    }
    Ok(sources)
}

fn files_of(folder: &str, extension: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(root().join(folder)).with_context(|| folder.to_owned())?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

impl Outcome {
    /// What was done, and what is recorded and `committed` of the rest.
    fn of(jobs: &[Job<'_>], done: Vec<Done>, committed: &Record) -> Result<Self> {
        let mut outcome = Self::default();
        let is_recalled = done.iter().any(|done| done.how == How::Answered);
        let archives = if is_recalled { archive::committed(shipped())? } else { ByTarget::new() };
        for (job, done) in jobs.iter().zip(done) {
            let result = done.result.unwrap_or_else(|| committed.recall(job, &archives));
            if let Ok(compiled) = &result {
                let recorded = committed.entry(job).filter(|_| done.how == How::Answered);
                let made = || Entry::of(&done.key, compiled);
                outcome.record.add(job, recorded.cloned().unwrap_or_else(made));
            }
            outcome.add(job, result);
        }
        Ok(outcome)
    }

    /// Takes what came out of a file for a target.
    fn add(&mut self, (source, target): &Job<'_>, result: Result<Compiled>) {
        let name = format!("{}.cu for sm_{}", source.stem, target.arch);
        let compiled = match result {
            Ok(compiled) => compiled,
            Err(error) => return self.failures.push(format!("{name}: {error:#}")),
        };
        if !source.ships {
            return;
        }
        if target.ships {
            let files = self.ptx.entry(target.compute()).or_default();
            files.insert(format!("{}.ptx", source.stem), compiled.ptx);
        }
        for (kernel, resources) in compiled.kernels {
            if resources.spills() {
                self.failures.push(format!(
                    "{name}: {kernel} keeps {} bytes of locals in memory and spills {}: use fewer \
                     registers",
                    resources.stack, resources.spilled
                ));
            }
            let key = (source.stem.clone(), kernel);
            self.resources.entry(key).or_default().push(resources);
        }
    }
}

/// One line on a file.
fn told(source: &Source, outcome: &Outcome) -> String {
    if !source.ships {
        return "for tests".into();
    }
    let resources = outcome.resources.iter();
    let own: Vec<_> = resources.filter(|((stem, _), _)| *stem == source.stem).collect();
    let registers = own.iter().flat_map(|(_, list)| list.iter().map(|r| r.registers));
    let most = registers.max().unwrap_or(0);
    format!("{} kernels, at most {most} registers", own.len())
}

/// The committed table. A line a kernel: registers for each target, then what its blocks share.
fn table(outcome: &Outcome) -> String {
    let name = |target: &Target| format!("{:>6}", format!("sm_{}", target.arch));
    let archs: Vec<_> = TARGETS.iter().map(name).collect();
    let mut text = String::from(
        "Registers of a thread for each target, and the most static shared memory of a block in \
         bytes, as ptxas\nsays; made by `cargo xtask kernels`. No kernel spills.\n\n",
    );
    text += &format!("{:<24} {}  shared\n", "kernel", archs.join(""));
    for ((_, kernel), list) in &outcome.resources {
        let registers: Vec<_> = list.iter().map(|r| format!("{:>6}", r.registers)).collect();
        let shared = list.iter().map(|r| r.shared).max().unwrap_or(0);
        text += &format!("{kernel:<24} {}  {shared:>6}\n", registers.join(""));
    }
    text
}

fn write(outcome: &Outcome, committed: Record, only: Option<&str>) -> Result<()> {
    archive::write(&outcome.ptx, only.is_none())?;
    let mut record = if only.is_none() { Record::default() } else { committed };
    record.extend(outcome.record.clone());
    record.write()?;
    if only.is_none() {
        fs::write(root().join(RESOURCES), table(outcome)).context(RESOURCES)?;
    }
    Ok(())
}

/// What is committed must be what came out.
fn compare(outcome: &mut Outcome, committed: &Record, only: Option<&str>) -> Result<()> {
    let mut failures = archive::differences(&outcome.ptx, only.is_none())?;
    failures.extend(outcome.record.differences(committed, only.is_none()));
    if only.is_none() {
        let committed = fs::read_to_string(root().join(RESOURCES));
        if committed.ok() != Some(table(outcome)) {
            failures.push(format!("{RESOURCES} is not what ptxas says"));
        }
    }
    outcome.failures.extend(failures);
    Ok(())
}

/// The targets whose PTX is embedded.
fn shipped() -> impl Iterator<Item = String> {
    TARGETS.iter().filter(|target| target.ships).map(Target::compute)
}
