//! `cargo xtask tidy`: the repository's own rules, as far as a program can check them.
//! CONTRIBUTING.md and ARCHITECTURE.md say why; a message here says what to do instead.
//!
//! Every rule is a function from text to problems, with snippets beside it that it must and must
//! not report. The verb applies the rules to the files that git tracks or would track. It reads
//! sources and compiles nothing, so it takes seconds.

mod bools;
mod commits;
mod docs;
pub(crate) mod files;
mod kernels;
mod layers;
pub(crate) mod lex;
pub(crate) mod modules;
mod ops;
mod orphans;
mod paths;
pub(crate) mod rooms;
pub(crate) mod scan;
mod sources;
mod tokens;

use std::path::Path;

use anyhow::{Result, bail};

use crate::args::{Parsed, UsageError};
use crate::process;
use files::{File, Kind, Repo};

pub(crate) const OPTIONS: &str = "[--only RULE] [--all] [--root FOLDER]";
pub(crate) const ABOUT: &str = "the repository's own rules: prints all problems by rule. --only: \
                                one rule; --all: every import of a circle; --root: another checkout";

/// What the repository must keep to.
struct Rule {
    name: &'static str,
    check: fn(&Repo) -> Found,
    /// The same for `--all`, where there is more to say about each problem.
    in_full: Option<fn(&Repo) -> Found>,
}

impl Rule {
    const fn of(name: &'static str, check: fn(&Repo) -> Found) -> Self {
        Self { name, check, in_full: None }
    }
}

/// What a rule found.
#[derive(Default)]
struct Found {
    problems: Vec<String>,
    /// What to know about a rule that could not look at everything.
    note: Option<String>,
}

impl From<Vec<String>> for Found {
    fn from(problems: Vec<String>) -> Self {
        Self { problems, note: None }
    }
}

const CODE: &[Kind] = &[Kind::Rust, Kind::Shader, Kind::Cpp, Kind::OtherCode, Kind::Style];

const RULES: &[Rule] = &[
    Rule {
        in_full: Some(|repo| modules::circles(repo, true).into()),
        ..Rule::of("circles", |repo| modules::circles(repo, false).into())
    },
    Rule::of("orphans", |repo| orphans::orphans(repo).into()),
    Rule::of("rooms", |repo| rooms::broken(repo).into()),
    Rule::of("bools", |repo| problems(repo, &[Kind::Rust], bools::matches_on_bools).into()),
    Rule::of("file-length", |repo| problems(repo, CODE, sources::long_file).into()),
    Rule::of("columns", |repo| problems(repo, CODE, sources::long_lines).into()),
    Rule::of("functions", |repo| functions(repo).into()),
    Rule::of("kernel-lengths", |repo| kernels::long_functions(repo).into()),
    Rule::of("module-docs", |repo| problems(repo, &[Kind::Rust], sources::no_module_doc).into()),
    Rule::of("kernel-heads", |repo| {
        problems(repo, &[Kind::Shader, Kind::Cpp], sources::no_head_comment).into()
    }),
    Rule::of("unsafe", |repo| problems(repo, &[Kind::Rust], sources::stray_unsafe).into()),
    Rule::of("unsafe-list", |repo| sources::stale_unsafe_list(repo).into()),
    Rule::of("banned", |repo| problems(repo, CODE, tokens::banned).into()),
    Rule::of("machine-traces", |repo| problems(repo, Kind::ALL, tokens::machine_traces).into()),
    Rule::of("layers", |repo| layers::broken(repo).into()),
    Rule::of("lints", |repo| layers::own_lints(repo).into()),
    Rule::of("code-map", |repo| docs::code_map(repo).into()),
    Rule::of("readme", |repo| docs::readme(repo).into()),
    Rule::of("links", |repo| links(repo).into()),
    Rule::of("markdown", |repo| problems(repo, &[Kind::Markdown], docs::long_lines).into()),
    Rule::of("op-stems", |repo| ops::stems(repo).into()),
    Rule::of("op-files", |repo| ops::files(repo).into()),
    Rule::of("commits", commits),
];

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse(args, &["--all"], &["--only", "--root"])?;
    let rules = chosen(parsed.value("--only"))?;
    let root = parsed.value("--root").map_or(process::root(), Path::new);
    let repo = Repo::read(root)?;
    let mut table = String::new();
    let mut failed = Vec::new();
    for rule in rules {
        let in_full = parsed.has("--all").then_some(rule.in_full).flatten();
        let found = in_full.unwrap_or(rule.check)(&repo);
        let n = found.problems.len();
        if n > 0 {
            println!("\n{}: {n}\n{}", rule.name, found.problems.join("\n"));
            failed.push(rule.name);
        }
        let result = if n == 0 { "ok".to_owned() } else { n.to_string() };
        let note = found.note.map(|note| format!("  ({note})")).unwrap_or_default();
        table += &format!("{:<16} {result:>8}{note}\n", rule.name);
    }
    print!("\n{:<16} {:>8}\n{table}", "rule", "problems");
    if failed.is_empty() {
        return Ok(());
    }
    bail!("broken: {}; again with `cargo xtask tidy --only {}`", failed.join(", "), failed[0])
}

/// The stage of CI.
pub(crate) fn stage() -> Result<()> {
    run(&[])
}

fn chosen(only: Option<&str>) -> Result<Vec<&'static Rule>> {
    let rules: Vec<_> =
        RULES.iter().filter(|rule| only.is_none_or(|name| name == rule.name)).collect();
    if rules.is_empty() {
        let known: Vec<_> = RULES.iter().map(|rule| rule.name).collect();
        let message = format!("unknown rule: one of {}", known.join(", "));
        return Err(UsageError(message).into());
    }
    Ok(rules)
}

/// What is wrong in all files of the kinds that a rule looks at.
fn problems(repo: &Repo, kinds: &[Kind], rule: impl Fn(&File) -> Vec<String>) -> Vec<String> {
    repo.files.iter().filter(|file| kinds.contains(&file.kind())).flat_map(rule).collect()
}

fn functions(repo: &Repo) -> Vec<String> {
    let kinds = [Kind::Rust, Kind::Shader];
    sources::long_functions(repo.files.iter().filter(|file| kinds.contains(&file.kind())))
}

fn links(repo: &Repo) -> Vec<String> {
    let exists = |path: &str| repo.root.join(path).exists();
    problems(repo, &[Kind::Markdown], |file| docs::dead_links(file, exists))
}

fn commits(repo: &Repo) -> Found {
    match commits::long_subjects(&repo.root) {
        Ok(problems) => problems.into(),
        Err(reason) => Found { note: Some(reason), ..Found::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_chosen_by_their_names() {
        assert_eq!(chosen(None).unwrap().len(), RULES.len());
        for rule in RULES {
            let found = chosen(Some(rule.name)).unwrap();
            assert_eq!(found.len(), 1, "{} is there twice", rule.name);
        }
        assert!(chosen(Some("circle")).is_err());
    }

    #[test]
    fn an_empty_checkout_breaks_rules() {
        let repo = Repo::of(vec![]);
        let broken = RULES.iter().filter(|rule| !(rule.check)(&repo).problems.is_empty());
        let names: Vec<_> = broken.map(|rule| rule.name).collect();
        for expected in ["unsafe-list", "code-map", "readme", "op-stems"] {
            assert!(names.contains(&expected), "{expected}: {names:?}");
        }
    }
}
