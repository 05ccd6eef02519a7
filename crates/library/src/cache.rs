//! The folder that models lie in, as `huggingface_hub` lays it out:
//!
//! ```text
//! models--USER--REPO/blobs/HASH                 contents, named by their hash
//! models--USER--REPO/blobs/HASH.incomplete      a content that is being downloaded
//! models--USER--REPO/snapshots/COMMIT/NAME      a link to a blob, or a copy without links
//! models--USER--REPO/refs/main                  the commit of a branch or tag
//! .locks/models--USER--REPO/HASH.lock           held by whoever downloads the content
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::digest::{BlobId, is_commit};
use crate::error::LibraryError;
use crate::name::ModelName;
use crate::remote_path::RemotePath;
use crate::replace::replace;

/// Folders within folders of a snapshot that are looked at.
const MAX_DEPTH: usize = 8;

/// All repositories.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

/// One repository.
#[derive(Clone, Debug)]
pub(crate) struct RepoFolder {
    pub(crate) path: PathBuf,
    pub(crate) locks: PathBuf,
}

/// A file of a snapshot whose content is there.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotFile {
    /// Its name in the repository, with `/` between parts.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// The content, or the file itself if it is a copy.
    pub(crate) content: PathBuf,
    /// When it was downloaded or read last, as far as the system knows.
    pub(crate) used: Option<SystemTime>,
}

impl Cache {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Where a repository lies, whether it is there or not.
    pub(crate) fn repo(&self, name: &ModelName) -> RepoFolder {
        let folder = name.folder();
        RepoFolder { path: self.root.join(&folder), locks: self.root.join(".locks").join(folder) }
    }

    /// The repositories that are there, by name.
    pub(crate) fn repos(&self) -> Result<Vec<ModelName>, LibraryError> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(LibraryError::io("read", &self.root)(error)),
        };
        let name = |entry: fs::DirEntry| ModelName::of_folder(entry.file_name().to_str()?);
        let mut names: Vec<ModelName> = entries.flatten().filter_map(name).collect();
        names.sort_by(|a, b| a.repo().cmp(b.repo()));
        Ok(names)
    }
}

impl RepoFolder {
    pub(crate) fn blobs(&self) -> PathBuf {
        self.path.join("blobs")
    }

    pub(crate) fn blob(&self, id: &BlobId) -> PathBuf {
        self.blobs().join(id.as_str())
    }

    pub(crate) fn incomplete(&self, id: &BlobId) -> PathBuf {
        self.blobs().join(format!("{id}.incomplete"))
    }

    pub(crate) fn lock(&self, id: &BlobId) -> PathBuf {
        self.locks.join(format!("{id}.lock"))
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.path.join("snapshots").join(commit)
    }

    /// The commits that are there, at least in part.
    pub(crate) fn commits(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path.join("snapshots")).into_iter().flatten().flatten();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().ok();
        let mut commits: Vec<String> = entries.filter_map(name).filter(|n| is_commit(n)).collect();
        commits.sort();
        commits
    }

    /// The commit of a branch, a tag, or the beginning of a commit that is there.
    pub(crate) fn commit(&self, revision: Option<&str>) -> Option<String> {
        let name = RemotePath::parse(revision.unwrap_or("main")).ok()?;
        if let Ok(text) = fs::read_to_string(name.below(&self.path.join("refs"))) {
            return Some(text.trim().to_owned()).filter(|commit| is_commit(commit));
        }
        let commits = self.commits();
        let mut fitting: Vec<String> = match revision {
            // Python may have fetched one by its commit alone.
            None => commits,
            Some(start) if start.len() >= 7 => {
                commits.into_iter().filter(|commit| commit.starts_with(start)).collect()
            }
            Some(_) => Vec::new(),
        };
        if fitting.len() == 1 { fitting.pop() } else { None }
    }

    /// The branches and tags that are known, with the commit of each.
    pub(crate) fn references(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let folder = self.path.join("refs");
        walk(&folder, &mut Vec::new(), &mut |name, path| {
            if let Ok(commit) = fs::read_to_string(path) {
                found.push((name, commit.trim().to_owned()));
            }
        });
        found.sort();
        found
    }

    /// Writes which commit a branch or tag has.
    pub(crate) fn set_reference(
        &self,
        name: &RemotePath,
        commit: &str,
    ) -> Result<(), LibraryError> {
        let path = name.below(&self.path.join("refs"));
        let aside = with_ending(&path, ".new");
        create_folder(path.parent().unwrap_or(&self.path))?;
        fs::write(&aside, commit).map_err(LibraryError::io("written", &aside))?;
        replace(&aside, &path).map_err(LibraryError::io("written", &path))
    }

    /// The files of a snapshot whose contents are there, by name.
    pub(crate) fn files(&self, commit: &str) -> Vec<SnapshotFile> {
        let mut files = Vec::new();
        walk(&self.snapshot(commit), &mut Vec::new(), &mut |name, path| {
            files.extend(SnapshotFile::read(name, path));
        });
        let blobs = self.blobs().canonicalize().unwrap_or_default();
        for file in files.iter_mut().filter(|file| !file.content.starts_with(&blobs)) {
            // Without symbolic links, it is a second name of what is among the blobs.
            let entries = fs::read_dir(&blobs).into_iter().flatten().flatten();
            let mut paths = entries.map(|entry| entry.path());
            if let Some(blob) = paths.find(|blob| is_same_file(blob, &file.content)) {
                file.content = blob;
            }
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        files
    }

    /// Gives the content `id` a name in a snapshot: by a link, or where there are none a second
    /// name of the same file, or a copy.
    pub(crate) fn link(
        &self,
        commit: &str,
        name: &RemotePath,
        id: &BlobId,
    ) -> Result<(), LibraryError> {
        let (path, blob) = (name.below(&self.snapshot(commit)), self.blob(id));
        // Windows follows no link that is written with `/`.
        let up = std::iter::repeat_n("..", 2 + name.depth());
        let target: PathBuf = up.chain(["blobs", &id.to_string()]).collect();
        if fs::read_link(&path).is_ok_and(|old| old == target) {
            return Ok(());
        }
        create_folder(path.parent().unwrap_or(&self.path))?;
        let aside = with_ending(&path, ".new");
        let _ = fs::remove_file(&aside);
        // Wine says that it made a link and has made none: only what leads to the blob counts.
        let linked = symlink(&target, &aside).and_then(|()| aside.metadata().map(drop));
        linked
            .or_else(|_| {
                let _ = fs::remove_file(&aside);
                fs::hard_link(&blob, &aside)
            })
            .or_else(|_| fs::copy(&blob, &aside).map(drop))
            .map_err(LibraryError::io("written", &aside))?;
        replace(&aside, &path).map_err(LibraryError::io("written", &path))
    }
}

impl SnapshotFile {
    fn read(name: String, path: &Path) -> Option<Self> {
        // Of the content: a link that leads nowhere is no file.
        let data = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let content = match fs::read_link(path) {
            Ok(target) => path.parent()?.join(target),
            Err(_) => path.to_owned(),
        };
        let content = content.canonicalize().unwrap_or(content);
        let used = data.modified().ok().max(data.accessed().ok());
        Some(Self { name, bytes: data.len(), content, used })
    }
}

/// Calls `each` for the files below `folder`, with names whose parts `/` divides.
fn walk(folder: &Path, parts: &mut Vec<String>, each: &mut dyn FnMut(String, &Path)) {
    if parts.len() > MAX_DEPTH {
        return;
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        parts.push(name);
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), parts, each),
            Ok(_) => each(parts.join("/"), &entry.path()),
            Err(_) => {}
        }
        parts.pop();
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}{ending}", std::process::id()));
    path.with_file_name(name)
}

pub(crate) fn create_folder(path: &Path) -> Result<(), LibraryError> {
    fs::create_dir_all(path).map_err(LibraryError::io("created", path))
}

/// Opens a file that may be there or not, to read and write it.
pub(crate) fn open_or_create(path: &Path) -> Result<File, LibraryError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).map_err(LibraryError::io("opened", path))
}

#[cfg(unix)]
fn is_same_file(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    place(a).is_some_and(|a| place(b) == Some(a))
}

#[cfg(not(unix))]
fn is_same_file(a: &Path, b: &Path) -> bool {
    same_file::is_same_file(a, b).unwrap_or(false)
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}
