//! The files of `crates/desktop/package`, read by the tools that desktops trust.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::files::{self, ENTRIES, METAINFO, TYPES};
use crate::process::{root, run as run_child};
use crate::setup::{self, Source, Tool};

const TOOLS: &[Tool] = &[
    Tool {
        name: "desktop-file-validate",
        probe: &["desktop-file-validate", "--help"],
        source: Source::Packages("desktop-file-utils"),
    },
    Tool {
        name: "appstreamcli",
        probe: &["appstreamcli", "--version"],
        source: Source::Packages("appstream"),
    },
    Tool {
        name: "update-mime-database",
        probe: &["update-mime-database", "-v"],
        source: Source::Packages("shared-mime-info"),
    },
];

/// Fails where a file is not what desktops expect.
pub(super) fn run() -> Result<()> {
    if !cfg!(target_os = "linux") {
        bail!("files of the package are checked by tools of Linux desktops: do it there");
    }
    setup::require(TOOLS)?;
    let folder = files::folder();
    run_child(Command::new("desktop-file-validate").args(ENTRIES.map(|file| folder.join(file))))?;
    // Longview has no domain that its name could begin with, so it is that of the desktop entry.
    let mut appstream = Command::new("appstreamcli");
    appstream.args(["validate", "--no-net", "--override", "cid-desktopapp-is-not-rdns=info"]);
    run_child(appstream.arg(folder.join(METAINFO)))?;
    check_types(&folder)
}

/// Types of files are tried on files.
fn check_types(folder: &Path) -> Result<()> {
    let trial = std::env::temp_dir().join(format!("longview-types-{}", std::process::id()));
    files::empty(&trial.join("mime/packages"))?;
    fs::copy(folder.join(TYPES), trial.join("mime/packages").join(TYPES))?;
    run_child(Command::new("update-mime-database").arg(trial.join("mime")))?;
    let globs = fs::read_to_string(trial.join("mime/globs2")).context("globs2")?;
    let magic = fs::read(trial.join("mime/magic")).context("magic")?;
    fs::remove_dir_all(&trial)?;
    for (kind, pattern) in [("application/x-gguf", "*.gguf"), (SESSION, "*.lvs")] {
        if !globs.lines().any(|line| line.ends_with(&format!("{kind}:{pattern}"))) {
            bail!("{TYPES}: {pattern} is not {kind}");
        }
    }
    let session = fs::read(root().join("tests/fixtures/session/v2-tokens.lvs"))?;
    for start in [b"GGUF".as_slice(), &session[..8]] {
        if !magic.windows(start.len()).any(|bytes| bytes == start) {
            bail!("{TYPES}: no type begins with {}", start.escape_ascii());
        }
    }
    Ok(())
}

/// The type of a session's file.
const SESSION: &str = "application/x-longview-session";
