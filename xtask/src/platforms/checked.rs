//! Platforms whose programs nothing here can run: their crates go through the compiler's checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::place::{crate_names, folder, in_folder};
use super::report::Report;
use crate::cross::Target;
use crate::process::{allow_to_run, run as run_child};
use crate::setup;

/// Macs with processors of Apple and of Intel.
const MACS: [Target; 2] = [
    Target { triple: "aarch64-apple-darwin", linker: None, std_parts: "std" },
    Target { triple: "x86_64-apple-darwin", linker: None, std_parts: "std" },
];

const BROWSER: Target =
    Target { triple: "wasm32-unknown-unknown", linker: None, std_parts: "std,panic_abort" };

/// Some crates of others have parts in C and assembly, which build scripts compile even for a
/// check, and which need Apple's headers. A check links nothing and no line of ours depends on
/// them: what stands for the C compiler makes empty files. It answers as clang does to what the
/// `cc` crate asks: preprocessed, its name comes out, and the option `-?` of MSVC is unknown.
const NO_COMPILER: &str = "\
#!/bin/sh
while [ $# -gt 0 ]; do
    case \"$1\" in
        -E) echo '\"clang\"' ;;
        -\\?) exit 1 ;;
        -o) : > \"$2\" ;;
        -o*) : > \"${1#-o}\" ;;
    esac
    shift
done
";

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
    setup::require(MACS.iter().flat_map(Target::compiler_tools))?;
    let compiler = no_compiler()?;
    for target in &MACS {
        for name in crate_names()? {
            report.check(&format!("{name}, {}", target.triple), || {
                let mut command = check(target, &name)?;
                let name = target.triple.replace('-', "_");
                command.env(format!("CC_{name}"), &compiler).env(format!("AR_{name}"), "ar");
                run_child(&mut command)?;
                Ok(String::new())
            });
        }
    }
    report.not_checked("C and assembly of ring and zstd", "Apple's headers are not here");
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

/// Writes [`NO_COMPILER`].
fn no_compiler() -> Result<PathBuf> {
    let path = folder()?.join("no-compiler");
    let parent = path.parent().unwrap_or(Path::new(""));
    let written = fs::create_dir_all(parent).and_then(|()| fs::write(&path, NO_COMPILER));
    written.with_context(|| path.display().to_string())?;
    allow_to_run(&path)?;
    Ok(path)
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
