//! `longview rm`: models that are no longer wanted.

use anyhow::Result;
use clap::Args;
use longview_library::{Library, ModelName, Settings};

use crate::{out, units};

/// Options of `longview rm`.
#[derive(Args)]
#[command(after_help = "\
USER/REPO removes all that was downloaded of a repository, USER/REPO:QUANT one GGUF model of it, \
and USER/REPO@REVISION one revision. Files that another one of them has stay.")]
pub struct RmArgs {
    /// Models as `longview ls` lists them.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<ModelName>,
}

/// Removes them, and says what that freed.
pub fn rm(args: &RmArgs) -> Result<()> {
    let library = Library::new(Settings::from_environment(true)?);
    for name in &args.names {
        let removed = library.remove(name)?;
        let files = units::counted(removed.n_files, "file", "files");
        let line = format!("{name}: removed, {files}, {} freed\n", units::bytes(removed.bytes));
        out::bytes(line.as_bytes())?;
    }
    Ok(())
}
