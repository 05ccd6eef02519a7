//! Ctrl-C: the first ends the running call and keeps what is complete, the second ends at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use longview_engine::CancelToken;

use crate::failure::INTERRUPTED;

/// The process's handler; there is one.
pub struct Interrupt(Arc<State>);

#[derive(Default)]
struct State {
    raised: AtomicBool,
    /// The call that can be cancelled now.
    running: Mutex<Option<CancelToken>>,
}

/// While it lives, Ctrl-C cancels a call instead of ending the program.
pub struct Watch<'a>(&'a State);

impl Interrupt {
    /// Installs the handler.
    pub fn install() -> Result<Self> {
        let state = Arc::new(State::default());
        let seen = Arc::clone(&state);
        ctrlc::set_handler(move || seen.on_signal()).context("cannot listen for Ctrl-C")?;
        Ok(Self(state))
    }

    /// Lets Ctrl-C cancel calls that look at `token`.
    pub fn watch(&self, token: CancelToken) -> Watch<'_> {
        *self.0.running() = Some(token);
        Watch(&self.0)
    }
}

impl State {
    fn on_signal(&self) {
        let running = self.running();
        match (&*running, self.raised.swap(true, Ordering::Relaxed)) {
            (Some(token), false) => token.cancel(),
            _ => std::process::exit(INTERRUPTED.into()),
        }
    }

    fn running(&self) -> MutexGuard<'_, Option<CancelToken>> {
        // Nothing that holds the lock can leave it half changed.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch<'_> {
    /// Whether Ctrl-C was pressed since the watch began.
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::Relaxed)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.0.running().take() {
            token.reset();
        }
        self.0.raised.store(false, Ordering::Relaxed);
    }
}
