//! `longview ls`: the models that are downloaded.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use longview_library::date::{day, unix_s};
use longview_library::{Entry, Format, Library, Settings};
use serde::Serialize;

use crate::out::{self, note};
use crate::units;

/// Options of `longview ls`.
#[derive(Args)]
pub struct LsArgs {
    /// Print one JSON object [default: off].
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listed {
    folder: String,
    models: Vec<Model>,
}

#[derive(Serialize)]
struct Model {
    name: String,
    format: Option<&'static str>,
    quant: Option<String>,
    bytes: u64,
    path: String,
    used_unix_s: Option<u64>,
    commit: String,
    missing: Option<String>,
}

/// Prints them.
pub fn ls(args: &LsArgs) -> Result<()> {
    let library = Library::new(Settings::from_environment(true)?);
    let entries = library.list()?;
    let folder = library.folder().display().to_string();
    if args.json {
        return out::json(&Listed { folder, models: entries.into_iter().map(model).collect() });
    }
    if entries.is_empty() {
        note(format_args!("no models in {folder}; `longview pull USER/REPO` downloads one"));
        return Ok(());
    }
    table(&entries)
}

fn model(entry: Entry) -> Model {
    Model {
        name: entry.name.to_string(),
        format: entry.format.map(Format::name),
        quant: entry.quant,
        bytes: entry.bytes,
        path: entry.path.display().to_string(),
        used_unix_s: entry.used.and_then(unix_s),
        commit: entry.commit,
        missing: entry.missing,
    }
}

/// One line for each model; sizes are to the right of their column.
fn table(entries: &[Entry]) -> Result<()> {
    let row = |entry: &Entry| {
        let format = match (&entry.missing, &entry.quant) {
            (Some(_), _) => "incomplete".to_owned(),
            (None, Some(quant)) => quant.clone(),
            (None, None) => entry.format.map_or("-", Format::name).to_owned(),
        };
        let used = entry.used.map_or_else(|| "-".to_owned(), day);
        let path = entry.path.display().to_string();
        [entry.name.to_string(), format, units::bytes(entry.bytes), used, path]
    };
    let head = ["name", "format", "size", "used", "path"].map(str::to_owned);
    let rows: Vec<[String; 5]> = [head].into_iter().chain(entries.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let [name, format, size, used] = [0, 1, 2, 3].map(|column| width(column).unwrap_or(0));
    let mut out = out::stdout();
    for [a, b, c, d, e] in &rows {
        writeln!(out, "{a:<name$}  {b:<format$}  {c:>size$}  {d:<used$}  {e}")?;
    }
    Ok(out.flush()?)
}
