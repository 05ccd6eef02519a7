//! `longview kv rm`, `pin`, `unpin`, `rename` and `quota`.

use std::path::Path;

use anyhow::Result;
use clap::Args;

use super::{place, shared};
use crate::share::ShareArgs;
use crate::{out, units};

/// Options of `longview kv rm`.
#[derive(Args)]
pub struct RmArgs {
    /// Names or ids, as `longview kv ls` lists them.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    /// Remove what models have read, and keep the text [default: off].
    #[arg(long)]
    sessions: bool,

    #[command(flatten)]
    share: ShareArgs,
}

/// Documents.
#[derive(Args)]
pub struct NameArgs {
    /// Names or ids, as `longview kv ls` lists them.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

/// Options of `longview kv rename`.
#[derive(Args)]
pub struct RenameArgs {
    /// Name or id of the document.
    #[arg(value_name = "NAME")]
    name: String,

    /// What to call it.
    #[arg(value_name = "NEW")]
    new: String,
}

/// Options of `longview kv quota`.
#[derive(Args)]
#[command(after_help = "\
When sessions take more than that, those that were used longest ago are removed, but for pinned \
documents. Texts stay, and can be read anew.")]
pub struct QuotaArgs {
    /// The most that sessions may take together, as 20GiB, or off [default: show it].
    #[arg(value_name = "SIZE", value_parser = quota_of)]
    size: Option<Quota>,
}

#[derive(Clone, Copy)]
enum Quota {
    Off,
    Bytes(u64),
}

fn quota_of(text: &str) -> Result<Quota, String> {
    if text == "off" { Ok(Quota::Off) } else { units::parse_bytes(text).map(Quota::Bytes) }
}

/// Removes documents, and says what that freed. All are looked up before the first one goes.
pub fn rm(library: Option<&Path>, args: &RmArgs) -> Result<()> {
    let share = args.share.open()?;
    let documents = place::look_beside(library, share.as_ref())?;
    let share = share.as_ref().filter(|_| !args.sessions);
    let found = args.names.iter().map(|name| shared::find(&documents, share, name));
    for document in found.collect::<Result<Vec<_>, _>>()? {
        let mut bytes = 0;
        if args.sessions {
            for session in &document.sessions {
                bytes += documents.remove_session(document.id, session.file)?.bytes;
            }
        } else {
            bytes = documents.remove(document.id)?.bytes;
            if let Some(share) = share {
                shared::remove(share, &document)?;
            }
        }
        let what = if args.sessions { "sessions removed, the text stays" } else { "removed" };
        let line = format!("{}: {what}, {} freed\n", document.name, units::bytes(bytes));
        out::bytes(line.as_bytes())?;
    }
    Ok(())
}

/// Pins documents, or no longer.
pub fn pin(library: Option<&Path>, args: &NameArgs, pinned: bool) -> Result<()> {
    let documents = place::look(library)?;
    let found = args.names.iter().map(|name| documents.find(name));
    for document in found.collect::<Result<Vec<_>, _>>()? {
        documents.set_pinned(document.id, pinned)?;
        let what = if pinned { "pinned" } else { "no longer pinned" };
        out::bytes(format!("{}: {what}\n", document.name).as_bytes())?;
    }
    Ok(())
}

/// Calls a document something else.
pub fn rename(library: Option<&Path>, args: &RenameArgs) -> Result<()> {
    let documents = place::look(library)?;
    let document = documents.find(&args.name)?;
    documents.rename(document.id, &args.new)?;
    out::bytes(format!("{}: is called {} now\n", document.name, args.new).as_bytes())
}

/// Sets the quota, or shows it.
pub fn quota(library: Option<&Path>, args: &QuotaArgs) -> Result<()> {
    let documents = match args.size {
        // It is there before the first document.
        Some(_) => place::open(library)?,
        None => place::look(library)?,
    };
    if let Some(size) = args.size {
        let bytes = match size {
            Quota::Off => None,
            Quota::Bytes(bytes) => Some(bytes),
        };
        for evicted in documents.set_quota(bytes)? {
            let freed = units::bytes(evicted.bytes);
            out::bytes(format!("{}: a session removed, {freed} freed\n", evicted.name).as_bytes())?;
        }
    }
    let usage = documents.usage()?;
    let limit = usage.quota_bytes.map_or_else(|| "no limit".to_owned(), units::bytes);
    let used = units::bytes(usage.session_bytes);
    out::bytes(format!("{limit}; sessions take {used}\n").as_bytes())
}
