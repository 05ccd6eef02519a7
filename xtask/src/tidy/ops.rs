//! One op, one stem, everywhere: reference and CPU module.
//!
//! The list of ops is read from its source, so that this needs none of the workspace's crates. That
//! every op has cases in the corpus is a test of `longview-ops`, which can call it
//! (`every_op_has_cases_and_no_name_is_there_twice`).

use super::files::Repo;
use super::scan::{Scan, words};

/// Where the ops are listed, as `Variant = "stem",`.
const LIST: &str = "crates/ops/src/op.rs";

/// Ops without a module of their own on the CPU, with the module that serves them and the reason.
const SERVED_ELSEWHERE: &[(&str, &str, &str)] = &[];

/// What ops lack.
pub(crate) fn stems(repo: &Repo) -> Vec<String> {
    let ops = listed(repo);
    if ops.is_empty() {
        return vec![format!("{LIST}: no op found: is the list still `Variant = \"stem\",`?")];
    }
    ops.iter().flat_map(|stem| missing(repo, stem)).collect()
}

/// The stems of all ops.
fn listed(repo: &Repo) -> Vec<&str> {
    let text = repo.file(LIST).map_or("", |file| file.text.as_str());
    let list = text.split_once("\nops! {").map_or("", |(_, list)| list);
    let list = list.split("\n}").next().unwrap_or_default();
    let stem = |line| {
        let (variant, stem) = str::trim(line).strip_suffix("\",")?.split_once(" = \"")?;
        variant.starts_with(char::is_uppercase).then_some(stem)
    };
    list.lines().filter_map(stem).collect()
}

fn missing(repo: &Repo, stem: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let elsewhere = SERVED_ELSEWHERE.iter().find(|(served, ..)| *served == stem);
    let module = elsewhere.map_or(stem, |(_, module, _)| module);
    let path = format!("crates/cpu/src/ops/{module}.rs");
    if repo.file(&path).is_none() {
        problems.push(format!("{stem}: no {path}"));
    }
    let mut reference =
        repo.files.iter().filter(|f| f.path.starts_with("crates/ops/src/reference"));
    if !reference.any(|file| defines(&file.text, stem)) {
        problems.push(format!("{stem}: no function of that name in the reference"));
    }
    problems
}

fn defines(text: &str, name: &str) -> bool {
    let code = Scan::of(text).code;
    words(&code, name).into_iter().any(|at| code[..at].ends_with("fn "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::root;
    use crate::tidy::files::snippet;

    #[test]
    fn an_op_without_its_parts_is_reported() {
        assert_eq!(missing(&Repo::of(vec![]), "rope").len(), 2);
        let module = snippet("crates/cpu/src/ops/rope.rs", "");
        let reference =
            snippet("crates/ops/src/reference/dense.rs", "pub(super) fn rope(d: Rope) {}");
        assert!(missing(&Repo::of(vec![module, reference]), "rope").is_empty());
    }

    #[test]
    fn a_mention_is_no_definition() {
        assert!(defines("pub fn rope<T>() {}", "rope"));
        assert!(!defines("// fn rope\nfn rope_table() { rope() }", "rope"));
    }

    #[test]
    fn the_list_of_ops_is_read_from_its_source() {
        let text = "macro_rules! ops {}\n\nops! {\n    /// A = \"x\",\n    TopK = \"top_k\",\n    \
                    Rope = \"rope\",\n}\nimpl A { B = \"b\", }";
        assert_eq!(listed(&Repo::of(vec![snippet(LIST, text)])), ["top_k", "rope"]);
        assert_eq!(stems(&Repo::of(vec![])).len(), 1, "no list is a problem");
        let repo = Repo::read(root()).unwrap();
        let ops = listed(&repo);
        assert!(ops.len() > 30 && ops.contains(&"select_clusters"), "{ops:?}");
    }
}
