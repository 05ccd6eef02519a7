//! `cargo xtask sanitize`: tools that see what tests alone cannot, on the modules with `unsafe` and
//! on what synchronises threads.
//!
//! - **loom** runs the thread pool, the team and the job queue with every interleaving of their
//!   threads, up to a number of preemptions (the models stand at the ends of those files).
//! - **address** builds tests with the address sanitizer: accesses outside of a block or after its
//!   end, and leaks. The parity run of the CPU covers every kernel on every instruction set here,
//!   and the emulated device all of the launch code, streams and staging.
//! - **thread** builds tests with the thread sanitizer, and the standard library with it, since
//!   locks are taken there: data races of what really runs, where loom runs models.
//!
//! Miri would see more (aliasing, uninitialised memory), but it is not in stable toolchains and
//! does not know most of the intrinsics. Out of reach here is what runs only behind a driver: the
//! calls to CUDA (`crates/cuda/src/nvidia`, `probe.rs`) and Vulkan (`crates/wgpu/src/memory.rs`,
//! `gpu.rs`).
//!
//! Sanitizers are unstable options, so `RUSTC_BOOTSTRAP=1` lets the stable compiler take them. Each
//! run has a target directory of its own, because its flags would otherwise make everything that
//! tests built be built again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::args::{Parsed, UsageError};
use crate::process::{cargo, root, run as run_child, target_directory};
use crate::setup::{self, Source, Tool};
use crate::{debian, lints};

pub(crate) const OPTIONS: &str = "[--quick | --only RUN,..]";
pub(crate) const ABOUT: &str = "runs loom-pool, loom-queue, address-cpu, address-scheduler, address-model, \
                                address-cuda, thread-cpu, thread-scheduler: models of threads, and tests \
                                under sanitizers; --quick runs the models with few preemptions";

/// The target that sanitizers are there for; named to cargo, it keeps flags off build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A model takes half a minute with three, and hours with one more.
const FULL_PREEMPTIONS: u32 = 3;
/// What CI has the time for. It is enough for every fault that was ever planted.
const QUICK_PREEMPTIONS: u32 = 2;

/// What a sanitizer finds is told by lines, which the profile itself leaves out.
const WITH_LINES: [(&str, &str); 1] = [("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")];

/// One of the things that are run.
struct Run {
    name: &'static str,
    tool: SanitizerTool,
    /// What cargo tests, or which models.
    tests: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SanitizerTool {
    Loom,
    Address,
    Thread,
}

const RUNS: &[Run] = &[
    Run { name: "loom-pool", tool: SanitizerTool::Loom, tests: "pool::models team::models" },
    Run { name: "loom-queue", tool: SanitizerTool::Loom, tests: "job_queue::models" },
    Run { name: "address-cpu", tool: SanitizerTool::Address, tests: "-p longview-cpu" },
    Run { name: "address-scheduler", tool: SanitizerTool::Address, tests: "-p longview-scheduler" },
    Run { name: "address-model", tool: SanitizerTool::Address, tests: "-p longview-model" },
    Run {
        name: "address-cuda",
        tool: SanitizerTool::Address,
        // The other tests load the C++ compiler's own sanitizer, which cannot share a process.
        tests: "-p longview-cuda -p longview-cuda-emulation --lib --test backend --test graphs \
                --test library",
    },
    Run {
        name: "thread-cpu",
        tool: SanitizerTool::Thread,
        // Every op at every instruction set would take hours, and few of them share anything.
        tests: "-p longview-cpu --lib -- --skip parity::",
    },
    Run {
        name: "thread-scheduler",
        tool: SanitizerTool::Thread,
        tests: "-p longview-scheduler --lib",
    },
];

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse(args, &["--quick"], &["--only"])?;
    if parsed.has("--quick") {
        if parsed.value("--only").is_some() {
            return Err(UsageError("--quick has runs of its own: leave --only out".into()).into());
        }
        let models: Vec<_> = RUNS.iter().filter(|run| run.tool == SanitizerTool::Loom).collect();
        return run_all(&models, QUICK_PREEMPTIONS);
    }
    run_all(&chosen(parsed.value("--only"))?, FULL_PREEMPTIONS)
}

/// The stage of CI: this program once more, for the models, with few preemptions.
pub(crate) fn stage_command() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["sanitize", "--quick"]).current_dir(root());
    Ok(command)
}

fn chosen(only: Option<&str>) -> Result<Vec<&'static Run>> {
    let Some(only) = only else { return Ok(RUNS.iter().collect()) };
    let find = |name: &str| {
        let known: Vec<_> = RUNS.iter().map(|run| run.name).collect();
        let message = || format!("unknown run '{name}': one of {}", known.join(", "));
        RUNS.iter().find(|run| run.name == name).ok_or_else(|| UsageError(message()).into())
    };
    only.split(',').map(find).collect()
}

/// Runs all, whatever fails, and says how each went and for how long.
fn run_all(runs: &[&Run], preemptions: u32) -> Result<()> {
    let mut lines = Vec::new();
    let mut failed = Vec::new();
    for run in runs {
        println!("\n-- {}", run.name);
        let start = Instant::now();
        let result = run.start(preemptions);
        if let Err(error) = &result {
            println!("-- {}: FAILED, {error:#}", run.name);
            failed.push(run.name);
        }
        lines.push(line(run.name, result.is_ok(), start.elapsed()));
    }
    println!("\n{}", lines.join("\n"));
    if failed.is_empty() {
        return Ok(());
    }
    let names = failed.join(",");
    bail!("failed: {names}; again with `cargo xtask sanitize --only {names}`")
}

fn line(name: &str, is_ok: bool, took: Duration) -> String {
    let result = if is_ok { "ok" } else { "FAILED" };
    format!("{name:<18} {result:<8} {:>8.1} s", took.as_secs_f64())
}

impl Run {
    fn start(&self, preemptions: u32) -> Result<()> {
        match self.tool {
            SanitizerTool::Loom => self.models(preemptions),
            SanitizerTool::Address => self.with_address_sanitizer(),
            SanitizerTool::Thread => self.with_thread_sanitizer(),
        }
    }

    fn models(&self, preemptions: u32) -> Result<()> {
        let mut command = cargo("test --package longview-loom --lib");
        command.arg("--target-dir").arg(folder("loom")?).arg("--").args(self.tests.split(' '));
        command.env("RUSTFLAGS", "--cfg loom").env_remove(lints::VARIABLE);
        run_child(command.env("LOOM_MAX_PREEMPTIONS", preemptions.to_string()))
    }

    fn with_address_sanitizer(&self) -> Result<()> {
        check_platform()?;
        let library = toolchain_libraries()?;
        if !has_runtime(&library, "asan") {
            bail!(
                "the toolchain has no address sanitizer (librustc-*_rt.asan.a in {}): install \
                 rustup's stable one from https://rustup.rs",
                library.display()
            );
        }
        let mut command = cargo("test");
        command.args(self.arguments("asan")?).env("RUSTC_BOOTSTRAP", "1").envs(WITH_LINES);
        // The name by which buffers see that they are watched; the compiler's own is unstable.
        run_child(command.env("RUSTFLAGS", "-Zsanitizer=address --cfg address_sanitizer"))
    }

    /// Debian's compiler has the source of the standard library, and LLVM's packages the
    /// sanitizer's runtime, which it lacks.
    fn with_thread_sanitizer(&self) -> Result<()> {
        check_platform()?;
        if !debian::is_here() {
            bail!(
                "the thread sanitizer needs Debian's packages rustc-web, cargo-web, rust-web-src"
            );
        }
        let mut command = debian::cargo("take a newer Debian")?;
        command.envs(WITH_LINES);
        let runtime = thread_sanitizer_runtime()?;
        command.args(["test", "-Zbuild-std"]).args(self.arguments("tsan")?);
        // All of the runtime, and before the C library, whose versioned symbols it refers to.
        let link = ["-Wl,--whole-archive", &runtime, "-Wl,--no-whole-archive"];
        let link: String = link.iter().map(|word| format!(" -Zpre-link-arg={word}")).collect();
        let flags = format!("-Zsanitizer=thread -Zexternal-clangrt{link}");
        run_child(command.env("RUSTFLAGS", flags))
    }

    fn arguments(&self, name: &str) -> Result<Vec<String>> {
        let folder = folder(name)?.display().to_string();
        let words = ["--target", TARGET, "--target-dir", &folder];
        let tests = self.tests.split(' ').filter(|word| !word.is_empty());
        Ok(words.into_iter().chain(tests).map(String::from).collect())
    }
}

fn check_platform() -> Result<()> {
    if cfg!(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu")) {
        return Ok(());
    }
    bail!("sanitizers are set up for {TARGET} alone: run this there")
}

fn folder(name: &str) -> Result<PathBuf> {
    Ok(target_directory()?.join(name))
}

/// Where the compiler that cargo calls has its libraries.
fn toolchain_libraries() -> Result<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "target-libdir"]).output();
    let output = output.context("rustc --print target-libdir")?;
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

/// Whether `folder` holds the runtime of a sanitizer, whatever the channel is that names it.
fn has_runtime(folder: &Path, sanitizer: &str) -> bool {
    let end = format!("_rt.{sanitizer}.a");
    let Ok(entries) = folder.read_dir() else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with(&end))
}

/// The runtime of the LLVM that Debian's compiler was built with, installed where it is missing.
fn thread_sanitizer_runtime() -> Result<String> {
    let major = debian::llvm_major()?;
    let file =
        format!("/usr/lib/llvm-{major}/lib/clang/{major}/lib/linux/libclang_rt.tsan-x86_64.a");
    // A tool names its package for as long as the program runs, and this is one string a run.
    let package = format!("libclang-rt-{major}-dev").leak();
    let probe = vec!["test", "-f", file.clone().leak()].leak();
    let name = "thread sanitizer's runtime";
    setup::require(&[Tool { name, probe, source: Source::Packages(package) }])?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_chosen_by_name() {
        let names = |only| -> Vec<_> {
            chosen(only).unwrap().into_iter().map(|run: &Run| run.name).collect()
        };
        assert_eq!(names(Some("thread-cpu,loom-pool")), ["thread-cpu", "loom-pool"]);
        assert_eq!(names(None).len(), RUNS.len());
        assert!(RUNS.iter().all(|run| ABOUT.contains(run.name)), "{ABOUT}");
    }

    #[test]
    fn a_toolchain_without_the_runtime_is_seen() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(!has_runtime(folder, "asan"));
        assert!(!has_runtime(&folder.join("nowhere"), "asan"));
    }

    #[test]
    fn a_line_says_how_it_went_and_for_how_long() {
        let took = Duration::from_millis(1250);
        assert_eq!(line("loom-pool", true, took), "loom-pool          ok            1.2 s");
        assert_eq!(line("thread-cpu", false, took), "thread-cpu         FAILED        1.2 s");
    }
}
