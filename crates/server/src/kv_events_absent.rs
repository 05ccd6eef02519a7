//! In place of [`kv_events`](self) in a build without the feature `kv-events`: there is no way to
//! start them, so what is done with them needs no second form.

use std::convert::Infallible;
use std::net::SocketAddr;

use longview_library::documents::{Documents, SessionKey};

use crate::error::ServeError;
use crate::options::KvEventsOptions;

/// A context in memory.
#[derive(Clone, Copy)]
#[expect(dead_code, reason = "nobody reads it in this build")]
pub(crate) struct KeptTokens<'a> {
    pub(crate) serial: u64,
    pub(crate) tokens: &'a [u32],
    pub(crate) is_on_device: bool,
}

/// The sessions on disk that requests go on from.
#[expect(dead_code, reason = "nobody reads it in this build")]
pub(crate) struct DiskSessions {
    pub(crate) libraries: Vec<Documents>,
    pub(crate) key: SessionKey,
    pub(crate) ctx_size: usize,
}

/// There are none in this build.
pub(crate) struct KvEvents(Infallible);

impl KvEvents {
    /// # Errors
    /// Always: this build has no events.
    pub(crate) fn start(_options: &KvEventsOptions, _has_keys: bool) -> Result<Self, ServeError> {
        Err(ServeError::NoKvEvents)
    }

    pub(crate) fn addresses(&self) -> (SocketAddr, Option<SocketAddr>) {
        match self.0 {}
    }

    pub(crate) fn watch_disk(&self, _sessions: DiskSessions) {
        match self.0 {}
    }

    pub(crate) fn disk_changed(&self) {
        match self.0 {}
    }

    pub(crate) fn tell<'a>(&mut self, _kept: impl Iterator<Item = KeptTokens<'a>> + Clone) {
        match self.0 {}
    }
}
