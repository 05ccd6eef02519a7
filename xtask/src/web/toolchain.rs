//! A toolchain that compiles for browsers: rustup's target where it is installed, else Debian's
//! compiler, which builds the standard library from source.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{cargo, root, succeeds};
use crate::setup::{self, Source, Tool};

pub(super) const TARGET: &str = "wasm32-unknown-unknown";
/// The profile of the workspace that is made for downloads.
pub(super) const PROFILE: &str = "web";

/// What Debian's way needs.
const DEBIAN: &[Tool] = &[
    Tool {
        name: "compiler for browsers",
        probe: &["/usr/bin/cargo", "--version"],
        source: Source::Packages("rustc-web cargo-web"),
    },
    Tool {
        name: "source of the standard library",
        probe: &["test", "-d", "/usr/lib/rustlib/src/rust/library"],
        source: Source::Packages("rust-web-src"),
    },
    Tool {
        name: "WebAssembly linker",
        probe: &[DEBIAN_LINKER, "--version"],
        source: Source::Packages("lld-19"),
    },
];
const DEBIAN_LINKER: &str = "/usr/bin/wasm-ld-19";

/// What the page is built with.
const NODE: &[Tool] = &[
    Tool { name: "node", probe: &["node", "--version"], source: Source::Packages("nodejs") },
    Tool { name: "npm", probe: &["npm", "--version"], source: Source::Packages("npm") },
];

/// The oldest Node that the page's bundler runs on, major and minor.
const OLDEST_NODE: (u32, u32) = (20, 19);

/// Provides Node, and fails for one that is too old: the bundler says so only in a stack trace.
pub(super) fn require_node() -> Result<()> {
    setup::require(NODE)?;
    let output = Command::new("node").arg("--version").output().context("node --version")?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match node_version(&version) {
        Some(found) if found < OLDEST_NODE => bail!(
            "node is {version}, and {}.{} is needed: install it from https://nodejs.org",
            OLDEST_NODE.0,
            OLDEST_NODE.1
        ),
        _ => Ok(()),
    }
}

/// Major and minor of `v20.19.4`.
fn node_version(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix('v')?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// What the demo's tests drive.
pub(super) const BROWSER: &[Tool] = &[Tool {
    name: "browser",
    probe: &["chromium", "--version"],
    source: Source::Packages("chromium"),
}];

/// What building needs of the system.
pub(super) fn tools() -> impl Iterator<Item = &'static Tool> {
    let compiler = if rustup_has_target() || !has_apt() { &[] } else { DEBIAN };
    NODE.iter().chain(compiler)
}

fn has_apt() -> bool {
    cfg!(target_os = "linux") && succeeds(Command::new("apt-get").arg("--version"))
}

/// The call of cargo that compiles the crate.
pub(super) fn build_command() -> Result<Command> {
    let build = format!("build --profile {PROFILE} --target {TARGET} --package longview-web");
    if rustup_has_target() {
        return Ok(cargo(&build));
    }
    if !has_apt() {
        bail!("no toolchain for browsers: run `rustup target add {TARGET}`");
    }
    setup::require(DEBIAN)?;
    check_age()?;
    let mut command = Command::new("/usr/bin/cargo");
    command.args(build.split(' ')).arg("-Zbuild-std=std,panic_abort").current_dir(root());
    // Nothing of the toolchain that runs this program may reach the other one.
    for name in ["RUSTC", "RUSTUP_TOOLCHAIN", "RUSTDOC", "RUSTFLAGS", "RUSTC_WRAPPER"] {
        command.env_remove(name);
    }
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/usr/bin:{path}"));
    command.env("RUSTC_BOOTSTRAP", "1");
    command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", DEBIAN_LINKER);
    Ok(command)
}

/// Whether the toolchain in use has the target's standard library.
fn rustup_has_target() -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    let output = command.args(["--print", "target-libdir", "--target", TARGET]).output();
    output.is_ok_and(|output| {
        let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success() && Path::new(&folder).is_dir()
    })
}

/// An old Debian has a compiler that is too old, and says so only deep in the build.
fn check_age() -> Result<()> {
    let output = Command::new("/usr/bin/rustc").arg("--version").output();
    let version = String::from_utf8(output.context("/usr/bin/rustc --version")?.stdout)?;
    let (found, needed) = (minor(&version), minor(env!("CARGO_PKG_RUST_VERSION")));
    match found.zip(needed) {
        Some((found, needed)) if found < needed => bail!(
            "Debian's compiler is {}, and {} is needed: run `rustup target add {TARGET}`",
            version.trim(),
            env!("CARGO_PKG_RUST_VERSION")
        ),
        _ => Ok(()),
    }
}

/// The 95 of `1.95`, wherever it stands.
fn minor(version: &str) -> Option<u32> {
    let number = version.split_whitespace().find(|word| word.starts_with("1."))?;
    number.split('.').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_wherever_they_stand() {
        assert_eq!(minor("rustc 1.96.0 (ac68faa20 2026-05-25) (built from a tarball)"), Some(96));
        assert_eq!(minor("1.95"), Some(95));
        assert_eq!(minor("no version"), None);
    }

    #[test]
    fn nodes_version_has_two_numbers_that_matter() {
        assert_eq!(node_version("v20.19.4"), Some(OLDEST_NODE));
        assert!(node_version("v18.20.4").unwrap() < OLDEST_NODE);
        assert!(node_version("v22.1.0").unwrap() > OLDEST_NODE);
        assert_eq!(node_version("20"), None);
    }
}
