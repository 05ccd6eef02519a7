//! A file that is written before it gets its name.
//!
//! It lies in the folder of the name, because only there a rename is one step; it is on the disk
//! (fsync) before it gets the name, and the name is there when the folder is. It is locked while
//! its writer lives, so a part that nobody holds is of a process that died.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
#[cfg(feature = "shared")]
use std::io::{Read, SeekFrom};
use std::path::{Path, PathBuf};

use super::error::DocumentsError;
use super::folder::{PART_END, open_private};
use super::id::Id;
use super::lock::is_named;
use crate::replace::replace;
use crate::space;

/// An open part, removed in the end unless it gets a name.
#[derive(Debug)]
pub(crate) struct Part {
    file: File,
    path: PathBuf,
    is_named: bool,
    /// Why the system refused to write.
    failed: Option<io::ErrorKind>,
}

impl Part {
    /// A new part in `folder`, under a name that nothing has.
    pub(super) fn create(folder: &Path) -> Result<Self, DocumentsError> {
        loop {
            let path = folder.join(format!("{}.{PART_END}", Id::fresh()));
            let file = open_private(&path, true).map_err(DocumentsError::io("made", &path))?;
            // Between the two another process may take it for that of a dead one.
            let is_locked = file.try_lock().is_ok();
            if is_locked && is_named(&file, &path) {
                return Ok(Self { file, path, is_named: false, failed: None });
            }
        }
    }

    /// Puts it on the disk and says how many bytes it has.
    pub(super) fn sync(&mut self) -> Result<u64, DocumentsError> {
        let path = self.path.clone();
        self.file.flush().map_err(DocumentsError::io("written", &path))?;
        self.file.sync_all().map_err(DocumentsError::io("written to the disk", &path))?;
        self.file.stream_position().map_err(DocumentsError::io("written", &path))
    }

    /// Writes bytes at a place, also behind the end.
    #[cfg(feature = "shared")]
    pub(crate) fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(at))?;
        self.write_all(bytes)
    }

    /// Reads bytes that were written.
    #[cfg(feature = "shared")]
    pub(crate) fn read_at(&mut self, at: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(at))?;
        self.file.read_exact(out)
    }

    /// Gives it the name, in place of a file that has it. It must be on the disk.
    pub(super) fn publish(mut self, path: &Path) -> Result<(), DocumentsError> {
        replace(&self.path, path).map_err(DocumentsError::io("named", path))?;
        self.is_named = true;
        sync_folder(path)
    }

    /// What the system said when it refused to write, if there is no room.
    pub(super) fn is_out_of_space(&self) -> bool {
        self.failed.is_some_and(|kind| space::is_full(&kind.into()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Write for Part {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).inspect_err(|error| self.failed = Some(error.kind()))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().inspect_err(|error| self.failed = Some(error.kind()))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_named {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A part whose writer died; while it is held nobody else takes it.
#[derive(Debug)]
pub(super) struct DeadPart {
    pub path: PathBuf,
    pub bytes: u64,
    _file: File,
}

impl DeadPart {
    /// Those in a folder.
    pub(super) fn all_in(folder: &Path) -> Vec<Self> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| Self::at(entry.path())).collect()
    }

    fn at(path: PathBuf) -> Option<Self> {
        path.extension().filter(|end| *end == PART_END)?;
        // For writing too: Windows and some network file systems lock nothing else.
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).ok()?;
        file.try_lock().ok()?;
        let bytes = file.metadata().ok()?.len();
        is_named(&file, &path).then_some(Self { path, bytes, _file: file })
    }

    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes a small file under its name, as a whole or not at all.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), DocumentsError> {
    let mut part = Part::create(path.parent().unwrap_or(Path::new(".")))?;
    part.write_all(bytes).map_err(DocumentsError::io("written", path))?;
    part.sync()?;
    part.publish(path)
}

/// A name is on the disk when its folder is. Windows writes folders itself.
pub(crate) fn sync_folder(path: &Path) -> Result<(), DocumentsError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    if cfg!(windows) {
        return Ok(());
    }
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    match synced {
        // Not every file system has that for folders.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other.map_err(DocumentsError::io("written to the disk", folder)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::TempFolder;
    use super::*;

    #[test]
    fn a_part_that_is_dropped_is_gone() {
        let temp = TempFolder::new();
        let mut part = Part::create(temp.path()).unwrap();
        part.write_all(b"half").unwrap();
        drop(part);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_whole_file_replaces_another() {
        let temp = TempFolder::new();
        let path = temp.path().join("a");
        write_whole(&path, b"old").unwrap();
        let open = File::open(&path).unwrap();
        write_whole(&path, b"newer").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
        assert_eq!(io::read_to_string(&open).unwrap(), "old", "who reads it reads on");
        // Where Windows has to set the old one aside, it goes when nobody has it open.
        drop(open);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
    }
}
