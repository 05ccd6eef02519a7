//! `longview kv`: documents that a model has read, kept and asked again.

mod ask;
mod build;
mod change;
mod check;
mod export;
mod ls;
mod place;
mod shared;
mod sources;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};

use self::ask::OpenArgs;
use self::build::BuildArgs;
use self::change::{NameArgs, QuotaArgs, RenameArgs, RmArgs};
use self::check::CheckArgs;
use self::export::ExportArgs;
use self::ls::LsArgs;
pub use self::place::{model_words, open as open_library};
pub use self::sources::read as read_documents;

/// Options of `longview kv`.
#[derive(Args)]
#[command(after_help = "\
A document is kept with its text and with what models have read of it. NAME is its name, or the \
first digits of its id, as `longview kv ls` shows both.")]
pub struct KvArgs {
    /// Folder of the library [default: what LONGVIEW_LIBRARY names, else the user's data folder].
    #[arg(long, value_name = "DIR", global = true)]
    library: Option<PathBuf>,

    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List the documents.
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Read files with a model and keep what it read.
    Build(Box<BuildArgs>),
    /// Ask about a document, or chat about it, without reading it again.
    #[command(visible_alias = "ask")]
    Open(Box<OpenArgs>),
    /// Remove documents.
    Rm(RmArgs),
    /// Write a document's session to a file, for `longview run --session`, or its text.
    Export(ExportArgs),
    /// Compare everything with its digests.
    Check(CheckArgs),
    /// Keep documents, however full the library is.
    Pin(NameArgs),
    /// Let documents go when the library is full.
    Unpin(NameArgs),
    /// Call a document something else.
    Rename(RenameArgs),
    /// Show or set how much the sessions may take together.
    Quota(QuotaArgs),
}

/// Runs the verb.
pub fn run(args: KvArgs) -> Result<()> {
    let library = args.library.as_deref();
    match args.verb {
        Verb::Ls(args) => ls::ls(library, &args),
        Verb::Build(args) => build::build(library, &args),
        Verb::Open(args) => ask::open(library, *args),
        Verb::Rm(args) => change::rm(library, &args),
        Verb::Export(args) => export::export(library, &args),
        Verb::Check(args) => check::check(library, &args),
        Verb::Pin(args) => change::pin(library, &args, true),
        Verb::Unpin(args) => change::pin(library, &args, false),
        Verb::Rename(args) => change::rename(library, &args),
        Verb::Quota(args) => change::quota(library, &args),
    }
}
