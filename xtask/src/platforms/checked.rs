//! Platforms whose programs nothing here can run: their crates go through the compiler's checks.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use super::place::{crate_names, folder, in_folder};
use super::report::Report;
use crate::cross::Target;
use crate::process::run as run_child;
use crate::setup::{self, Source, Tool};

/// Macs with processors of Apple and of Intel.
const MACS: [Target; 2] = [
    Target { triple: "aarch64-apple-darwin", linker: None, std_parts: "std" },
    Target { triple: "x86_64-apple-darwin", linker: None, std_parts: "std" },
];

const BROWSER: Target =
    Target { triple: "wasm32-unknown-unknown", linker: None, std_parts: "std,panic_abort" };

/// `ring` (TLS and hashes of downloads) has parts in C and assembly, which its build script
/// compiles even for a check. It brings the few headers of a C library that it needs.
const CLANG: &[Tool] = &[Tool {
    name: "C compiler for macOS",
    probe: &["clang", "--version"],
    source: Source::Packages("clang"),
}];

/// What the browser's module is made of; the other crates need files, threads or a terminal.
const OF_BROWSER: &[&str] = &[
    "longview-core",
    "longview-ops",
    "longview-wgpu",
    "longview-scheduler",
    "longview-model",
    "longview-engine",
    "longview-reader",
    "longview-web",
];

/// Every crate in `crates/`, each on its own, so that what cannot be checked hides nothing else.
pub(super) fn macos(report: &mut Report) -> Result<()> {
    setup::require(MACS.iter().flat_map(Target::compiler_tools).chain(CLANG))?;
    for target in &MACS {
        for name in crate_names()? {
            report.check(&format!("{name}, {}", target.triple), || {
                let mut command = check(target, &name)?;
                with_clang(&mut command, target)?;
                run_child(&mut command)?;
                Ok(String::new())
            });
        }
    }
    report.not_checked("programs and tests, built and run", "no linker for macOS, and no emulator");
    Ok(())
}

/// The crates that the browser's module is made of.
pub(super) fn wasm(report: &mut Report) -> Result<()> {
    setup::require(BROWSER.compiler_tools())?;
    for name in OF_BROWSER {
        report.check(&format!("{name}, {}", BROWSER.triple), || {
            run_child(&mut check(&BROWSER, name)?)?;
            Ok(String::new())
        });
    }
    Ok(())
}

fn check(target: &Target, name: &str) -> Result<Command> {
    in_folder(target.cargo(&format!("check --quiet --package {name}"))?)
}

/// Lets build scripts compile C without Apple's SDK: an empty folder stands for it, and `ring` is
/// told to take its own headers.
fn with_clang(command: &mut Command, target: &Target) -> Result<()> {
    let sdk = folder()?.join("no-sdk");
    fs::create_dir_all(&sdk).with_context(|| sdk.display().to_string())?;
    let name = target.triple.replace('-', "_");
    command.env("SDKROOT", sdk).env(format!("CC_{name}"), "clang").env(format!("AR_{name}"), "ar");
    command.env(format!("CFLAGS_{name}"), "-nostdlibinc -DRING_CORE_NOSTDLIBINC=1");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_browsers_crates_are_those_of_this_repository() {
        let names = crate_names().unwrap();
        assert!(OF_BROWSER.iter().all(|name| names.iter().any(|known| known == name)), "{names:?}");
    }
}
