//! `longview kv check`: whether everything is as it was written.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use longview_library::documents::Finding;
use longview_startup::keeper::verify;

use super::place;
use crate::{out, units};

/// Options of `longview kv check`.
#[derive(Args)]
pub struct CheckArgs {
    /// Move damaged files to the folder `damaged`, remove what killed programs left, and make
    /// documents of texts that are not listed [default: off].
    #[arg(long)]
    repair: bool,
}

/// Reads everything, and fails if something is wrong and was not set right.
pub fn check(library: Option<&Path>, args: &CheckArgs) -> Result<()> {
    let documents = place::look(library)?;
    let start = Instant::now();
    let checked = documents.check(args.repair, &mut verify)?;
    for finding in &checked.findings {
        out::bytes(format!("{}\n", line(finding)).as_bytes())?;
    }
    let n_right = units::counted(checked.n_right, "file is", "files are");
    let seconds = start.elapsed().as_secs_f64();
    let bytes = units::bytes(checked.bytes);
    out::bytes(format!("{n_right} right, {bytes} in {seconds:.2} s\n").as_bytes())?;
    let n = units::counted(checked.findings.len(), "thing is", "things are");
    if checked.is_right() {
        return Ok(());
    }
    if checked.repaired {
        let folder = documents.folder().join("damaged");
        return out::bytes(format!("{n} set right; see {}\n", folder.display()).as_bytes());
    }
    bail!(
        "{n} not right; `longview kv check --repair` moves damaged files away and removes leftovers"
    )
}

fn line(finding: &Finding) -> String {
    let size = |bytes: &u64| units::bytes(*bytes);
    match finding {
        Finding::Manifest { what } => format!("manifest: {what}"),
        Finding::Text { name, what } => format!("{name}: {what}"),
        Finding::Session { name, path, what } => format!("{name}: {}: {what}", path.display()),
        Finding::UnlistedText { path } => format!("{}: a text that is not listed", path.display()),
        Finding::UnlistedSession { path, bytes } => {
            format!("{}: a session that is not listed, {}", path.display(), size(bytes))
        }
        Finding::Leftover { path, bytes } => {
            format!("{}: left by a program that was killed, {}", path.display(), size(bytes))
        }
        other => format!("{other:?}"),
    }
}
