//! What the device does in a slower way for a while, and why.

use std::sync::Mutex;

use crate::lock::lock;

/// Runs of commands that go one by one because their graph failed, over all streams.
#[derive(Debug, Default)]
pub(crate) struct GraphFallback(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    n_runs: usize,
    /// Of the last failure.
    reason: String,
}

impl GraphFallback {
    /// The graph of a run failed that worked before, or was never tried.
    pub fn begins(&self, reason: &str) {
        lock(&self.0).n_runs += 1;
        self.goes_on(reason);
    }

    /// The graph of a run failed again.
    pub fn goes_on(&self, reason: &str) {
        reason.clone_into(&mut lock(&self.0).reason);
    }

    /// The graph of a run works again, or the run is forgotten.
    pub fn ended(&self) {
        let mut state = lock(&self.0);
        state.n_runs = state.n_runs.saturating_sub(1);
    }

    /// How many runs have no graph, and why the last one failed; `None` where none failed.
    pub fn read(&self) -> Option<(usize, String)> {
        let state = lock(&self.0);
        (state.n_runs > 0).then(|| (state.n_runs, state.reason.clone()))
    }
}
