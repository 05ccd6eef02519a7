//! Whether every file of tests is compiled. Test programs are few and listed in manifests, since
//! each costs a link; a file that no program names would be dropped in silence.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::process::root;

/// Folders with a manifest, below `folder`.
fn packages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let is_source = !name.to_string_lossy().starts_with('.');
        if path.is_dir() && is_source && name != "target" && name != "node_modules" {
            packages(&path, found);
        } else if name == "Cargo.toml" {
            found.push(folder.to_owned());
        }
    }
}

/// All Rust files below `folder`.
fn rust_files(folder: &Path, found: &mut BTreeSet<PathBuf>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() && !path.join("Cargo.toml").exists() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.insert(path);
        }
    }
}

/// Adds `file` and the modules that it declares, each `mod name;` on a line of its own.
fn reach(file: &Path, is_root: bool, reached: &mut BTreeSet<PathBuf>) {
    let Ok(text) = fs::read_to_string(file) else { return };
    reached.insert(file.to_owned());
    let owns_folder = is_root || file.ends_with("mod.rs");
    let folder = if owns_folder { file.with_file_name("") } else { file.with_extension("") };
    for line in text.lines() {
        let name = line.trim_start_matches("pub ").strip_prefix("mod ");
        if let Some(name) = name.and_then(|rest| rest.strip_suffix(';')) {
            reach(&folder.join(format!("{name}.rs")), false, reached);
            reach(&folder.join(name).join("mod.rs"), false, reached);
        }
    }
}

/// The paths of a manifest's `[[test]]` tables.
fn listed(manifest: &str) -> Vec<&str> {
    let tables = manifest.split("[[test]]").skip(1);
    tables.filter_map(|table| table.split("path = \"").nth(1)?.split('"').next()).collect()
}

/// The files beside `src` that modules of a library name by their paths.
fn modules(library: &str) -> Vec<&str> {
    let paths = library.lines().filter_map(|line| line.strip_prefix("#[path = \"../"));
    paths.filter_map(|rest| rest.strip_suffix("\"]")).collect()
}

/// The roots of a package's test programs.
fn roots(package: &Path, manifest: &str) -> Vec<PathBuf> {
    let tests = package.join("tests");
    let mut roots: Vec<_> = listed(manifest).iter().map(|path| package.join(path)).collect();
    if !manifest.contains("autotests = false") {
        let entries = fs::read_dir(&tests).into_iter().flatten().flatten();
        roots.extend(
            entries.map(|entry| entry.path()).flat_map(|path| [path.join("main.rs"), path]),
        );
    }
    // Tests that a library compiles as a module of its own.
    let library = fs::read_to_string(package.join("src/lib.rs")).unwrap_or_default();
    roots.extend(modules(&library).into_iter().map(|path| package.join(path)));
    roots.retain(|path| path.is_file());
    roots
}

#[test]
fn every_file_of_tests_belongs_to_a_program() {
    let mut found = Vec::new();
    packages(root(), &mut found);
    assert!(found.len() > 10, "{found:?}");
    for package in found {
        let manifest = fs::read_to_string(package.join("Cargo.toml")).expect("a manifest");
        let (mut files, mut reached) = (BTreeSet::new(), BTreeSet::new());
        // A package may lie in the folder of another one's tests.
        let tests = package.join("tests");
        if !tests.join("Cargo.toml").exists() {
            rust_files(&tests, &mut files);
        }
        roots(&package, &manifest).iter().for_each(|path| reach(path, true, &mut reached));
        let lost: Vec<_> = files.difference(&reached).collect();
        assert!(lost.is_empty(), "no program compiles {lost:?}: name them by `mod`");
    }
}

/// Programs whose manifest says that they hold no tests.
#[test]
fn programs_without_tests_have_none() {
    let mut found = Vec::new();
    packages(root(), &mut found);
    for package in found {
        let manifest = fs::read_to_string(package.join("Cargo.toml")).expect("a manifest");
        for table in manifest.split("\n[[bin]]").skip(1) {
            let table = table.split("\n[").next().unwrap_or_default();
            let path = table.split("path = \"").nth(1).and_then(|rest| rest.split('"').next());
            if let Some(path) = path.filter(|_| table.contains("test = false")) {
                let text = fs::read_to_string(package.join(path)).expect(path);
                assert!(!text.contains("#[test]"), "{path} has tests that are never run");
            }
        }
    }
}

#[test]
fn programs_are_read_from_a_manifest() {
    let manifest =
        "[package]\n[[test]]\nname = \"a\"\npath = \"tests/a.rs\"\n[[test]]\npath = \"b\"";
    assert_eq!(listed(manifest), ["tests/a.rs", "b"]);
    assert_eq!(modules("#[path = \"../tests/a.rs\"]\nmod a;\nmod b;\n"), ["tests/a.rs"]);
}
