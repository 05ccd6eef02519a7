//! How a command ends: the exit code, and the words on stderr.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::clean;
use crate::out::{note, of_stdout};

/// What shells report for a program that Ctrl-C ended.
pub const INTERRUPTED: u8 = 130;

/// The user broke off; the text says what was kept.
#[derive(Debug)]
pub struct Interrupted(pub String);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted: {}", self.0)
    }
}

impl Error for Interrupted {}

/// Says what went wrong, if something did.
pub fn report(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if is_closed_pipe(&error) {
        // The reader has what it wanted (`longview ... | head`).
        return ExitCode::SUCCESS;
    }
    if let Some(interrupted) = error.downcast_ref::<Interrupted>() {
        note(interrupted);
        return ExitCode::from(INTERRUPTED);
    }
    note(format_args!("error: {}", describe(&error)));
    ExitCode::FAILURE
}

/// Says what is wrong with the words of a command line, or shows the help that they ask for.
pub fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || is_help || clean::message(&text) == text.trim_end_matches('\n') {
        // In colours, and a reader that has gone is no error.
        let printed = error.print().and_then(|()| io::stdout().flush());
        if let Err(failed) = printed
            && !error.use_stderr()
            && failed.kind() != io::ErrorKind::BrokenPipe
        {
            note(format_args!("error: {}", of_stdout(failed)));
            return ExitCode::FAILURE;
        }
    } else {
        // The words are quoted as they were given, whatever is in them.
        note(text);
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// An error on one line with those of its causes that it does not quote itself.
pub fn describe(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str("\n  caused by: ");
            text.push_str(&cause);
        }
    }
    text
}

/// The words of this process, for a shell: without the option `replaced`, if there is one, and with
/// `more` behind them.
pub fn command_line(replaced: Option<&str>, more: &[String]) -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let words = match replaced {
        Some(option) => without(words.collect(), option),
        None => words.collect(),
    };
    let words = words.into_iter().chain(more.iter().cloned());
    std::iter::once("longview".to_owned()).chain(words.map(quoted)).collect::<Vec<_>>().join(" ")
}

/// `words` without an option and its value.
fn without(words: Vec<String>, option: &str) -> Vec<String> {
    let mut is_value = false;
    let keeps = |word: &String| {
        let is_option = word == option;
        let is_both = word.strip_prefix(option).is_some_and(|rest| rest.starts_with('='));
        let goes = is_option || is_both || is_value;
        is_value = is_option;
        !goes
    };
    words.into_iter().filter(keeps).collect()
}

/// A word as a shell takes it.
fn quoted(word: String) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word;
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_said_once() {
        let inner = anyhow::anyhow!("disk full");
        assert_eq!(
            describe(&inner.context("cannot write x")),
            "cannot write x\n  caused by: disk full"
        );
        let inner = anyhow::anyhow!("disk full");
        assert_eq!(describe(&inner.context("x: disk full")), "x: disk full");
    }

    #[test]
    fn an_option_goes_with_its_value() {
        let words = "run --session a -f x --session=b --sessions c --session d";
        let words = words.split(' ').map(str::to_owned).collect();
        assert_eq!(without(words, "--session"), ["run", "-f", "x", "--sessions", "c"]);
        let words = vec!["".to_owned(), "=x".to_owned()];
        assert_eq!(without(words.clone(), "--session"), words);
    }

    #[test]
    fn a_shell_takes_words_as_they_are() {
        let shown = ["-f", "a.txt", "", "what's new?"].map(|word| quoted(word.to_owned()));
        assert_eq!(shown, ["-f", "a.txt", "''", "'what'\\''s new?'"]);
    }

    #[test]
    fn a_closed_pipe_is_found_behind_context() {
        let pipe = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed_pipe(&anyhow::Error::from(pipe).context("while writing")));
        assert!(!is_closed_pipe(&anyhow::anyhow!("else")));
    }
}
