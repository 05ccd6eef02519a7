//! In place of [`shared`](self) in a build without the feature of that name: there is no way to get
//! a share, so what is done with one needs no second form.

use std::convert::Infallible;
use std::io;

use longview_core::RangeSource;

use crate::documents::{Document, Documents, Id, Saved, SessionEntry, SessionKey};

/// A storage: there is none in this build.
#[derive(Clone, Debug)]
pub struct Share(Infallible);

/// A document of a storage.
pub type SharedDocument = Infallible;

/// A session of a storage.
#[derive(Clone, Debug)]
pub struct SharedSession(Infallible);

/// A session that comes.
#[derive(Debug)]
pub struct Incoming(Infallible);

/// What a publication did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// So many bytes were sent.
    Sent(u64),
    /// It is there already.
    WasThere,
}

/// The key that all machines have.
#[derive(Clone, Debug)]
pub struct ShareKey;

/// This program was built without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this build has no shared storage; `cargo install --path crates/cli --profile dist --features \
     shared` makes one that has"
)]
pub struct ShareError;

impl ShareKey {
    /// A key.
    ///
    /// # Errors
    /// Always.
    pub fn new(_: &str) -> Result<Self, ShareError> {
        Err(ShareError)
    }
}

impl Share {
    /// A storage.
    ///
    /// # Errors
    /// Always.
    pub fn open(_: &str, _: &ShareKey) -> Result<Self, ShareError> {
        Err(ShareError)
    }

    /// None.
    #[must_use]
    pub fn of_scope(&self, _: &str) -> Self {
        match self.0 {}
    }

    /// None.
    pub fn rests(&self) -> bool {
        match self.0 {}
    }

    /// None.
    ///
    /// # Errors
    /// None.
    pub fn nearest(
        &self,
        _: &SessionKey,
        _: &[u32],
        _: usize,
        _: usize,
    ) -> Result<Option<SharedSession>, ShareError> {
        match self.0 {}
    }

    /// None.
    ///
    /// # Errors
    /// None.
    pub fn find(&self, _: &str) -> Result<Option<SharedDocument>, ShareError> {
        match self.0 {}
    }

    /// None.
    ///
    /// # Errors
    /// None.
    pub fn add_to(
        &self,
        _: &Documents,
        _: &SharedDocument,
    ) -> Result<Option<Document>, ShareError> {
        match self.0 {}
    }

    /// None.
    ///
    /// # Errors
    /// None.
    pub fn sessions(&self, _: Id) -> Result<Vec<SharedSession>, ShareError> {
        match self.0 {}
    }

    /// None.
    ///
    /// # Errors
    /// None.
    pub fn fetch(&self, _: &Documents, _: &SharedSession) -> Result<Incoming, ShareError> {
        match self.0 {}
    }

    /// None.
    ///
    /// # Errors
    /// None.
    pub fn publish(&self, _: &Documents, _: Id, _: &SessionEntry) -> Result<Published, ShareError> {
        match self.0 {}
    }

    /// None.
    ///
    /// # Errors
    /// None.
    pub fn remove(&self, _: Id) -> Result<(), ShareError> {
        match self.0 {}
    }
}

impl SharedSession {
    /// None.
    pub fn document(&self) -> Id {
        match self.0 {}
    }

    /// None.
    pub fn key(&self) -> &SessionKey {
        match self.0 {}
    }

    /// None.
    pub fn model(&self) -> &str {
        match self.0 {}
    }

    /// None.
    pub fn about(&self) -> &str {
        match self.0 {}
    }

    /// None.
    pub fn context(&self) -> usize {
        match self.0 {}
    }

    /// None.
    pub fn n_tokens(&self) -> usize {
        match self.0 {}
    }

    /// None.
    pub fn n_common(&self) -> usize {
        match self.0 {}
    }

    /// None.
    pub fn bytes(&self) -> u64 {
        match self.0 {}
    }
}

impl Incoming {
    /// None.
    ///
    /// # Errors
    /// None.
    pub fn keep(self, _: &Documents, _: &str, _: &str) -> Result<Option<Saved>, ShareError> {
        match self.0 {}
    }
}

impl RangeSource for Incoming {
    fn size(&self) -> u64 {
        match self.0 {}
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        match self.0 {}
    }
}
