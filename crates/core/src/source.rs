//! Bytes that are read in runs, wherever they lie.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::regular::open_regular;

/// Bytes that are read in runs: a file, a handle of a browser's storage, memory.
pub trait RangeSource {
    /// How many there are.
    fn size(&self) -> u64;

    /// Fills `out` with the bytes from `at` on.
    ///
    /// # Errors
    /// What the system says, also where the bytes end before `out` is full.
    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()>;

    /// Whether `len` bytes from `at` on can be read without waiting for a network.
    fn is_here(&self, at: u64, len: u64) -> bool {
        let _ = (at, len);
        true
    }

    /// This source for several threads, where they may read at once; `None` where only the thread
    /// that opened it may.
    fn shared(&self) -> Option<&(dyn RangeSource + Sync)> {
        None
    }
}

impl RangeSource for [u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(at).ok().and_then(|at| self.get(at..));
        match start.and_then(|rest| rest.get(..out.len())) {
            Some(bytes) => out.copy_from_slice(bytes),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }
}

impl<S: RangeSource + ?Sized> RangeSource for &S {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        (**self).read_at(at, out)
    }

    fn is_here(&self, at: u64, len: u64) -> bool {
        (**self).is_here(at, len)
    }

    fn shared(&self) -> Option<&(dyn RangeSource + Sync)> {
        (**self).shared()
    }
}

impl RangeSource for Vec<u8> {
    fn size(&self) -> u64 {
        self.as_slice().size()
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_at(at, out)
    }

    fn shared(&self) -> Option<&(dyn RangeSource + Sync)> {
        Some(self)
    }
}

/// A file on disk.
#[derive(Debug)]
pub struct FileSource {
    file: OpenFile,
    size: u64,
}

impl FileSource {
    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// What the system says, and anything but a regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open_regular(path)?;
        let size = file.metadata()?.len();
        Ok(Self { file: OpenFile::new(file), size })
    }
}

impl RangeSource for FileSource {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(at, out)
    }

    fn shared(&self) -> Option<&(dyn RangeSource + Sync)> {
        Some(self)
    }
}

/// A file. Each read says where it begins, so threads need no lock.
#[cfg(unix)]
#[derive(Debug)]
struct OpenFile(File);

#[cfg(unix)]
impl OpenFile {
    fn new(file: File) -> Self {
        Self(file)
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, out, at)
    }
}

/// A file behind a lock, because to read is to move first.
#[cfg(not(unix))]
#[derive(Debug)]
struct OpenFile(std::sync::Mutex<File>);

#[cfg(not(unix))]
impl OpenFile {
    fn new(file: File) -> Self {
        Self(std::sync::Mutex::new(file))
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};

        let mut file = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(out)
    }
}
