//! One op, one stem, everywhere: reference, CPU module, shader, kernel.
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

/// Folders of one file per op, and what the files end in; parts that they share have a folder of
/// their own in it.
const FILES: &[(&str, &str)] = &[("shaders/", ".wgsl"), ("kernels/", ".cu")];

/// What in these folders is code and must be an op's.
const SHARED_CODE: &[&str] = &[".wgsl", ".cu", ".cuh"];

/// Files of these folders that serve several ops, with the reason.
const OF_SEVERAL: &[(&str, &str)] = &[
    ("kernels/quantised.cu", "ten formats of three ops: loaded only for weights of that kind"),
    ("kernels/tile_layers.cu", "fused calls: a row's norm, its products and what follows them"),
    ("kernels/tile_products.cu", "products of many rows with weights of ten formats"),
    ("kernels/upload_words.cu", "what the host writes between ops"),
];

/// Ops without a file in a folder of [`FILES`], with the reason.
const ABSENT: &[(&str, &str, &str)] = &[];

/// Folders of modules, one an op and more that serve several; they have no folders inside.
const FLAT: &[&str] = &["crates/cpu/src/ops/", "crates/wgpu/src/ops/", "crates/cuda/src/ops/"];

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

/// Shaders and kernels that are no op's, ops without one, and folders among the ops of a backend.
pub(crate) fn files(repo: &Repo) -> Vec<String> {
    let ops = listed(repo);
    let mut problems = Vec::new();
    for (folder, end) in FILES {
        let inside = repo.files.iter().filter_map(|file| file.path.strip_prefix(folder));
        let names: Vec<_> = inside.filter(|name| !name.contains('/')).collect();
        let is_op = |name: &str| name.strip_suffix(end).is_some_and(|stem| ops.contains(&stem));
        let is_code = |name: &str| SHARED_CODE.iter().any(|end| name.ends_with(end));
        let is_listed =
            |name: &str| OF_SEVERAL.iter().any(|(path, _)| path.strip_prefix(folder) == Some(name));
        let others = names.iter().filter(|name| is_code(name) && !is_op(name) && !is_listed(name));
        problems.extend(others.map(|name| {
            format!("{folder}{name}: no op has this stem: move it to a folder, as {folder}shared/")
        }));
        let is_absent = |stem: &str| ABSENT.iter().any(|(at, op, _)| at == folder && *op == stem);
        let lacking = ops.iter().filter(|stem| !names.contains(&format!("{stem}{end}").as_str()));
        let lacking = lacking.filter(|stem| !is_absent(stem));
        problems.extend(lacking.map(|stem| format!("{stem}: no {folder}{stem}{end}")));
    }
    let is_nested = |path: &str| {
        FLAT.iter().any(|flat| path.strip_prefix(flat).is_some_and(|inside| inside.contains('/')))
    };
    let nested = repo.files.iter().filter(|file| is_nested(&file.path));
    problems.extend(nested.map(|file| format!("{}: a folder among ops: move it up", file.path)));
    problems
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
    fn folders_of_kernels_list_one_file_an_op() {
        let list = "\nops! {\n    Rope = \"rope\",\n}\n";
        let check = |paths: &[&str]| {
            let paths = paths.iter().map(|path| snippet(path, ""));
            files(&Repo::of([snippet(LIST, list)].into_iter().chain(paths).collect()))
        };
        let good = ["shaders/rope.wgsl", "kernels/rope.cu"];
        let shared =
            ["shaders/shared/rows.wgsl", "kernels/shared/rows.cuh", "kernels/resources.txt"];
        let modules = ["crates/cuda/src/ops/rope.rs", "crates/cuda/src/ops/mod.rs"];
        assert_eq!(check(&[&good[..], &shared, &modules].concat()), [""; 0]);
        assert_eq!(check(&[]), ["rope: no shaders/rope.wgsl", "rope: no kernels/rope.cu"]);
        for stray in ["shaders/rows.wgsl", "kernels/rows.cuh", "kernels/rope.cuh", "kernels/b.cu"] {
            let found = check(&[good[0], good[1], stray]);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(&format!("{stray}: no op has this stem")), "{found:?}");
        }
        assert_eq!(check(&[good[0], good[1], "crates/cuda/src/ops/rope/tiles.rs"]).len(), 1);
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
