//! The words of a command line before the grammar reads them.
//!
//! The grammar knows short options of one letter, so that it would read `-cnv` as `-c nv` and
//! `-ngl 99` as `-n gl`. Users of llama.cpp type both. Here such words are found at the places
//! where options stand, and turned into ours or refused, never read as something else.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};

use super::llama::{Meaning, absent_command, meaning};

/// Words that cannot be meant, with what to type instead.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

/// The words that the grammar is to read.
///
/// # Errors
/// For the first word that would be read as something that it is not.
pub fn prepare(command: &Command, words: Vec<OsString>) -> Result<Vec<OsString>, Refusal> {
    let Some(first) = words.get(1).and_then(|word| word.to_str()) else { return Ok(words) };
    if let Some(instead) = absent_command(first) {
        return Err(Refusal(format!("`longview {first}` does not exist: {instead}")));
    }
    let Some(sub) = command.find_subcommand(first) else {
        let is_ours = ["-h", "--help", "-V", "--version"].contains(&first);
        if first.starts_with('-') && first.len() > 1 && !is_ours {
            return Err(Refusal(format!(
                "{first} stands before a command: begin with one, as in `longview run -m DIR`"
            )));
        }
        return Ok(words);
    };
    let verb = words.get(2).and_then(|word| sub.find_subcommand(word.to_str()?));
    let (sub, n_names) = verb.map_or((sub, 2), |verb| (verb, 3));
    // Commands without a model have few options, and nobody knows them from elsewhere.
    let takes_model = |arg: &Arg| ["threads", "hf_repo"].contains(&arg.get_id().as_str());
    if !sub.get_arguments().any(takes_model) {
        return Ok(words);
    }
    Options { command: sub }.prepare(words, n_names)
}

/// The options of one command.
struct Options<'a> {
    command: &'a Command,
}

impl Options<'_> {
    /// The first `n_names` words are the program, the command and its verb.
    fn prepare(&self, words: Vec<OsString>, n_names: usize) -> Result<Vec<OsString>, Refusal> {
        let mut words = words.into_iter();
        let mut ready: Vec<OsString> = words.by_ref().take(n_names).collect();
        let mut before: Option<&Arg> = None;
        for word in words.by_ref() {
            if before.take().is_some_and(|option| is_value(option, &word)) {
                ready.push(word);
                continue;
            }
            if word == "--" {
                ready.push(word);
                break;
            }
            if let Some(word) = self.translate(word)? {
                let option = word.to_str().and_then(|text| self.find(text));
                before = option.filter(|option| option.get_action().takes_values());
                ready.push(word);
            }
        }
        ready.extend(words);
        Ok(ready)
    }

    /// A word where an option may stand, as the grammar is to read it; `None` to leave it out.
    fn translate(&self, word: OsString) -> Result<Option<OsString>, Refusal> {
        let Some(text) = word.to_str() else { return Ok(Some(word)) };
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        if !name.starts_with('-') || self.find(name).is_some() {
            return Ok(Some(word));
        }
        match meaning(name) {
            Some(Meaning::Ours(ours)) if self.find(ours).is_some() => {
                let value = value.map(|value| format!("={value}")).unwrap_or_default();
                return Ok(Some(format!("{ours}{value}").into()));
            }
            Some(Meaning::Always) if value.is_none() => return Ok(None),
            Some(Meaning::Refused(instead)) => {
                return Err(Refusal(format!("{name}: not in longview: {instead}")));
            }
            _ => {}
        }
        self.check_cluster(text)?;
        Ok(Some(word))
    }

    /// Fails for a word such as `-fbook`, which the grammar would read as `-f book`.
    fn check_cluster(&self, text: &str) -> Result<(), Refusal> {
        let mut letters = text.chars().skip(1);
        let (first, second) = (letters.next(), letters.next());
        let (Some(first), Some(second)) = (first, second) else { return Ok(()) };
        if first == '-' || !first.is_alphabetic() || !second.is_alphabetic() {
            return Ok(());
        }
        let rest: String = text.chars().skip(2).collect();
        let hint = match self.short(first) {
            Some(option) if option.get_action().takes_values() => {
                format!("for the value `{rest}` of -{first} write `-{first} {rest}`")
            }
            _ => "options of several letters have two dashes".to_owned(),
        };
        Err(Refusal(format!("{text}: not in longview: {hint}")))
    }

    fn short(&self, letter: char) -> Option<&Arg> {
        self.command.get_arguments().find(|arg| {
            let mut all = arg.get_short().into_iter();
            all.any(|short| short == letter)
                || arg.get_all_short_aliases().unwrap_or_default().contains(&letter)
        })
    }

    /// The option of that name, dashes included.
    fn find(&self, name: &str) -> Option<&Arg> {
        if let Some(long) = name.strip_prefix("--") {
            return self.command.get_arguments().find(|arg| {
                arg.get_long() == Some(long)
                    || arg.get_all_aliases().unwrap_or_default().contains(&long)
            });
        }
        let mut letters = name.strip_prefix('-')?.chars();
        let letter = letters.next()?;
        if letters.next().is_some() { None } else { self.short(letter) }
    }
}

/// Whether the grammar takes `word` for the value of `option`.
fn is_value(option: &Arg, word: &OsStr) -> bool {
    let bytes = word.as_encoded_bytes();
    if option.is_allow_hyphen_values_set() || !bytes.starts_with(b"-") || bytes == b"-" {
        return true;
    }
    option.is_allow_negative_numbers_set() && bytes.get(1).is_some_and(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::app::Cli;

    fn prepared(line: &str) -> Result<Vec<String>, String> {
        let words = std::iter::once("longview").chain(line.split(' ')).map(OsString::from);
        let ready = prepare(&Cli::command(), words.collect()).map_err(|Refusal(text)| text)?;
        Ok(ready.into_iter().skip(1).map(|word| word.into_string().unwrap()).collect())
    }

    fn same(line: &str) {
        assert_eq!(prepared(line).unwrap().join(" "), line);
    }

    #[test]
    fn options_of_llama_cpp_mean_what_they_mean_there() {
        let becomes = |line: &str, want: &str| assert_eq!(prepared(line).unwrap().join(" "), want);
        becomes("run -m x -sys hi -p y", "run -m x --system hi -p y");
        becomes("run -m x --temperature 0.5", "run -m x --temp 0.5");
        becomes("run -m x --temperature=0.5", "run -m x --temp=0.5");
        becomes("run -m x -ub 64 -no-cnv", "run -m x --chunk-size 64 --no-chat-template");
        becomes("run --jinja -m x --no-warmup -p y", "run -m x -p y");
        becomes("run -hf a/b:Q8_0 -p y", "run --hf-repo a/b:Q8_0 -p y");
        becomes("tokenize -hf a/b -p y", "tokenize --hf-repo a/b -p y");
        becomes("plan -hfr a/b -hff c.gguf", "plan --hf-repo a/b --hf-file c.gguf");
    }

    #[test]
    fn what_would_be_read_as_something_else_is_refused() {
        for line in ["-ngl 99", "-fa", "-cnv", "-b 64", "-v", "--color", "-ctk f16", "-hft x"] {
            let refusal = prepared(&format!("run -m x {line} -p y")).unwrap_err();
            let name = line.split(' ').next().unwrap();
            let start = format!("{name}: not in longview: ");
            assert!(refusal.starts_with(&start), "{refusal}");
        }
        assert!(prepared("run -m x -fbook.txt").unwrap_err().contains("`-f book.txt`"));
        assert!(prepared("run -m x -zz").unwrap_err().contains("two dashes"));
        assert!(prepared("plan -m x -ngl 99").unwrap_err().contains("--device"));
        assert!(prepared("-m x -p y").unwrap_err().contains("longview run"));
        assert!(prepared("serve -m x -np 2").unwrap_err().contains("--parallel"));
        assert!(prepared("run -m x --port 1").unwrap_err().contains("longview serve"));
        same("serve -m x --parallel 2 --port 1");
    }

    #[test]
    fn values_and_what_stands_behind_two_dashes_are_left_alone() {
        same("run -m x -p -ngl -n 4");
        same("run -m x --system -fa -n 4");
        same("run -m -- -ngl");
        same("run -m x -- -fa");
        same("run -m x -n16 -c4096 -t2 -f - -p y");
        same("run -m ./-fa -p y");
        same("completions bash");
        same("run -m x --prompt=-cnv");
        assert!(prepared("run -m -fa").is_err(), "the grammar takes it for an option");
    }
}
