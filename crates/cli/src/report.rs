//! `longview report`: results files to a page, plots and a table.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use longview_eval::report::{self, Data};

use crate::out;

/// Options of `longview report`.
#[derive(Args)]
pub struct ReportArgs {
    /// Results files of `longview eval` and `longview probe`.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Folder for index.html, scores.md and the plots as SVG and PNG; it is made.
    #[arg(short, long, value_name = "DIR", default_value = "report")]
    pub output: PathBuf,
}

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<()> {
    let data = Data::read(&args.files)?;
    let plots = report::write(&data, &args.output)?;
    let page = args.output.join("index.html");
    out::bytes(format!("{plots} plots, the table scores.md and {}\n", page.display()).as_bytes())
}
