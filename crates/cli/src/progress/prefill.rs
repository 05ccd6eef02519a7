//! The progress of a prefill.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use longview_engine::Progress;

use super::line::{LiveLine, clock, labelled};
use crate::failure::Interrupted;
use crate::interrupt::InterruptGuard;
use crate::out::note;
use crate::terminal::{self, Quiet};
use crate::units;

/// Between two drawings: more often nobody sees.
const FRAME: Duration = Duration::from_millis(80);

/// Between two lines where stderr is no terminal.
const LINES: Duration = Duration::from_secs(5);

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
        let (total, done, line) = (n_tokens, AtomicUsize::new(0), LiveLine::default());
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
                units::count(shared.total),
            )));
        }
    }

    /// Shows how far the prefill is, and breaks off if Ctrl-C was pressed.
    pub fn update(&mut self, progress: Progress, guard: &InterruptGuard<'_>) -> ControlFlow<()> {
        self.shared.done.store(progress.done, Ordering::Relaxed);
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
        let (done, total) = (self.shared.done.load(Ordering::Relaxed), self.shared.total);
        let counts = format!("{}/{} tokens", units::count(done), units::count(total));
        self.shared.line.draw(&labelled("prefill", done, total, &format!("{counts}  {message}")));
    }
}

impl Drop for PrefillBar {
    fn drop(&mut self) {
        self.shared.line.clear();
    }
}

/// Says when something that takes long is to be mentioned again.
struct Pace {
    every: Duration,
    last: Instant,
}

impl Pace {
    fn new(every: Duration, now: Instant) -> Self {
        Self { every, last: now }
    }

    /// Whether it is time, and if so the next one begins.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now.saturating_duration_since(self.last) >= self.every;
        if is_due {
            self.last = now;
        }
        is_due
    }
}

/// What a bar and the words at an interrupt share.
struct Shared {
    total: usize,
    done: AtomicUsize,
    line: LiveLine,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_at_their_pace() {
        let start = Instant::now();
        let mut pace = Pace::new(Duration::from_secs(5), start);
        let due = [1, 4, 5, 6, 9, 10, 30].map(|s| pace.is_due(start + Duration::from_secs(s)));
        assert_eq!(due, [false, false, true, false, false, true, true]);
    }
}
