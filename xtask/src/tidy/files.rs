//! The files that belong to the repository, and what they are.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::scan::is_test_cfg;

/// Folders that are never part of the repository; only asked where git does not answer.
const FOREIGN: &[&str] = &["target", ".git", ".venv", "__pycache__", "node_modules"];

/// What a file is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rust,
    /// WGSL: functions look as in Rust.
    Shader,
    /// CUDA, and C++ beside it: comments look as in Rust.
    Cpp,
    /// Hand-written code of another language.
    OtherCode,
    /// CSS.
    Style,
    Manifest,
    Markdown,
    /// Data, configuration, licences.
    Other,
}

impl Kind {
    pub(crate) const ALL: &[Kind] = &[
        Kind::Rust,
        Kind::Shader,
        Kind::Cpp,
        Kind::OtherCode,
        Kind::Style,
        Kind::Manifest,
        Kind::Markdown,
        Kind::Other,
    ];
}

/// A text file.
pub(crate) struct File {
    /// From the root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Test code as a whole: a test, an example, a bench, or a module under `#[cfg(test)]`.
    pub(crate) is_test: bool,
}

impl File {
    pub(crate) fn kind(&self) -> Kind {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
            "rs" => Kind::Rust,
            "wgsl" => Kind::Shader,
            "cu" | "cuh" | "hpp" | "cpp" => Kind::Cpp,
            "ts" | "js" | "py" | "sh" => Kind::OtherCode,
            "css" => Kind::Style,
            "toml" if name == "Cargo.toml" => Kind::Manifest,
            "md" => Kind::Markdown,
            _ => Kind::Other,
        }
    }

    /// `path:line: message`, the line counted from 0.
    pub(crate) fn problem(&self, line: usize, message: &str) -> String {
        format!("{}:{}: {message}", self.path, line + 1)
    }
}

/// A file that is only text, for the rules' own tests.
#[cfg(test)]
pub(crate) fn snippet(path: &str, text: &str) -> File {
    File { path: path.into(), text: text.into(), is_test: is_test_path(path) }
}

/// All text files of a checkout.
pub(crate) struct Repo {
    /// Where the checkout lies; empty where files are only text.
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<File>,
}

impl Repo {
    /// What git tracks or would track below `root`; all that lies there where git does not answer.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let root = root.canonicalize().with_context(|| format!("{}", root.display()))?;
        let paths = git_files(&root).unwrap_or_else(|| {
            let mut paths = Vec::new();
            walk(&root, "", &mut paths);
            paths
        });
        let files = paths.into_iter().filter_map(|path| read(&root, path)).collect();
        Ok(Self { root, ..Self::of(files) })
    }

    /// From paths and texts; finds out which modules are test code.
    pub(crate) fn of(mut files: Vec<File>) -> Self {
        let tests: Vec<_> = files.iter().flat_map(test_modules).collect();
        for file in &mut files {
            file.is_test |= tests.iter().any(|path| is_module_at(&file.path, path));
        }
        Self { root: PathBuf::new(), files }
    }

    /// The packages of the workspace: the name, and the folder with a slash at its end.
    pub(crate) fn packages(&self) -> impl Iterator<Item = (&str, &str)> {
        let manifests = self.files.iter().filter(|file| file.kind() == Kind::Manifest);
        manifests.filter_map(|file| {
            Some((package_name(&file.text)?, file.path.strip_suffix("Cargo.toml")?))
        })
    }

    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// The name in a manifest; `None` for one of a workspace alone.
pub(crate) fn package_name(manifest: &str) -> Option<&str> {
    let package = manifest.split("[package]").nth(1)?;
    let name = package.lines().find_map(|line| line.strip_prefix("name = \""))?;
    name.strip_suffix('"')
}

/// Whole folders of test code, whatever the crate.
fn is_test_path(path: &str) -> bool {
    let folders = ["tests/", "examples/", "benches/"];
    folders.iter().any(|folder| path.starts_with(folder) || path.contains(&format!("/{folder}")))
}

/// Paths without extension of the modules that `file` declares under `#[cfg(test)]`.
fn test_modules(file: &File) -> Vec<String> {
    let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let Some(stem) = name.strip_suffix(".rs") else { return vec![] };
    let folder = match stem {
        "lib" | "main" | "mod" => folder.to_owned(),
        _ => format!("{folder}/{stem}"),
    };
    let lines: Vec<_> = file.text.lines().map(str::trim).collect();
    let pairs = lines.windows(2).filter(|pair| is_test_cfg(pair[0]));
    let names = pairs.filter_map(|pair| {
        let name = pair[1].strip_suffix(';')?.rsplit_once("mod ")?.1;
        Some(format!("{folder}/{name}"))
    });
    names.collect()
}

/// Whether `path` is the module at `stem`, or below it.
fn is_module_at(path: &str, stem: &str) -> bool {
    path.strip_prefix(stem).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

fn read(root: &Path, path: String) -> Option<File> {
    // Weights and other binary files are nobody's handwriting.
    let text = String::from_utf8(std::fs::read(root.join(&path)).ok()?).ok()?;
    Some(File { is_test: is_test_path(&path), path, text })
}

/// What git tracks or would track; `None` outside a checkout.
fn git_files(root: &Path) -> Option<Vec<String>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
    let list = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    let mut paths: Vec<_> = list.split('\0').filter(|p| !p.is_empty()).map(String::from).collect();
    paths.sort();
    paths.dedup();
    Some(paths)
}

fn walk(folder: &Path, prefix: &str, paths: &mut Vec<String>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut entries: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    entries.sort();
    for entry in entries {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !entry.is_dir() {
            paths.push(format!("{prefix}{name}"));
        } else if !FOREIGN.contains(&name.as_str()) {
            walk(&entry, &format!("{prefix}{name}/"), paths);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::root;

    #[test]
    fn kinds_go_by_the_name() {
        let kind = |path| snippet(path, "").kind();
        assert_eq!(kind("crates/cpu/src/lib.rs"), Kind::Rust);
        assert_eq!(kind("shaders/rope.wgsl"), Kind::Shader);
        assert_eq!(kind("kernels/rope.cu"), Kind::Cpp);
        assert_eq!(kind("shaders/shared/row.wgsl"), Kind::Shader);
        assert_eq!(kind("web/src/main.ts"), Kind::OtherCode);
        assert_eq!(kind("web/src/style.css"), Kind::Style);
        assert_eq!(kind("tests/Cargo.toml"), Kind::Manifest);
        assert_eq!(kind("rustfmt.toml"), Kind::Other);
        assert_eq!(kind("LICENSE-MIT"), Kind::Other);
    }

    #[test]
    fn test_code_is_known_by_its_folder_or_its_declaration() {
        let repo = Repo::of(vec![
            snippet("crates/a/src/lib.rs", "#[cfg(test)]\npub(crate) mod testing;\nmod b;"),
            snippet("crates/a/src/testing.rs", ""),
            snippet("crates/a/src/b.rs", "#[cfg(all(test, unix))]\nmod tests;"),
            snippet("crates/a/src/b/tests.rs", ""),
            snippet("crates/a/src/b/tests_of_war.rs", ""),
            snippet("crates/a/tests/all.rs", ""),
            snippet("tests/src/lib.rs", ""),
        ]);
        let tests = repo.files.iter().filter(|file| file.is_test).map(|file| file.path.as_str());
        let expected = [
            "crates/a/src/testing.rs",
            "crates/a/src/b/tests.rs",
            "crates/a/tests/all.rs",
            "tests/src/lib.rs",
        ];
        assert_eq!(tests.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_walk_finds_what_git_finds() {
        let mut walked = Vec::new();
        walk(&root().join("xtask/src/tidy"), "xtask/src/tidy/", &mut walked);
        assert!(walked.contains(&"xtask/src/tidy/files.rs".to_owned()), "{walked:?}");
        if let Some(listed) = git_files(root()) {
            assert!(walked.iter().all(|path| listed.contains(path)), "{walked:?}");
        }
    }

    #[test]
    fn the_repository_is_found() {
        let repo = Repo::read(root()).unwrap();
        assert!(repo.files.len() > 50, "{} files", repo.files.len());
        assert!(repo.file("Cargo.toml").is_some_and(|file| file.text.contains("[workspace]")));
        assert!(repo.file("xtask/src/tidy/files.rs").is_some());
        assert!(repo.packages().any(|package| package == ("xtask", "xtask/")));
        assert!(Repo::read(&root().join("no such folder")).is_err());
    }
}
