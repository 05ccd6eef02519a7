//! Where a name leads, and which file is there.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Result, bail};
use longview_core::{open_regular, special_kind};

/// As many links as systems follow.
const MAX_LINKS: usize = 40;

/// A name that symbolic links lead to, and the regular file that has it, if there is one.
#[derive(Debug)]
pub struct Target {
    /// The name behind all links.
    pub path: PathBuf,
    /// What is there.
    pub found: Option<Metadata>,
}

impl Target {
    /// Follows the links of `path`. Their last name may be free, but its folder is there.
    ///
    /// # Errors
    /// For what cannot be written to, without the name of the file, which the caller puts before.
    pub fn of(path: &Path) -> Result<Self> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            check_name(&path)?;
            let found = match path.symlink_metadata() {
                Ok(found) => Some(found),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => bail!("cannot be looked at ({error})"),
            };
            if found.as_ref().is_some_and(Metadata::is_symlink) {
                let link = fs::read_link(&path)
                    .map_err(|error| anyhow::anyhow!("is a link that cannot be read ({error})"))?;
                path = path.with_file_name("").join(link);
                continue;
            }
            if let Some(kind) = found.as_ref().and_then(|found| special_kind(found.file_type())) {
                bail!("is {kind}, and only a regular file can be written; give another name");
            }
            check_folder(&folder_of(&path))?;
            return Ok(Self { path, found });
        }
        bail!("its symbolic links go round in a circle; remove them or give another name")
    }
}

fn check_name(path: &Path) -> Result<()> {
    let text = path.as_os_str().as_encoded_bytes();
    if text.is_empty() {
        bail!("the name is empty; give the name of a file");
    }
    let ends_in_folder = text.last().is_some_and(|byte| std::path::is_separator(*byte as char));
    if ends_in_folder || path.file_name().is_none() {
        bail!("is the name of a folder; give the name of a file");
    }
    Ok(())
}

fn check_folder(folder: &Path) -> Result<()> {
    match folder.metadata() {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => bail!("{} is not a folder", folder.display()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("there is no folder {}; make it first, or give another name", folder.display())
        }
        Err(error) => bail!("the folder {} cannot be looked at ({error})", folder.display()),
    }
}

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Bytes that tell the kind of a file.
const HEAD_BYTES: usize = 64 * 1024;

/// How a regular file begins.
pub fn head_of(path: &Path) -> io::Result<Vec<u8>> {
    head(open_regular(path)?)
}

/// How an open file begins, from where it stands.
pub fn head(file: impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    file.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Which file it is: its place on the disk, and its content as far as length and time tell.
#[derive(Debug, PartialEq, Eq)]
pub struct Identity {
    place: (u64, u64),
    len: u64,
    modified: Option<SystemTime>,
}

impl Identity {
    /// That of a file which was looked at.
    pub fn of(found: &Metadata) -> Self {
        Self { place: place(found), len: found.len(), modified: found.modified().ok() }
    }
}

/// Device and number of a file; zeros where the system does not say.
#[cfg(unix)]
fn place(found: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (found.dev(), found.ino())
}

#[cfg(not(unix))]
fn place(_: &Metadata) -> (u64, u64) {
    (0, 0)
}

/// Whether two names are of one file, through links of either sort.
#[cfg(unix)]
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    let place_of = |path: &Path| path.metadata().ok().map(|found| place(&found));
    place_of(a).is_some_and(|a| place_of(b) == Some(a))
}

#[cfg(not(unix))]
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    same_file::is_same_file(a, b).unwrap_or(false)
}

/// Whether the open `file` is the one that `path` names now.
#[cfg(unix)]
pub fn is_open_as(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.symlink_metadata()) {
        (Ok(open), Ok(named)) => place(&open) == place(&named),
        _ => false,
    }
}

#[cfg(not(unix))]
pub fn is_open_as(file: &File, path: &Path) -> bool {
    use same_file::Handle;
    match (file.try_clone().and_then(Handle::from_file), Handle::from_path(path)) {
        (Ok(open), Ok(named)) => open == named && !path.is_symlink(),
        _ => false,
    }
}
