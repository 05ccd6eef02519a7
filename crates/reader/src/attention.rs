//! What the tokens of a context receive in the steps of an answer.

use longview_engine::Session;
use longview_ops::Backend;

/// KV rows that the host reads for a step's attention, on average: where a step attends more, not
/// every one is looked at.
const TRACED_ROWS: usize = 40_000;
/// Layers for whose queries a step waits, on average; likewise.
const TRACED_LAYERS: usize = 8;

/// Attention of the steps that were looked at, summed by token.
#[derive(Clone, Debug)]
pub struct Attention {
    mass: Vec<f32>,
    /// Steps before the next one that is looked at.
    wait: usize,
}

impl Attention {
    /// Nothing yet, for the first `n_tokens` tokens of a context.
    pub fn new(n_tokens: usize) -> Self {
        Self { mass: vec![0.0; n_tokens], wait: 0 }
    }

    /// Whether the next step is to be traced: see [`Session::trace`].
    pub fn is_due(&self) -> bool {
        self.wait == 0
    }

    /// The same where the host may read that many KV rows for a step, as others wait for it.
    pub fn is_due_within<B: Backend>(&self, session: &Session<B>, most_rows: u64) -> bool {
        let stats = session.stats();
        let all = session.n_tokens() as u64 * stats.attended_last.len() as u64;
        // Before the first step nobody knows how many of them are attended.
        let usual = stats.attended_rows.checked_div(stats.steps).unwrap_or(all);
        self.is_due() && usual.min(all) <= most_rows
    }

    /// Adds the last step if it was traced. The longer that took, the more steps go by untraced.
    pub fn look<B: Backend>(&mut self, session: &Session<B>) {
        let sequence = session.sequence();
        self.wait = match sequence.add_attention(&mut self.mass) {
            0 => self.wait.saturating_sub(1),
            rows => (rows / TRACED_ROWS).max(sequence.traced().len() / TRACED_LAYERS),
        };
    }

    /// What each token received.
    pub fn mass(&self) -> &[f32] {
        &self.mass
    }
}
