//! How often progress is said.

use std::time::{Duration, Instant};

/// Between two drawings: more often nobody sees.
pub(super) const FRAME: Duration = Duration::from_millis(80);

/// Between two lines where stderr is no terminal.
pub(super) const LINES: Duration = Duration::from_secs(5);

/// Says when something that takes long is to be mentioned again.
pub(super) struct Pace {
    every: Duration,
    last: Instant,
}

impl Pace {
    pub fn new(every: Duration, now: Instant) -> Self {
        Self { every, last: now }
    }

    /// Whether it is time, and if so the next one begins.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now.saturating_duration_since(self.last) >= self.every;
        if is_due {
            self.last = now;
        }
        is_due
    }
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
