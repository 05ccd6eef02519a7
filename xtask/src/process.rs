//! Child processes: always from the repository root, always shown before they run.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
/// that goes on.
pub(crate) fn cargo(args: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args.split_whitespace()).current_dir(root());
    command
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = announce(command);
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if status.success() { Ok(()) } else { Err(ChildFailed { line, code: status.code() }.into()) }
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

/// Whether a program starts and ends well; silent.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}

/// A binary of the workspace in the dev profile, built if it is not yet.
///
/// All binaries with all features on purpose: the features of shared dependencies are then those of
/// the tests, and what these built is used again.
pub(crate) fn dev_binary(name: &str) -> Result<PathBuf> {
    run(&mut cargo("build --workspace --all-features --bins"))?;
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
    for (name, value) in command.get_envs() {
        let value = value.unwrap_or_default().to_string_lossy();
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_failed_child_carries_its_code() {
        let error = run(&mut cargo("no-such-verb")).unwrap_err();
        let child = error.downcast_ref::<ChildFailed>().expect("a child");
        assert_eq!((child.line.as_str(), child.code), ("cargo no-such-verb", Some(101)));
    }
}
