//! Rules on documents: the map names what exists, links lead somewhere, the README's commands are
//! the ones that CI runs.

use std::collections::BTreeSet;

use super::files::{File, Repo};

/// Longer, and nobody reads it.
const MAX_ARCHITECTURE_LINES: usize = 200;

/// What a newcomer types.
const COMMANDS: &[&str] = &["cargo run --release -- demo", "cargo xtask ci"];

/// The code map of ARCHITECTURE.md against the folders of `crates/`, both ways, and its length.
pub(crate) fn code_map(repo: &Repo) -> Vec<String> {
    let Some(file) = repo.file("ARCHITECTURE.md") else {
        return vec!["ARCHITECTURE.md is missing".into()];
    };
    let Some(map) = section(&file.text, "code map") else {
        return vec![file.problem(0, "there is no section `## Code map`")];
    };
    let folders = repo.files.iter().filter_map(|f| f.path.strip_prefix("crates/")?.split_once('/'));
    let exist: BTreeSet<_> = folders.map(|(name, _)| name).collect();
    let named: BTreeSet<_> =
        ["crates/", "longview-"].iter().flat_map(|prefix| names_after(map, prefix)).collect();
    let mut problems = Vec::new();
    for name in named.difference(&exist) {
        problems
            .push(file.problem(0, &format!("the code map names `crates/{name}`: no such crate")));
    }
    for name in exist.difference(&named) {
        problems.push(file.problem(0, &format!("the code map does not name `crates/{name}`")));
    }
    let n = file.text.lines().count();
    if n >= MAX_ARCHITECTURE_LINES {
        let message = format!("{n} lines, {MAX_ARCHITECTURE_LINES} or more: shorten it");
        problems.push(file.problem(n - 1, &message));
    }
    problems
}

/// The README must show [`COMMANDS`] to the letter.
pub(crate) fn readme(repo: &Repo) -> Vec<String> {
    let text = repo.file("README.md").map_or("", |file| file.text.as_str());
    let missing = COMMANDS.iter().filter(|command| !text.contains(*command));
    missing.map(|command| format!("README.md does not show `{command}`")).collect()
}

/// Links to files that do not exist; `exists` gets paths from the root.
pub(crate) fn dead_links(file: &File, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut problems = Vec::new();
    for (i, line) in without_code(&file.text).lines().enumerate() {
        for target in links(line) {
            let path = target.split('#').next().unwrap_or_default();
            if path.is_empty() || path.contains("://") || path.starts_with("mailto:") {
                continue;
            }
            if !resolve(folder, path).is_some_and(|path| exists(&path)) {
                problems.push(file.problem(i, &format!("the link to `{path}` leads nowhere")));
            }
        }
    }
    problems
}

/// The text below a heading of the second level, up to the next.
fn section<'a>(text: &'a str, heading: &str) -> Option<&'a str> {
    let mut parts = text.split("\n## ");
    parts.find(|part| part.lines().next().is_some_and(|l| l.trim().eq_ignore_ascii_case(heading)))
}

/// The words that follow `prefix`: lower-case letters, digits, dashes.
fn names_after<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    let rests = text.match_indices(prefix).map(|(at, _)| &text[at + prefix.len()..]);
    let names = rests.map(move |rest| rest.split(|c| !is_name(c)).next().unwrap_or_default());
    names.filter(|name| !name.is_empty())
}

/// Targets of `[text](target)` and `[text](target "title")`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let rests = line.match_indices("](").map(|(at, _)| &line[at + 2..]);
    rests.filter_map(|rest| rest.split_once(')')?.0.split_whitespace().next())
}

/// Blanks fenced blocks and spans in backticks; lines stay.
fn without_code(text: &str) -> String {
    let mut in_block = false;
    let mut kept = String::new();
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        if !in_block && !is_fence {
            kept.extend(line.split('`').step_by(2));
        }
        in_block ^= is_fence;
        kept.push('\n');
    }
    kept
}

/// `path` seen from `folder`, without dots; `None` above the root.
fn resolve(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::snippet;

    fn map_problems(architecture: &str) -> Vec<String> {
        let files = vec![
            snippet("ARCHITECTURE.md", architecture),
            snippet("crates/ops/src/lib.rs", ""),
            snippet("crates/cpu/src/lib.rs", ""),
        ];
        code_map(&Repo::of(files))
    }

    #[test]
    fn the_map_and_the_folders_agree_both_ways() {
        let good =
            "# A\n\n## Code map\n\n`crates/ops`, and `longview-cpu`.\n\n## Later\n`crates/x`";
        assert!(map_problems(good).is_empty());
        assert_eq!(map_problems("# A\n## Code map\ncrates/ops crates/cpu crates/gpu\n").len(), 1);
        assert_eq!(map_problems("# A\n## Code map\ncrates/ops\n").len(), 1);
        assert_eq!(map_problems("# A\n## Glossary\ncrates/ops crates/cpu\n").len(), 1);
        assert_eq!(map_problems(&(good.to_owned() + &"\n".repeat(200))).len(), 1);
        assert_eq!(code_map(&Repo::of(vec![])), ["ARCHITECTURE.md is missing"]);
    }

    #[test]
    fn both_commands_must_be_there() {
        let check = |text| readme(&Repo::of(vec![snippet("README.md", text)])).len();
        assert_eq!(check("```\ncargo run --release -- demo\ncargo xtask ci\n```"), 0);
        assert_eq!(check("cargo run --release demo"), 2);
    }

    #[test]
    fn links_are_followed_from_their_document() {
        let exists = |path: &str| ["README.md", "docs/a.md", "models"].contains(&path);
        let check = |path, text| dead_links(&snippet(path, text), exists).len();
        assert_eq!(check("README.md", "[a](docs/a.md#part), [m](models/ \"title\")"), 0);
        assert_eq!(check("docs/a.md", "[up](../README.md) [here](#there)"), 0);
        assert_eq!(check("docs/a.md", "[x](https://example.org/) [y](mailto:a@b.org)"), 0);
        assert_eq!(check("README.md", "`[a](none)`\n```\n[b](none)\n```"), 0);
        assert_eq!(check("README.md", "[a](none.md)\n[b](../README.md)"), 2);
    }
}
