//! `longview completions`: what the shell needs to know about the options.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::files::{COMPLETIONS_MARK, FileKind, Output};
use crate::out;

/// Options of `longview completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell to write for.
    #[arg(value_name = "SHELL")]
    shell: Shell,

    /// File to write the script to [default: stdout].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Let -o replace an older script of longview without a question [default: off].
    #[arg(long, requires = "output")]
    force: bool,
}

/// Writes the script for `grammar`, the whole command line.
pub fn run(args: &CompletionsArgs, mut grammar: Command) -> Result<()> {
    let (option, kind, force) = ("-o", FileKind::Completions, args.force);
    let file = |path| Output { option, path, kind, force, inputs: &[] }.prepare();
    let file = args.output.as_deref().map(file).transpose()?;
    // Through a vector: the generator panics where a pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut grammar, "longview", &mut script);
    let script = marked(script);
    match file {
        None => out::bytes(&script),
        Some(file) => file.write(|out| Ok(out.write_all(&script)?)).map(drop),
    }
}

/// `script` with a comment that says whose it is. zsh wants its own in the first line.
fn marked(script: Vec<u8>) -> Vec<u8> {
    let at = match script.iter().position(|byte| *byte == b'\n') {
        Some(end) if script.starts_with(b"#compdef") => end + 1,
        _ => 0,
    };
    let (head, tail) = script.split_at(at);
    [head, COMPLETIONS_MARK.as_bytes(), b"\n", tail].concat()
}
