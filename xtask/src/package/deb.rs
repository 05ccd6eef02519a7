//! The Debian package: what it needs of a system, and its archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::files::{PROGRAMS, VERSION, commit_time, write};
use crate::process::{capture, run as run_child};
use crate::setup::{Source, Tool};

pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "dpkg-shlibdeps",
        probe: &["dpkg-shlibdeps", "--version"],
        source: Source::Packages("dpkg-dev"),
    },
    Tool { name: "strip", probe: &["strip", "--version"], source: Source::Packages("binutils") },
    Tool {
        name: "rsvg-convert",
        probe: &["rsvg-convert", "--version"],
        source: Source::Packages("librsvg2-bin"),
    },
    Tool { name: "lintian", probe: &["lintian", "--version"], source: Source::Packages("lintian") },
];

/// Libraries that the app opens at run time, so that no tool finds them in the programs: the screen
/// (X11 and Wayland), keys, fonts, and what computes and draws.
pub(super) const OPENED: &[&str] = &[
    "libegl1",
    "libfontconfig1",
    "libvulkan1",
    "libwayland-client0",
    "libx11-6",
    "libx11-xcb1",
    "libxcb1",
    "libxcursor1",
    "libxi6",
    "libxkbcommon0",
    "libxkbcommon-x11-0",
    "mesa-vulkan-drivers | vulkan-icd",
];

/// What a person may want beside it: dialogs to choose files, and characters of East Asia.
const RECOMMENDED: &str = "xdg-desktop-portal-gtk | xdg-desktop-portal-backend, fonts-noto-cjk";

/// What lintian says that is meant to be so, each with the reason.
const MEANT: &[(&str, &str)] = &[
    ("initial-upload-closes-no-bugs", "the package is not uploaded to Debian"),
    ("bogus-mail-host", "the project has no mail address"),
    ("bogus-mail-host-in-debian-changelog", "the project has no mail address"),
];

/// The maintainer that a package must name.
const MAINTAINER: &str = "The Longview authors <longview@example.invalid>";

/// Builds the package from `tree` into `folder`.
pub(super) fn build(folder: &Path, tree: &Path) -> Result<PathBuf> {
    let seconds = commit_time()?;
    let machine = capture(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned();
    let mut date = Command::new("date");
    let date = capture(date.args(["--utc", "-R", "-d", &format!("@{seconds}")]))?;
    let changes = tree.join("usr/share/doc/longview/changelog.Debian");
    write(&changes, &changelog(date.trim()))?;
    run_child(Command::new("gzip").args(["-9", "--no-name"]).arg(&changes))?;
    let libraries = libraries(folder, tree)?;
    let text = control(&machine, size_in_kib(tree)?, &libraries);
    let debian = tree.join("DEBIAN");
    write(&debian.join("control"), &text)?;
    let mut sums = Command::new("sh");
    sums.args(["-c", "find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum"]);
    write(&debian.join("md5sums"), &capture(sums.current_dir(tree))?)?;
    run_child(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(tree))?;
    let file = folder.join(format!("longview_{VERSION}-1_{machine}.deb"));
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "--build"]).arg(tree).arg(&file);
    run_child(pack.env("SOURCE_DATE_EPOCH", seconds))?;
    lint(&file)?;
    Ok(file)
}

/// Fails on every warning that is not meant.
fn lint(file: &Path) -> Result<()> {
    let names: Vec<_> = MEANT.iter().map(|(name, _)| *name).collect();
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--suppress-tags"]);
    run_child(lintian.arg(names.join(",")).arg(file))
}

/// What the programs are linked to, as the `Depends` of a package.
fn libraries(folder: &Path, tree: &Path) -> Result<String> {
    // The tool reads a source package; ours is as good as empty.
    let work = folder.join("shlibdeps");
    write(
        &work.join("debian/control"),
        "Source: longview\n\nPackage: longview\nArchitecture: any\n",
    )?;
    let mut tool = Command::new("dpkg-shlibdeps");
    tool.arg("-O").args(PROGRAMS.map(|program| tree.join("usr/bin").join(program)));
    let text = capture(tool.current_dir(&work))?;
    fs::remove_dir_all(&work)?;
    let found = text.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    found.map(String::from).with_context(|| format!("dpkg-shlibdeps says no libraries: {text}"))
}

fn size_in_kib(tree: &Path) -> Result<u64> {
    let text = capture(Command::new("du").args(["-sk", "--apparent-size"]).arg(tree.join("usr")))?;
    let number = text.split_whitespace().next().and_then(|word| word.parse().ok());
    number.with_context(|| format!("du says no size: {text}"))
}

fn control(machine: &str, kib: u64, libraries: &str) -> String {
    format!(
        "Package: longview\n\
         Version: {VERSION}-1\n\
         Section: text\n\
         Priority: optional\n\
         Architecture: {machine}\n\
         Maintainer: {MAINTAINER}\n\
         Installed-Size: {kib}\n\
         Depends: {libraries}, {}\n\
         Recommends: {RECOMMENDED}\n\
         Description: ask very long documents questions on a small device\n \
         Longview runs language models over documents whose keys and values do not\n \
         fit the device that computes. They stay in host memory; each step recalls\n \
         the few tokens that matter to it and attends to them exactly.\n \
         .\n \
         The package has the desktop app and the command line. A small model that\n \
         finds numbers is inside; other models are folders or GGUF files.\n",
        OPENED.join(", ")
    )
}

fn changelog(date: &str) -> String {
    format!(
        "longview ({VERSION}-1) unstable; urgency=medium\n\n  * Version {VERSION}: see \
         changelog.gz beside this file.\n\n -- {MAINTAINER}  {date}\n"
    )
}

/// The name of each package that [`OPENED`] asks for, the first where there is a choice.
pub(super) fn opened() -> impl Iterator<Item = &'static str> {
    OPENED.iter().filter_map(|choice| choice.split(" | ").next())
}

/// The name of Debian's release here, which a new system of the same is made of.
pub(super) fn release() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let debian = text.lines().any(|line| line == "ID=debian");
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    match name {
        Some(name) if debian => Ok(name.to_owned()),
        _ => bail!("the package is tried in a new Debian, which is made on a Debian"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::root;

    #[test]
    fn control_is_in_the_form_that_dpkg_reads() {
        let text = control("amd64", 12, "libc6 (>= 2.34)");
        for line in text.lines() {
            let is_field = line.split_once(": ").is_some_and(|(name, _)| !name.contains(' '));
            assert!(is_field || line.starts_with(' ') && line.len() > 1, "{line:?}");
            assert!(line.starts_with("Depends") || line.len() <= 80, "{line:?}");
        }
        assert!(text.contains("Depends: libc6 (>= 2.34), libegl1, "), "{text}");
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn the_pages_of_the_manual_say_this_version() {
        for program in PROGRAMS {
            let file = root().join(format!("crates/desktop/package/{program}.1"));
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.contains(&format!("\"Longview {VERSION}\"")), "{}", file.display());
        }
    }

    #[test]
    fn the_first_of_a_choice_is_installed() {
        assert!(opened().all(|name| !name.contains([' ', '|'])));
        assert!(opened().any(|name| name == "mesa-vulkan-drivers"));
    }
}
