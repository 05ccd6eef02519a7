//! Where a prompt that waits is looked for before it is read: in the storage that servers share,
//! then among the files of the library. Both take their time on other threads (`disk`).

use longview_ops::Backend;
use tracing::warn;

use super::Worker;
use super::disk::Disk;
use super::kept::MIN_SHARED;
use crate::error::ApiError;
use crate::job::OnDisk;

impl<B: Backend + 'static> Worker<B> {
    /// Whether a file is being opened that the request goes on from; it is looked for first.
    pub(super) fn waits_for_disk(&mut self, at: usize) -> bool {
        let scope = self.waiting[at].scope;
        if self.waiting[at].on_disk == OnDisk::NotAsked {
            let Some(on_disk) = self.ask_share(at) else { return true };
            self.waiting[at].on_disk = on_disk;
        }
        let is_opening = |disk: &Option<Disk<B>>, file| {
            disk.as_ref().is_some_and(|disk| disk.is_opening(scope, file))
        };
        if let OnDisk::Fetching(asked) = self.waiting[at].on_disk {
            if is_opening(&self.disk, asked) {
                return true;
            }
            self.waiting[at].on_disk = OnDisk::Fetched;
        }
        let on_disk = match self.waiting[at].on_disk {
            OnDisk::Fetched => self.ask_disk(at),
            known => Some(known),
        };
        let Some(on_disk) = on_disk else { return true };
        let waits = matches!(on_disk, OnDisk::Opening(file) if is_opening(&self.disk, file));
        self.waiting[at].on_disk = if waits { on_disk } else { OnDisk::Done };
        waits
    }

    /// Asks the storage that servers share for what a prompt begins with, where much of it is not
    /// known here. `None`: not now.
    fn ask_share(&mut self, at: usize) -> Option<OnDisk> {
        let job = &self.waiting[at];
        let may_use_known = self.may_use_known(job).unwrap_or(false);
        let n_known = self.kept.most_common(job);
        let (scope, prefill) = (job.scope, job.how.prefill);
        let Some(disk) = self.disk.as_mut().filter(|_| may_use_known) else {
            return Some(OnDisk::Fetched);
        };
        let Some(asked) = disk.wanted_of_share(job, n_known) else { return Some(OnDisk::Fetched) };
        // Another prompt that begins so may bring what this one needs; then it is asked again.
        if disk.is_opening(scope, asked) || !disk.can_open() {
            return None;
        }
        let files = self.engine.session_files().map_err(ApiError::from);
        let files = files.map(|files| files.with_prefill(prefill));
        let policy = &self.model.policy;
        match files.and_then(|files| disk.fetch(job, files, policy, (asked, n_known))) {
            Ok(true) => Some(OnDisk::Fetching(asked)),
            Ok(false) => Some(OnDisk::Fetched),
            Err(error) => {
                warn!("a context is not fetched: {}", error.json());
                Some(OnDisk::Fetched)
            }
        }
    }

    /// Looks for a session on the disk, and lets it be opened. `None`: not now.
    fn ask_disk(&mut self, at: usize) -> Option<OnDisk> {
        let job = &self.waiting[at];
        // A policy that cannot be had fails when it begins.
        let may_use_known = self.may_use_known(job).unwrap_or(false);
        let Some(disk) = self.disk.as_mut().filter(|_| may_use_known) else {
            return Some(OnDisk::Done);
        };
        let n_known = self.kept.most_common(job);
        // Whoever needs no file does not wait until another one can be opened. The others do not
        // look for theirs in every round.
        if !disk.can_open() && n_known + MIN_SHARED < job.ids.len() {
            return None;
        }
        let (scope, prefill) = (job.scope, job.how.prefill);
        let Some(found) = disk.nearest(job, n_known) else { return Some(OnDisk::Done) };
        let file = found.nearest.session.file;
        if !disk.is_opening(scope, file) {
            if !disk.can_open() {
                return None;
            }
            let files = self.engine.session_files().map_err(ApiError::from);
            let files = files.map(|files| files.with_prefill(prefill));
            let policy = &self.model.policy;
            let begun = files.and_then(|files| disk.open(scope, files, policy, found));
            if let Err(error) = begun {
                warn!("a context is not opened: {}", error.json());
                return Some(OnDisk::Done);
            }
        }
        Some(OnDisk::Opening(file))
    }
}
