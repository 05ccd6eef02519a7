//! What compiles the module for browsers and builds the page.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cross::Target;
use crate::process::run as run_child;
use crate::setup::{self, Source, Tool};

pub(super) const TARGET: &str = "wasm32-unknown-unknown";

/// The browser, as a machine that is compiled for. rustup's compiler brings its linker.
const MACHINE: Target = Target { triple: TARGET, linker: None, std_parts: "std,panic_abort" };

/// How the module is compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Profile {
    /// What a visitor downloads: small, and optimised across all crates, which takes minutes.
    Shipped,
    /// What CI tests: the same code with its overflows checked, compiled on all cores.
    Fast,
}

impl Profile {
    /// Its name in the workspace.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shipped => "web",
            Self::Fast => "web-fast",
        }
    }
}

/// What Debian's way needs beside the compiler.
const LINKER: &[Tool] = &[Tool {
    name: "WebAssembly linker",
    probe: &[DEBIAN_LINKER, "--version"],
    source: Source::Packages("lld-19"),
}];
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

/// Runs npm in the page's folder.
pub(super) fn npm(web: &Path, args: &[&str]) -> Result<()> {
    run_child(&mut npm_command(web, args))
}

/// The call of npm in that folder.
pub(super) fn npm_command(web: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("npm");
    command.args(args).current_dir(web);
    command
}

/// What the demo's tests drive.
pub(super) const BROWSER: &[Tool] = &[Tool {
    name: "browser",
    probe: &["chromium", "--version"],
    source: Source::Packages("chromium"),
}];

/// What building needs of the system.
pub(super) fn tools() -> impl Iterator<Item = &'static Tool> {
    let compiler = MACHINE.compiler_tools();
    let linker = if compiler.is_empty() { &[][..] } else { LINKER };
    NODE.iter().chain(compiler).chain(linker)
}

/// The call of cargo that compiles the crate.
pub(super) fn build_command(profile: Profile) -> Result<Command> {
    let mut command =
        MACHINE.cargo(&format!("build --profile {} --package longview-web", profile.name()))?;
    if !MACHINE.is_of_rustup() {
        setup::require(LINKER)?;
        command.env(MACHINE.variable("LINKER"), DEBIAN_LINKER);
        // Without what reads debug information for backtraces: a browser makes those itself.
        command.arg("-Zbuild-std-features=");
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_version_has_two_numbers_that_matter() {
        assert_eq!(node_version("v20.19.4"), Some(OLDEST_NODE));
        assert!(node_version("v18.20.4").unwrap() < OLDEST_NODE);
        assert!(node_version("v22.1.0").unwrap() > OLDEST_NODE);
        assert_eq!(node_version("20"), None);
    }
}
