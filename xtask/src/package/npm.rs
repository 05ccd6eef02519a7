//! Licences of the npm packages inside the pages: visitors get the demo with its list beside it,
//! and a package of the programs, which have the server's page in them, has it among its licences.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::root;

/// Written by `cargo xtask web --page`, and committed: packages are made where there is no Node.
fn path() -> PathBuf {
    root().join("web/public/licences.txt")
}

/// A package of npm that the pages are made of.
#[derive(Debug, PartialEq, Eq)]
struct Package {
    name: String,
    version: String,
    licence: String,
}

impl Package {
    fn line(&self) -> String {
        format!("{} {}: {}", self.name, self.version, self.licence)
    }
}

/// The committed list.
pub(super) fn list() -> Result<String> {
    fs::read_to_string(path()).with_context(|| path().display().to_string())
}

/// Fails where a package is under a licence that is not allowed, or is not in the list.
pub(super) fn check(is_allowed: impl Fn(&str) -> bool) -> Result<()> {
    let lock = root().join("web/package-lock.json");
    let lock = fs::read_to_string(&lock).with_context(|| lock.display().to_string())?;
    let (packages, list) = (packages(&lock)?, list()?);
    let problems = problems(&packages, &list, is_allowed);
    if problems.is_empty() {
        println!("licences of {} npm packages in the pages: all allowed", packages.len());
        return Ok(());
    }
    bail!("licences of the pages:\n{}", problems.join("\n"))
}

/// Writes the list anew, from what is installed.
pub(crate) fn write(web: &Path) -> Result<()> {
    let text = made(web)?;
    if list().is_ok_and(|committed| committed == text) {
        return Ok(());
    }
    fs::write(path(), text).with_context(|| path().display().to_string())?;
    println!("written: {}", path().display());
    Ok(())
}

/// Fails where the committed list is not what is installed.
pub(crate) fn compare(web: &Path) -> Result<()> {
    if list()? != made(web)? {
        bail!("{}: is not what is installed; run `cargo xtask web --page`", path().display());
    }
    Ok(())
}

/// What is wrong, a line each.
fn problems(packages: &[Package], list: &str, is_allowed: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for package in packages {
        let line = package.line();
        if !is_allowed(&package.licence) {
            found.push(format!("  {line}: not allowed (xtask/src/package/licences.rs)"));
        }
        if !list.lines().any(|listed| listed == line) {
            found.push(format!("  {line}: not in the list; run `cargo xtask web --page`"));
        }
    }
    found
}

/// Packages that a lock file has for what is built, not for building and testing alone. Those with
/// types alone leave nothing in a page.
fn packages(lock: &str) -> Result<Vec<Package>> {
    let lock: Value = serde_json::from_str(lock).context("web/package-lock.json")?;
    let entries = lock["packages"].as_object().context("web/package-lock.json: no packages")?;
    let is_inside = |path: &str, entry: &Value| {
        let is_for_building = entry["dev"] == true || entry["devOptional"] == true;
        !path.is_empty() && !path.contains("@types/") && !is_for_building
    };
    let inside = entries.iter().filter(|(path, entry)| is_inside(path, entry));
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let mut packages: Vec<_> = inside
        .map(|(path, entry)| Package {
            name: path.rsplit("node_modules/").next().unwrap_or_default().to_owned(),
            version: text(entry, "version"),
            licence: text(entry, "license"),
        })
        .collect();
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(packages)
}

/// Packages with their licences, and then each text once.
fn made(web: &Path) -> Result<String> {
    let lock = web.join("package-lock.json");
    let lock = fs::read_to_string(&lock).with_context(|| lock.display().to_string())?;
    let packages = packages(&lock)?;
    let mut text = format!(
        "The pages of Longview are built of {} packages of npm, in this order; behind them stand the\n\
         texts of their licences.\n\n",
        packages.len()
    );
    let mut texts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for package in &packages {
        text += &format!("{}\n", package.line());
        let licence = text_of(&web.join("node_modules").join(&package.name))?;
        texts.entry(licence).or_default().push(&package.name);
    }
    for (licence, of) in &texts {
        text += &format!("\n{}\n{}\n\n{licence}\n", "=".repeat(80), of.join("\n"));
    }
    Ok(text)
}

/// The licence that a package ships.
fn text_of(folder: &Path) -> Result<String> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if name.starts_with("licen") {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            // Lines end in one way, whatever system they were written on.
            return Ok(text.replace("\r\n", "\n").trim().to_owned());
        }
    }
    bail!("{}: no licence", folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = r#"{ "packages": {
        "": { "name": "longview-web" },
        "node_modules/a": { "version": "1.0.0", "license": "MIT" },
        "node_modules/@s/b": { "version": "2.0.0", "license": "GPL-3.0-only" },
        "node_modules/@types/c": { "version": "3.0.0", "license": "MIT" },
        "node_modules/d": { "version": "4.0.0", "license": "MIT", "dev": true } } }"#;

    #[test]
    fn packages_of_the_pages_are_those_that_do_not_only_build_them() {
        let lines: Vec<_> = packages(LOCK).unwrap().iter().map(Package::line).collect();
        assert_eq!(lines, ["@s/b 2.0.0: GPL-3.0-only", "a 1.0.0: MIT"]);
        assert!(packages("{}").is_err());
    }

    #[test]
    fn a_licence_is_allowed_and_listed_or_named() {
        let packages = packages(LOCK).unwrap();
        let is_mit = |licence: &str| licence == "MIT";
        let told = problems(&packages, "a 1.0.1: MIT\n@s/b 2.0.0: GPL-3.0-only\n", is_mit);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("@s/b 2.0.0: GPL-3.0-only: not allowed"), "{told:?}");
        assert!(told[1].contains("a 1.0.0: MIT: not in the list"), "{told:?}");
        assert!(problems(&packages[1..], "a 1.0.0: MIT", is_mit).is_empty());
    }
}
