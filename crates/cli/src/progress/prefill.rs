//! The progress of a prefill.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use longview_engine::Progress;

use super::line::{LiveLine, clock, labelled};
use super::pace::{FRAME, LINES, Pace};
use crate::failure::Interrupted;
use crate::interrupt::InterruptGuard;
use crate::out::note;
use crate::terminal::{self, Quiet};
use crate::units;

/// The progress of one prefill.
pub struct PrefillBar {
    shared: Arc<Shared>,
    frames: Pace,
    lines: Pace,
    _quiet: Quiet,
}

impl PrefillBar {
    /// An empty bar for `n_tokens` tokens.
    pub fn new(n_tokens: usize) -> Self {
        let (total, done) = (AtomicUsize::new(n_tokens), AtomicUsize::new(0));
        let line = LiveLine::default();
        let now = Instant::now();
        let bar = Self {
            shared: Arc::new(Shared { total, done, line }),
            frames: Pace::new(FRAME, now),
            lines: Pace::new(LINES, now),
            _quiet: Quiet::new(),
        };
        bar.draw("");
        bar
    }

    /// Takes the bar away and says how much of `what` was computed and what becomes of it, for a
    /// program that ends now.
    pub fn last_words(&self, what: &'static str, fate: String) -> impl Fn() + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || {
            shared.line.clear();
            note(Interrupted(format!(
                "{} of {} {what} tokens were computed; {fate}",
                units::count(shared.done.load(Ordering::Relaxed)),
                units::count(shared.total.load(Ordering::Relaxed)),
            )));
        }
    }

    /// Shows how far the prefill is, and breaks off if Ctrl-C was pressed.
    pub fn update(&mut self, progress: Progress, guard: &InterruptGuard<'_>) -> ControlFlow<()> {
        self.shared.done.store(progress.done, Ordering::Relaxed);
        // Of an answer that was computed through a policy, tokens are computed once more.
        self.shared.total.store(progress.total, Ordering::Relaxed);
        let now = Instant::now();
        let speed = units::rate(Some(progress.tokens_per_s()));
        if terminal::columns().is_some() {
            if self.frames.is_due(now) {
                self.draw(&format!("{speed} tokens/s  ETA {}", clock(progress.eta())));
            }
        } else if self.lines.is_due(now) && progress.done < progress.total {
            note(format_args!(
                "prefill: {} of {} tokens, {speed} tokens/s, {} left",
                units::count(progress.done),
                units::count(progress.total),
                clock(progress.eta()),
            ));
        }
        if guard.is_raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn draw(&self, message: &str) {
        let [done, total] =
            [&self.shared.done, &self.shared.total].map(|n| n.load(Ordering::Relaxed));
        let counts = format!("{}/{} tokens", units::count(done), units::count(total));
        self.shared.line.draw(&labelled("prefill", done, total, &format!("{counts}  {message}")));
    }
}

impl Drop for PrefillBar {
    fn drop(&mut self) {
        self.shared.line.clear();
    }
}

/// What a bar and the words at an interrupt share.
struct Shared {
    total: AtomicUsize,
    done: AtomicUsize,
    line: LiveLine,
}
