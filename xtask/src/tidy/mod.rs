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
    Rule { name: "circles", check: |repo| modules::circles(repo, false).into() },
    Rule { name: "rooms", check: |repo| rooms::broken(repo).into() },
    Rule {
        name: "bools",
        check: |repo| problems(repo, &[Kind::Rust], bools::matches_on_bools).into(),
    },
    Rule { name: "file-length", check: |repo| problems(repo, CODE, sources::long_file).into() },
    Rule { name: "columns", check: |repo| problems(repo, CODE, sources::long_lines).into() },
    Rule { name: "functions", check: |repo| functions(repo).into() },
    Rule { name: "kernel-lengths", check: |repo| kernels::long_functions(repo).into() },
    Rule {
        name: "module-docs",
        check: |repo| problems(repo, &[Kind::Rust], sources::no_module_doc).into(),
    },
    Rule {
        name: "kernel-heads",
        check: |repo| problems(repo, &[Kind::Shader, Kind::Cpp], sources::no_head_comment).into(),
    },
    Rule {
        name: "unsafe",
        check: |repo| problems(repo, &[Kind::Rust], sources::stray_unsafe).into(),
    },
    Rule { name: "unsafe-list", check: |repo| sources::stale_unsafe_list(repo).into() },
    Rule { name: "banned", check: |repo| problems(repo, CODE, tokens::banned).into() },
    Rule {
        name: "machine-traces",
        check: |repo| problems(repo, Kind::ALL, tokens::machine_traces).into(),
    },
    Rule { name: "layers", check: |repo| layers::broken(repo).into() },
    Rule { name: "lints", check: |repo| layers::own_lints(repo).into() },
    Rule { name: "code-map", check: |repo| docs::code_map(repo).into() },
    Rule { name: "readme", check: |repo| docs::readme(repo).into() },
    Rule { name: "links", check: |repo| links(repo).into() },
    Rule {
        name: "markdown",
        check: |repo| problems(repo, &[Kind::Markdown], docs::long_lines).into(),
    },
    Rule { name: "op-stems", check: |repo| ops::stems(repo).into() },
    Rule { name: "op-files", check: |repo| ops::files(repo).into() },
    Rule { name: "commits", check: |repo| commits(repo) },
];

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse(args, &["--all"], &["--only", "--root"])?;
    let rules = chosen(parsed.value("--only"))?;
    let root = parsed.value("--root").map_or(process::root(), Path::new);
    let repo = Repo::read(root)?;
    if parsed.has("--all") {
        modules::circles(&repo, true).iter().for_each(|circle| println!("{circle}\n"));
    }
    let mut table = String::new();
    let mut failed = Vec::new();
    for rule in rules {
        let found = (rule.check)(&repo);
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
