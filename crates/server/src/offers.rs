//! Sessions that another part of the program has, and offers to the server: what it has read need
//! not be opened a second time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longview_engine::Session;
use longview_library::documents::Id;
use longview_ops::Backend;

/// The last session that is on its way to a server. Clones are of the same server.
pub struct Offers<B: Backend>(Arc<Mutex<Waiting<B>>>);

type Waiting<B> = Option<(Id, Session<B>)>;

impl<B: Backend> Offers<B> {
    /// Offers what was read of a document of the library, in place of what was offered before: a
    /// session of an engine that shares the weights of the server's, under the policy of
    /// [`ModelFacts`](crate::ModelFacts), that holds the tokens of the document and no others. The
    /// server takes it before it begins with the next request.
    pub fn put(&self, document: Id, session: Session<B>) {
        *self.waiting() = Some((document, session));
    }

    /// Takes back what no server has taken.
    pub fn clear(&self) {
        self.take();
    }

    pub(crate) fn take(&self) -> Waiting<B> {
        self.waiting().take()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Backend> Default for Offers<B> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<B: Backend> Clone for Offers<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
