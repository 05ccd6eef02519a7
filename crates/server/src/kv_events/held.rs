//! What the engine's thread hands over.

use std::sync::{Arc, Mutex, PoisonError};

use longview_library::documents::{Documents, SessionKey};
use tokio::sync::Notify;

use super::book::{Chain, Tier};

/// The sessions on disk that requests go on from.
pub(crate) struct DiskSessions {
    /// The library, and that of prompts.
    pub(crate) libraries: Vec<Documents>,
    /// What the loaded model calls its sessions.
    pub(crate) key: SessionKey,
    /// Tokens that fit.
    pub(crate) ctx_size: usize,
}

/// Between the two threads.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) held: Mutex<Held>,
    pub(super) changed: Notify,
}

/// What is kept, as the engine's thread said last.
#[derive(Default)]
pub(super) struct Held {
    pub(super) in_memory: Vec<(u64, Tier, Arc<Chain>)>,
    pub(super) on_disk: Option<Arc<DiskSessions>>,
    pub(super) is_over: bool,
}

impl Shared {
    pub(super) fn change(&self, change: impl FnOnce(&mut Held)) {
        change(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }
}
