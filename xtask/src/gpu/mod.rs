//! `cargo xtask gpu`: packs the tests that need a GPU for a machine that has one and no cargo.
//!
//! The pack is a folder and an archive of it: one binary of the profile that ships, the files that
//! it reads, a script that runs all of it. The same binary runs on the CPU, which proves the pack
//! before it leaves.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::args::Parsed;
use crate::process::{SHIPPED, capture, cargo, root, run as run_child, succeeds, target_directory};

pub(crate) const ABOUT: &str = "packs one optimised binary with every test and bench of the CUDA backend, \
                                and the desktop app, into target/gpu/, to be run where there is a GPU and \
                                no cargo";

const NAME: &str = "longview-gpu";
const SCRIPT: &str = include_str!("run.sh");
/// The desktop app, and what starts it on a device.
const APP: &str = "longview-desktop";
const APP_SCRIPT: &str = include_str!("desktop.sh");
const README: &str = include_str!("README.md");

/// What the binary reads, from the repository's root.
const FILES: &[&str] = &["tests/fixtures", "models/needle"];

/// Endings of files that it does not read.
const LEFT_OUT: &[&str] = &["py", "txt", "md"];

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    Parsed::parse(args, &[], &[])?;
    let words = format!(
        "build --profile {SHIPPED} --package longview-tests --package {APP} --bin {NAME} --bin {APP}"
    );
    run_child(&mut cargo(&words))?;
    let target = target_directory()?;
    let pack = target.join("gpu");
    let folder = pack.join(NAME);
    fill(&folder, &target.join(SHIPPED))?;
    prove(&folder)?;
    let archive = pack.join(format!("{NAME}.tar.gz"));
    run_child(Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(&pack).arg(NAME))?;
    let megabytes = fs::metadata(&archive)?.len() as f64 / 1e6;
    println!(
        "\n{} ({megabytes:.0} MB); on a machine with a GPU:\n  tar xzf {NAME}.tar.gz\n  \
         ./{NAME}/run.sh | tee gpu.log",
        archive.display()
    );
    Ok(())
}

/// Makes the folder anew, with the programs of the folder `built`.
fn fill(folder: &Path, built: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(folder)?;
    for name in [NAME, APP] {
        let (binary, packed) = (built.join(name), folder.join(name));
        fs::copy(&binary, &packed).with_context(|| binary.display().to_string())?;
        // Names of functions stay; lines would triple the size.
        if !succeeds(Command::new("strip").arg("--strip-debug").arg(&packed)) {
            println!("strip does not work here: {name} keeps its debug information");
        }
    }
    for path in FILES {
        copy(&root().join(path), &folder.join(path))?;
    }
    fs::write(folder.join("README.md"), README)?;
    fs::write(folder.join("BUILD.txt"), origin()?)?;
    let scripts = [("run.sh", SCRIPT), ("desktop.sh", APP_SCRIPT)];
    for (name, script) in scripts {
        fs::write(folder.join(name), script)?;
    }
    run_child(Command::new("chmod").arg("+x").args(scripts.map(|(name, _)| folder.join(name))))
}

/// Copies a folder with all that the binary may read.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        let copy_of = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy(&path, &copy_of)?;
        } else if is_read(&path) {
            fs::copy(&path, copy_of).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

fn is_read(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    !LEFT_OUT.contains(&extension.as_ref())
}

/// Where the binary comes from, for whoever records what it prints.
fn origin() -> Result<String> {
    let git = |args: &[&str]| capture(Command::new("git").args(args).current_dir(root()));
    let commit = git(&["rev-parse", "HEAD"])?;
    let is_clean = git(&["status", "--porcelain"])?.is_empty();
    let changed = if is_clean { "" } else { "with changes that are not committed\n" };
    let rustc = capture(Command::new("rustc").arg("--version"))?;
    let libc = capture(Command::new("ldd").arg("--version"));
    let libc = libc.unwrap_or_default().lines().next().unwrap_or("unknown").to_owned();
    Ok(format!("commit {commit}{changed}{rustc}C library of the build: {libc}\n"))
}

/// The pack runs from another folder, with nothing but what is in it.
fn prove(folder: &Path) -> Result<()> {
    let words =
        ["--backend", "cpu", "--only", "parity,golden", "--op", "embed", "--filter", "qwen3"];
    let mut script = Command::new(folder.join("run.sh"));
    run_child(script.args(words).current_dir(std::env::temp_dir()))?;
    run_child(Command::new(folder.join("desktop.sh")).arg("cpu").current_dir(std::env::temp_dir()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_there_and_recipes_stay_behind() {
        for path in FILES {
            assert!(root().join(path).is_dir(), "{path}");
        }
        assert!(is_read(Path::new("model.safetensors")) && is_read(Path::new("config.json")));
        assert!(!is_read(Path::new("make_fixtures.py")) && !is_read(Path::new("MODEL_CARD.md")));
    }

    #[test]
    fn the_script_names_what_is_packed() {
        for word in [NAME, "LONGVIEW_FILES", "compute-sanitizer", "NOT RUN", "desktop.sh"] {
            assert!(SCRIPT.contains(word) && README.contains(word), "{word}");
        }
        assert!(APP_SCRIPT.contains(APP) && README.contains(APP));
    }
}
