//! What all parts of packing know: names, the version, and how files are laid.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::{capture, root};

/// The version of all programs.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The programs.
pub(super) const PROGRAMS: [&str; 2] = ["longview", "longview-desktop"];
/// Desktop entries.
pub(super) const ENTRIES: [&str; 2] = ["longview.desktop", "longview-model.desktop"];
/// What a software centre shows.
pub(super) const METAINFO: &str = "longview.metainfo.xml";
/// Types of files.
pub(super) const TYPES: &str = "longview.mime.xml";

/// Where the files of a package lie that are no programs.
pub(super) fn folder() -> PathBuf {
    root().join("crates/desktop/package")
}

/// When the commit was made that is packed, in seconds since 1970: the same files have the same
/// times whenever they are packed.
pub(super) fn commit_time() -> Result<String> {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]).current_dir(root());
    Ok(capture(&mut git)?.trim().to_owned())
}

/// Makes a folder anew.
pub(super) fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())
}

/// Copies a file, with the folders above it.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    make_folder_of(to)?;
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(())
}

/// Writes a file, with the folders above it.
pub(super) fn write(file: &Path, text: &str) -> Result<()> {
    make_folder_of(file)?;
    fs::write(file, text).with_context(|| file.display().to_string())
}

/// The folders above a file.
pub(super) fn make_folder_of(file: &Path) -> Result<()> {
    let folder = file.parent().context("a file of the package has a folder")?;
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())
}
