//! Options of verbs: `--flag`, `--name value`, `--name=value`.

use std::fmt;

use anyhow::Result;

/// A call that was written wrongly: the usage follows and the exit code is 2.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// The arguments of a verb, sorted.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Parsed {
    flags: Vec<String>,
    values: Vec<(String, String)>,
}

impl Parsed {
    /// Sorts `args`; `flags` take no value, `options` take one.
    pub(crate) fn parse(args: &[String], flags: &[&str], options: &[&str]) -> Result<Self> {
        let mut parsed = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (name, inline) = match arg.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (arg.as_str(), None),
            };
            if !arg.starts_with('-') {
                return Err(UsageError(format!("unexpected argument '{arg}'")).into());
            } else if options.contains(&name) {
                let value = inline.or_else(|| args.next().cloned());
                let value = value.ok_or_else(|| UsageError(format!("{name} needs a value")))?;
                parsed.values.push((name.to_owned(), value));
            } else if flags.contains(&arg.as_str()) {
                parsed.flags.push(arg.clone());
            } else {
                return Err(UsageError(format!("unknown option '{arg}'")).into());
            }
        }
        Ok(parsed)
    }

    /// Whether a flag was given.
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|given| given == flag)
    }

    /// The last value of an option.
    pub(crate) fn value(&self, option: &str) -> Option<&str> {
        self.values.iter().rev().find(|(name, _)| name == option).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Parsed> {
        let args: Vec<_> = line.split_whitespace().map(String::from).collect();
        Parsed::parse(&args, &["--loud"], &["--op"])
    }

    #[test]
    fn flags_and_values_are_told_apart() {
        let parsed = parse("--op a --loud --op=b").unwrap();
        assert!(parsed.has("--loud"));
        assert_eq!(parsed.value("--op"), Some("b"));
        assert_eq!(parse("").unwrap(), Parsed::default());
    }

    #[test]
    fn mistakes_are_named() {
        let message = |line| parse(line).unwrap_err().to_string();
        assert_eq!(message("--quiet"), "unknown option '--quiet'");
        assert_eq!(message("--loud=1"), "unknown option '--loud=1'");
        assert_eq!(message("--op"), "--op needs a value");
        assert_eq!(message("word"), "unexpected argument 'word'");
    }
}
