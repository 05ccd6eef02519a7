//! Documents that several machines share: on S3 and what speaks its protocol, on Google's and
//! Microsoft's storage, or in a folder that all of them see.
//!
//! A library stays what it is: a folder on a disk of its own machine, with locks, and files that are
//! renamed when they are whole. Storage that is shared has neither, so this is beside it: what was
//! read to its end is copied there in parts ([`Share::publish`]), and comes from there into the
//! library of another machine ([`Share::fetch`]), which is a cache then, with its own quota.
//!
//! **What counts is the manifest of a session**, one object that is written last, under a condition
//! that lets one of several writers win. Parts that no manifest lists are seen by nobody.
//!
//! **The storage is not trusted.** Manifests carry a tag: a BLAKE3 hash under a key that all
//! machines have and the storage has not, over the name of the object and what is in it. A manifest
//! has the hash of each part. What is not right is a miss, as if it were not there, and the document
//! is read. The key of a scope (an API key of a server) is derived from the one key, and names are
//! made with it, so a document of one scope does not even have a name in another. Nothing is
//! encrypted: who may read the storage can read the documents.
//!
//! Nothing here is asynchronous to a caller: requests run on threads, which wait.

mod address;
mod error;
mod find;
mod http;
mod incoming;
mod publish;
mod record;
mod seal;
mod storage;

pub use self::error::ShareError;
pub use self::find::{SharedDocument, SharedSession};
pub use self::incoming::Incoming;
pub use self::publish::Published;
pub use self::record::PART_BYTES as MAX_PART_BYTES;
pub use self::seal::ShareKey;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use self::seal::ScopeKey;
use self::storage::Storage;

/// How long a storage that failed is not asked: else each request would wait for it.
const REST: Duration = Duration::from_secs(10);

/// Shared storage as one scope sees it. Cheap to clone; it holds no connection.
#[derive(Clone, Debug)]
pub struct Share {
    /// For questions that somebody waits for: it gives up soon.
    quick: Storage,
    /// For parts of sessions.
    patient: Storage,
    key: ShareKey,
    scope: ScopeKey,
    part_bytes: u64,
    state: Arc<Mutex<State>>,
}

/// What all scopes of a share know of it.
#[derive(Debug, Default)]
struct State {
    /// Until when it is not asked, because it failed.
    rests_until: Option<Instant>,
    /// Manifests with parts that were not right: one of them may be replaced.
    damaged: BTreeSet<String>,
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
        let (quick, patient) = address::open(address, environment)?;
        let (key, scope) = (key.clone(), key.scope(""));
        let part_bytes = record::PART_BYTES;
        Ok(Self { quick, patient, key, scope, part_bytes, state: Arc::default() })
    }

    /// Sends sessions in parts of so many bytes, at most [`MAX_PART_BYTES`], which is also what they
    /// have without this.
    #[must_use]
    pub fn with_part_bytes(self, bytes: u64) -> Self {
        Self { part_bytes: bytes.clamp(1, MAX_PART_BYTES), ..self }
    }

    /// The same storage as the scope of this name sees it.
    #[must_use]
    pub fn of_scope(&self, name: &str) -> Self {
        Self { scope: self.key.scope(name), ..self.clone() }
    }

    /// Whether it failed a moment ago, so that it is better not asked now.
    pub fn rests(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.rests_until.is_some_and(|until| until > Instant::now())
    }

    /// Remembers a failure, on its way to the caller.
    fn noted<T>(&self, result: Result<T, ShareError>) -> Result<T, ShareError> {
        if let Err(ShareError::Storage { .. }) = &result {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.rests_until = Some(Instant::now() + REST);
        }
        result
    }

    fn note_damaged(&self, manifest: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.damaged.insert(manifest.to_owned());
    }

    fn is_damaged(&self, manifest: &str) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.damaged.contains(manifest)
    }

    fn note_replaced(&self, manifest: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.damaged.remove(manifest);
    }
}
