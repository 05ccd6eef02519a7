//! `longview report`: results files to a page, plots and a table.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use longview_eval::report::{self, Data};

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

    /// Show these policies beside full attention, by the names that the page gives them
    /// [default: all].
    #[arg(long, value_name = "POLICY,..", value_delimiter = ',')]
    pub policies: Vec<String>,
}

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<()> {
    let mut data = Data::read(&args.files)?;
    if !args.policies.is_empty() {
        let missing = data.keep(&args.policies);
        if !missing.is_empty() {
            bail!("--policies {}: not in the results", missing.join(","));
        }
    }
    let plots = report::write(&data, &args.output)?;
    let page = args.output.join("index.html");
    out::bytes(format!("{plots} plots, the table scores.md and {}\n", page.display()).as_bytes())
}
