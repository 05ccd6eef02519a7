//! Which command runs, and what the shell gets back.

use std::process::ExitCode;

use anyhow::Result;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::args::{Refusal, check_topic, on_topic, prepare, shorten};
use crate::completions::CompletionsArgs;
use crate::demo::DemoArgs;
use crate::doctor::DoctorArgs;
use crate::evaluation::{EvalArgs, ProbeArgs, ReportArgs, SpeedArgs};
use crate::kv::KvArgs;
use crate::models::{LsArgs, PullArgs, RmArgs};
use crate::plan::PlanArgs;
use crate::policies::PoliciesArgs;
use crate::quantize::QuantizeArgs;
use crate::run::RunArgs;
use crate::serve::ServeArgs;
use crate::tokenize::TokenizeArgs;
use crate::{
    completions, demo, doctor, evaluation, failure, kv, models, out, plan, policies, quantize, run,
    serve, tokenize,
};

/// Long-context inference: keeps keys and values in host memory and recalls what each step needs.
///
/// Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrong usage, 130 interrupted.
#[derive(Parser)]
#[command(name = "longview", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Hide facts in a long document and ask the embedded model for them.
    Demo(DemoArgs),
    /// Continue a prompt, answer about a document, or chat.
    Run(Box<RunArgs>),
    /// Serve a model to other programs over HTTP, as OpenAI's and llama.cpp's servers do.
    #[command(visible_alias = "server")]
    Serve(Box<ServeArgs>),
    /// Keep documents that a model has read, and ask them again.
    Kv(KvArgs),
    /// Download a model by its name, or the rest of it.
    #[command(visible_alias = "download")]
    Pull(PullArgs),
    /// List the models that are downloaded.
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Remove downloaded models.
    Rm(RmArgs),
    /// Write a model as a GGUF file, its weights quantised.
    Quantize(QuantizeArgs),
    /// Run the field's tasks under policies, budgets and lengths, beside full attention.
    Eval(EvalArgs),
    /// Compare what policies attend in a text with full attention, step by step.
    Probe(ProbeArgs),
    /// Measure what decoding costs against the context, under each policy.
    Speed(SpeedArgs),
    /// Make a page with plots and a table from results of eval, probe and speed.
    Report(ReportArgs),
    /// Show the bytes that a model would take under each policy, before loading it.
    Plan(PlanArgs),
    /// Show the tokens of a text.
    Tokenize(TokenizeArgs),
    /// List the policies: published systems, their options and what they cost.
    Policies(PoliciesArgs),
    /// Show what Longview finds on this machine.
    Doctor(DoctorArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
}

/// What the shell gets for words that the grammar refuses; clap's own code.
const WRONG_USAGE: u8 = 2;

/// Parses, runs and reports.
pub fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(help) = on_topic(&Cli::command(), &words) {
        return failure::report(out::bytes(help.as_bytes()));
    }
    let checked = check_topic(&Cli::command(), &words);
    let words = match checked.and_then(|()| prepare(&Cli::command(), words)) {
        Ok(words) => words,
        Err(Refusal(text)) => {
            out::note(format_args!("error: {text}"));
            return ExitCode::from(WRONG_USAGE);
        }
    };
    let word = |at: usize| words.get(at).and_then(|word| word.to_str()).unwrap_or_default();
    let (first, second) = (word(1).to_owned(), word(2).to_owned());
    let matches = shorten(Cli::command()).try_get_matches_from(words);
    match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => failure::report(dispatch(cli.command)),
        Err(error) => failure::usage(&with_usage(error, &first, &second)),
    }
}

/// `error` with the usage of the command that it is about, which `first` may name, and its verb
/// `second`.
fn with_usage(mut error: clap::Error, first: &str, second: &str) -> clap::Error {
    say_example(&mut error, first, second);
    let mut command = Cli::command();
    // Gives commands their whole names.
    command.build();
    match command.find_subcommand_mut(first) {
        Some(own) => {
            say_options(&mut error, own);
            error.format(own)
        }
        None => error.format(&mut command),
    }
}

/// Options that other programs take as words without an option (`ollama run MODEL PROMPT`).
const FREE_WORDS: [(&str, &str); 3] = [
    ("model", "-m <MODEL> names the model"),
    ("prompt", "-p <TEXT> gives the prompt"),
    ("file", "-f <FILE> gives a document"),
];

/// What is missing where somebody tries a verb alone, by an example.
const EXAMPLES: [(&str, &[&str], &str); 2] = [
    ("kv", &["build"], "`longview kv build book.txt -m MODEL` reads a document and keeps it"),
    (
        "kv",
        &["open", "ask"],
        "`longview kv open NAME 'What is it about?'` asks; `longview kv ls` lists the names",
    ),
];

/// Shows how a verb is used that lacks what it is about.
fn say_example(error: &mut clap::Error, first: &str, second: &str) {
    if error.kind() != ErrorKind::MissingRequiredArgument {
        return;
    }
    let is_meant =
        |(command, verbs, _): &&(&str, &[&str], &str)| *command == first && verbs.contains(&second);
    if let Some((_, _, example)) = EXAMPLES.iter().find(is_meant) {
        let tip = vec![StyledStr::from(*example)];
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tip));
    }
}

/// Says which options take what a word without an option may be meant to be.
fn say_options(error: &mut clap::Error, command: &clap::Command) {
    let word = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::UnknownArgument => word,
        _ => return,
    };
    if word.starts_with('-') {
        return;
    }
    let has = |id: &str| command.get_arguments().any(|arg| arg.get_id() == id);
    let tips = FREE_WORDS.iter().filter(|(id, _)| has(id)).map(|(_, tip)| StyledStr::from(*tip));
    let tips: Vec<StyledStr> = tips.collect();
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
}

fn dispatch(command: Command) -> Result<()> {
    match command {
        Command::Demo(args) => demo::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Kv(args) => kv::run(args),
        Command::Pull(args) => models::pull(&args),
        Command::Ls(args) => models::ls(&args),
        Command::Rm(args) => models::rm(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Eval(args) => evaluation::eval(&args),
        Command::Probe(args) => evaluation::probe(&args),
        Command::Speed(args) => evaluation::speed(&args),
        Command::Report(args) => evaluation::report(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Policies(args) => policies::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_option_has_help() {
        for command in Cli::command().get_subcommands() {
            for arg in command.get_arguments() {
                assert!(arg.get_help().is_some(), "{} {}", command.get_name(), arg.get_id());
            }
        }
    }
}
