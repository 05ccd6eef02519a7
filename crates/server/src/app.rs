//! What all handlers share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use longview_library::documents::Documents;
use longview_library::shared::Share;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::info;

use crate::constraint::Grammars;
use crate::error::{ApiError, clip};
use crate::fields::{Fields, wrong};
use crate::held::Held;
use crate::job::{Message, Slots};
use crate::keys::Keys;
use crate::log;
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::texts::Facts;

/// Names of unknown fields that are remembered.
const MAX_NOTED: usize = 64;

/// How far the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    Loading,
    Ready,
    Draining,
    Ended,
}

/// Shared by handlers, the listener and the engine's thread.
pub(crate) struct App {
    pub(crate) options: ServerOptions,
    pub(crate) keys: Keys,
    /// The library of each scope; none where nothing is kept on disk.
    pub(crate) libraries: Vec<Documents>,
    /// The prompts of each scope, beside its library; none where no prompts are kept.
    pub(crate) prompts: Vec<Documents>,
    /// Shared storage as each scope sees it; none where nothing is shared.
    pub(crate) shares: Vec<Share>,
    pub(crate) model: Facts,
    pub(crate) grammars: Grammars,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) inbox: SyncSender<Message>,
    pub(crate) slots: Slots,
    /// What requests left in the slots that they named.
    held: Mutex<Held>,
    /// Places of requests that run or wait.
    places: Arc<Semaphore>,
    state: AtomicU8,
    noted: Mutex<BTreeSet<String>>,
    pub(crate) started_unix_s: u64,
}

impl App {
    pub(crate) fn new(
        options: ServerOptions,
        (keys, libraries): (Keys, Vec<Documents>),
        model: Facts,
        metrics: Arc<Metrics>,
        inbox: SyncSender<Message>,
    ) -> Self {
        let shares = options.share.as_ref().filter(|_| !libraries.is_empty());
        let shares = shares.map(|share| keys.shares(share)).unwrap_or_default();
        let prompts = Keys::prompts(&libraries, options.prompt_bytes);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            places: Arc::new(Semaphore::new(options.n_slots + options.max_waiting)),
            started_unix_s: now.map_or(0, |now| now.as_secs()),
            held: Mutex::new(Held::new(options.max_kept)),
            options,
            keys,
            libraries,
            prompts,
            shares,
            model,
            grammars: Grammars::default(),
            metrics,
            inbox,
            slots: Slots::default(),
            state: AtomicU8::new(State::Loading as u8),
            noted: Mutex::default(),
        }
    }

    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Loading,
            1 => State::Ready,
            2 => State::Draining,
            _ => State::Ended,
        }
    }

    /// A server never goes back to a state before.
    pub(crate) fn reach(&self, state: State) {
        self.state.fetch_max(state as u8, Ordering::AcqRel);
    }

    /// Whether requests are served.
    pub(crate) fn check_ready(&self) -> Result<(), ApiError> {
        match self.state() {
            State::Ready if self.metrics.is_device_lost() => Err(ApiError::device_lost()),
            State::Ready => Ok(()),
            State::Loading => Err(ApiError::unavailable("loading", "the model is being loaded")),
            State::Draining => Err(ApiError::unavailable("stopping", "the server is ending")),
            State::Ended => Err(ApiError::unavailable("engine_ended", "the engine has ended")),
        }
    }

    /// Whether a request may be served now, before its body is looked at: one that finds the queue
    /// full costs others no time.
    pub(crate) fn check_free(&self) -> Result<(), ApiError> {
        self.check_ready()?;
        if self.places.available_permits() == 0 { Err(self.full()) } else { Ok(()) }
    }

    /// Places among the requests that run or wait: all `n` or none.
    pub(crate) fn take_places(&self, n: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        Arc::clone(&self.places).try_acquire_many_owned(n).map_err(|_| self.full())
    }

    /// How many places there are.
    pub(crate) fn n_places(&self) -> usize {
        self.options.n_slots + self.options.max_waiting
    }

    pub(crate) fn full(&self) -> ApiError {
        self.metrics.refused.increment(1);
        let message = format!(
            "{} requests run and {} wait already; ask again later",
            self.options.n_slots, self.options.max_waiting
        );
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message)
    }

    /// A prompt must leave room for one token, a document need not.
    pub(crate) fn check_prompt(&self, ids: &[u32], is_document: bool) -> Result<(), ApiError> {
        let n_ctx = self.model.ctx_size;
        if ids.is_empty() {
            return Err(ApiError::bad(
                "empty_prompt",
                "the prompt is empty: there is nothing to answer",
            ));
        }
        if ids.len() > n_ctx || (ids.len() == n_ctx && !is_document) {
            return Err(ApiError::too_long(ids.len(), n_ctx, true));
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.model.vocab_size) {
            let vocab = self.model.vocab_size;
            let message = format!("prompt: token {id} is none of this model's {vocab}");
            return Err(ApiError::field("prompt", message));
        }
        Ok(())
    }

    /// What slots hold.
    pub(crate) fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a slot that there is not.
    pub(crate) fn check_slot(&self, slot: usize) -> Result<(), ApiError> {
        if slot < self.options.n_slots {
            return Ok(());
        }
        let most = self.options.n_slots - 1;
        Err(wrong("id_slot", &format!("a whole number from 0 to {most}, or -1")))
    }

    /// Requests that run or wait.
    pub(crate) fn n_taken(&self) -> usize {
        self.n_places() - self.places.available_permits()
    }

    /// Tells the log of fields that nobody knows, each once.
    pub(crate) fn note_unknown(&self, fields: &Fields<'_>) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        for name in fields.unknown() {
            if noted.len() < MAX_NOTED && noted.insert(clip(name)) {
                info!("unknown field in a request, ignored: {}", clip(name));
            }
        }
    }
}

/// A body as JSON.
pub(crate) fn parse(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad("invalid_json", format!("the body is not JSON: {error}")))
}

/// Runs what takes its time on another thread.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(log::same(work)).await {
        Ok(result) => result,
        Err(_) => {
            Err(ApiError::internal("the request could not be read by a fault of the program"))
        }
    }
}
