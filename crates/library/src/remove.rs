//! Removing models: names first, contents last, and no content that another name still has.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::cache::{Cache, RepoFolder};
use crate::error::LibraryError;
use crate::find::find;
use crate::name::ModelName;
use crate::select::{Prefer, Wanted};
use crate::variant::{Format, variants};

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Files.
    pub n_files: usize,
    /// Bytes that are free now.
    pub bytes: u64,
}

/// Removes a repository, one of its revisions, or one GGUF model of it.
///
/// # Errors
/// If there is no such model, if it is being downloaded, or if the system refuses.
pub(crate) fn remove(cache: &Cache, name: &ModelName) -> Result<Removed, LibraryError> {
    let repo = cache.repo(name);
    let is_there = fs::symlink_metadata(&repo.path).is_ok_and(|data| data.is_dir());
    if !is_there {
        let wanted = Wanted { name, file: None, prefer: Prefer::Safetensors };
        let near = find(cache, &wanted).err();
        let none = || LibraryError::NotHere { name: name.to_string(), near: Vec::new() };
        return Err(near.unwrap_or_else(none));
    }
    // Until the end nobody else can begin a download of what is known here.
    let _locks = lock_all(&repo, name)?;
    if name.quant().is_none() && name.revision().is_none() {
        return remove_repo(&repo);
    }
    for path in named(cache, &repo, name)? {
        remove_file(&path)?;
    }
    remove_revision(&repo, name)?;
    let removed = remove_orphans(&repo)?;
    if repo.commits().is_empty() {
        remove_folder(&repo.path)?;
    }
    Ok(removed)
}

/// The links that have the name, of the one revision or of all.
fn named(cache: &Cache, repo: &RepoFolder, name: &ModelName) -> Result<Vec<PathBuf>, LibraryError> {
    let not_here = || {
        let wanted = Wanted { name, file: None, prefer: Prefer::Safetensors };
        let none = LibraryError::NotHere { name: name.to_string(), near: Vec::new() };
        find(cache, &wanted).err().unwrap_or(none)
    };
    let commits = match name.revision() {
        Some(revision) => vec![repo.commit(Some(revision)).ok_or_else(not_here)?],
        None => repo.commits(),
    };
    let Some(quant) = name.quant() else { return Ok(Vec::new()) };
    let mut paths = Vec::new();
    for commit in commits {
        let all = variants(repo, &commit);
        let of_quant = all.iter().filter(|variant| {
            let own = variant.quant.as_deref();
            variant.format == Format::Gguf && own.is_some_and(|own| own.eq_ignore_ascii_case(quant))
        });
        for file in of_quant.flat_map(|variant| &variant.files) {
            let folder = repo.snapshot(&commit);
            paths.push(file.name.split('/').fold(folder, |path, part| path.join(part)));
        }
    }
    if paths.is_empty() { Err(not_here()) } else { Ok(paths) }
}

/// The snapshot of a revision, if it is removed as a whole, and the names of its commit.
fn remove_revision(repo: &RepoFolder, name: &ModelName) -> Result<(), LibraryError> {
    let commits = match (name.revision(), name.quant()) {
        (Some(revision), None) => repo.commit(Some(revision)).into_iter().collect(),
        // Snapshots that hold no model any more.
        _ => repo.commits().into_iter().filter(|c| variants(repo, c).is_empty()).collect(),
    };
    let commits: Vec<String> = commits;
    for (reference, commit) in repo.references() {
        if commits.contains(&commit) {
            let folder = repo.path.join("refs");
            remove_file(&reference.split('/').fold(folder, |path, part| path.join(part)))?;
        }
    }
    commits.iter().try_for_each(|commit| remove_folder(&repo.snapshot(commit)))
}

/// Contents that no snapshot names.
fn remove_orphans(repo: &RepoFolder) -> Result<Removed, LibraryError> {
    let commits = repo.commits();
    let files = commits.iter().flat_map(|commit| repo.files(commit));
    let kept: BTreeSet<PathBuf> = files.map(|file| file.content).collect();
    let mut removed = Removed::default();
    for entry in fs::read_dir(repo.blobs()).into_iter().flatten().flatten() {
        let path = entry.path();
        let content = path.canonicalize().unwrap_or_else(|_| path.clone());
        if !kept.contains(&content) {
            removed.count(&path);
            remove_file(&path)?;
        }
    }
    Ok(removed)
}

fn remove_repo(repo: &RepoFolder) -> Result<Removed, LibraryError> {
    let mut removed = Removed::default();
    for entry in fs::read_dir(repo.blobs()).into_iter().flatten().flatten() {
        removed.count(&entry.path());
    }
    let commits = repo.commits();
    for file in commits.iter().flat_map(|commit| repo.files(commit)) {
        // A copy, where there are no links.
        if !file.content.starts_with(repo.blobs().canonicalize().unwrap_or_default()) {
            removed.count(&file.content);
        }
    }
    for part in ["refs", "snapshots", "blobs"] {
        remove_folder(&repo.path.join(part))?;
    }
    remove_folder(&repo.path)?;
    // On some systems an open lock cannot be removed; the next download uses it.
    let _ = fs::remove_dir_all(&repo.locks);
    Ok(removed)
}

impl Removed {
    fn count(&mut self, path: &Path) {
        let data = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
        self.bytes += data.as_ref().map_or(0, fs::Metadata::len);
        self.n_files += usize::from(data.is_some());
    }
}

/// Takes every lock of a repository.
fn lock_all(repo: &RepoFolder, name: &ModelName) -> Result<Vec<File>, LibraryError> {
    let mut locks = Vec::new();
    for entry in fs::read_dir(&repo.locks).into_iter().flatten().flatten() {
        let Ok(file) = File::options().read(true).write(true).open(entry.path()) else { continue };
        if matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)) {
            return Err(LibraryError::InUse { name: name.to_string() });
        }
        locks.push(file);
    }
    Ok(locks)
}

fn remove_file(path: &Path) -> Result<(), LibraryError> {
    absent_is_fine(fs::remove_file(path)).map_err(LibraryError::io("removed", path))
}

fn remove_folder(path: &Path) -> Result<(), LibraryError> {
    absent_is_fine(fs::remove_dir_all(path)).map_err(LibraryError::io("removed", path))
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
