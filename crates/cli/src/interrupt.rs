//! Ctrl-C: what it does depends on what runs, and the second one ends the program at once.
//!
//! Where a session goes on afterwards (a chat), the running call is cancelled and keeps what is
//! complete; between two calls it asks once whether to leave. Where nothing follows, the program
//! says how far it came and ends without waiting for a step that may take long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use longview_engine::CancelToken;

use crate::failure::INTERRUPTED;
use crate::out::note;
use crate::{files, terminal};

/// What the first Ctrl-C says where nothing runs.
pub const LEAVE_HINT: &str = "press Ctrl-C again or type /bye to leave";

/// The process's handler; there is one.
pub struct Interrupt(Arc<State>);

#[derive(Default)]
struct State {
    raised: AtomicBool,
    /// Ctrl-C where nothing runs asks before it ends the program.
    asks: AtomicBool,
    running: Mutex<Option<Running>>,
}

/// What runs now.
enum Running {
    /// A call that can be cancelled.
    Call(CancelToken),
    /// Something that only matters if it completes, with what is said in place of that.
    Last(Box<dyn Fn() + Send>),
}

/// While it lives, the first Ctrl-C does what [`Interrupt`] was told.
pub struct InterruptGuard<'a>(&'a State);

impl Interrupt {
    /// Installs the handler.
    pub fn install() -> Result<Self> {
        let state = Arc::new(State::default());
        let seen = Arc::clone(&state);
        ctrlc::set_handler(move || seen.on_signal()).context("cannot listen for Ctrl-C")?;
        Ok(Self(state))
    }

    /// For a program with a handler of its own, or with none.
    pub fn without_handler() -> Self {
        Self(Arc::default())
    }

    /// Lets Ctrl-C cancel calls that look at `token`.
    pub fn cancel_with(&self, token: CancelToken) -> InterruptGuard<'_> {
        *self.0.running() = Some(Running::Call(token));
        InterruptGuard(&self.0)
    }

    /// Lets Ctrl-C call `last_words` and end the program.
    pub fn end_with(&self, last_words: impl Fn() + Send + 'static) -> InterruptGuard<'_> {
        *self.0.running() = Some(Running::Last(Box::new(last_words)));
        InterruptGuard(&self.0)
    }

    /// Lets the first Ctrl-C where nothing runs ask whether to leave, from now on.
    pub fn ask_first(&self) {
        self.0.asks.store(true, Ordering::Relaxed);
    }

    /// Whether Ctrl-C was pressed where nothing runs, and has asked; the next one asks again.
    pub fn take_asked(&self) -> bool {
        self.0.raised.swap(false, Ordering::Relaxed)
    }
}

impl State {
    fn on_signal(&self) {
        let running = self.running();
        let is_first = !self.raised.swap(true, Ordering::Relaxed);
        match &*running {
            Some(Running::Call(token)) if is_first => return token.cancel(),
            None if is_first && self.asks.load(Ordering::Relaxed) => return note(LEAVE_HINT),
            Some(Running::Last(last_words)) => last_words(),
            _ => {}
        }
        files::remove_unfinished();
        terminal::restore();
        std::process::exit(INTERRUPTED.into());
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        // Nothing that holds the lock can leave it half changed.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InterruptGuard<'_> {
    /// Whether Ctrl-C was pressed since the guard began.
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::Relaxed)
    }
}

impl Drop for InterruptGuard<'_> {
    fn drop(&mut self) {
        if let Some(Running::Call(token)) = self.0.running().take() {
            token.reset();
        }
        self.0.raised.store(false, Ordering::Relaxed);
    }
}
