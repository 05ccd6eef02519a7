//! The server as one client sees it.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::mpsc::TrySendError;
use std::time::Instant;

use longview_library::documents::Documents;
use longview_library::shared::Share;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Receiver, channel};

use crate::app::App;
use crate::asked::How;
use crate::batch::{Part, together};
use crate::error::ApiError;
use crate::events::{Asked, Events};
use crate::job::{Event, Job, KeptText, MAX_EVENTS, Message, OnDisk};
use crate::keys::Scope;

/// Shared by handlers of one request, with the scope of its key.
#[derive(Clone)]
pub(crate) struct Caller {
    app: Arc<App>,
    pub(crate) scope: Scope,
    /// What it asked, if it did: the server itself asks for what it removes.
    asked: Option<Asked>,
}

impl Deref for Caller {
    type Target = App;

    fn deref(&self) -> &App {
        &self.app
    }
}

impl Caller {
    pub(crate) fn new(app: Arc<App>, scope: Scope) -> Self {
        Self { app, scope, asked: None }
    }

    /// The same for what a client asked.
    pub(crate) fn who_asked(self, asked: Asked) -> Self {
        Self { asked: Some(asked), ..self }
    }

    /// The client's library, if the server has one.
    pub(crate) fn library(&self) -> Result<&Documents, ApiError> {
        let none = "this server was started with --no-library: it keeps no contexts";
        let library = self.app.libraries.get(self.scope.index());
        library.ok_or_else(|| ApiError::bad("no_library", none))
    }

    /// Where the client's prompts are kept, if any are.
    pub(crate) fn prompts(&self) -> Option<&Documents> {
        self.app.prompts.get(self.scope.index())
    }

    /// Shared storage as the client sees it, if the server has any.
    pub(crate) fn share(&self) -> Option<&Share> {
        self.app.shares.get(self.scope.index())
    }

    /// Gives a prompt to the engine's thread.
    pub(crate) fn submit(
        &self,
        ids: Vec<u32>,
        how: How,
        document: Option<KeptText>,
    ) -> Result<Events, ApiError> {
        self.check_ready()?;
        self.check_prompt(&ids, document.is_some())?;
        self.check_slot(how.slot)?;
        let place = self.take_places(1)?;
        let slot = document.is_none().then_some((self.scope, how.slot));
        let events = Events::new(self.send(ids, how, document, place)?, self.asked.clone());
        Ok(events.leaving(Arc::clone(&self.app), slot))
    }

    /// Gives several prompts to the engine's thread: all of them or none.
    pub(crate) fn submit_all(&self, prompts: Vec<Vec<u32>>, how: How) -> Result<Events, ApiError> {
        self.check_ready()?;
        self.check_slot(how.slot)?;
        for (i, ids) in prompts.iter().enumerate() {
            let about = |error: ApiError| error.about(&format!("prompt[{i}]"));
            self.check_prompt(ids, false).map_err(about)?;
        }
        let mut places = self.take_places(prompts.len())?;
        let mut parts = Vec::new();
        for ids in prompts {
            let place = places.split(1).ok_or_else(|| self.full())?;
            let n_tokens = ids.len();
            parts.push(Part { events: self.send(ids, how.clone(), None, place)?, n_tokens });
        }
        Ok(Events::new(together(parts, how.n), self.asked.clone()))
    }

    fn send(
        &self,
        ids: Vec<u32>,
        how: How,
        document: Option<KeptText>,
        place: OwnedSemaphorePermit,
    ) -> Result<Receiver<Event>, ApiError> {
        let (events, receiver) = channel(MAX_EVENTS);
        let job = Job {
            scope: self.scope,
            request_id: self.asked.as_ref().and_then(|asked| asked.request_id.clone()),
            ids,
            how,
            events,
            document,
            on_disk: OnDisk::NotAsked,
            since: Instant::now(),
            _place: place,
        };
        match self.inbox.try_send(Message::Job(Box::new(job))) {
            Ok(()) => Ok(receiver),
            Err(TrySendError::Full(_)) => Err(self.full()),
            Err(TrySendError::Disconnected(_)) => {
                Err(ApiError::unavailable("engine_ended", "the engine has ended"))
            }
        }
    }
}
