//! `longview kv export`: a session or a text as a file of its own.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use longview_startup::keeper::verify;

use super::place;
use crate::files::{FileKind, Output};
use crate::out::note;
use crate::units;

/// Options of `longview kv export`.
#[derive(Args)]
pub struct ExportArgs {
    /// Name or id of the document.
    #[arg(value_name = "NAME")]
    name: String,

    /// File to write.
    #[arg(value_name = "FILE", required_unless_present = "output")]
    file: Option<PathBuf>,

    /// The same as FILE, as `longview quantize` takes it [default: none].
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    output: Option<PathBuf>,

    /// Write the text instead of the session [default: off].
    #[arg(long)]
    text: bool,

    /// Replace an older session without a question [default: off].
    #[arg(long)]
    force: bool,
}

/// Writes it, after it was compared with its digests.
pub fn export(library: Option<&Path>, args: &ExportArgs) -> Result<()> {
    let documents = place::look(library)?;
    let document = documents.find(&args.name)?;
    let kind = if args.text { FileKind::Text } else { FileKind::Session };
    let path = args.file.as_deref().or(args.output.as_deref()).context("kv export: no FILE")?;
    let output = Output { option: "kv export", path, kind, force: args.force, inputs: &[] };
    let n_bytes = if args.text {
        let text = documents.text(document.id)?;
        output.prepare()?.write(|out| Ok(out.write_all(text.as_bytes())?))?
    } else {
        let Some(session) = document.latest() else {
            bail!(
                "{}: no model has read it; --text writes its text, `longview kv build --from {}` \
                 reads it",
                document.name,
                document.id.short()
            );
        };
        let session = documents.session_path(session);
        verify(&session)
            .map_err(|what| anyhow!("{}: {what}; nothing is written", document.name))?;
        let mut source = File::open(&session).with_context(|| session.display().to_string())?;
        output.prepare()?.write(|out| Ok(io::copy(&mut source, out).map(drop)?))?
    };
    note(format_args!("{}: {} written", path.display(), units::bytes(n_bytes)));
    Ok(())
}
