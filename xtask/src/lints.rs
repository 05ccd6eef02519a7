//! The compiler as CI calls it: what compiles a crate of ours checks it too.
//!
//! `cargo clippy` and `cargo doc` type-check every dependency once more, in a folder of their own,
//! before they look at the first line of ours; on two slow cores that was a tenth of a run. Cargo
//! calls this program in place of the compiler (`RUSTC_WORKSPACE_WRAPPER`) for the crates of the
//! workspace. It compiles with Clippy's driver, checks a crate with features once more without
//! them, since that is what `cargo run` builds, and documents libraries and programs. Whatever any
//! of the three has to say fails the crate, so cargo looks at it again in the next run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result};

use crate::process::{ChildFailed, target_directory};

/// What cargo calls in place of the compiler.
pub(crate) const VARIABLE: &str = "RUSTC_WORKSPACE_WRAPPER";

/// The folder for what nobody reads, and for the documentation.
const FOLDER: &str = "LONGVIEW_LINTS";

/// The variable by which Clippy's driver is told what is in [`CLIPPY`].
pub(crate) const CLIPPY_ARGS: &str = "CLIPPY_ARGS";

/// What Clippy's driver is told.
pub(crate) const CLIPPY: [&str; 2] = ["-D", "warnings"];

/// The words of [`CLIPPY`] as the driver reads them from [`CLIPPY_ARGS`].
pub(crate) fn clippy_args() -> String {
    CLIPPY.map(|arg| format!("{arg}__CLIPPY_HACKERY__")).concat()
}

/// The variables by which cargo, and whatever calls it, compiles through this program. A copy is
/// called: building the workspace replaces the program itself. Clippy's are among them because
/// cargo compiles a crate again whose driver saw others than cargo sees.
pub(crate) fn variables() -> Result<[(&'static str, OsString); 3]> {
    let folder = target_directory()?.join("lints");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let copy = folder.join(format!("checked-rustc{}", env::consts::EXE_SUFFIX));
    let new = folder.join(format!("{}.new", std::process::id()));
    fs::copy(env::current_exe()?, &new).with_context(|| new.display().to_string())?;
    fs::rename(&new, &copy).with_context(|| copy.display().to_string())?;
    Ok([(VARIABLE, copy.into()), (FOLDER, folder.into()), (CLIPPY_ARGS, clippy_args().into())])
}

/// A program of the toolchain in use, which lies beside cargo.
pub(crate) fn of_toolchain(name: &str) -> Option<PathBuf> {
    let name = format!("{name}{}", env::consts::EXE_SUFFIX);
    let program = Path::new(&env::var_os("CARGO")?).with_file_name(name);
    program.exists().then_some(program)
}

/// Whether cargo called: its first word is then the compiler.
pub(crate) fn is_call(args: &[String]) -> bool {
    args.first().is_some_and(|arg| Path::new(arg).file_stem().is_some_and(|name| name == "rustc"))
}

/// Does what the compiler, `args[0]`, would do with the other words, and checks.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (rustc, args) = args.split_first().context("no compiler")?;
    let Some(unit) = Unit::of(args) else {
        return child(Command::new(rustc).args(args));
    };
    let driver = of_toolchain("clippy-driver").context("no clippy-driver beside cargo")?;
    let clippy = |args: &[String]| child(Command::new(&driver).arg(rustc).args(args));
    clippy(&unit.compiled(&env::var("CARGO_PKG_NAME").context("no package")?))?;
    let folder = PathBuf::from(env::var_os(FOLDER).context(FOLDER)?);
    if let Some(plain) = unit.without_features(&folder) {
        clippy(&plain)?;
    }
    if let Some(words) = unit.documented(&folder) {
        let rustdoc = of_toolchain("rustdoc").context("no rustdoc beside cargo")?;
        child(Command::new(rustdoc).args(words))?;
    }
    Ok(())
}

fn child(command: &mut Command) -> Result<()> {
    let line = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if status.success() { Ok(()) } else { Err(ChildFailed { line, code: status.code() }.into()) }
}

/// A call of the compiler, option by option: `--cfg a`, `--cfg=a` and `a.rs` are one each.
struct Unit<'a> {
    options: Vec<(&'a str, Option<&'a str>)>,
}

/// Options whose value is the next word.
const TAKES_VALUE: &[&str] = &[
    "--crate-name",
    "--crate-type",
    "--cfg",
    "--check-cfg",
    "--extern",
    "--out-dir",
    "--print",
    "--cap-lints",
    "--target",
    "-C",
    "-L",
    "-l",
    "-Z",
];

/// What documentation needs to know of a crate as well.
const OF_THE_CRATE: &[&str] = &[
    "--crate-name",
    "--crate-type",
    "--cfg",
    "--check-cfg",
    "--extern",
    "--edition",
    "--error-format",
    "--json",
    "--diagnostic-width",
    "-L",
];

/// Packages that go without debug assertions in the dev profile, and so without the standard
/// library's checks of what unsafe code may do, as inner loops take twice as long with them. Their
/// tests are compiled with both.
const CHECKED: &[&str] = &[
    "longview-core",
    "longview-cpu",
    "longview-model",
    "longview-needles",
    "longview-ops",
    "longview-scheduler",
];

impl<'a> Unit<'a> {
    /// None where cargo asks for something else than a crate.
    fn of(args: &'a [String]) -> Option<Self> {
        let mut options = Vec::new();
        let mut words = args.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word.split_once('=') {
                _ if TAKES_VALUE.contains(&word) => options.push((word, words.next())),
                Some((name, value)) if name.starts_with("--") => options.push((name, Some(value))),
                _ => options.push((word, None)),
            }
        }
        let unit = Self { options };
        let is_crate = unit.value("--crate-name").is_some_and(|name| name != "___");
        (is_crate && unit.value("--emit").is_some()).then_some(unit)
    }

    fn value(&self, name: &str) -> Option<&'a str> {
        self.options.iter().find(|(option, _)| *option == name).and_then(|(_, value)| *value)
    }

    fn is_test(&self) -> bool {
        self.options.iter().any(|(option, _)| *option == "--test")
    }

    /// The words that compile it, a crate of `package`.
    fn compiled(&self, package: &str) -> Vec<String> {
        let mut words = written(&self.options);
        if self.is_test() && CHECKED.contains(&package) {
            words.push("-Cdebug-assertions=on".into());
        }
        words
    }

    /// The words that check it without its features; none where it has none.
    fn without_features(&self, folder: &Path) -> Option<Vec<String>> {
        let is_feature = |option: &&(&str, Option<&str>)| {
            option.0 == "--cfg" && option.1.is_some_and(|cfg| cfg.starts_with("feature="))
        };
        self.options.iter().find(is_feature)?;
        let kept = self.options.iter().filter(|option| !is_feature(option));
        let kept = kept.filter(|(name, _)| !["--emit", "--out-dir"].contains(name));
        let kept: Vec<_> = kept.map(|option| quiet(*option)).collect();
        let mut words = written(&kept);
        words.extend(["--emit=metadata".into(), "--out-dir".into()]);
        words.push(folder.join("without-features").display().to_string());
        Some(words)
    }

    /// The words that document it: a library, or a program with its private items, as cargo does.
    fn documented(&self, folder: &Path) -> Option<Vec<OsString>> {
        let source =
            self.options.iter().map(|(word, _)| *word).find(|word| word.ends_with(".rs"))?;
        let is_program = self.value("--crate-type") == Some("bin");
        let name = self.value("--crate-name")?;
        let is_example = Path::new(source).components().any(|part| part.as_os_str() == "examples");
        if self.is_test() || is_example || name == "build_script_build" {
            return None;
        }
        let kept = self.options.iter().filter(|(option, value)| {
            OF_THE_CRATE.contains(option) || is_level(option, value.unwrap_or_default())
        });
        let kept: Vec<_> = kept.map(|option| quiet(*option)).collect();
        let mut words: Vec<OsString> = written(&kept).into_iter().map(OsString::from).collect();
        words.extend([source.into(), "-Dwarnings".into(), "--out-dir".into()]);
        words.push(folder.join("doc").into_os_string());
        if is_program {
            words.push("--document-private-items".into());
        }
        Some(words)
    }
}

/// Whether an option sets the level of a lint that rustdoc knows: none of Clippy's.
fn is_level(option: &str, lint: &str) -> bool {
    let levels = ["--allow", "--warn", "--deny", "--forbid"];
    levels.contains(&option) && !lint.starts_with("clippy::")
}

/// Without what tells cargo of files: it must hear of the compiled crate's alone.
fn quiet<'a>((name, value): (&'a str, Option<&'a str>)) -> (&'a str, Option<&'a str>) {
    match (name, value) {
        ("--json", Some(value)) if value.contains("artifacts") => {
            ("--json", Some("diagnostic-rendered-ansi"))
        }
        other => other,
    }
}

fn written(options: &[(&str, Option<&str>)]) -> Vec<String> {
    let mut words = Vec::new();
    for (name, value) in options {
        match value {
            Some(value) if TAKES_VALUE.contains(name) => {
                words.extend([*name, *value].map(String::from))
            }
            Some(value) => words.push(format!("{name}={value}")),
            None => words.push((*name).to_owned()),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As cargo calls the compiler for a library with a feature.
    const LIBRARY: &str = "--crate-name a --edition=2024 src/lib.rs --error-format=json \
                           --json=diagnostic-rendered-ansi,artifacts,future-incompat \
                           --crate-type lib --emit=dep-info,metadata,link -C opt-level=2 --deny=unused_must_use \
                           --warn=clippy::all --cfg feature=\"shared\" --check-cfg cfg(loom) \
                           -C metadata=1 --out-dir t/deps -L dependency=t/deps \
                           --extern b=t/deps/libb.rmeta";

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    /// What is documented of a call, if anything is.
    fn documented(line: &str) -> Option<String> {
        let line = words(line);
        let words = Unit::of(&line)?.documented(Path::new("l"))?;
        Some(words.join(" ".as_ref()).to_string_lossy().into_owned())
    }

    #[test]
    fn cargo_is_told_from_a_person_by_the_first_word() {
        assert!(is_call(&words("/toolchain/bin/rustc -vV")));
        assert!(!is_call(&words("ci --only rustdoc")) && !is_call(&[]));
    }

    #[test]
    fn questions_to_the_compiler_are_no_crates() {
        for line in ["-vV", "- --crate-name ___ --print=file-names --crate-type bin --emit=link"] {
            assert!(Unit::of(&words(line)).is_none(), "{line}");
        }
    }

    #[test]
    fn a_crate_is_compiled_as_cargo_says_and_some_tests_with_checks() {
        let compiled = |line: &[String], package| Unit::of(line).unwrap().compiled(package);
        let library = words(LIBRARY);
        let tests = words(&format!("{LIBRARY} --test"));
        assert_eq!(compiled(&library, "longview-cpu"), library);
        assert_eq!(compiled(&tests, "a"), tests);
        let checked = [&tests[..], &["-Cdebug-assertions=on".into()]].concat();
        assert_eq!(compiled(&tests, "longview-cpu"), checked);
    }

    #[test]
    fn what_has_features_is_checked_without_them_where_nobody_looks() {
        let line = words(LIBRARY);
        let plain = Unit::of(&line).unwrap().without_features(Path::new("l")).unwrap().join(" ");
        assert!(!plain.contains("shared") && !plain.contains("artifacts"), "{plain}");
        assert!(!plain.contains("--out-dir t/deps") && !plain.contains("link"), "{plain}");
        assert!(
            plain.contains("--check-cfg cfg(loom)") && plain.contains("opt-level=2"),
            "{plain}"
        );
        assert!(plain.ends_with("--emit=metadata --out-dir l/without-features"), "{plain}");
        let line = words(&LIBRARY.replace("--cfg feature=\"shared\"", ""));
        assert!(Unit::of(&line).unwrap().without_features(Path::new("l")).is_none());
    }

    #[test]
    fn libraries_and_programs_are_documented() {
        let library = documented(LIBRARY).unwrap();
        let expected = "--crate-name a --edition=2024 --error-format=json \
                        --json=diagnostic-rendered-ansi --crate-type lib --deny=unused_must_use \
                        --cfg feature=\"shared\" --check-cfg cfg(loom) -L dependency=t/deps \
                        --extern b=t/deps/libb.rmeta src/lib.rs -Dwarnings --out-dir l/doc";
        assert_eq!(library, expected);
        let program = documented(&LIBRARY.replace("--crate-type lib", "--crate-type bin")).unwrap();
        assert!(program.ends_with(" --document-private-items"), "{program}");
        assert!(documented(&format!("{LIBRARY} --test")).is_none());
        assert!(documented(&LIBRARY.replace("src/lib.rs", "examples/a.rs")).is_none());
        assert!(documented(&LIBRARY.replace("name a", "name build_script_build")).is_none());
    }
}
