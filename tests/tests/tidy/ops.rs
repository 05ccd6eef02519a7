//! One op, one stem, everywhere: reference, corpus, CPU module.

use longview_ops::Op;
use longview_ops::corpus::cases_of;

use crate::files::Repo;
use crate::scan::{Scan, words};

/// Ops without a module of their own on the CPU, with the module that serves them and the reason.
const SERVED_ELSEWHERE: &[(Op, &str, &str)] = &[];

/// What an op lacks.
pub(crate) fn stems(repo: &Repo) -> Vec<String> {
    Op::ALL.iter().flat_map(|op| missing(repo, *op)).collect()
}

fn missing(repo: &Repo, op: Op) -> Vec<String> {
    let stem = op.stem();
    let mut problems = Vec::new();
    let elsewhere = SERVED_ELSEWHERE.iter().find(|(served, ..)| *served == op);
    let module = elsewhere.map_or(stem, |(_, module, _)| module);
    let path = format!("crates/cpu/src/ops/{module}.rs");
    if repo.file(&path).is_none() {
        problems.push(format!("{stem}: no {path}"));
    }
    if cases_of(op).is_empty() {
        problems.push(format!("{stem}: no case in the corpus"));
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

#[test]
fn an_op_without_its_parts_is_reported() {
    use crate::files::snippet;
    assert_eq!(missing(&Repo::of(vec![]), Op::Rope).len(), 2);
    let module = snippet("crates/cpu/src/ops/rope.rs", "");
    let reference = snippet("crates/ops/src/reference/dense.rs", "pub(super) fn rope(d: Rope) {}");
    assert!(missing(&Repo::of(vec![module, reference]), Op::Rope).is_empty());
}

#[test]
fn a_mention_is_no_definition() {
    assert!(defines("pub fn rope<T>() {}", "rope"));
    assert!(!defines("// fn rope\nfn rope_table() { rope() }", "rope"));
}
