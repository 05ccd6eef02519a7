//! `longview report`: results files to a page, plots and a table.

use std::collections::HashSet;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use longview_eval::report::{self, Data, PAGE, ReportFile, SCORES};

use crate::files::{FileKind, Output, OutputFile, files_of_page};
use crate::out;

/// Options of `longview report`.
#[derive(Args)]
pub struct ReportArgs {
    /// Results files of `longview eval`, `longview probe` and `longview speed`.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Folder for index.html, scores.md and the plots as SVG and PNG; it is made.
    #[arg(short, long, value_name = "DIR", default_value = "report")]
    pub output: PathBuf,

    /// Replace an older report in that folder without a question [default: off].
    #[arg(long)]
    pub force: bool,

    /// Show these policies beside full attention, by the names that the page gives them
    /// [default: all].
    #[arg(long, value_name = "POLICY,..", value_delimiter = ',')]
    pub policies: Vec<String>,
}

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<()> {
    check_folder(&args.output)?;
    let read = args.files.iter().map(|path| ("a results file".to_owned(), path.clone()));
    let read: Vec<(String, PathBuf)> = read.collect();
    let page = args.output.join(PAGE);
    // Before the results are read: a question, and the page that is in the way.
    let is_agreed = output(&page, args.force, &read).check()?;
    let mut data = Data::read(&args.files)?;
    if !args.policies.is_empty() {
        let missing = data.keep(&args.policies);
        if !missing.is_empty() {
            bail!("--policies {}: not in the results", missing.join(","));
        }
    }
    let files = report::files(&data)?;
    let own = files_of_page(&page);
    check_neighbours(&args.output, &files, &own)?;
    fs::create_dir_all(&args.output)
        .with_context(|| format!("-o {}: the folder cannot be made", args.output.display()))?;
    // All are begun before the first is whole: a name that cannot be written ends it with nothing
    // changed. The page comes last, when all that it names is there.
    let begun = files.iter().map(|file| {
        let path = args.output.join(&file.name);
        output(&path, is_agreed, &read).prepare()
    });
    let begun = begun.collect::<Result<Vec<OutputFile>>>()?;
    for (begun, file) in begun.into_iter().zip(&files) {
        begun.write(|out| Ok(out.write_all(&file.bytes)?))?;
    }
    let plots = files.iter().filter(|file| file.name.ends_with(".svg")).count();
    out::bytes(format!("{plots} plots, the table {SCORES} and {}\n", page.display()).as_bytes())
}

fn output<'a>(path: &'a Path, force: bool, inputs: &'a [(String, PathBuf)]) -> Output<'a> {
    Output { option: "-o", path, kind: kind_of(path), force, inputs }
}

/// Fails where no folder can be.
fn check_folder(folder: &Path) -> Result<()> {
    let shown = folder.display();
    match folder.metadata() {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => bail!("-o {shown}: is not a folder; give the name of one, or of a new one"),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if folder.symlink_metadata().is_ok() {
                bail!("-o {shown}: is a link to a folder that is not there; make it first");
            }
            Ok(())
        }
        Err(error) => bail!("-o {shown}: cannot be looked at ({error})"),
    }
}

/// Fails for a file in the way that the page of the older report does not name as its own.
fn check_neighbours(folder: &Path, files: &[ReportFile], own: &HashSet<String>) -> Result<()> {
    for file in files.iter().filter(|file| file.name != PAGE && !own.contains(&file.name)) {
        let path = folder.join(&file.name);
        if path.symlink_metadata().is_ok() {
            bail!(
                "-o {}: is there and is not of an older report, so it is not replaced, also with \
                 --force; give another folder, or move it away",
                path.display()
            );
        }
    }
    Ok(())
}

fn kind_of(path: &Path) -> FileKind {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => FileKind::Svg,
        Some("png") => FileKind::Png,
        Some("md") => FileKind::Scores,
        _ => FileKind::Page,
    }
}
