//! Help in parts: a command shows the options that people use, and topics show the others.

use std::ffi::OsString;

use clap::{Arg, Command};

use super::words::Refusal;

/// Options under a heading that the help of a command shows at once; those without a heading it
/// shows anyhow.
const COMMON: [&str; 9] =
    ["temp", "top_p", "seed", "stop", "policy", "budget", "kv_type", "device", "threads"];

/// Options without a heading that few people use.
const UNCOMMON: [&str; 3] = ["hf_file", "offline", "simulate_device"];

/// A topic of `--help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// What a step attends.
    Policies,
    /// How tokens are chosen.
    Sampling,
    /// Device, memory and positions.
    Engine,
    /// Everything.
    All,
}

impl Topic {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "policies" | "policy" => Topic::Policies,
            "sampling" => Topic::Sampling,
            "engine" => Topic::Engine,
            "all" => Topic::All,
            _ => return None,
        })
    }

    fn shows(self, arg: &Arg) -> bool {
        let heading = arg.get_help_heading();
        match self {
            Topic::Policies => heading == Some("Policy"),
            Topic::Sampling => heading == Some("Sampling"),
            Topic::Engine => {
                heading.is_some_and(|heading| ["Engine", "RoPE"].contains(&heading))
                    || UNCOMMON.contains(&arg.get_id().as_str())
            }
            Topic::All => true,
        }
    }
}

/// The same grammar, whose commands show the options that people use, and where the others are.
pub fn shorten(command: Command) -> Command {
    shorten_below(command, "longview")
}

/// `name` is how the command is called.
fn shorten_below(command: Command, name: &str) -> Command {
    command.mut_subcommands(|sub| {
        let name = format!("{name} {}", sub.get_name());
        if sub.has_subcommands() {
            return shorten_below(sub, &name);
        }
        if !is_shortened(&sub) {
            return sub;
        }
        let topics = topics(&sub);
        let pointer = format!("More options: {name} --help {topics}");
        let after = match sub.get_after_help() {
            Some(text) => format!("{text}\n\n{pointer}"),
            None => pointer,
        };
        let sub = sub.mut_args(|arg| {
            let hides = !is_common(&arg);
            arg.hide_short_help(hides).hide_long_help(hides)
        });
        sub.after_help(after)
    })
}

fn is_common(arg: &Arg) -> bool {
    let id = arg.get_id().as_str();
    if arg.get_help_heading().is_some() { COMMON.contains(&id) } else { !UNCOMMON.contains(&id) }
}

/// The topics of a command that show something: `policies | engine | all`.
fn topics(command: &Command) -> String {
    let all = [
        ("policies", Topic::Policies),
        ("sampling", Topic::Sampling),
        ("engine", Topic::Engine),
        ("all", Topic::All),
    ];
    let shown = all
        .iter()
        .filter(|(_, topic)| command.get_arguments().any(|arg| topic.shows(arg)))
        .map(|(name, _)| *name);
    shown.collect::<Vec<_>>().join(" | ")
}

/// Refuses a word behind `COMMAND --help` or `help COMMAND` that is no topic of the command.
///
/// # Errors
/// Names the topics that there are.
pub fn check_topic(command: &Command, words: &[OsString]) -> Result<(), Refusal> {
    let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
    let (names, topic) = match words.as_deref() {
        Some([_, "help", names @ .., topic]) => (names, *topic),
        Some([_, names @ .., "--help" | "-h", topic]) => (names, *topic),
        _ => return Ok(()),
    };
    let outer = names.first().and_then(|name| command.find_subcommand(name));
    let verb = names.get(1).and_then(|verb| outer?.find_subcommand(verb));
    let Some(sub) = verb.or(outer) else { return Ok(()) };
    // What has verbs has no topics, and shows its whole help anyhow where it has few options.
    let has_topics = !sub.has_subcommands() && is_shortened(sub);
    if !has_topics || topic.starts_with('-') || Topic::of(topic).is_some() {
        return Ok(());
    }
    let there = topics(sub);
    Err(Refusal(format!("--help {topic}: there is no such topic; there are: {there}")))
}

/// Whether the help of a command leaves options to its topics.
fn is_shortened(command: &Command) -> bool {
    command.get_arguments().filter(|arg| !is_common(arg)).count() >= 2
}

/// The text for `COMMAND --help TOPIC` and `help COMMAND TOPIC`; `None` for other words.
pub fn on_topic(command: &Command, words: &[OsString]) -> Option<String> {
    let words: Vec<&str> = words.iter().map(|word| word.to_str()).collect::<Option<_>>()?;
    let (names, topic) = match words[..] {
        [_, "help", ref names @ .., topic] => (names, topic),
        [_, ref names @ .., "--help" | "-h", topic] => (names, topic),
        _ => return None,
    };
    let topic = Topic::of(topic)?;
    let [name, rest @ ..] = names else { return None };
    let outer = command.find_subcommand(name)?;
    // The verb of a command; or else words that do not matter before `--help`.
    let verb = rest.first().and_then(|verb| outer.find_subcommand(verb));
    let show = |sub: Command| {
        let sub = sub.mut_args(|arg| {
            let hides = !topic.shows(&arg);
            arg.hide(hides)
        });
        if topic == Topic::All { sub } else { sub.after_help("") }
    };
    let path = match verb {
        Some(verb) => vec![outer.get_name().to_owned(), name_of(outer, verb.get_name())?],
        None => vec![name_of(command, name)?],
    };
    let mut command = command.clone();
    command = match &path[..] {
        [outer, verb] => command.mut_subcommand(outer, |sub| sub.mut_subcommand(verb, show)),
        _ => command.mut_subcommand(&path[0], show),
    };
    command.build();
    let sub = path.iter().try_fold(&mut command, |sub, name| sub.find_subcommand_mut(name))?;
    Some(sub.render_long_help().to_string())
}

/// The name of a command with options under a heading.
fn name_of(command: &Command, name: &str) -> Option<String> {
    let sub = command.find_subcommand(name)?;
    let has_topics = sub.get_arguments().any(|arg| arg.get_help_heading().is_some());
    has_topics.then(|| sub.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::app::Cli;

    fn short_help(name: &str) -> String {
        let mut command = shorten(Cli::command());
        command.build();
        command.find_subcommand_mut(name).unwrap().render_help().to_string()
    }

    fn on(line: &str) -> Option<String> {
        let words: Vec<OsString> =
            std::iter::once("longview").chain(line.split(' ')).map(OsString::from).collect();
        on_topic(&Cli::command(), &words)
    }

    fn options(help: &str) -> usize {
        // Further in stand the other lines of a text.
        let is_option = |line: &&str| line.starts_with("  -") || line.starts_with("      --");
        help.lines().filter(is_option).count()
    }

    #[test]
    fn a_command_shows_what_people_use_and_where_the_rest_is() {
        let help = short_help("run");
        assert!((18..=26).contains(&options(&help)), "{help}");
        for part in [
            "--prompt",
            "--ctx-size",
            "--temp",
            "--budget",
            "--device",
            "--help policies | sampling",
        ] {
            assert!(help.contains(part), "{part} is not in {help}");
        }
        assert!(!help.contains("--cluster-tokens") && !help.contains("--isa"), "{help}");
        assert!(!short_help("doctor").contains("More options"));
    }

    #[test]
    fn topics_show_the_others_and_together_everything() {
        let shown = |line: &str| on(line).unwrap();
        let policies = shown("run --help policies");
        assert!(policies.contains("--cluster-tokens") && !policies.contains("--top-k"));
        assert!(shown("run --help sampling").contains("--repeat-last-n"));
        let engine = shown("help run engine");
        assert!(engine.contains("--isa") && engine.contains("--rope-scale"), "{engine}");
        let all = shown("run --help all");
        for arg in Cli::command().find_subcommand("run").unwrap().get_arguments() {
            let long = arg.get_long().unwrap();
            assert!(all.contains(&format!("--{long}")), "{long}");
        }
        assert_eq!(on("run --help nonsense"), None);
        for (line, is_right) in [
            ("run --help nonsense", false),
            ("help run nonsense", false),
            ("kv build --help nonsense", false),
            ("help kv build nonsense", false),
            ("run --help policies", true),
            ("run --help", true),
            ("run --help -p", true),
            ("help kv build", true),
            ("kv --help build", true),
            ("doctor --help nonsense", true),
            ("nonsense --help nonsense", true),
        ] {
            let words = std::iter::once("longview").chain(line.split(' '));
            let words: Vec<OsString> = words.map(OsString::from).collect();
            let checked = check_topic(&Cli::command(), &words);
            assert_eq!(checked.is_ok(), is_right, "{line}: {checked:?}");
        }
        assert_eq!(on("run --help"), None);
        assert_eq!(on("doctor --help all"), None);
    }
}
