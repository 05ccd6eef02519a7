//! Windows on x86-64: built with MinGW, run under Wine.
//!
//! Wine is no Windows: it shows that the program works with paths, locks, open files and consoles
//! as Windows' interfaces have them, and nothing of drivers or of speed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::ctrl_c;
use super::place::{folder, in_folder, program};
use super::report::Report;

use crate::cross::Target;
use crate::demo;
use crate::process::{capture, run as run_child};
use crate::setup::{self, Source, Tool};

const TARGET: Target = Target {
    triple: "x86_64-pc-windows-gnu",
    linker: Some("x86_64-w64-mingw32-gcc"),
    std_parts: "",
};

const TOOLS: &[Tool] = &[
    Tool {
        name: "C compiler for Windows",
        probe: &["x86_64-w64-mingw32-gcc", "--version"],
        source: Source::Packages("gcc-mingw-w64-x86-64"),
    },
    Tool { name: "Wine", probe: &[WINE, "--version"], source: Source::Packages("wine64") },
];

const WINE: &str = "/usr/lib/wine/wine64";

/// Always together: with fewer of them cargo would choose other features, and build all anew.
const PACKAGES: &str = "--package longview-core --package longview-library --package longview-cli";

/// Tests that are run: a name for the report, and which of [`PACKAGES`].
const TESTS: &[(&str, &str)] = &[
    ("core and library, unit tests", "--lib"),
    ("documents and downloads", "--test hub"),
    ("the CLI, unit tests", "--bin longview"),
    ("the CLI: files, sessions, options", "--test program"),
];

pub(super) fn run(report: &mut Report) -> Result<()> {
    setup::require(TARGET.compiler_tools().iter().chain(TOOLS))?;
    if !report.check("longview and its tests, built", build) {
        return Ok(());
    }
    if !report.check("Wine's Windows, made", make_windows) {
        return Ok(());
    }
    for (name, which) in TESTS {
        report.check(name, || tests(which));
    }
    report.check("Ctrl-C in a prefill", || ctrl_c::ends_a_prefill(&longview()?));
    report.check("Ctrl-C keeps what was read", || ctrl_c::keeps_what_was_read(&longview()?));
    report.check("demo at 1,024 tokens", || demo::short_check_with(&longview()?));
    Ok(())
}

/// What starts the program.
fn longview() -> Result<impl Fn() -> Command> {
    let (longview, folder) = (program(TARGET.triple, "longview.exe")?, wine_folder()?);
    Ok(move || {
        let mut command = Command::new(WINE);
        command.arg(&longview).envs(variables(&folder));
        command
    })
}

fn build() -> Result<String> {
    let which: Vec<_> = TESTS.iter().map(|(_, which)| *which).collect();
    let args = format!("test --no-run {PACKAGES} {}", which.join(" "));
    run_child(&mut in_folder(TARGET.cargo(&args)?)?)?;
    let how = if TARGET.is_of_rustup() { "rustup's target" } else { "std from source" };
    Ok(format!("{}, {how}", TARGET.triple))
}

fn tests(which: &str) -> Result<String> {
    let mut command = in_folder(TARGET.cargo(&format!("test {PACKAGES} {which}"))?)?;
    command.env(TARGET.variable("RUNNER"), WINE).envs(variables(&wine_folder()?));
    let text = capture(&mut command)?;
    print!("{text}");
    Ok(format!("{} tests", passed(&text)?))
}

/// How many tests passed in all programs that ran; none is a failure.
fn passed(text: &str) -> Result<usize> {
    let results = text.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    let counts = results.filter_map(|line| line.split(" passed").next()?.parse::<usize>().ok());
    match counts.sum() {
        0 => bail!("no test was run"),
        passed => Ok(passed),
    }
}

/// A Windows of its own, so that nothing of the user's is changed.
fn wine_folder() -> Result<String> {
    let folder = folder()?.join("wine");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    folder.into_os_string().into_string().ok().context("the target folder's name is not UTF-8")
}

/// Random numbers as the standard library asks for them. Wine 8, which Debian 12 has, lacks this
/// one library, and a program that names it does not start.
const RANDOM: &str = "#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T n) {
    return SystemFunction036(data, (ULONG) n);
}
";

/// Starts Wine once, which makes its Windows, and adds what an old Wine lacks.
fn make_windows() -> Result<String> {
    let folder = wine_folder()?;
    run_child(Command::new(WINE).args(["wineboot", "-i"]).envs(variables(&folder)))?;
    let library = Path::new(&folder).join("drive_c/windows/system32/bcryptprimitives.dll");
    if library.exists() {
        return Ok("Wine".to_owned());
    }
    let source = Path::new(&folder).join("bcryptprimitives.c");
    fs::write(&source, RANDOM).with_context(|| source.display().to_string())?;
    let mut compiler = Command::new("x86_64-w64-mingw32-gcc");
    run_child(compiler.args(["-shared", "-o"]).arg(&library).arg(&source).arg("-ladvapi32"))?;
    Ok("Wine, with a bcryptprimitives.dll of our own".to_owned())
}

/// Where Wine keeps its Windows, without its own messages and what it would ask to download.
fn variables(folder: &str) -> [(&'static str, &str); 3] {
    [("WINEPREFIX", folder), ("WINEDEBUG", "-all"), ("WINEDLLOVERRIDES", "mscoree,mshtml=")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_all_programs_are_counted() {
        let text = "test result: ok. 12 passed; 0 failed\n\ntest result: ok. 5 passed; 0 failed\n";
        assert_eq!(passed(text).unwrap(), 17);
        assert!(passed("test result: ok. 0 passed; 0 failed\n").is_err());
    }
}
