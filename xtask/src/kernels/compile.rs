//! Kernels through the compilers: every file for every target, on all cores, and not again while
//! file, headers and compilers are the same.
//!
//! What came out is kept in `target/kernel-cache`, one file for each pair, by a hash of everything
//! that goes in. Failures are not kept: whoever repairs a set-up wants to see that it works. What a
//! record answers (see [`super::record`]) is not compiled either.

use std::ffi::CStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::nvrtc::{self, Nvrtc};
use super::ptxas::{self, Resources};
use super::source::{Source, Target};
use super::toolchain::{self, Tools};
use crate::wheel::target_folder;

/// Counts up when the format of the kept files changes, or how compilers are called.
const CACHE_VERSION: u32 = 1;

/// Digits of a key: no two inputs share them by accident.
const KEY_DIGITS: usize = 32;

/// A file and what it is compiled for.
pub(super) type Job<'a> = (&'a Source, &'a Target);

/// What came out of a file for a target.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Compiled {
    pub(super) ptx: String,
    /// By name.
    pub(super) kernels: Vec<(String, Resources)>,
}

/// What was done for a job.
pub(super) struct Done {
    pub(super) key: String,
    pub(super) how: How,
    /// None where it is answered.
    pub(super) result: Option<Result<Compiled>>,
}

/// Where a result is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Compiled,
    /// Compiled before.
    Kept,
    /// Nobody compiled it here.
    Answered,
}

/// The pinned compilers. To fetch and load them takes seconds, so it is done when something is new.
pub(super) struct Compilers {
    fetch: fn() -> Result<Tools>,
    options: &'static [&'static CStr],
    /// Names and texts.
    headers: Vec<(String, String)>,
    cache: PathBuf,
}

impl Compilers {
    pub(super) fn new(headers: Vec<(String, String)>) -> Result<Self> {
        let cache = target_folder()?.join("kernel-cache");
        fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
        Ok(Self { fetch: toolchain::fetch, options: &nvrtc::OPTIONS, headers, cache })
    }

    /// Compiles what is new, but not what `is_answered` by its job and key. Results in the order of
    /// `jobs`; none for those that are answered and were not kept.
    pub(super) fn compile_all(
        &self,
        jobs: &[Job<'_>],
        is_answered: impl Fn(&Job<'_>, &str) -> bool,
    ) -> Result<Vec<Done>> {
        let done = |job: &Job<'_>| {
            let key = self.key(job);
            let kept = load(&self.place(&key));
            let how = match kept {
                Some(_) => How::Kept,
                None if is_answered(job, &key) => How::Answered,
                None => How::Compiled,
            };
            Done { key, how, result: kept.map(Ok) }
        };
        let mut all: Vec<_> = jobs.iter().map(done).collect();
        let new: Vec<_> = (0..jobs.len()).filter(|i| all[*i].how == How::Compiled).collect();
        if !new.is_empty() {
            let tools = (self.fetch)()?;
            let early = Nvrtc::load(&tools.early, self.options, &self.headers)?;
            let late = Nvrtc::load(&tools.late, self.options, &self.headers)?;
            let compiled = on_all_cores(&new, |i| {
                let (source, target) = jobs[*i];
                let nvrtc = if target.early { &early } else { &late };
                let compiled = compile(source, target, nvrtc, &tools.ptxas)?;
                save(&self.place(&all[*i].key), &compiled)?;
                Ok(compiled)
            });
            for (i, result) in new.iter().zip(compiled) {
                all[*i].result = Some(result);
            }
        }
        Ok(all)
    }

    fn place(&self, key: &str) -> PathBuf {
        self.cache.join(key).with_extension("json")
    }

    /// Everything that a result depends on, hashed.
    fn key(&self, (source, target): &Job<'_>) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut add = |part: &str| {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        };
        add(&CACHE_VERSION.to_string());
        toolchain::versions(target.early).iter().for_each(|version| add(version));
        self.options.iter().for_each(|option| add(&option.to_string_lossy()));
        add(target.arch);
        add(&source.stem);
        add(&source.text);
        for (name, text) in &self.headers {
            add(name);
            add(text);
        }
        hasher.finalize().to_hex()[..KEY_DIGITS].to_owned()
    }
}

fn compile(source: &Source, target: &Target, nvrtc: &Nvrtc, ptxas: &Path) -> Result<Compiled> {
    let ptx = nvrtc.compile(&source.stem, &source.text, target.arch)?;
    let kernels = ptxas::measure(ptxas, &ptx, target.arch)?;
    if kernels.is_empty() {
        bail!("there is no kernel in it");
    }
    Ok(Compiled { ptx, kernels })
}

/// `work` on each of `items`, by as many threads as there are cores; results in the items' order.
fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    let n_threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..n_threads.min(items.len()) {
            scope.spawn(|| {
                while let Some((i, item)) = {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    items.get(i).map(|item| (i, item))
                } {
                    let result = work(item);
                    results.lock().expect("no thread panics with the lock").push((i, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no thread panics with the lock");
    results.sort_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A kept result; none where there is none, or where the file is damaged.
fn load(path: &Path) -> Option<Compiled> {
    let value: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let kernels = value["kernels"].as_array()?.iter().map(|kernel| {
        let number = |name: &str| u32::try_from(kernel[name].as_u64()?).ok();
        let resources = Resources {
            registers: number("registers")?,
            shared: number("shared")?,
            stack: number("stack")?,
            spilled: number("spilled")?,
        };
        Some((kernel["name"].as_str()?.to_owned(), resources))
    });
    Some(Compiled {
        ptx: value["ptx"].as_str()?.to_owned(),
        kernels: kernels.collect::<Option<_>>()?,
    })
}

/// Keeps a result. Under another name first: a run that breaks off leaves no half of a file.
fn save(path: &Path, compiled: &Compiled) -> Result<()> {
    let kernel = |(name, r): &(String, Resources)| {
        json!({"name": name, "registers": r.registers, "shared": r.shared, "stack": r.stack,
            "spilled": r.spilled})
    };
    let kernels: Vec<_> = compiled.kernels.iter().map(kernel).collect();
    let text = json!({"ptx": compiled.ptx, "kernels": kernels}).to_string();
    let unfinished = path.with_extension(format!("{}.part", std::process::id()));
    fs::write(&unfinished, text).with_context(|| unfinished.display().to_string())?;
    fs::rename(&unfinished, path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: &[&CStr] = &[c"--std=c++17"];

    fn compilers(header: &str, options: &'static [&'static CStr]) -> Compilers {
        let fetch = || bail!("compilers are called for");
        let headers = vec![("a.cuh".into(), header.into())];
        Compilers { fetch, options, headers, cache: PathBuf::from("nowhere") }
    }

    fn source(text: &str) -> Source {
        Source { stem: "add".into(), text: text.into(), ships: true }
    }

    #[test]
    fn whatever_goes_in_changes_the_key() {
        let early = Target { arch: "80", early: true, ships: true };
        let late = Target { arch: "80", early: false, ships: true };
        let other = Target { arch: "90", early: true, ships: true };
        let key = |header: &str, text: &str, target: &Target| {
            compilers(header, OPTIONS).key(&(&source(text), target))
        };
        let first = key("h", "a", &early);
        assert_eq!(first, key("h", "a", &early));
        let others = [
            key("i", "a", &early),
            key("h", "b", &early),
            key("h", "a", &late),
            key("h", "a", &other),
            compilers("h", &[c"--std=c++20"]).key(&(&source("a"), &early)),
        ];
        assert!(others.iter().all(|other| *other != first), "{first} {others:?}");
    }

    #[test]
    fn what_is_recorded_is_compiled_only_where_its_input_changed() {
        let target = Target { arch: "80", early: true, ships: true };
        let source = |text| Source { stem: "add".into(), text, ships: true };
        let before = source(String::from("a"));
        let recorded = compilers("h", OPTIONS).key(&(&before, &target));
        let asks = |compilers: &Compilers, source: &Source| {
            compilers.compile_all(&[(source, &target)], |_, key| key == recorded)
        };
        let same = asks(&compilers("h", OPTIONS), &before).unwrap();
        assert!(same[0].how == How::Answered && same[0].result.is_none());
        for (compilers, source) in [
            (compilers("h", OPTIONS), source("b".into())),
            (compilers("i", OPTIONS), source("a".into())),
            (compilers("h", &[c"--std=c++20"]), source("a".into())),
        ] {
            let error = asks(&compilers, &source).err().expect("nothing is there to compile it");
            assert_eq!(error.to_string(), "compilers are called for");
        }
    }

    #[test]
    fn what_is_kept_is_what_came_out() {
        let folder = std::env::temp_dir().join(format!("longview-kernels-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("k.json");
        assert_eq!(load(&path), None);
        let resources = Resources { registers: 21, shared: 64, stack: 16, spilled: 12 };
        let compiled =
            Compiled { ptx: ".version 8.1\n".into(), kernels: vec![("k".into(), resources)] };
        save(&path, &compiled).unwrap();
        assert_eq!(load(&path), Some(compiled));
        fs::write(&path, "{\"ptx\": \"half").unwrap();
        assert_eq!(load(&path), None);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..50).collect();
        assert_eq!(
            on_all_cores(&items, |i| i * i),
            items.iter().map(|i| i * i).collect::<Vec<_>>()
        );
        assert!(on_all_cores(&[0; 0], |i| *i).is_empty());
    }
}
