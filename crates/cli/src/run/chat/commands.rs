//! The commands of a chat: a word that begins with a slash, and what comes after it.

use std::path::PathBuf;

use super::settings;

/// What may be asked for in place of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Lists the commands.
    Help,
    /// Forgets what was said; the document stays read.
    Clear,
    /// Takes the last question back, with its answer.
    Undo,
    /// Answers the last question again.
    Retry,
    /// Writes the chat to a file.
    Save(PathBuf),
    /// Goes on with a chat from a file.
    Load(PathBuf),
    /// Says what the context holds and how fast the last answer was.
    Stats,
    /// Shows the settings, or changes one.
    Set(Option<(String, String)>),
    /// Shows the system message, or changes it; an empty one takes it away.
    System(Option<String>),
    /// Leaves.
    Bye,
}

/// A command as it is listed: its name, what follows it, what it does.
struct Entry {
    name: &'static str,
    operands: &'static str,
    about: &'static str,
}

const ENTRIES: &[Entry] = &[
    entry("/help", "", "this list"),
    entry("/clear", "", "forget questions and answers; the document stays read"),
    entry("/undo", "", "take the last question and its answer back"),
    entry("/retry", "", "answer the last question again, with another seed"),
    entry("/save", "FILE", "write the chat to a file, for --session or /load"),
    entry("/load", "FILE", "go on with a chat or document from a file, in place of this one"),
    entry("/stats", "", "tokens in the context, speed, cache hits"),
    entry("/set", "NAME VALUE", "change how answers are generated; alone: list the settings"),
    entry("/system", "TEXT", "set the system message (\"\" for none); alone: show it"),
    entry("/bye", "", "leave; so do /exit, /quit and Ctrl-D"),
];

const fn entry(name: &'static str, operands: &'static str, about: &'static str) -> Entry {
    Entry { name, operands, about }
}

/// The text of `/help`.
pub fn help() -> String {
    let mut text = String::new();
    for Entry { name, operands, about } in ENTRIES {
        text.push_str(&format!("{:<18}{about}\n", format!("{name} {operands}")));
    }
    text.push_str(
        "\"\"\" begins and ends a text of several lines. A text that begins with // is sent with\n\
         one slash. Ctrl-C stops an answer.",
    );
    text
}

/// What a line asks for: a command, or a text for the model.
pub enum Said {
    /// A command.
    Command(Command),
    /// A text.
    Text(String),
}

/// Reads a line that is no block.
///
/// # Errors
/// If it begins with a slash and is no command.
pub fn parse(line: &str) -> Result<Said, String> {
    let line = line.trim();
    let Some(rest) = line.strip_prefix('/') else { return Ok(Said::Text(line.to_owned())) };
    if rest.starts_with('/') {
        return Ok(Said::Text(rest.to_owned()));
    }
    let (name, operand) = match line.split_once(char::is_whitespace) {
        Some((name, operand)) => (name, operand.trim()),
        None => (line, ""),
    };
    let file = || match operand {
        "" => Err(format!("{name}: name a file, as in {name} chat.lvs")),
        path => Ok(PathBuf::from(path)),
    };
    let alone = |command| match operand {
        "" => Ok(command),
        _ => Err(format!("{name} stands alone: leave {operand:?} out")),
    };
    let command = match name {
        "/help" | "/?" => alone(Command::Help),
        "/clear" => alone(Command::Clear),
        "/undo" => alone(Command::Undo),
        "/retry" => alone(Command::Retry),
        "/save" => file().map(Command::Save),
        "/load" => file().map(Command::Load),
        "/stats" => alone(Command::Stats),
        "/set" => setting(operand).map(Command::Set),
        "/system" => Ok(Command::System((!operand.is_empty()).then(|| unquoted(operand)))),
        "/bye" | "/exit" | "/quit" => alone(Command::Bye),
        _ => Err(format!(
            "{}: no such command; /help lists them, and a text that begins with a slash is sent \
             with two: //{}",
            shortened(name),
            shortened(rest)
        )),
    };
    command.map(Said::Command)
}

/// The beginning of a text that may be long.
fn shortened(text: &str) -> String {
    const MOST: usize = 40;
    let mut start: String = text.chars().take(MOST).collect();
    if start.len() < text.len() {
        start.push_str("...");
    }
    start
}

fn setting(operand: &str) -> Result<Option<(String, String)>, String> {
    if operand.is_empty() {
        return Ok(None);
    }
    match operand.split_once(char::is_whitespace) {
        Some((name, value)) => Ok(Some((name.to_owned(), unquoted(value.trim())))),
        None => Err(format!("/set {operand}: give a value too, as in /set temp 0.8")),
    }
}

/// A text without the quotes around it.
fn unquoted(text: &str) -> String {
    let inside = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inside.unwrap_or(text).to_owned()
}

/// Whether the end of `typed` is the name of a file.
pub fn takes_file(typed: &str) -> bool {
    ["/save ", "/load "].iter().any(|command| typed.starts_with(command))
}

/// What the last word of `typed` may become, and where it begins.
pub fn completions(typed: &str) -> (usize, Vec<String>) {
    let named = |start: usize, names: &mut dyn Iterator<Item = &'static str>| {
        let found = names.filter(|name| name.starts_with(&typed[start..]));
        (start, found.map(str::to_owned).collect())
    };
    const SET: &str = "/set ";
    match typed.strip_prefix(SET) {
        Some(rest) if !rest.contains(' ') => named(SET.len(), &mut settings::names()),
        None if typed.starts_with('/') => named(0, &mut ENTRIES.iter().map(|entry| entry.name)),
        _ => (typed.len(), Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Command {
        match parse(line) {
            Ok(Said::Command(command)) => command,
            Ok(Said::Text(text)) => panic!("{line} is a text: {text}"),
            Err(reason) => panic!("{line}: {reason}"),
        }
    }

    fn refusal(line: &str) -> String {
        parse(line).err().unwrap_or_else(|| panic!("{line} is accepted"))
    }

    #[test]
    fn every_command_is_listed_and_read() {
        for Entry { name, operands, .. } in ENTRIES {
            let operands = operands.replace("NAME", "temp").replace("VALUE", "0.5");
            command(&format!("{name} {operands}"));
            assert!(help().contains(name));
        }
        assert!(help().lines().all(|line| line.len() <= 90), "{}", help());
        for leave in ["/bye", " /exit ", "/quit"] {
            assert_eq!(command(leave), Command::Bye);
        }
        assert_eq!(command("/?"), Command::Help);
        assert_eq!(command("/save a b.lvs"), Command::Save("a b.lvs".into()));
        assert_eq!(command("/set"), Command::Set(None));
        let set = |name: &str, value: &str| Command::Set(Some((name.into(), value.into())));
        assert_eq!(command("/set temp 0.5"), set("temp", "0.5"));
        assert_eq!(command("/set stop \" two words\""), set("stop", " two words"));
        assert_eq!(command("/system Be brief."), Command::System(Some("Be brief.".into())));
        assert_eq!(command("/system \"\""), Command::System(Some(String::new())));
        assert_eq!(command("/system"), Command::System(None));
    }

    #[test]
    fn what_is_no_command_never_reaches_the_model() {
        assert!(refusal("/halp").contains("/halp: no such command; /help lists them"));
        assert!(refusal("/").contains("no such command"));
        assert!(refusal("/etc/passwd is a file").contains("//etc/passwd is a file"));
        assert!(refusal(&format!("/x{}", "y".repeat(9999))).len() < 250);
        assert!(refusal("/save").contains("name a file"));
        assert!(refusal("/set temp").contains("give a value too"));
        assert!(refusal("/bye now").contains("stands alone"));
    }

    #[test]
    fn two_slashes_send_one() {
        let text = |line| match parse(line) {
            Ok(Said::Text(text)) => text,
            _ => panic!("{line}"),
        };
        assert_eq!(text("//etc/passwd?"), "/etc/passwd?");
        assert_eq!(text("  Why? "), "Why?");
    }
}
