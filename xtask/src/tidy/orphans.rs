//! Rust files that no module names: nothing compiles them, so nobody notices that they are wrong.

use std::path::{Component, Path, PathBuf};

use super::files::{File, Kind, Repo};

/// One problem for each file that neither is the root of a target nor is named by a `mod`.
pub(crate) fn orphans(repo: &Repo) -> Vec<String> {
    let named = named_by_path(repo);
    let files = repo.files.iter().filter(|file| file.kind() == Kind::Rust);
    let orphans =
        files.filter(|file| !is_root(&file.path, &named) && !is_declared(repo, &file.path, &named));
    orphans.map(|file| file.problem(0, "no module names this file: nothing compiles it")).collect()
}

/// Whether cargo makes a target of a file: by its place, or because a manifest names it.
fn is_root(path: &str, named: &[String]) -> bool {
    let parts: Vec<_> = path.rsplit('/').collect();
    let is_by_place = match parts[..] {
        ["build.rs", ..] => true,
        ["lib.rs" | "main.rs", "src", ..] | [_, "bin", "src", ..] => true,
        ["main.rs", _, "bin", "src", ..] => true,
        [_, "tests" | "benches" | "examples", folder, ..] => folder != "src",
        _ => false,
    };
    is_by_place || named.iter().any(|named| named == path)
}

/// Files that a manifest's `path = ".."` or a `#[path = ".."]` names, each on a line that begins
/// with it: in a comment it names nothing.
fn named_by_path(repo: &Repo) -> Vec<String> {
    let mut named = Vec::new();
    for file in &repo.files {
        let start = match file.kind() {
            Kind::Rust => "#[path = \"",
            Kind::Manifest => "path = \"",
            _ => continue,
        };
        let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
        let rests = file.text.lines().filter_map(|line| line.trim_start().strip_prefix(start));
        let paths = rests.filter_map(|rest| rest.split_once('"'));
        named.extend(paths.map(|(path, _)| without_dots(&folder.join(path))));
    }
    named
}

/// A path with each `..` taken back.
fn without_dots(path: &Path) -> String {
    let mut kept = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            kept.pop();
        } else {
            kept.push(part);
        }
    }
    kept.to_string_lossy().into_owned()
}

/// Whether a file declares the module that `path` holds: one of its folder that may have modules
/// there, or the folder's own.
fn is_declared(repo: &Repo, path: &str, named: &[String]) -> bool {
    let stem = path.trim_end_matches(".rs");
    let module = stem.strip_suffix("/mod").unwrap_or(stem);
    let Some((folder, name)) = module.rsplit_once('/') else { return false };
    let declaration = format!("mod {name};");
    let may_declare = |file: &&File| {
        let (place, file_name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        let is_beside = file_name == "mod.rs" || is_root(&file.path, named);
        file.path == format!("{folder}.rs") || place == folder && is_beside
    };
    repo.files.iter().filter(may_declare).any(|file| file.text.contains(&declaration))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::snippet;

    #[test]
    fn a_file_that_no_module_names_is_found() {
        let files = [
            (
                "crates/a/Cargo.toml",
                "[[test]]\npath = \"tests/unit/all.rs\"\n# path = \"src/c.rs\"\n",
            ),
            ("crates/a/src/lib.rs", "mod b;\n#[path = \"../../shared/e.rs\"]\nmod e;\n"),
            ("crates/a/src/b/mod.rs", "#[cfg(test)]\nmod tests;\n"),
            ("crates/a/src/b/tests.rs", ""),
            ("crates/a/src/b/orphan.rs", ""),
            ("crates/a/src/c.rs", ""),
            ("crates/a/tests/unit/all.rs", "mod more;\n"),
            ("crates/a/tests/unit/more.rs", ""),
            ("crates/a/tests/program.rs", "mod support;\n"),
            ("crates/a/tests/support/mod.rs", "mod deep;\n"),
            ("crates/a/tests/support/deep.rs", ""),
            ("crates/shared/e.rs", ""),
        ];
        let repo = Repo::of(files.map(|(path, text)| snippet(path, text)).into());
        let text = "no module names this file: nothing compiles it";
        let expected = ["crates/a/src/b/orphan.rs", "crates/a/src/c.rs"];
        assert_eq!(orphans(&repo), expected.map(|path| format!("{path}:1: {text}")));
    }
}
