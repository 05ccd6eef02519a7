//! Which tokens a step attends: a preset, the options that [`longview_scheduler::OPTIONS`] lists,
//! and files that say both.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, error::ErrorKind};
use longview_scheduler::{OPTIONS, OptionInfo, PolicyOptions, Preset};

use super::names::one_of;
use crate::files::input;

/// A policy and what may be changed about it.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Policy")]
pub struct PolicyArgs {
    /// What a generated token attends; `longview policies` says what each of them does [default:
    /// longview].
    #[arg(long, value_name = "NAME", value_parser = one_of(Preset::ALL))]
    policy: Option<Preset>,

    /// A TOML file with `policy = "NAME"` and options as `name = value`; what is given on the
    /// command line goes before it.
    #[arg(long, value_name = "FILE")]
    policy_file: Option<PathBuf>,

    #[command(flatten)]
    tuning: TuningArgs,
}

/// What an option does, with the range of its value.
pub fn option_help(option: &OptionInfo) -> String {
    let help = option.help.trim();
    if option.range.is_any() { help.to_owned() } else { format!("{help} ({})", option.range) }
}

/// What may be changed about a policy: (option, value) as given.
#[derive(Clone, Debug, Default)]
pub struct TuningArgs {
    given: Vec<(String, String)>,
}

impl Args for TuningArgs {
    fn augment_args(command: Command) -> Command {
        let heading = Some("Policy");
        command.args(OPTIONS.iter().map(|option| {
            let arg = Arg::new(option.name).long(option.name);
            // The name that it had before goes on working, and help does not show it.
            let arg = if option.old_name == option.name { arg } else { arg.alias(option.old_name) };
            arg.value_name(option.value)
                .help(option_help(option))
                .help_heading(heading)
                // So that a negative number hears the range.
                .allow_negative_numbers(true)
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for TuningArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        // A value is read at once, so that a wrong one is an error of usage.
        let mut probe = PolicyOptions::new(Preset::Full);
        for option in OPTIONS {
            let Some(text) = matches.get_one::<String>(option.name) else { continue };
            probe
                .set(option.name, text)
                .map_err(|e| clap::Error::raw(ErrorKind::ValueValidation, format!("{e}\n")))?;
            self.given.push((option.name.to_owned(), text.clone()));
        }
        Ok(())
    }
}

impl PolicyArgs {
    /// The file that was given.
    pub fn file(&self) -> Option<&Path> {
        self.policy_file.as_deref()
    }

    /// The policy that was asked for.
    pub fn options(&self) -> Result<PolicyOptions> {
        let mut options = match &self.policy_file {
            Some(path) => PolicyFile::read(path)?.options()?,
            None => PolicyOptions::new(Preset::DEFAULT),
        };
        if let Some(preset) = self.policy {
            options.preset = preset;
        }
        self.tuning.apply(&mut options)?;
        Ok(options)
    }

    /// What was asked for in place of `saved`, the policy of a session; `None` if nothing was.
    pub fn change(&self, saved: &PolicyOptions) -> Result<Option<PolicyOptions>> {
        if self.policy.is_some() || self.policy_file.is_some() {
            return self.options().map(Some);
        }
        let mut options = saved.clone();
        self.tuning.apply(&mut options)?;
        Ok((!self.tuning.given.is_empty()).then_some(options))
    }
}

impl TuningArgs {
    /// `preset` with those of these changes that mean something to it.
    pub fn meant_for(&self, preset: Preset) -> Result<PolicyOptions> {
        let mut options = PolicyOptions::new(preset);
        for (name, value) in &self.given {
            if preset.info().options.contains(&name.as_str()) {
                options.set(name, value)?;
            }
        }
        Ok(options)
    }

    fn apply(&self, options: &mut PolicyOptions) -> Result<()> {
        self.given.iter().try_for_each(|(name, value)| Ok(options.set(name, value)?))
    }
}

/// A policy as a file describes it.
#[derive(Clone, Debug)]
pub struct PolicyFile {
    /// Its `policy = "NAME"`.
    pub preset: Preset,
    /// Its other lines, as text.
    pub options: Vec<(String, String)>,
}

impl PolicyFile {
    /// Reads a file. Options are known and their values can be read.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&input::read_settings("--policy-file", path)?, path)
    }

    /// Reads a file's text.
    fn parse(text: &str, path: &Path) -> Result<Self> {
        let shown = path.display();
        let table: toml::Table =
            text.parse().with_context(|| format!("--policy-file {shown}: is not TOML"))?;
        let preset = match table.get("policy") {
            Some(toml::Value::String(name)) => {
                name.parse().with_context(|| format!("--policy-file {shown}"))?
            }
            Some(_) => bail!("--policy-file {shown}: policy: must be a name in quotes"),
            None => bail!("--policy-file {shown}: has no line `policy = \"NAME\"`"),
        };
        let mut options = Vec::new();
        for (name, value) in table.iter().filter(|(name, _)| *name != "policy") {
            let text = match value {
                toml::Value::String(text) => text.clone(),
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Float(number) => number.to_string(),
                toml::Value::Boolean(flag) => flag.to_string(),
                _ => bail!("--policy-file {shown}: {name}: must be a number or a name"),
            };
            options.push((name.clone(), text));
        }
        let file = Self { preset, options };
        file.options().with_context(|| format!("--policy-file {shown}"))?;
        Ok(file)
    }

    /// The policy.
    fn options(&self) -> Result<PolicyOptions> {
        let mut options = PolicyOptions::new(self.preset);
        for (name, value) in &self.options {
            options.set_once(name, value)?;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_text(text: &str) -> Result<PolicyOptions> {
        PolicyFile::parse(text, Path::new("policy.toml"))?.options()
    }

    #[test]
    fn a_file_names_a_policy_and_its_options() {
        let options =
            of_text("policy = \"ada-snapkv\"\nbudget = 512\nsafeguard = 0.3\npool = \"max\"\n");
        let mut want = PolicyOptions::new(Preset::AdaSnapkv).with_budget(512);
        want.set("safeguard", "0.3").unwrap();
        want.set("pool", "max").unwrap();
        assert_eq!(options.unwrap(), want);
    }

    #[test]
    fn a_file_that_says_something_else_is_an_error() {
        let message = |text: &str| format!("{:#}", of_text(text).unwrap_err());
        assert!(message("budget = 512").contains("has no line `policy"));
        assert!(message("policy = \"best\"").contains("unknown policy 'best'"));
        assert!(message("policy = \"quest\"\npages = 3").contains("unknown option 'pages'"));
        assert!(message("policy = \"quest\"\nblock-size = [1]").contains("must be a number"));
        assert!(message("policy = \"quest\"\nbudget = 1.5").contains("--budget: '1.5'"));
        assert!(message("policy =").contains("is not TOML"));
        assert!(message("policy = \"quest\"\nbudget = 1\nbudget = 2").contains("is not TOML"));
        let twice = "policy = \"infinigen\"\nahead = true\nlayer-prefetch = false\n";
        assert!(message(twice).contains("--layer-prefetch is given twice"));
        for (value, range) in [
            ("budget = 2147483648", "a whole number from 1 to 1,073,741,824"),
            ("window = -1", "a whole number from 1 to 1,073,741,824"),
            ("mass = nan", "a number above 0, at most 1"),
            ("mass = 1e99", "a number above 0, at most 1"),
            ("window = \"\\u001b[2J\"", "'\\u{1b}[2J' is not a whole number"),
        ] {
            let text = message(&format!("policy = \"clusterkv\"\n{value}\n"));
            assert!(text.contains(range), "{text}");
            assert!(text.contains(value.split(' ').next().unwrap()), "{text}");
        }
    }
}
