//! Rules on documents: the map names what exists, links lead somewhere, lines and documents are
//! short, the README's commands are the ones that CI runs.

use std::collections::BTreeSet;

use super::files::{File, Repo};

/// Longer, and nobody reads it.
const MAX_ARCHITECTURE_LINES: usize = 250;

/// What it is and how to use it; the rest belongs to `docs/`.
const MAX_README_LINES: usize = 130;

/// Prose that is read in a terminal and compared line by line.
const MAX_COLUMNS: usize = 110;

/// What a newcomer types.
const COMMANDS: &[&str] = &["cargo run --release -- demo", "cargo xtask ci"];

/// The code map of ARCHITECTURE.md against the folders of `crates/`, both ways, a heading for each
/// crate, and the length of the document.
pub(crate) fn code_map(repo: &Repo) -> Vec<String> {
    let Some(file) = repo.file("ARCHITECTURE.md") else {
        return vec!["ARCHITECTURE.md is missing".into()];
    };
    let Some(map) = section(&file.text, "code map") else {
        return vec![file.problem(0, "there is no section `## Code map`")];
    };
    let folders = repo.files.iter().filter_map(|f| f.path.strip_prefix("crates/")?.split_once('/'));
    let exist: BTreeSet<_> = folders.map(|(name, _)| name).collect();
    let named: BTreeSet<_> = crates_in(map).collect();
    let mut problems = Vec::new();
    for name in named.difference(&exist) {
        problems
            .push(file.problem(0, &format!("the code map names `crates/{name}`: no such crate")));
    }
    for name in exist.difference(&named) {
        problems.push(file.problem(0, &format!("the code map does not name `crates/{name}`")));
    }
    let headings: Vec<_> = file.text.lines().filter(|line| line.starts_with('#')).collect();
    let titled: BTreeSet<_> = headings.iter().flat_map(|line| crates_in(line)).collect();
    for name in exist.difference(&titled) {
        problems.push(file.problem(0, &format!("no heading names `crates/{name}`")));
    }
    let n = file.text.lines().count();
    if n >= MAX_ARCHITECTURE_LINES {
        let message = format!("{n} lines, {MAX_ARCHITECTURE_LINES} or more: shorten it");
        problems.push(file.problem(n - 1, &message));
    }
    problems
}

/// The README must show [`COMMANDS`] to the letter, and be short.
pub(crate) fn readme(repo: &Repo) -> Vec<String> {
    let text = repo.file("README.md").map_or("", |file| file.text.as_str());
    let missing = COMMANDS.iter().filter(|command| !text.contains(*command));
    let mut problems: Vec<_> =
        missing.map(|command| format!("README.md does not show `{command}`")).collect();
    let n = text.lines().count();
    if n > MAX_README_LINES {
        let advice = "move what a first reader does not need to docs/";
        problems.push(format!("README.md:{n}: {n} lines, over {MAX_README_LINES}: {advice}"));
    }
    problems
}

/// Lines over [`MAX_COLUMNS`] that are no table and not in a fence, and that could be broken: a
/// link or an address that is too long by itself cannot.
pub(crate) fn long_lines(file: &File) -> Vec<String> {
    let mut problems = Vec::new();
    let mut in_fence = false;
    for (i, line) in file.text.lines().enumerate() {
        let text = line.trim_start();
        let is_fence = text.starts_with("```") || text.starts_with("~~~");
        in_fence ^= is_fence;
        let n = line.chars().count();
        if n <= MAX_COLUMNS || is_fence || in_fence || text.starts_with('|') {
            continue;
        }
        let room = MAX_COLUMNS.saturating_sub(n - text.chars().count());
        let is_address = |word: &str| word.contains("://") || word.contains("](");
        let mut words = text.split_whitespace();
        if !words.any(|word| is_address(word) && word.chars().count() > room) {
            problems.push(file.problem(i, &format!("{n} columns, over {MAX_COLUMNS}")));
        }
    }
    problems
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

/// Crates that a text names, as `crates/name` or `longview-name`.
fn crates_in(text: &str) -> impl Iterator<Item = &str> {
    ["crates/", "longview-"].into_iter().flat_map(move |prefix| names_after(text, prefix))
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
            "# A\n\n## Code map\n\n### `crates/ops`, and `longview-cpu`\n\n## Later\n`crates/x`";
        assert!(map_problems(good).is_empty());
        let heads = "# A\n## crates/ops and crates/cpu\n";
        let problems = |map: &str| map_problems(&format!("{heads}{map}")).len();
        assert_eq!(problems("## Code map\ncrates/ops crates/cpu\n"), 0);
        assert_eq!(problems("## Code map\ncrates/ops crates/cpu crates/gpu\n"), 1);
        assert_eq!(problems("## Code map\ncrates/ops\n"), 1);
        assert_eq!(problems("## Glossary\ncrates/ops crates/cpu\n"), 1);
        assert_eq!(map_problems(&(good.to_owned() + &"\n".repeat(250))).len(), 1);
        assert_eq!(code_map(&Repo::of(vec![])), ["ARCHITECTURE.md is missing"]);
    }

    #[test]
    fn every_crate_has_a_heading() {
        let expected = ["ARCHITECTURE.md:1: no heading names `crates/cpu`"];
        let text = "# A\n## Code map\n### `crates/ops`\nx\nand `crates/cpu`\n";
        assert_eq!(map_problems(text), expected);
        assert!(map_problems(&text.replace("and", "###")).is_empty());
    }

    #[test]
    fn prose_is_measured_and_what_cannot_be_broken_is_not() {
        let reports = |text: &str| long_lines(&snippet("docs/a.md", text)).len();
        let prose = "word ".repeat(22);
        assert_eq!(reports(prose.trim_end()), 0);
        assert_eq!(reports(&format!("{prose}words")), 1);
        assert_eq!(reports(&format!("| {prose} | {prose} |")), 0);
        assert_eq!(reports(&format!("```\n{prose}words\n```\n{prose}words")), 1);
        let address = format!("https://example.org/{}", "x".repeat(100));
        assert_eq!(reports(&format!("- see [it]({address}).")), 0);
        assert_eq!(reports(&format!("{prose} https://example.org/")), 1, "it fits the next line");
        assert_eq!(reports(&"é".repeat(110)), 0);
    }

    #[test]
    fn a_long_readme_is_reported() {
        let readme_of = |n: usize| format!("{}\n{}", COMMANDS.join(" "), "x\n".repeat(n - 1));
        let check = |n| readme(&Repo::of(vec![snippet("README.md", &readme_of(n))]));
        assert!(check(130).is_empty());
        assert_eq!(check(131).len(), 1);
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
