//! A session on its way from shared storage: its parts come on several threads, and it can be read
//! while they do.
//!
//! Who reads waits for the parts that it needs, and these come first; the others come in the order
//! of the file, which is that of the layers. What is read was compared with its hash.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use longview_core::RangeSource;

use super::error::ShareError;
use super::find::SharedSession;
use super::record::SessionRecord;
use super::share::Share;
use crate::documents::{Documents, Id, Part, Received, Saved};

/// Parts that come at the same time.
const N_FETCHING: usize = 8;
/// How often a part is asked for whose bytes are not right: they may have been changed on the way.
const ATTEMPTS: usize = 2;

/// A session that comes. Dropped, what came of it is gone.
#[derive(Debug)]
pub struct Incoming {
    work: Arc<Work>,
}

#[derive(Debug)]
struct Work {
    share: Share,
    record: SessionRecord,
    /// `None` when it has its name.
    part: Mutex<Option<Part>>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug)]
struct Progress {
    queue: VecDeque<usize>,
    has_come: Vec<bool>,
    failed: Option<String>,
    /// Nobody wants it any more.
    is_left: bool,
}

impl Share {
    /// Begins to fetch a session, for a library that may hold it.
    ///
    /// # Errors
    /// If the library has no room.
    pub fn fetch(
        &self,
        documents: &Documents,
        session: &SharedSession,
    ) -> Result<Incoming, ShareError> {
        let record = session.record.clone();
        documents.check_room_of(record.document, &record.document.short(), record.bytes)?;
        let n_parts = record.parts.len();
        // First the end, which says where everything is, then the beginning.
        let queue = (0..n_parts).rev().take(1).chain(0..n_parts.saturating_sub(1)).collect();
        let progress =
            Progress { queue, has_come: vec![false; n_parts], failed: None, is_left: false };
        let work = Arc::new(Work {
            share: self.clone(),
            record,
            part: Mutex::new(Some(documents.new_part()?)),
            progress: Mutex::new(progress),
            changed: Condvar::new(),
        });
        // Where a thread cannot be had, this ends those that fetch already.
        let incoming = Incoming { work };
        for _ in 0..N_FETCHING.min(n_parts) {
            let work = Arc::clone(&incoming.work);
            thread::Builder::new().name("share".to_owned()).spawn(move || work.fetch_parts())?;
        }
        Ok(incoming)
    }
}

impl Incoming {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.work.record.bytes
    }

    /// Waits until all of it is there, and lets the library have it, with the text of its document.
    /// `model` and `about` name the model on this machine. `None` if the library has it already.
    ///
    /// # Errors
    /// If a part does not come or is not right, or the library refuses.
    pub fn keep(
        self,
        documents: &Documents,
        model: &str,
        about: &str,
    ) -> Result<Option<Saved>, ShareError> {
        let work = &self.work;
        work.wait(0, work.record.parts.len())?;
        let record = &work.record;
        if documents.get(record.document)?.is_none() {
            let shared = work.share.document(record.document)?;
            let added = shared.map(|shared| work.share.add_to(documents, &shared)).transpose()?;
            if added.flatten().is_none() {
                let name = format!("the text of {}", record.document.short());
                return Err(ShareError::NotRight { name, what: "is not there" });
            }
        }
        let part = work.part.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(part) = part else { return Ok(None) };
        let received = Received {
            document: record.document,
            key: &record.key,
            model,
            about,
            preset: &record.preset,
            context: record.context,
            n_tokens: record.n_tokens,
            bytes: record.bytes,
            chain: &record.chain,
        };
        Ok(documents.receive(part, &received)?)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.work.progress().is_left = true;
    }
}

impl RangeSource for Incoming {
    fn size(&self) -> u64 {
        self.work.record.bytes
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let (work, record) = (&self.work, &self.work.record);
        let end = at.checked_add(out.len() as u64).filter(|end| *end <= record.bytes);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let first = (at / record.part_bytes) as usize;
        work.wait(first, end.div_ceil(record.part_bytes) as usize).map_err(io::Error::other)?;
        let mut part = work.part.lock().unwrap_or_else(PoisonError::into_inner);
        part.as_mut().ok_or(io::ErrorKind::NotFound)?.read_at(at, out)
    }

    fn shared(&self) -> Option<&(dyn RangeSource + Sync)> {
        Some(self)
    }

    fn is_here(&self, at: u64, len: u64) -> bool {
        let (record, progress) = (&self.work.record, self.work.progress());
        let end = at.saturating_add(len).min(record.bytes);
        let parts = (at / record.part_bytes) as usize..end.div_ceil(record.part_bytes) as usize;
        // What failed is said by who reads it.
        let come = progress.has_come.get(parts);
        progress.failed.is_some() || come.is_none_or(|come| come.iter().all(|come| *come))
    }
}

impl Work {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for parts `first` to `end`, and lets them come before others.
    fn wait(&self, first: usize, end: usize) -> Result<(), ShareError> {
        let mut progress = self.progress();
        let is_wanted = |i: &usize| (first..end).contains(i);
        let (wanted, rest): (Vec<_>, Vec<_>) = progress.queue.iter().partition(|i| is_wanted(i));
        progress.queue = wanted.into_iter().chain(rest).collect();
        loop {
            if let Some(why) = &progress.failed {
                return Err(io::Error::other(why.clone()).into());
            }
            if progress.has_come.get(first..end).is_none_or(|come| come.iter().all(|come| *come)) {
                return Ok(());
            }
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn fetch_parts(&self) {
        loop {
            let next = {
                let mut progress = self.progress();
                if progress.is_left || progress.failed.is_some() {
                    return;
                }
                progress.queue.pop_front()
            };
            let Some(i) = next else { return };
            let result = self.fetch_part(i);
            let mut progress = self.progress();
            match self.share.noted(result) {
                Ok(()) => progress.has_come[i] = true,
                Err(error) => progress.failed = Some(error.to_string()),
            }
            self.changed.notify_all();
        }
    }

    fn fetch_part(&self, i: usize) -> Result<(), ShareError> {
        let name = self.share.scope.part(&self.record, i);
        let (at, n) = self.record.span(i);
        let mut what = "is not there";
        for _ in 0..ATTEMPTS {
            let Some(bytes) = self.share.patient.get(&name, n as u64)? else { break };
            if bytes.len() == n && Id::of(&bytes) == self.record.parts[i] {
                let mut part = self.part.lock().unwrap_or_else(PoisonError::into_inner);
                let part = part.as_mut().ok_or(io::Error::from(io::ErrorKind::NotFound))?;
                return Ok(part.write_at(at, &bytes)?);
            }
            what = "is not as it was written";
        }
        self.share.note_damaged(self.record.upload);
        Err(ShareError::NotRight { name, what })
    }
}
