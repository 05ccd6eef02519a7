//! `longview completions`: what the shell needs to know about the options.

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::app::Cli;
use crate::out;

/// Options of `longview completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell to write for.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Writes the script to stdout.
pub fn run(args: &CompletionsArgs) -> Result<()> {
    // Through a vector: the generator panics where a pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "longview", &mut script);
    out::bytes(&script)
}
