//! Sessions that another part of the program has, and offers to the server: what it has read need
//! not be opened a second time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longview_engine::Session;
use longview_library::documents::Id;
use longview_ops::Backend;

/// Sessions on their way to a server, one of each document. Clones are of the same server.
pub struct Offers<B: Backend>(Arc<Mutex<Waiting<B>>>);

type Waiting<B> = Vec<(Id, Session<B>)>;

impl<B: Backend> Offers<B> {
    /// Offers what was read of a document of the library, in place of what was offered of it
    /// before: a session of an engine that shares the weights of the server's, under the policy of
    /// [`ModelFacts`](crate::ModelFacts), that holds the tokens of the document and no others. The
    /// server takes it before it begins with the next request.
    pub fn put(&self, document: Id, session: Session<B>) {
        let mut waiting = self.waiting();
        waiting.retain(|(other, _)| *other != document);
        waiting.push((document, session));
    }

    pub(crate) fn take(&self) -> Waiting<B> {
        std::mem::take(&mut *self.waiting())
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
