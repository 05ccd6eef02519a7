//! What somebody is told while a model is downloaded, and how they end it.

use std::time::Duration;

use crate::error::LibraryError;

/// Something to tell.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// What will be downloaded, before it begins.
    Planned {
        /// Files of the model.
        n_files: usize,
        /// Bytes of all of them.
        total_bytes: u64,
        /// Bytes of them that are here already.
        present_bytes: u64,
    },
    /// How far it is; comes often.
    Progress {
        /// The file that is being written.
        file: &'a str,
        /// Bytes of the model that are here.
        done_bytes: u64,
        /// Bytes of the model.
        total_bytes: u64,
    },
    /// Another program downloads the same file, and is waited for.
    Locked {
        /// The file.
        file: &'a str,
    },
    /// Something failed and will be tried again.
    Retry {
        /// What failed.
        reason: &'a str,
        /// The time until then.
        wait: Duration,
        /// How often it was tried.
        attempt: u32,
        /// How often it will be tried at most.
        attempts: u32,
    },
}

/// Who watches a download.
pub struct Watch<'a> {
    /// Is told what happens.
    pub on_event: &'a mut dyn FnMut(Event<'_>),
    /// Is asked about ten times a second whether to end.
    pub is_cancelled: &'a dyn Fn() -> bool,
}

impl Watch<'_> {
    pub(crate) fn tell(&mut self, event: Event<'_>) {
        (self.on_event)(event);
    }

    /// # Errors
    /// [`LibraryError::Cancelled`] if it is to end.
    pub(crate) fn check(&self) -> Result<(), LibraryError> {
        if (self.is_cancelled)() { Err(LibraryError::Cancelled) } else { Ok(()) }
    }
}
