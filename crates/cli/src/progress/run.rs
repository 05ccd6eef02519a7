//! The progress of a run of many steps.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::line::{LiveLine, clock, labelled};
use crate::out::note;
use crate::terminal;

/// Between two lines.
const LINES: Duration = Duration::from_secs(10);

/// A bar if the run has one, and a line now and then where stderr is no terminal or there is no
/// bar: a run that takes hours shows that it lives.
pub struct RunProgress {
    name: &'static str,
    /// How far the run is.
    words: Arc<Mutex<String>>,
    line: LiveLine,
    /// Closed when the run ends.
    end: Option<Sender<()>>,
    speaker: Option<JoinHandle<()>>,
}

impl RunProgress {
    /// Of the command `name`; `has_bar` if [`RunProgress::bar`] is called, so that a terminal needs
    /// no lines.
    pub fn new(name: &'static str, has_bar: bool) -> Self {
        let words = Arc::new(Mutex::new("starting".to_owned()));
        let (end, ended) = mpsc::channel::<()>();
        let needs_lines = !has_bar || terminal::columns().is_none();
        let speaker = needs_lines.then(|| {
            let words = Arc::clone(&words);
            thread::spawn(move || speak(name, &words, &ended, LINES, note))
        });
        Self { name, words, line: LiveLine::default(), end: Some(end), speaker }
    }

    /// Says in words how far the run is.
    pub fn say(&self, words: String) {
        *lock(&self.words) = words;
    }

    /// Draws a bar on a terminal, and keeps its words for the lines elsewhere.
    pub fn bar(&self, done: usize, total: usize, words: String) {
        self.line.draw(&labelled(self.name, done, total, &words));
        self.say(words);
    }
}

impl Drop for RunProgress {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(speaker) = self.speaker.take() {
            // It waits and writes, nothing that panics.
            let _ = speaker.join();
        }
        self.line.clear();
    }
}

/// Says how far the run is, again and again until it has ended.
fn speak(
    name: &str,
    words: &Mutex<String>,
    ended: &Receiver<()>,
    every: Duration,
    mut say: impl FnMut(String),
) {
    let start = Instant::now();
    while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        let words = lock(words).clone();
        say(format!("{name}: {words}, {} so far", clock(start.elapsed())));
    }
}

fn lock(words: &Mutex<String>) -> MutexGuard<'_, String> {
    // Nothing that holds the lock can leave it half changed.
    words.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_mentioned_until_it_ends() {
        let words = Mutex::new("1 of 2".to_owned());
        let (end, ended) = mpsc::channel();
        let mut end = Some(end);
        let mut lines = Vec::new();
        speak("speed", &words, &ended, Duration::from_millis(1), |line| {
            lines.push(line);
            *lock(&words) = "2 of 2".to_owned();
            if lines.len() == 2 {
                end = None;
            }
        });
        assert_eq!(lines, ["speed: 1 of 2, 0:01 so far", "speed: 2 of 2, 0:01 so far"]);
    }
}
