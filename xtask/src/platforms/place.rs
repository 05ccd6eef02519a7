//! Where things for other machines are built, and which crates there are.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

use crate::process::{root, target_directory};

/// Where everything for other machines is built: another compiler's work beside that of this one.
pub(super) fn folder() -> Result<PathBuf> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    if let Some(folder) = FOLDER.get() {
        return Ok(folder.clone());
    }
    let folder = target_directory()?.join("platforms");
    Ok(FOLDER.get_or_init(|| folder).clone())
}

/// The dev profile without what only a debugger reads, in [`folder()`].
pub(super) fn in_folder(mut command: Command) -> Result<Command> {
    command.env("CARGO_TARGET_DIR", folder()?).env("CARGO_PROFILE_DEV_DEBUG", "false");
    Ok(command)
}

/// A program that was built for `triple`.
pub(super) fn program(triple: &str, file: &str) -> Result<PathBuf> {
    let path = folder()?.join(triple).join("debug").join(file);
    if path.is_file() { Ok(path) } else { bail!("{} is missing", path.display()) }
}

/// Names of the packages in `crates/`, in the order of the alphabet.
pub(super) fn crate_names() -> Result<Vec<String>> {
    let folder = root().join("crates");
    let entries = folder.read_dir().with_context(|| folder.display().to_string())?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.path().join("Cargo.toml").is_file() {
            names.push(format!("longview-{}", entry.file_name().to_string_lossy()));
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_is_found() {
        let names = crate_names().unwrap();
        assert!(names.contains(&"longview-cpu".into()) && names.len() > 10, "{names:?}");
    }
}
