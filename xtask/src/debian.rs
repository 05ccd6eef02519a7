//! Debian's Rust: a second compiler for what needs the standard library built anew, because its
//! packages bring the library's source and rustup's toolchain is only there as it is.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::lints;
use crate::process::{root, succeeds};
use crate::setup::{self, Source, Tool};

/// What this way needs of the system.
pub(crate) const TOOLS: &[Tool] = &[
    Tool {
        name: "Debian's compiler",
        probe: &["/usr/bin/cargo", "--version"],
        source: Source::Packages("rustc-web cargo-web"),
    },
    Tool {
        name: "source of the standard library",
        probe: &["test", "-d", "/usr/lib/rustlib/src/rust/library"],
        source: Source::Packages("rust-web-src"),
    },
];

/// Whether this machine takes Debian's packages.
pub(crate) fn is_here() -> bool {
    cfg!(target_os = "linux") && succeeds(Command::new("apt-get").arg("--version"))
}

/// Debian's cargo in the root, allowed to use unstable options; installed where it is missing.
/// `instead` says what to do where it is too old.
pub(crate) fn cargo(instead: &str) -> Result<Command> {
    setup::require(TOOLS)?;
    check_age(instead)?;
    let mut command = Command::new("/usr/bin/cargo");
    command.current_dir(root());
    // Nothing of the toolchain that runs this program may reach the other one.
    for name in ["RUSTC", "RUSTUP_TOOLCHAIN", "RUSTDOC", "RUSTFLAGS", "RUSTC_WRAPPER"] {
        command.env_remove(name);
    }
    command.env_remove(lints::VARIABLE);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/usr/bin:{path}"));
    command.env("RUSTC_BOOTSTRAP", "1");
    Ok(command)
}

/// The major version of the LLVM that Debian's compiler was built with.
pub(crate) fn llvm_major() -> Result<u32> {
    let text = told(&["-vV"])?;
    llvm_major_in(&text).with_context(|| format!("no LLVM version in `rustc -vV`: {text}"))
}

/// An old Debian has a compiler that is too old, and says so only deep in the build.
fn check_age(instead: &str) -> Result<()> {
    let version = told(&["--version"])?;
    match minor(&version).zip(minor(env!("CARGO_PKG_RUST_VERSION"))) {
        Some((found, needed)) if found < needed => bail!(
            "Debian's compiler is {}, and {} is needed: {instead}",
            version.trim(),
            env!("CARGO_PKG_RUST_VERSION")
        ),
        _ => Ok(()),
    }
}

fn told(args: &[&str]) -> Result<String> {
    let output = Command::new("/usr/bin/rustc").args(args).output();
    Ok(String::from_utf8(output.context("/usr/bin/rustc")?.stdout)?)
}

/// The 95 of `1.95`, wherever it stands.
fn minor(version: &str) -> Option<u32> {
    let number = version.split_whitespace().find(|word| word.starts_with("1."))?;
    number.split('.').nth(1)?.parse().ok()
}

fn llvm_major_in(text: &str) -> Option<u32> {
    let version = text.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_wherever_they_stand() {
        assert_eq!(minor("rustc 1.96.0 (ac68faa20 2026-05-25) (built from a tarball)"), Some(96));
        assert_eq!(minor("1.95"), Some(95));
        assert_eq!(minor("no version"), None);
        assert_eq!(llvm_major_in("rustc 1.96.0\nrelease: 1.96.0\nLLVM version: 22.1.8"), Some(22));
        assert_eq!(llvm_major_in("rustc 1.96.0"), None);
    }
}
