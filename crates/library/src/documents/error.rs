//! What can go wrong with a library of documents: each error names the thing and what to do.

use std::io;
use std::path::{Path, PathBuf};

use crate::size::Size;
use crate::space;

/// A document that cannot be kept, found or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentsError {
    /// The system knows no folder for data of programs.
    #[error("there is no folder for data of programs here; set LONGVIEW_LIBRARY to one")]
    NoPlace,
    /// A folder with other things in it.
    #[error(
        "{}: is no library, and not empty; name an empty folder, or one that is not there yet",
        folder.display()
    )]
    Foreign {
        /// The folder.
        folder: PathBuf,
    },
    /// A manifest that this program cannot read.
    #[error(
        "{}: is a library of version {version}, and this program reads up to {known}; update \
         longview",
        folder.display()
    )]
    TooNew {
        /// The folder.
        folder: PathBuf,
        /// Its version.
        version: u32,
        /// What this program knows.
        known: u32,
    },
    /// A manifest that this program can read and must not change.
    #[error(
        "{}: is a library of version {version}; this program knows version {known}, so it reads it \
         and changes nothing; update longview",
        folder.display()
    )]
    ReadOnly {
        /// The folder.
        folder: PathBuf,
        /// Its version.
        version: u32,
        /// What this program knows.
        known: u32,
    },
    /// A file that is not as it was written.
    #[error("{}: is damaged ({what}); `longview kv check --repair` saves what can be", path.display())]
    Damaged {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// No document is called so.
    #[error("{word}: there is no such document{}", alike(near))]
    NotFound {
        /// What was asked for.
        word: String,
        /// Names that are like it.
        near: Vec<String>,
    },
    /// The beginning of several ids.
    #[error("{word}: is the beginning of several ids; give more digits, or a name: {}", names.join(", "))]
    Ambiguous {
        /// What was asked for.
        word: String,
        /// The documents.
        names: Vec<String>,
    },
    /// Another document has the name.
    #[error(
        "{name}: another document is called so; give --name another one, or `longview kv rm \
         {name}` first"
    )]
    NameTaken {
        /// The name.
        name: String,
    },
    /// No name of a document.
    #[error("{name:?}: is no name of a document: {reason}")]
    BadName {
        /// What was given.
        name: String,
        /// What a name must be.
        reason: &'static str,
    },
    /// A document without text.
    #[error("{name}: the text is empty; give a file with something in it")]
    EmptyText {
        /// The document.
        name: String,
    },
    /// Another process writes this session.
    #[error("{name}: another longview reads it now; wait for it, or end it")]
    InUse {
        /// The document.
        name: String,
    },
    /// The document was removed while a session of it was written.
    #[error("{name}: was removed meanwhile; what was read of it is not kept")]
    Removed {
        /// The document.
        name: String,
    },
    /// More than the library may hold.
    #[error(
        "{name}: takes {}, and the library may hold {} ({} of it pinned); `longview kv quota \
         SIZE` allows more, `longview kv unpin` frees",
        Size(*needed_bytes),
        Size(*quota_bytes),
        Size(*pinned_bytes)
    )]
    OverQuota {
        /// The document.
        name: String,
        /// What its session takes.
        needed_bytes: u64,
        /// The quota.
        quota_bytes: u64,
        /// What may not be removed.
        pinned_bytes: u64,
    },
    /// Not enough room, or none left.
    #[error(
        "{}: no room{}; what was there before is as it was: free some, remove documents \
         (`longview kv rm`), or set LONGVIEW_LIBRARY to a folder elsewhere",
        folder.display(),
        room(*needed_bytes, *free_bytes)
    )]
    NoSpace {
        /// The library.
        folder: PathBuf,
        /// What is to be written, where that is known.
        needed_bytes: Option<u64>,
        /// What is free, where that is known.
        free_bytes: Option<u64>,
    },
    /// The file system cannot lock files.
    #[error(
        "{}: files cannot be locked there ({source}); set LONGVIEW_LIBRARY to a folder on a disk \
         of this machine",
        path.display()
    )]
    NoLocks {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file or folder of the library.
    #[error("{}: cannot be {action} ({source})", path.display())]
    Io {
        /// What was to be done with it.
        action: &'static str,
        /// Which one.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl DocumentsError {
    /// An error of the system on the way to `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| {
            if space::is_full(&source) {
                let folder = path.parent().unwrap_or(&path).to_owned();
                let free_bytes = space::free_bytes(&folder);
                return Self::NoSpace { folder, needed_bytes: None, free_bytes };
            }
            Self::Io { action, path, source }
        }
    }
}

fn alike(near: &[String]) -> String {
    match near {
        [] => "; `longview kv ls` lists what there is".to_owned(),
        names => format!("; did you mean {}?", names.join(" or ")),
    }
}

fn room(needed: Option<u64>, free: Option<u64>) -> String {
    let needed = needed.map(|bytes| format!("{} are needed", Size(bytes)));
    let free = free.map(|bytes| format!("{} are free", Size(bytes)));
    let parts: Vec<String> = needed.into_iter().chain(free).collect();
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(" and ")) }
}
