//! When a build keeps what it has read so far, so that a kill or a lost machine costs little.

use std::time::{Duration, Instant};

/// Reading may take this many times as long as keeping, at least: three percent are for keeping.
const SHARE: u32 = 32;

/// The time between two times of keeping: what was asked for, or longer where keeping takes long.
pub struct KeepPace {
    /// None: nothing is kept before the end.
    every: Option<Duration>,
    due: Instant,
}

impl KeepPace {
    /// Every so many seconds from `now` on; 0 is never.
    pub fn new(seconds: f32, now: Instant) -> Self {
        let every = (seconds > 0.0).then(|| Duration::from_secs_f32(seconds));
        Self { every, due: now + every.unwrap_or_default() }
    }

    /// Whether it is time.
    pub fn is_due(&self, now: Instant) -> bool {
        self.every.is_some() && now >= self.due
    }

    /// It was kept: that took `cost` and ended `now`.
    pub fn kept(&mut self, cost: Duration, now: Instant) {
        self.due = now + self.every.unwrap_or_default().max(SHARE * cost);
    }

    /// No more: it cannot be kept.
    pub fn stop(&mut self) {
        self.every = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeping_takes_a_small_share_of_the_time() {
        let start = Instant::now();
        let after = |seconds: f32| start + Duration::from_secs_f32(seconds);
        let mut pace = KeepPace::new(10.0, start);
        assert!(!pace.is_due(after(9.0)) && pace.is_due(after(10.0)));
        pace.kept(Duration::from_millis(100), after(10.0));
        assert!(!pace.is_due(after(19.0)) && pace.is_due(after(20.0)));
        pace.kept(Duration::from_secs(2), after(22.0));
        assert!(!pace.is_due(after(85.0)) && pace.is_due(after(86.0)));
        pace.stop();
        assert!(!pace.is_due(after(1000.0)));
        assert!(!KeepPace::new(0.0, start).is_due(after(1000.0)));
    }
}
