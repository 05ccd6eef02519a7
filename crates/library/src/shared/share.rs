//! The storage, as one scope sees it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::address::Patience;
use super::error::ShareError;
use super::seal::{ScopeKey, ShareKey};
use super::storage::Storage;
use super::{address, record};
use crate::documents::Id;

/// How long a storage that failed is not asked: else each request would wait for it.
const REST: Duration = Duration::from_secs(10);

/// Sessions that are looked at for one prompt.
const MOST_ALIKE: usize = 64;

/// Shared storage as one scope sees it. Cheap to clone; it holds no connection.
#[derive(Clone, Debug)]
pub struct Share {
    /// For questions that somebody waits for: it gives up soon.
    pub(super) quick: Storage,
    /// For parts of sessions.
    pub(super) patient: Storage,
    key: ShareKey,
    pub(super) scope: ScopeKey,
    pub(super) part_bytes: u64,
    pub(super) most_alike: usize,
    state: Arc<Mutex<State>>,
}

/// What all scopes of a share know of it.
#[derive(Debug, Default)]
struct State {
    /// Until when it is not asked, because it failed.
    rests_until: Option<Instant>,
    /// Uploads with parts that were not right: a manifest of one may be replaced. (Not its name:
    /// another upload under that is right until a part of it is not.)
    damaged: BTreeSet<Id>,
    /// Texts that were found to be right, by the names of their objects.
    texts: BTreeSet<String>,
}

impl Share {
    /// The storage at `address`, for documents that need no API key: `s3://BUCKET/PREFIX`,
    /// `gs://...`, `az://...`, `file:///FOLDER` or a folder. Endpoint and credentials come from the
    /// environment, under the names that each provider's own programs read. No request is made.
    ///
    /// # Errors
    /// [`ShareError::Address`] for what is no address, or lacks something in the environment.
    pub fn open(address: &str, key: &ShareKey) -> Result<Self, ShareError> {
        let environment: Vec<_> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self::open_with(address, key, &environment)
    }

    /// As [`Share::open`], with this environment.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(
        address: &str,
        key: &ShareKey,
        environment: &[(String, String)],
    ) -> Result<Self, ShareError> {
        Self::open_within(address, key, environment, Patience::default())
    }

    /// As [`Share::open_with`], where parts of sessions may take so long.
    ///
    /// # Errors
    /// As there.
    pub fn open_within(
        address: &str,
        key: &ShareKey,
        environment: &[(String, String)],
        patience: Patience,
    ) -> Result<Self, ShareError> {
        let (quick, patient) = address::open(address, environment, patience)?;
        let (key, scope) = (key.clone(), key.scope(""));
        let (part_bytes, most_alike) = (record::PART_BYTES, MOST_ALIKE);
        Ok(Self { quick, patient, key, scope, part_bytes, most_alike, state: Arc::default() })
    }

    /// Sends sessions in parts of so many bytes; at most, and without this,
    /// [`MAX_PART_BYTES`](super::MAX_PART_BYTES).
    #[must_use]
    pub fn with_part_bytes(self, bytes: u64) -> Self {
        Self { part_bytes: bytes.clamp(1, record::PART_BYTES), ..self }
    }

    /// Looks at so many sessions for one prompt; without this, at 64.
    #[must_use]
    pub fn with_most_alike(self, n: usize) -> Self {
        Self { most_alike: n, ..self }
    }

    /// The same storage as the scope of this name sees it.
    #[must_use]
    pub fn of_scope(&self, name: &str) -> Self {
        Self { scope: self.key.scope(name), ..self.clone() }
    }

    /// Whether it failed a moment ago, so that it is better not asked now.
    pub fn rests(&self) -> bool {
        self.state().rests_until.is_some_and(|until| until > Instant::now())
    }

    /// Remembers a failure, on its way to the caller.
    pub(super) fn noted<T>(&self, result: Result<T, ShareError>) -> Result<T, ShareError> {
        if let Err(ShareError::Storage { .. }) = &result {
            self.state().rests_until = Some(Instant::now() + REST);
        }
        result
    }

    pub(super) fn note_damaged(&self, upload: Id) {
        self.state().damaged.insert(upload);
    }

    pub(super) fn is_damaged(&self, upload: Id) -> bool {
        self.state().damaged.contains(&upload)
    }

    pub(super) fn note_text(&self, name: &str, is_right: bool) {
        let mut state = self.state();
        if is_right {
            state.texts.insert(name.to_owned());
        } else {
            state.texts.remove(name);
        }
    }

    pub(super) fn is_text_right(&self, name: &str) -> bool {
        self.state().texts.contains(name)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
