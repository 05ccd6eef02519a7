//! What passes and is tried again, and what lasts.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::LibraryError;
use crate::settings::Patience;
use crate::watch::{Event, Watch};

/// Between two looks at whether somebody ends the work.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// Why something did not work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It will not work the next time either.
    Lasting(LibraryError),
    /// It may work the next time.
    Passing {
        /// What happened.
        reason: String,
        /// The pause that the hub asks for.
        wait: Option<Duration>,
    },
}

impl Failure {
    pub(crate) fn passing(reason: impl Into<String>) -> Self {
        Self::Passing { reason: reason.into(), wait: None }
    }
}

impl From<LibraryError> for Failure {
    fn from(error: LibraryError) -> Self {
        Self::Lasting(error)
    }
}

/// Counts attempts.
pub(crate) struct Retry<'a> {
    what: &'a str,
    patience: Patience,
    failed: u32,
}

impl<'a> Retry<'a> {
    /// No attempt yet at `what`.
    pub(crate) fn new(what: &'a str, patience: Patience) -> Self {
        Self { what, patience, failed: 0 }
    }

    /// The last attempt brought something: attempts are counted from here.
    pub(crate) fn reset(&mut self) {
        self.failed = 0;
    }

    /// Waits until the next attempt.
    ///
    /// # Errors
    /// If the failure lasts, if it was the last attempt, or if somebody ends the work.
    pub(crate) fn wait(
        &mut self,
        failure: Failure,
        watch: &mut Watch<'_>,
    ) -> Result<(), LibraryError> {
        let (reason, asked) = match failure {
            Failure::Lasting(error) => return Err(error),
            Failure::Passing { reason, wait } => (reason, wait),
        };
        self.failed += 1;
        let attempts = self.patience.attempts;
        if self.failed >= attempts {
            return Err(LibraryError::GaveUp { file: self.what.to_owned(), attempts, reason });
        }
        let wait = asked.unwrap_or_else(|| self.pause());
        watch.tell(Event::Retry { reason: &reason, wait, attempt: self.failed, attempts });
        pause(wait, watch)
    }

    fn pause(&self) -> Duration {
        let doubled = self.patience.pause.saturating_mul(1 << (self.failed - 1).min(16));
        doubled.min(self.patience.longest_pause)
    }
}

/// Does nothing for a while.
///
/// # Errors
/// [`LibraryError::Cancelled`] if somebody ends the work meanwhile.
pub(crate) fn pause(time: Duration, watch: &Watch<'_>) -> Result<(), LibraryError> {
    let end = Instant::now() + time;
    loop {
        watch.check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(LOOK));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patience() -> Patience {
        Patience { attempts: 4, pause: Duration::from_millis(2), ..Patience::default() }
    }

    #[test]
    fn pauses_double_until_it_gives_up() {
        let mut waits = Vec::new();
        let mut tell = |event: Event<'_>| {
            if let Event::Retry { wait, .. } = event {
                waits.push(wait.as_millis());
            }
        };
        let mut watch = Watch { on_event: &mut tell, is_cancelled: &|| false };
        let mut retry = Retry::new("x", patience());
        for _ in 0..3 {
            retry.wait(Failure::passing("the line is cut"), &mut watch).unwrap();
        }
        let error = retry.wait(Failure::passing("the line is cut"), &mut watch).unwrap_err();
        assert!(error.to_string().contains("4 attempts in a row failed"), "{error}");
        let asked = Failure::Passing { reason: String::new(), wait: Some(Duration::ZERO) };
        retry.reset();
        retry.wait(asked, &mut watch).unwrap();
        assert_eq!(waits, [2, 4, 8, 0]);
    }

    #[test]
    fn a_pause_ends_when_somebody_ends_it() {
        let watch = Watch { on_event: &mut |_| {}, is_cancelled: &|| true };
        let start = Instant::now();
        let result = pause(Duration::from_secs(60), &watch);
        assert!(matches!(result, Err(LibraryError::Cancelled)));
        assert!(start.elapsed() < Duration::from_secs(1));
    }
}
