//! Child processes: always from the repository root, always shown before they run.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

/// A child that ran and failed.
#[derive(Debug)]
pub(crate) struct ChildFailed {
    /// What was called.
    pub(crate) line: String,
    /// Its exit code; `None` where a signal ended it.
    pub(crate) code: Option<i32>,
}

impl fmt::Display for ChildFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "`{}` failed with exit code {code}", self.line),
            None => write!(f, "`{}` was ended by a signal", self.line),
        }
    }
}

impl std::error::Error for ChildFailed {}

/// The profile of what ships: measured and packed binaries are built with it.
pub(crate) const SHIPPED: &str = "dist";

/// The repository's root, wherever the caller stands.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Cargo with `args` (separated by spaces), in the root. The cargo that started xtask is the one
/// that goes on; what it told xtask of xtask's own package does not, because a build script that
/// looks there (ring's) would run again, and what stands on it be compiled again, in each call.
pub(crate) fn cargo(args: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args.split_whitespace()).current_dir(root());
    std::env::vars_os().map(|(name, _)| name).filter(|name| is_of_package(name)).for_each(|name| {
        command.env_remove(name);
    });
    command
}

/// The same command with the lowest priority, on a system that has the program `nice`.
pub(crate) fn nicely(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    nice
}

/// Whether cargo tells a program by this variable which package it is of.
fn is_of_package(name: &OsStr) -> bool {
    let starts = |start: &&str| name.as_encoded_bytes().starts_with(start.as_bytes());
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(starts)
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = announce(command);
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if status.success() { Ok(()) } else { Err(ChildFailed { line, code: status.code() }.into()) }
}

/// Runs a command to its end with all that it says in the file `log`; whether it ended well.
pub(crate) fn run_logged(command: &mut Command, log: &Path) -> Result<bool> {
    let line = announce(command);
    let file = File::create(log).with_context(|| log.display().to_string())?;
    let output = file.try_clone().with_context(|| log.display().to_string())?;
    let command = command.stdin(Stdio::null()).stdout(output).stderr(file);
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    Ok(status.success())
}

/// Runs a command to its end and returns what it wrote to stdout; its stderr is shown.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let line = announce(command);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        return Err(ChildFailed { line, code: output.status.code() }.into());
    }
    String::from_utf8(output.stdout).with_context(|| format!("stdout of `{line}` is not UTF-8"))
}

/// A command that runs beside others. What it says is kept until somebody waits for it; one that
/// nobody waits for is ended.
pub(crate) struct Background {
    line: String,
    child: Child,
    log: PathBuf,
}

impl Background {
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let line = announce(&command);
        let log = format!("longview-xtask-{}-{:x}.log", std::process::id(), hash(&line));
        let log = std::env::temp_dir().join(log);
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        let output = file.try_clone().with_context(|| log.display().to_string())?;
        let command = command.stdin(Stdio::null()).stdout(output).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start `{line}`"))?;
        Ok(Self { line, child, log })
    }

    /// Waits for its end, which adds its CPU time to that of this program's children, and shows
    /// what it said.
    pub(crate) fn finish(mut self) -> Result<()> {
        let status = self.child.wait().with_context(|| self.line.clone())?;
        eprintln!("$ {}", self.line);
        eprint!("{}", String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()));
        if status.success() {
            return Ok(());
        }
        Err(ChildFailed { line: self.line.clone(), code: status.code() }.into())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // What it started has to end too: a browser would outlive it. All of these fail where it
        // has ended; then there is nothing left to do.
        if let Ok(None) = self.child.try_wait() {
            let mut kill = Command::new("kill");
            kill.args(descendants(self.child.id()).iter().map(u32::to_string));
            succeeds(&mut kill);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.log);
    }
}

/// Every process below `root`, where the system lists them.
fn descendants(root: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let with_parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, parent_of(&stat)?))
    };
    let mut left: Vec<(u32, u32)> = pids.filter_map(with_parent).collect();
    let mut found = vec![root];
    let mut done = 0;
    while let Some(&parent) = found.get(done) {
        left.retain(|(pid, of)| {
            let is_child = *of == parent;
            if is_child {
                found.push(*pid);
            }
            !is_child
        });
        done += 1;
    }
    found.split_off(1)
}

/// The parent in `/proc/PID/stat`: behind the name, which may hold anything, and the state.
fn parent_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn hash(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// CPU time so far, of this program and of all that it started and waited for; none where the
/// system does not tell.
pub(crate) fn cpu_time() -> Option<Duration> {
    cpu_time_of(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// Reads the times of `/proc/PID/stat`: own and children's, user and system, in hundredths of a
/// second (the unit of Linux's interfaces whatever its clock).
fn cpu_time_of(stat: &str) -> Option<Duration> {
    // The second field is a name in brackets, which may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let times: Vec<u64> =
        fields.split_whitespace().skip(11).take(4).filter_map(|word| word.parse().ok()).collect();
    (times.len() == 4).then(|| Duration::from_millis(10 * times.iter().sum::<u64>()))
}

/// Whether a program starts and ends well; silent.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}

/// A binary of the workspace in the dev profile, built if it is not yet.
///
/// Of the whole workspace with all features on purpose: the features of shared dependencies are
/// then those of the tests, and what these built is used again.
pub(crate) fn dev_binary(name: &str) -> Result<PathBuf> {
    run(cargo("build --workspace --all-features --bin").arg(name))?;
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    Ok(target_directory()?.join("debug").join(file))
}

/// Where cargo puts what it builds.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let text = capture(&mut cargo("metadata --no-deps --format-version 1"))?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata")?;
    let target = metadata["target_directory"].as_str().context("no target_directory")?;
    Ok(PathBuf::from(target))
}

/// Prints the command as one could type it.
fn announce(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_stem().unwrap_or(program.as_os_str()).to_string_lossy();
    let mut words = vec![];
    let given = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    for (name, value) in given {
        let value = value.to_string_lossy();
        words.push(format!("{}={}", name.to_string_lossy(), quoted(&value)));
    }
    words.push(program.into_owned());
    words.extend(command.get_args().map(|arg| quoted(&arg.to_string_lossy())));
    let line = words.join(" ");
    eprintln!("$ {line}");
    line
}

fn quoted(word: &str) -> String {
    if word.contains(' ') { format!("'{word}'") } else { word.to_owned() }
}

/// Lets a file be run, which pip forgets.
#[cfg(unix)]
pub(crate) fn allow_to_run(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;

    let permissions = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, permissions).with_context(|| path.display().to_string())
}

#[cfg(not(unix))]
pub(crate) fn allow_to_run(_: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_not_told_of_this_package() {
        // Cargo has told this test.
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some());
        let command = cargo("--version");
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).collect();
        for name in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"] {
            assert!(removed.iter().any(|(removed, _)| *removed == name), "{name}: {removed:?}");
        }
    }

    #[test]
    fn the_root_is_the_workspace() {
        assert!(root().join("xtask").join("Cargo.toml").exists());
    }

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = cargo("doc --no-deps");
        command.env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(announce(&command), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn cpu_time_is_that_of_the_program_and_its_children() {
        let stat = "1234 (a) name) S 1 1 1 0 -1 4194560 9 9 0 0 150 50 700 100 20 0 1 0 5 6 7";
        assert_eq!(cpu_time_of(stat), Some(Duration::from_secs(10)));
        assert_eq!(cpu_time_of("1234 (name) S 1"), None);
    }

    #[test]
    fn the_parent_is_read_behind_any_name() {
        assert_eq!(parent_of("1234 (a) S 7 (b) S 5 1 1 0 -1"), Some(5));
        assert_eq!(parent_of("1234 (name)"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_background_command_started_ends_with_it() {
        let mut command = Command::new("sh");
        // Two commands, so that the shell stays between.
        command.args(["-c", "sleep 1000; true"]);
        let background = Background::start(command).unwrap();
        let pid = background.child.id();
        let below = loop {
            match &descendants(pid)[..] {
                [] => std::thread::yield_now(),
                [below] => break *below,
                more => panic!("{more:?}"),
            }
        };
        assert!(descendants(std::process::id()).contains(&below));
        drop(background);
        // An orphan that nobody has waited for yet has no command line any more.
        let line = format!("/proc/{below}/cmdline");
        while fs::read_to_string(&line).is_ok_and(|line| !line.is_empty()) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_background_command_is_waited_for() {
        Background::start(cargo("--version")).unwrap().finish().unwrap();
        let error = Background::start(cargo("no-such-verb")).unwrap().finish().unwrap_err();
        assert_eq!(error.downcast_ref::<ChildFailed>().expect("a child").code, Some(101));
    }

    #[test]
    fn a_failed_child_carries_its_code() {
        let error = run(&mut cargo("no-such-verb")).unwrap_err();
        let child = error.downcast_ref::<ChildFailed>().expect("a child");
        assert_eq!((child.line.as_str(), child.code), ("cargo no-such-verb", Some(101)));
    }
}
