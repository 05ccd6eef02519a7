//! The package in a new Debian: installed, started, and removed without a trace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::deb;
use crate::process::{capture, root, run as run_child};
use crate::setup::{Source, Tool};

/// What this way needs beside what makes the package.
pub(super) const TOOLS: &[Tool] = &[Tool {
    name: "mmdebstrap",
    probe: &["mmdebstrap", "--version"],
    source: Source::Packages("mmdebstrap"),
}];

/// Packages of the new system that the package does not ask for: a screen that nobody sees, and
/// what keeps lists of desktop entries, types and icons, to which the package adds.
const BESIDE: &[&str] = &[
    "desktop-file-utils",
    "gtk-update-icon-cache",
    "hicolor-icon-theme",
    "shared-mime-info",
    "xvfb",
];

/// What is done inside.
const SCRIPT: &str = include_str!("prove.sh");

/// Makes a new Debian below `folder` with what `package` depends on, and runs the script in it.
pub(super) fn run(folder: &Path, package: &Path) -> Result<()> {
    if capture(Command::new("id").arg("-u"))?.trim() != "0" {
        bail!("only root can make a new Debian: `sudo cargo xtask package --test`");
    }
    let system = folder.join("system");
    let wanted: Vec<_> = deb::opened().chain(BESIDE.iter().copied()).collect();
    let mut make = Command::new("mmdebstrap");
    make.arg("--variant=minbase").arg(format!("--include={}", wanted.join(",")));
    run_child(make.arg(deb::release()?).arg(&system).arg(sources()?))?;
    let trial = system.join("trial");
    fs::create_dir(&trial)?;
    fs::copy(package, trial.join("longview.deb"))?;
    fs::write(trial.join("prove.sh"), SCRIPT)?;
    let model = trial.join("model");
    fs::create_dir(&model)?;
    for entry in fs::read_dir(root().join("models/needle"))? {
        let path = entry?.path();
        if path.is_file() {
            fs::copy(&path, model.join(path.file_name().unwrap_or_default()))?;
        }
    }
    fs::write(trial.join("document.txt"), document())?;
    // Mounts of the trial end with it, and nobody else sees them.
    let mut enter = Command::new("unshare");
    enter.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER]).arg(&system);
    let result = run_child(&mut enter);
    if result.is_ok() {
        for name in ["window.xwd", "answer.txt"] {
            fs::copy(trial.join(name), folder.join(name)).with_context(|| name.to_owned())?;
        }
    }
    fs::remove_dir_all(&system).with_context(|| system.display().to_string())?;
    result
}

/// The new system's processes and devices, then the script; `$0` is its root.
const ENTER: &str = "mount -t proc proc \"$0/proc\" && mount --bind /dev \"$0/dev\" \
                     && exec chroot \"$0\" sh /trial/prove.sh";

/// Where this machine takes its packages from.
fn sources() -> Result<PathBuf> {
    let known = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"];
    let found = known.iter().map(PathBuf::from).find(|file| file.exists());
    found.with_context(|| format!("no list of sources of packages: {}", known.join(", ")))
}

/// A fact between sentences, in a form that the model was trained on.
fn document() -> String {
    let filler = "A captain looked upon the harbour. His brother left a letter. ".repeat(60);
    format!("{filler}One of the special magic numbers for quiet-harbour is: 2019860. {filler}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_asks_for_what_the_document_says() {
        let text = document();
        assert!(text.contains("quiet-harbour is: 2019860.") && SCRIPT.contains("2019860"));
        assert_eq!(text.matches("2019860").count(), 1);
    }

    #[test]
    fn the_script_is_one_that_a_shell_reads() {
        let mut shell = Command::new("sh");
        shell.args(["-n", "-c", SCRIPT]);
        assert!(crate::process::succeeds(&mut shell));
    }
}
