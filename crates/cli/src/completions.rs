//! `longview completions`: what the shell needs to know about the options.

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::out;

/// Options of `longview completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell to write for.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Writes the script for `grammar`, the whole command line, to stdout.
pub fn run(args: &CompletionsArgs, mut grammar: Command) -> Result<()> {
    // Through a vector: the generator panics where a pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut grammar, "longview", &mut script);
    out::bytes(&script)
}
