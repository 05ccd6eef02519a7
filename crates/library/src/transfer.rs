//! One content from the hub into the cache.
//!
//! It is written to `HASH.incomplete` under a lock, hashed as it comes, and renamed when size and
//! hash are those that the hub listed. So a process may end at any moment: what is there counts as
//! a beginning, and is hashed again before the rest is asked for. The rest is asked for only if the
//! server still has the same content (`If-Range`); otherwise it begins again.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ureq::http::Uri;

use crate::cache::{RepoFolder, create_folder, open_or_create};
use crate::digest::{BlobId, Checksum};
use crate::error::LibraryError;
use crate::http::{Answer, Client, Request};
use crate::hub::Hub;
use crate::name::ModelName;
use crate::remote_path::RemotePath;
use crate::replace::replace;
use crate::retry::{Failure, LOOK, Retry, pause};
use crate::space::is_full;
use crate::watch::{Event, Watch};

/// An attempt that brings this much was not in vain.
const PROGRESS: u64 = 1 << 20;
/// Bytes after which the disk is waited for, so that the end does not wait for all of them.
const SYNCED: u64 = 64 << 20;
/// The longest mark of a content that is remembered.
const MAX_MARK: u64 = 256;

/// Where contents come from and go to.
pub(crate) struct Transfer<'a> {
    pub(crate) hub: &'a Hub<'a>,
    pub(crate) client: &'a Client,
    pub(crate) repo: &'a RepoFolder,
    pub(crate) name: &'a ModelName,
}

/// One content.
pub(crate) struct Job {
    pub(crate) file: RemotePath,
    pub(crate) id: BlobId,
    pub(crate) size: u64,
    pub(crate) uri: Uri,
}

/// How much of a model is here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Bytes of the files before this one.
    pub(crate) before: u64,
    /// Bytes of all files.
    pub(crate) total: u64,
}

impl Transfer<'_> {
    /// Makes sure that the content is in the cache.
    pub(crate) fn run(
        &self,
        job: &Job,
        tally: Tally,
        watch: &mut Watch<'_>,
    ) -> Result<(), LibraryError> {
        let blob = self.repo.blob(&job.id);
        if is_whole(&blob, job.size) {
            return Ok(());
        }
        create_folder(&self.repo.blobs())?;
        create_folder(&self.repo.locks)?;
        let mut lock = self.lock(job, watch)?;
        // Somebody else may have finished it meanwhile.
        if is_whole(&blob, job.size) {
            return Ok(());
        }
        let mut part = Part::open(self.repo.incomplete(&job.id), job, watch)?;
        self.fill(&mut part, &mut lock, tally, watch)?;
        part.finish(&blob)
    }

    /// Holds the lock of a content, and waits for whoever holds it now.
    fn lock(&self, job: &Job, watch: &mut Watch<'_>) -> Result<File, LibraryError> {
        let path = self.repo.lock(&job.id);
        let file = open_or_create(&path)?;
        let mut is_told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => {
                    if !is_told {
                        watch.tell(Event::Locked { file: job.file.as_str() });
                        is_told = true;
                    }
                    pause(2 * LOOK, watch)?;
                }
                Err(TryLockError::Error(error)) => {
                    return Err(LibraryError::io("locked", &path)(error));
                }
            }
        }
    }

    /// Asks until the part is whole and right.
    fn fill(
        &self,
        part: &mut Part<'_>,
        lock: &mut File,
        tally: Tally,
        watch: &mut Watch<'_>,
    ) -> Result<(), LibraryError> {
        let mut retry = Retry::new(part.job.file.as_str(), self.hub.patience);
        let mut mark = read_mark(lock);
        loop {
            if part.have == part.job.size {
                match part.check() {
                    Ok(()) => return Ok(()),
                    // The beginning may have been another content's, or not written to the end.
                    Err(_) if part.is_resumed => part.restart()?,
                    Err(error) => {
                        part.discard();
                        return Err(error);
                    }
                }
            }
            let before = part.have;
            if let Err(failure) = self.attempt(part, lock, &mut mark, tally, watch) {
                if part.have >= before + PROGRESS {
                    retry.reset();
                }
                retry.wait(failure, watch)?;
            }
        }
    }

    /// One request, and what it brings.
    fn attempt(
        &self,
        part: &mut Part<'_>,
        lock: &mut File,
        mark: &mut Option<String>,
        tally: Tally,
        watch: &mut Watch<'_>,
    ) -> Result<(), Failure> {
        let if_range = mark.clone().filter(|_| part.have > 0);
        let request = Request { uri: part.job.uri.clone(), from: part.have, if_range };
        let mut answer = self.client.get(request, watch)?;
        match answer.status {
            200 if part.have > 0 => part.restart()?,
            200 => {}
            206 if begins_at(&answer) == Some((part.have, part.job.size)) => {}
            206 | 416 => {
                part.restart()?;
                return Err(Failure::passing("the server answers with other bytes than asked for"));
            }
            _ => return Err(self.hub.refusal(&answer, self.name, part.job.file.as_str())),
        }
        *mark = strong_mark(&answer);
        write_mark(lock, mark.as_deref());
        while let Some(piece) = answer.piece(watch)? {
            part.write(&piece)?;
            watch.tell(Event::Progress {
                file: part.job.file.as_str(),
                done_bytes: tally.before + part.have,
                total_bytes: tally.total,
            });
        }
        if part.have < part.job.size {
            return Err(Failure::passing("the connection was cut"));
        }
        Ok(())
    }
}

/// Whether a content is there. It was checked before it got its name.
pub(crate) fn is_whole(blob: &Path, size: u64) -> bool {
    fs::metadata(blob).is_ok_and(|data| data.is_file() && data.len() == size)
}

/// First byte and length of the whole, as an answer to a request for a part says them.
fn begins_at(answer: &Answer) -> Option<(u64, u64)> {
    let range = answer.header("content-range")?.trim().strip_prefix("bytes ")?;
    let (range, whole) = range.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    Some((first.trim().parse().ok()?, whole.trim().parse().ok()?))
}

/// What `If-Range` takes: a mark that changes with every byte of the content.
fn strong_mark(answer: &Answer) -> Option<String> {
    let mark = answer.header("etag")?;
    let is_short = u64::try_from(mark.len()).is_ok_and(|n| n <= MAX_MARK);
    (is_short && mark.starts_with('"') && mark.ends_with('"')).then(|| mark.to_owned())
}

/// The mark of the content that the beginning is of; the lock keeps it between processes.
fn read_mark(lock: &mut File) -> Option<String> {
    let mut text = String::new();
    lock.rewind().ok()?;
    Read::take(&mut *lock, MAX_MARK).read_to_string(&mut text).ok()?;
    (text.starts_with('"') && text.ends_with('"') && text.len() > 1).then_some(text)
}

/// Without it the rest is asked for all the same, and the hash decides.
fn write_mark(lock: &mut File, mark: Option<&str>) {
    let mark = mark.unwrap_or_default();
    let _ = lock.set_len(0);
    let _ = lock.rewind().and_then(|()| lock.write_all(mark.as_bytes()));
}

/// The beginning of a content.
struct Part<'a> {
    job: &'a Job,
    path: PathBuf,
    file: File,
    checksum: Option<Checksum>,
    have: u64,
    /// Bytes since the disk was waited for.
    unsynced: u64,
    /// Whether an earlier process wrote some of it.
    is_resumed: bool,
}

impl<'a> Part<'a> {
    /// Opens what is there and hashes it.
    fn open(path: PathBuf, job: &'a Job, watch: &Watch<'_>) -> Result<Self, LibraryError> {
        let file = open_or_create(&path)?;
        let checksum = Some(job.id.checksum(job.size));
        let mut part = Self { job, path, file, checksum, have: 0, unsynced: 0, is_resumed: false };
        let mut bytes = vec![0; 1 << 20];
        while part.have <= job.size {
            watch.check()?;
            let n = part.file.read(&mut bytes).map_err(LibraryError::io("read", &part.path))?;
            if n == 0 {
                break;
            }
            part.add(&bytes[..n]);
        }
        part.is_resumed = part.have > 0;
        if part.have > job.size {
            part.restart()?;
        }
        Ok(part)
    }

    fn add(&mut self, bytes: &[u8]) {
        self.have += bytes.len() as u64;
        if let Some(checksum) = &mut self.checksum {
            checksum.update(bytes);
        }
    }

    /// Adds what came.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.have + bytes.len() as u64 > self.job.size {
            self.restart()?;
            return Err(Failure::passing("the server sends more bytes than the hub listed"));
        }
        self.file.write_all(bytes).map_err(|error| self.trouble(error))?;
        self.add(bytes);
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= SYNCED {
            self.flush()?;
        }
        Ok(())
    }

    /// Waits until what came is on the disk.
    fn flush(&mut self) -> Result<(), LibraryError> {
        self.unsynced = 0;
        self.file.sync_data().map_err(|error| self.trouble(error))
    }

    /// Begins with nothing.
    fn restart(&mut self) -> Result<(), LibraryError> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(LibraryError::io("written", &self.path))?;
        self.checksum = Some(self.job.id.checksum(self.job.size));
        self.have = 0;
        self.is_resumed = false;
        Ok(())
    }

    /// Whether it is what the hub listed.
    fn check(&mut self) -> Result<(), LibraryError> {
        let actual = self.checksum.take().map(Checksum::finish).unwrap_or_default();
        if actual == self.job.id.as_str() {
            return Ok(());
        }
        let (file, expected) = (self.job.file.as_str().to_owned(), self.job.id.to_string());
        Err(LibraryError::WrongHash { file, expected, actual })
    }

    fn discard(&self) {
        // What stays is found to be wrong again.
        let _ = fs::remove_file(&self.path);
    }

    /// Gives it its name.
    fn finish(mut self, blob: &Path) -> Result<(), LibraryError> {
        self.flush()?;
        let Self { path, file, .. } = self;
        // Some systems rename no open file.
        drop(file);
        replace(&path, blob).map_err(LibraryError::io("renamed", &path))
    }

    fn trouble(&self, error: std::io::Error) -> LibraryError {
        if !is_full(&error) {
            return LibraryError::io("written", &self.path)(error);
        }
        let folder = self.path.parent().unwrap_or(&self.path).to_owned();
        let needed_bytes = self.job.size.saturating_sub(self.have);
        LibraryError::NoSpace { folder, needed_bytes, free_bytes: None }
    }
}
