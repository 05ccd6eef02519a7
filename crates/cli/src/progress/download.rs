//! The progress of a download.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use longview_library::Event;

use super::line::{LiveLine, clock, labelled};
use super::pace::{FRAME, LINES, Pace};
use crate::failure::Interrupted;
use crate::out::note;
use crate::terminal::{self, Quiet};
use crate::units;

/// The progress of one download.
pub struct DownloadBar {
    name: String,
    shared: Arc<Shared>,
    frames: Pace,
    lines: Pace,
    start: Instant,
    /// Bytes that were there before.
    present: u64,
    _quiet: Quiet,
}

/// What a bar and the words at an interrupt share.
#[derive(Default)]
struct Shared {
    done: AtomicU64,
    total: AtomicU64,
    line: LiveLine,
}

impl DownloadBar {
    /// For the model `name`; nothing stands there yet.
    pub fn new(name: String) -> Self {
        let start = Instant::now();
        Self {
            name,
            shared: Arc::default(),
            frames: Pace::new(FRAME, start),
            lines: Pace::new(LINES, start),
            start,
            present: 0,
            _quiet: Quiet::new(),
        }
    }

    /// Takes the bar away and says how much is here, for a program that ends now.
    pub fn last_words(&self) -> impl Fn() + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || {
            shared.line.clear();
            let (done, total) = shared.counts();
            note(Interrupted(match total {
                0 => "nothing was downloaded".to_owned(),
                _ => format!(
                    "{} of {} are here; the same command goes on from there",
                    units::bytes(done),
                    units::bytes(total),
                ),
            }));
        }
    }

    /// Shows what happens.
    pub fn show(&mut self, event: Event<'_>) {
        match event {
            Event::Planned { n_files, total_bytes, present_bytes } => {
                self.begin(n_files, total_bytes, present_bytes);
            }
            Event::Progress { file, done_bytes, total_bytes } => {
                self.shared.done.store(done_bytes, Ordering::Relaxed);
                self.shared.total.store(total_bytes, Ordering::Relaxed);
                self.progress(file);
            }
            Event::Locked { file } => {
                self.say(format!("another program downloads {file}; waiting for it"));
            }
            Event::Retry { reason, wait, attempt, attempts } => self.say(format!(
                "{reason}; attempt {} of {attempts} in {:.0} s",
                attempt + 1,
                wait.as_secs_f64().ceil(),
            )),
            _ => {}
        }
    }

    fn begin(&mut self, n_files: usize, total: u64, present: u64) {
        self.shared.done.store(present, Ordering::Relaxed);
        self.shared.total.store(total, Ordering::Relaxed);
        (self.present, self.start) = (present, Instant::now());
        let here = match present {
            0 => String::new(),
            all if all == total => ", all of them here".to_owned(),
            some => format!(", {} of them here", units::bytes(some)),
        };
        let files = units::counted(n_files, "file", "files");
        self.say(format!("{}: {files}, {}{here}", self.name, units::bytes(total)));
    }

    fn progress(&mut self, file: &str) {
        let now = Instant::now();
        let (done, total) = self.shared.counts();
        if terminal::columns().is_some() {
            if self.frames.is_due(now) {
                let counts = format!("{}/{}", units::bytes(done), units::bytes(total));
                let words = format!("{counts}  {}", self.pace(done, total));
                let (done, total) = (thousandths(done, total), 1000);
                self.shared.line.draw(&labelled("download", done, total, &words));
            }
        } else if self.lines.is_due(now) && done < total {
            let counts = format!("{} of {}", units::bytes(done), units::bytes(total));
            note(format_args!("download: {counts}, {}, {file}", self.pace(done, total)));
        }
    }

    /// Bytes per second and the time that is left.
    fn pace(&self, done: u64, total: u64) -> String {
        let new = done.saturating_sub(self.present) as f64;
        let speed = new / self.start.elapsed().as_secs_f64().max(1e-3);
        if speed < 1.0 {
            return "- left".to_owned();
        }
        let left = Duration::try_from_secs_f64((total.saturating_sub(done)) as f64 / speed);
        let left = left.map_or_else(|_| "-".to_owned(), clock);
        format!("{}/s  {left} left", units::bytes(speed as u64))
    }

    /// A line above the bar.
    fn say(&self, text: String) {
        self.shared.line.clear();
        note(text);
    }
}

impl Drop for DownloadBar {
    fn drop(&mut self) {
        self.shared.line.clear();
    }
}

impl Shared {
    fn counts(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
}

/// How much of a bar is full.
fn thousandths(done: u64, total: u64) -> usize {
    let share = u128::from(done) * 1000 / u128::from(total.max(1));
    usize::try_from(share.min(1000)).unwrap_or(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_full_at_the_end() {
        assert_eq!([thousandths(0, 0), thousandths(0, 9), thousandths(9, 9)], [0, 0, 1000]);
        assert_eq!(thousandths(u64::MAX / 2, u64::MAX), 499);
    }
}
