//! The progress of a file that is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::line::{LiveLine, clock, labelled};
use super::pace::{FRAME, LINES, Pace};
use crate::failure::Interrupted;
use crate::out::note;
use crate::terminal::{self, Quiet};
use crate::units;

/// The progress of one file.
pub struct WriteBar {
    shared: Arc<Shared>,
    frames: Pace,
    lines: Pace,
    start: Instant,
    _quiet: Quiet,
}

/// What a bar and the words at an interrupt share.
struct Shared {
    total: u64,
    done: AtomicU64,
    line: LiveLine,
}

impl WriteBar {
    /// For a file of `total` bytes.
    pub fn new(total: u64) -> Self {
        let start = Instant::now();
        Self {
            shared: Arc::new(Shared { total, done: AtomicU64::new(0), line: LiveLine::default() }),
            frames: Pace::new(FRAME, start),
            lines: Pace::new(LINES, start),
            start,
            _quiet: Quiet::new(),
        }
    }

    /// Takes the bar away and says that nothing is left, for a program that ends now.
    pub fn last_words(&self) -> impl Fn() + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || {
            shared.line.clear();
            let (done, total) = (shared.done.load(Ordering::Relaxed), shared.total);
            let (done, total) = (units::bytes(done), units::bytes(total));
            note(Interrupted(format!("{done} of {total} were written; nothing is left of them")));
        }
    }

    /// Shows that `done` bytes are written.
    pub fn update(&mut self, done: u64) {
        self.shared.done.store(done, Ordering::Relaxed);
        let (now, total) = (Instant::now(), self.shared.total);
        let counts = || format!("{} of {}", units::bytes(done), units::bytes(total));
        if terminal::columns().is_some() {
            if self.frames.is_due(now) {
                let thousandths = (done.min(total) * 1000 / total.max(1)) as usize;
                let words = format!("{}  {} left", counts(), self.left(done));
                self.shared.line.draw(&labelled("write", thousandths, 1000, &words));
            }
        } else if self.lines.is_due(now) && done < total {
            note(format_args!("write: {}, {} left", counts(), self.left(done)));
        }
    }

    fn left(&self, done: u64) -> String {
        let rest = self.shared.total.saturating_sub(done) as f64 / done.max(1) as f64;
        let left = Duration::try_from_secs_f64(self.start.elapsed().as_secs_f64() * rest);
        left.map_or_else(|_| "-".to_owned(), clock)
    }
}

impl Drop for WriteBar {
    fn drop(&mut self) {
        self.shared.line.clear();
    }
}
