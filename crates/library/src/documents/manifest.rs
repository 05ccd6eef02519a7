//! The list of all documents: the one file that says what counts.
//!
//! Everything else is written before and has a name that nothing had. So a change happens in the
//! one moment in which the manifest gets its name, and a process that dies leaves the library
//! before or after it, never between. The one before stays beside it, for a disk that loses bytes.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::entry::Document;
use super::error::DocumentsError;
use super::folder::Folder;
use super::id::Id;
use super::part::write_whole;

/// What this program writes.
pub const VERSION: u32 = 1;
/// No library has a longer one: a document of a million tokens takes 70 KB of it.
const MAX_BYTES: u64 = 256 << 20;

/// The documents, and what holds for all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// That of the program that wrote it last.
    pub version: u32,
    /// The least version of a program that can read it. Later ones may add fields, which an older
    /// program does not see and would lose: so that one reads and changes nothing.
    pub readable_from: u32,
    /// The most that sessions may take together.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// Counts uses.
    pub turn: u64,
    pub documents: Vec<Document>,
}

/// What is read first, of every version.
#[derive(Deserialize)]
struct Versions {
    version: u32,
    readable_from: u32,
}

/// What stands before the hash, between hash and list, and behind the list.
const START: &str = "{\"blake3\":\"";
const MIDDLE: &str = "\",\"library\":";
const END: &str = "}\n";

impl Default for Manifest {
    fn default() -> Self {
        let documents = Vec::new();
        Self { version: VERSION, readable_from: VERSION, quota_bytes: None, turn: 0, documents }
    }
}

impl Manifest {
    /// That of a library; an empty one where there is none yet.
    pub(super) fn read(folder: &Folder) -> Result<Self, DocumentsError> {
        match Self::read_file(&folder.manifest(), folder)? {
            Some(manifest) => Ok(manifest),
            // Only the file before is there if the disk lost the newer one.
            None => Ok(Self::read_file(&folder.old_manifest(), folder)?.unwrap_or_default()),
        }
    }

    /// `None` if there is no such file.
    pub(super) fn read_file(path: &Path, folder: &Folder) -> Result<Option<Self>, DocumentsError> {
        let file = match fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(DocumentsError::io("read", path)(error)),
        };
        let mut text = String::new();
        match file.take(MAX_BYTES).read_to_string(&mut text) {
            Ok(_) => Self::parse(&text, path, folder).map(Some),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(DocumentsError::Damaged { path: path.to_owned(), what: "it is no text" })
            }
            Err(error) => Err(DocumentsError::io("read", path)(error)),
        }
    }

    fn parse(text: &str, path: &Path, folder: &Folder) -> Result<Self, DocumentsError> {
        let damaged = |what| DocumentsError::Damaged { path: path.to_owned(), what };
        let library = unsealed(text).ok_or_else(|| damaged("it is not as it was written"))?;
        let versions: Versions =
            serde_json::from_str(library).map_err(|_| damaged("it names no version"))?;
        if versions.readable_from > VERSION {
            let (folder, version) = (folder.path().to_owned(), versions.version);
            return Err(DocumentsError::TooNew { folder, version, known: VERSION });
        }
        serde_json::from_str(library).map_err(|_| damaged("it lists what this program cannot read"))
    }

    /// Fails if this program must not change it.
    pub(super) fn check_writable(&self, folder: &Folder) -> Result<(), DocumentsError> {
        if self.version > VERSION {
            let (folder, version) = (folder.path().to_owned(), self.version);
            return Err(DocumentsError::ReadOnly { folder, version, known: VERSION });
        }
        Ok(())
    }

    /// Puts it in the place of the one before. The caller holds the lock.
    pub(super) fn write(&self, folder: &Folder) -> Result<(), DocumentsError> {
        let (path, old) = (folder.manifest(), folder.old_manifest());
        // A second name, not a copy. Not every file system has that; then there is no older one.
        let _ = fs::remove_file(&old);
        let _ = fs::hard_link(&path, &old);
        write_whole(&path, self.text().as_bytes())
    }

    fn text(&self) -> String {
        let library = serde_json::to_string(self).expect("texts and numbers are JSON");
        let hash = Id::of(library.as_bytes());
        format!("{START}{hash}{MIDDLE}{library}{END}")
    }

    /// The next number of a use.
    pub(super) fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    pub(super) fn document(&self, id: Id) -> Option<&Document> {
        self.documents.iter().find(|document| document.id == id)
    }

    pub(super) fn document_mut(&mut self, id: Id) -> Option<&mut Document> {
        self.documents.iter_mut().find(|document| document.id == id)
    }

    /// Bytes of all session files.
    pub(super) fn session_bytes(&self) -> u64 {
        self.documents.iter().map(Document::session_bytes).sum()
    }
}

/// The list in a file, if its hash is right. Not read as JSON: the hash is of these very bytes.
fn unsealed(text: &str) -> Option<&str> {
    let (hash, library) = text.strip_prefix(START)?.split_once(MIDDLE)?;
    let library = library.strip_suffix(END)?;
    (hash.parse() == Ok(Id::of(library.as_bytes()))).then_some(library)
}

#[cfg(test)]
mod tests {
    use super::super::testing::TempFolder;
    use super::*;

    fn sealed(library: &str) -> String {
        let hash = Id::of(library.as_bytes());
        format!("{START}{hash}{MIDDLE}{library}{END}")
    }

    fn folder() -> (TempFolder, Folder) {
        let temp = TempFolder::new();
        let folder = Folder::open(temp.path()).unwrap();
        (temp, folder)
    }

    #[test]
    fn it_comes_back_and_the_one_before_stays() {
        let (_temp, folder) = folder();
        assert_eq!(Manifest::read(&folder).unwrap(), Manifest::default());
        let first = Manifest { turn: 1, ..Manifest::default() };
        first.write(&folder).unwrap();
        let second = Manifest { turn: 2, quota_bytes: Some(5), ..Manifest::default() };
        second.write(&folder).unwrap();
        assert_eq!(Manifest::read(&folder).unwrap(), second);
        let old = Manifest::read_file(&folder.old_manifest(), &folder).unwrap();
        assert_eq!(old, Some(first));
    }

    #[test]
    fn every_damaged_byte_is_found() {
        let (_temp, folder) = folder();
        let text = Manifest::default().text();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            fs::write(folder.manifest(), bytes).unwrap();
            let error = Manifest::read(&folder).unwrap_err();
            assert!(matches!(error, DocumentsError::Damaged { .. }), "byte {at}: {error}");
        }
        for n in 0..text.len() {
            fs::write(folder.manifest(), &text[..n]).unwrap();
            assert!(Manifest::read(&folder).is_err(), "{n} bytes of it");
        }
    }

    #[test]
    fn newer_ones_are_read_as_they_allow() {
        let (_temp, folder) = folder();
        let newer = |readable_from: u32| {
            let library = format!(
                "{{\"version\":9,\"readable_from\":{readable_from},\"turn\":3,\"documents\":[],\
                 \"shelves\":[1]}}"
            );
            fs::write(folder.manifest(), sealed(&library)).unwrap();
            Manifest::read(&folder)
        };
        let read = newer(1).unwrap();
        assert_eq!(read.turn, 3);
        let error = read.check_writable(&folder).unwrap_err().to_string();
        assert!(error.contains("version 9") && error.contains("changes nothing"), "{error}");
        let error = newer(2).unwrap_err();
        assert!(matches!(error, DocumentsError::TooNew { version: 9, .. }), "{error}");
    }
}
