//! `cargo xtask package`: what is given to people who build nothing, made and tried.
//!
//! A Debian package and an archive that runs where it is unpacked, each with both programs, icons,
//! desktop entries, types of files and the list of licences. There is no AppImage: the part that
//! starts one is in none of the registries that this repository takes its tools from.

mod check;
mod deb;
mod files;
mod licences;
pub(crate) mod npm;
mod prove;
mod server;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::args::{Parsed, UsageError};
use crate::process::{SHIPPED, cargo, run as run_child, target_directory};
use crate::setup;
use files::{VERSION, commit_time, empty};

pub(crate) const OPTIONS: &str = "[--check | --test]";
pub(crate) const ABOUT: &str = "a Debian package and an archive of both programs, into target/package/. --check: \
                                licences and the files of crates/desktop/package and packaging alone, as CI does; --test: \
                                installs, starts and removes the package in a new Debian (as root)";

/// Packages of cargo and features that the programs are built of.
const BUILT: &str = "--package longview-cli --package longview-desktop \
                     --features longview-cli/evaluation,longview-cli/shared,longview-cli/kv-events";

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse(args, &["--check", "--test"], &[])?;
    if parsed.has("--check") && parsed.has("--test") {
        return Err(UsageError("--check makes no package that --test could try".into()).into());
    }
    stage()?;
    if parsed.has("--check") {
        return Ok(());
    }
    let for_test = prove::TOOLS.iter().filter(|_| parsed.has("--test"));
    setup::require(deb::TOOLS.iter().chain(for_test))?;
    run_child(&mut cargo(&format!("build --profile {SHIPPED} --locked {BUILT}")))?;
    let target = target_directory()?;
    let folder = target.join("package");
    empty(&folder)?;
    let tree = folder.join("tree");
    let licences = licences::list(BUILT)?;
    tree::fill(&tree, &target.join(SHIPPED), &licences)?;
    let archive = archive(&folder, &tree)?;
    let package = deb::build(&folder, &tree)?;
    println!("{}\n{}", told(&package)?, told(&archive)?);
    println!("no AppImage: what starts one is in no registry that tools are taken from");
    if parsed.has("--test") {
        prove::run(&folder, &package)?;
    }
    Ok(())
}

/// The stage of CI: what takes seconds.
pub(crate) fn stage() -> Result<()> {
    licences::check()?;
    check::run()?;
    server::check()
}

/// The same files in an archive, to be unpacked anywhere.
fn archive(folder: &Path, tree: &Path) -> Result<PathBuf> {
    let name = format!("longview-{VERSION}-{}-linux", std::env::consts::ARCH);
    let file = folder.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{}", commit_time()?));
    tar.arg(format!("--transform=s,^usr,{name},"));
    tar.arg("-czf").arg(&file).arg("-C").arg(tree).arg("usr");
    run_child(&mut tar)?;
    Ok(file)
}

fn told(file: &Path) -> Result<String> {
    let megabytes = fs::metadata(file)?.len() as f64 / 1e6;
    Ok(format!("{} ({megabytes:.1} MB)", file.display()))
}
