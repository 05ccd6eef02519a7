//! Licences of the crates that Longview is built of: which ones may be there, and the list that
//! goes into a package, with the text of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use spdx::{Expression, ParseMode};

use super::npm;
use crate::process::{capture, cargo, root};

/// What a crate may be under, where it offers one of these. Each asks for no more than its text and
/// the names of its authors in what is given away, which [`list`] writes down.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-3-Clause",
    "BSL-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "NCSA",
    // Fonts inside the app: they may be given away with a program, and not sold alone.
    "OFL-1.1",
    "Ubuntu-font-1.0",
    "Unicode-3.0",
    "Zlib",
];

/// Crates under another licence, each with the reason why it may be there all the same.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "option-ext",
        "MPL-2.0",
        "60 lines below `directories`. Its licence covers its own files alone and asks to say where \
         their source is, as the list does; Longview does not change them.",
    ),
    ("colored", "MPL-2.0", "Below the comparison of pictures in tests; no package holds it."),
];

/// How names of files begin that state a licence, in lower case.
const STATES_A_LICENCE: &[&str] =
    &["licen", "copying", "copyright", "notice", "unlicense", "ofl", "ufl"];

/// Folders of a crate that its library is not made of.
const NOT_BUILT: &[&str] = &["tests", "benches", "examples", "testdata"];

/// A crate of others.
struct Crate {
    name: String,
    version: String,
    licence: String,
    authors: Vec<String>,
    source: String,
    folder: PathBuf,
}

impl Crate {
    /// From what `cargo metadata` says of a package.
    fn of(package: &Value) -> Result<Self> {
        let text = |field: &str| package[field].as_str().unwrap_or_default().to_owned();
        let (name, version) = (text("name"), text("version"));
        let manifest = PathBuf::from(text("manifest_path"));
        let folder = manifest.parent().with_context(|| format!("{name}: no folder"))?.to_owned();
        let authors = package["authors"].as_array().into_iter().flatten();
        let authors = authors.filter_map(Value::as_str).map(String::from).collect();
        let repository = text("repository");
        let source = if repository.is_empty() {
            format!("https://crates.io/crates/{name}/{version}")
        } else {
            repository
        };
        Ok(Self { licence: text("license"), name, version, authors, source, folder })
    }

    fn expression(&self) -> Result<Expression> {
        let about = || format!("{} {}: licence '{}'", self.name, self.version, self.licence);
        // `MIT/Apache-2.0` is the older form of `MIT OR Apache-2.0`.
        Expression::parse_mode(&self.licence, ParseMode::LAX).with_context(about)
    }
}

/// Fails where a crate of the workspace, for any system, tests included, is under a licence that is
/// not allowed, and where something is allowed that no crate needs.
pub(crate) fn check() -> Result<()> {
    let crates = crates()?;
    let problems = problems(&crates, ALLOWED, EXCEPTIONS)?;
    if problems.is_empty() {
        println!("licences of {} crates: all allowed", crates.len());
        return npm::check(is_allowed);
    }
    bail!("licences (xtask/src/package/licences.rs has the list):\n{}", problems.join("\n"))
}

/// Whether what is under this licence may be there.
fn is_allowed(licence: &str) -> bool {
    Expression::parse_mode(licence, ParseMode::LAX).is_ok_and(|expression| {
        expression.evaluate(|wanted| ALLOWED.contains(&wanted.to_string().as_str()))
    })
}

/// What is wrong with licences, a line each.
fn problems(
    crates: &[Crate],
    allowed: &[&str],
    exceptions: &[(&str, &str, &str)],
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut needed: BTreeSet<&str> = BTreeSet::new();
    for one in crates {
        let expression = one.expression()?;
        let passes = |left_out: &str| {
            expression.evaluate(|wanted| {
                let wanted = wanted.to_string();
                allowed.iter().any(|name| *name == wanted && *name != left_out)
            })
        };
        let excepted = exceptions.iter().any(|(name, licence, _)| {
            *name == one.name && expression.evaluate(|wanted| wanted.to_string() == *licence)
        });
        if !passes("") && !excepted {
            found.push(format!(
                "  {} {} is under {}, which is not allowed: use another crate, or allow it with a \
                 reason",
                one.name, one.version, one.licence
            ));
        }
        needed.extend(allowed.iter().filter(|name| passes("") && !passes(name)));
    }
    let stale = allowed.iter().filter(|name| !needed.contains(*name));
    found.extend(stale.map(|name| format!("  {name} is allowed, and no crate needs it")));
    for (name, ..) in exceptions {
        if !crates.iter().any(|one| one.name == *name) {
            found.push(format!("  {name} is excepted, and is not there"));
        }
    }
    Ok(found)
}

/// The crates of others in the lock file, for all systems.
fn crates() -> Result<Vec<Crate>> {
    let text = capture(&mut cargo("metadata --format-version 1 --locked"))?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    // Those of this workspace have no source.
    packages.iter().filter(|package| package["source"].is_string()).map(Crate::of).collect()
}

/// The list of what is inside the programs that `tree` (words for `cargo tree`) names: each crate
/// with its licence, authors and source, and then each text once.
pub(crate) fn list(tree: &str) -> Result<String> {
    let words = format!("tree --edges normal,no-proc-macro --prefix none --locked {tree}");
    let tree = capture(cargo(&words).args(["--format", "{p}"]))?;
    let inside: BTreeSet<_> = tree.lines().filter_map(name_and_version).collect();
    let mut crates = crates()?;
    crates.retain(|one| inside.contains(&(one.name.as_str(), one.version.as_str())));
    crates.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    if crates.is_empty() {
        bail!("`cargo {words}` names no crate");
    }
    let mut text = format!(
        "Longview is under MIT or Apache-2.0, as you like. Its programs hold {} crates of others,\n\
         in this order; behind them stand the texts of all licences. Where a crate offers\n\
         several licences, Longview takes one that asks for its text alone. The source of a crate\n\
         under MPL-2.0, which Longview uses as it is, is where its line says.\n\n",
        crates.len()
    );
    let mut texts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for one in &crates {
        text += &format!("{} {}: {}, {}", one.name, one.version, one.licence, one.source);
        if !one.authors.is_empty() {
            text += &format!(", by {}", one.authors.join(", "));
        }
        text.push('\n');
        for licence in texts_of(one)? {
            texts.entry(licence).or_default().push(&one.name);
        }
    }
    for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let licence = fs::read_to_string(root().join(file)).context(file)?;
        texts.entry(licence.trim().to_owned()).or_default().push("longview");
    }
    for (licence, of) in &texts {
        text += &format!("\n{}\n{}\n\n{licence}\n", "=".repeat(80), of.join(", "));
    }
    // The page is in the program.
    text += &format!("\n{}\n{}", "=".repeat(80), npm::list()?);
    Ok(text)
}

/// `serde 1.0.228` of `serde v1.0.228 (proc-macro)`.
fn name_and_version(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    Some((words.next()?, words.next()?.strip_prefix('v')?))
}

/// The licences that a crate ships; where it ships none, the general texts of what it names.
fn texts_of(one: &Crate) -> Result<Vec<String>> {
    let mut files = Vec::new();
    find(&one.folder, &mut files)?;
    files.sort();
    let read = |path: &PathBuf| Ok(String::from_utf8_lossy(&fs::read(path)?).trim().to_owned());
    let mut texts: Vec<String> = files.iter().map(read).collect::<Result<_>>()?;
    if texts.is_empty() {
        for wanted in one.expression()?.requirements() {
            if let Some(id) = wanted.req.license.id() {
                texts.push(id.text().trim().to_owned());
            }
        }
    }
    if texts.is_empty() {
        bail!("{} {}: no text of '{}' is known", one.name, one.version, one.licence);
    }
    Ok(texts)
}

/// Files below `folder` that state a licence.
fn find(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if path.is_dir() {
            if !NOT_BUILT.contains(&name.as_str()) {
                find(&path, found)?;
            }
        } else if STATES_A_LICENCE.iter().any(|start| name.starts_with(start))
            && !name.ends_with(".rs")
        {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(name: &str, licence: &str) -> Crate {
        Crate {
            name: name.into(),
            version: "1.0.0".into(),
            licence: licence.into(),
            authors: vec![],
            source: String::new(),
            folder: PathBuf::new(),
        }
    }

    #[test]
    fn a_choice_passes_and_a_condition_does_not() {
        let told = |licence: &str| problems(&[under("a", licence)], &["MIT"], &[]).unwrap().len();
        for good in ["MIT", "MIT OR GPL-3.0-only", "Apache-2.0/MIT", "(MIT OR ISC)"] {
            assert_eq!(told(good), 0, "{good}");
        }
        // The licence, and the MIT licence that nothing needs any more.
        for bad in ["GPL-3.0-only", "MIT AND ISC", "ISC OR Zlib"] {
            assert_eq!(told(bad), 2, "{bad}");
        }
        assert!(problems(&[under("a", "")], &["MIT"], &[]).is_err());
        assert!(problems(&[under("a", "none of your business")], &["MIT"], &[]).is_err());
    }

    #[test]
    fn an_exception_holds_for_its_crate_and_its_licence() {
        let exceptions = [("a", "MPL-2.0", "as it is")];
        let told = |name: &str, licence: &str| {
            let crates = [under(name, licence), under("m", "MIT")];
            problems(&crates, &["MIT"], &exceptions).unwrap()
        };
        assert!(told("a", "MPL-2.0").is_empty());
        assert_eq!(told("a", "GPL-3.0-only").len(), 1);
        // The crate that is under it, and the exception that is for nobody.
        assert_eq!(told("b", "MPL-2.0").len(), 2, "{:?}", told("b", "MPL-2.0"));
    }

    #[test]
    fn what_no_crate_needs_is_named() {
        let crates = [under("a", "MIT OR ISC"), under("b", "MIT")];
        let told = problems(&crates, &["MIT", "ISC"], &[]).unwrap();
        assert_eq!(told, ["  ISC is allowed, and no crate needs it"]);
    }

    #[test]
    fn lines_of_the_tree_are_read() {
        let told = ["serde v1.0.1 (proc-macro)", "a v2.0.0+x (*)", "", "longview-cli"];
        let read: Vec<_> = told.iter().filter_map(|line| name_and_version(line)).collect();
        assert_eq!(read, [("serde", "1.0.1"), ("a", "2.0.0+x")]);
    }

    #[test]
    fn a_crate_without_a_licence_file_has_the_general_text() {
        let folder = std::env::temp_dir().join(format!("longview-licence-{}", std::process::id()));
        fs::create_dir_all(folder.join("tests")).unwrap();
        fs::write(folder.join("tests/LICENSE"), "of a picture").unwrap();
        let one = Crate { folder: folder.clone(), ..under("a", "MIT") };
        let texts = texts_of(&one).unwrap();
        assert!(texts.len() == 1 && texts[0].contains("Permission is hereby granted"), "{texts:?}");
        fs::write(folder.join("License.txt"), " its own \n").unwrap();
        assert_eq!(texts_of(&one).unwrap(), ["its own"]);
        fs::remove_dir_all(folder).unwrap();
    }
}
