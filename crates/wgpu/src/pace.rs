//! Submits that are bounded by time, where a window shows on the same device: between two submits
//! the system lets it draw.
//!
//! Nobody knows how long a dispatch takes before it ran. So each kernel has an estimate per
//! workgroup, which follows from how long submits took: their kernels' estimates all grow or shrink
//! by what a submit took in place of what was estimated. A submit ends before its estimate passes
//! the limit, and behind a kernel that never ran. Only dispatches that take longer than the limit
//! by themselves make submits that do.
//!
//! The host never waits for this. It learns that work is done when it submits or reads anyway, and
//! forgets what it learns too late.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use crate::lock::lock;

/// Work that is measured: a kernel's number, or [`COPIES`].
pub(crate) type Work = u64;
/// Copies of the host, by [`COPY_BYTES`]. No kernel has this number.
pub(crate) const COPIES: Work = 0;
/// Bytes that are one unit of copies.
pub(crate) const COPY_BYTES: usize = 4096;

/// Of how much an estimate differs from what was measured, this share is mended at once.
const MENDED: f64 = 0.5;
/// What is seen to be done so long after the last look may have been done all the time.
const LATE: Duration = Duration::from_millis(2);

/// A submit in the making.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// Units of each work.
    work: Vec<(Work, u64)>,
    /// Nanoseconds.
    estimate: f64,
}

/// The time that work takes on one device, over all its queues.
pub(crate) struct Pace {
    /// Nanoseconds.
    limit: f64,
    clock: Box<dyn Fn() -> Duration + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Nanoseconds of a unit.
    costs: HashMap<Work, f64>,
    /// What was submitted and is not known to be done, the first one first.
    submits: VecDeque<Submit>,
    n_submits: u64,
    /// When the host last saw what is done.
    looked: Duration,
    /// All before the first of the submits was done then.
    free_since: Duration,
    is_waiting: bool,
    /// The last submit that is done, and when that was seen. Several are often seen at once.
    done: Option<(u64, Duration)>,
}

struct Submit {
    number: u64,
    at: Duration,
    work: Vec<(Work, u64)>,
}

impl Pace {
    /// Submits of at most `limit`, by a clock that never goes back.
    pub fn new(limit: Duration, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        let limit = limit.as_nanos() as f64;
        Self { limit, clock: Box::new(clock), state: Mutex::default() }
    }

    /// Whether `units` more would take the submit beyond the limit.
    pub fn is_full(&self, draft: &Draft, work: Work, units: u64) -> bool {
        let cost = lock(&self.state).costs.get(&work).copied();
        let more = cost.map_or(0.0, |cost| cost * units as f64);
        !draft.work.is_empty() && draft.estimate + more > self.limit
    }

    /// Adds to a submit. Whether it ends here: nobody knows how long this takes.
    pub fn add(&self, draft: &mut Draft, work: Work, units: u64) -> bool {
        let cost = lock(&self.state).costs.get(&work).copied();
        draft.estimate += cost.map_or(0.0, |cost| cost * units as f64);
        match draft.work.iter_mut().find(|(other, _)| *other == work) {
            Some((_, all)) => *all += units,
            None => draft.work.push((work, units)),
        }
        cost.is_none()
    }

    /// Says that a submit was given to the device, and what was done by then was told. Returns its
    /// number.
    pub fn submitted(&self, draft: Draft) -> u64 {
        let (now, mut state) = ((self.clock)(), lock(&self.state));
        state.learn(now);
        state.n_submits += 1;
        let number = state.n_submits;
        state.submits.push_back(Submit { number, at: now, work: draft.work });
        number
    }

    /// Says that the host waits for the device from now on, and sees at once what is done; or does
    /// so no more.
    pub fn wait(&self, is_waiting: bool) {
        let (now, mut state) = ((self.clock)(), lock(&self.state));
        state.learn(now);
        state.is_waiting = is_waiting;
    }

    /// Says that all submits up to this number are done.
    pub fn done(&self, number: u64) {
        let now = (self.clock)();
        let mut state = lock(&self.state);
        let last = state.done.map_or(0, |(last, _)| last);
        state.done = Some((number.max(last), now));
    }
}

impl State {
    /// Learns from what was seen to be done since the last look, which ends now.
    fn learn(&mut self, now: Duration) {
        let looked = std::mem::replace(&mut self.looked, now);
        let Some((last, at)) = self.done.take() else { return };
        let n = self.submits.partition_point(|submit| submit.number <= last);
        let submits: Vec<_> = self.submits.drain(..n).collect();
        let Some(first) = submits.first() else { return };
        let busy = at.saturating_sub(first.at.max(self.free_since)).as_nanos() as f64;
        self.free_since = at;
        if self.is_waiting || at.saturating_sub(looked) <= LATE {
            let work: Vec<_> = submits.into_iter().flat_map(|submit| submit.work).collect();
            mend(&mut self.costs, &work, busy);
        }
    }
}

/// Mends the estimates of work that took `busy` nanoseconds together.
fn mend(costs: &mut HashMap<Work, f64>, work: &[(Work, u64)], busy: f64) {
    let known = |costs: &HashMap<Work, f64>| -> f64 {
        work.iter().filter_map(|(work, n)| Some(costs.get(work)? * *n as f64)).sum()
    };
    // What never ran takes what is left, unit by unit.
    let new: Vec<_> = work.iter().filter(|(work, _)| !costs.contains_key(work)).collect();
    let units: u64 = new.iter().map(|(_, n)| n).sum();
    if units > 0 {
        let cost = (busy - known(costs)).max(0.0) / units as f64;
        costs.extend(new.into_iter().map(|(work, _)| (*work, cost.max(1.0))));
        return;
    }
    let ratio = busy / known(costs).max(1.0);
    let mended = 1.0 + MENDED * (ratio - 1.0);
    let mut seen: Vec<Work> = work.iter().map(|(work, _)| *work).collect();
    seen.sort_unstable();
    seen.dedup();
    for work in seen {
        costs.entry(work).and_modify(|cost| *cost = (*cost * mended).max(1.0));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(12);

    /// A device whose work takes these microseconds a unit, and a clock that it moves.
    struct Device {
        micros: HashMap<Work, u64>,
        clock: Arc<AtomicU64>,
        pace: Pace,
        draft: Draft,
        /// Microseconds that each submit took.
        took: Vec<u64>,
        now: u64,
    }

    impl Device {
        fn new(micros: &[(Work, u64)]) -> Self {
            let clock = Arc::new(AtomicU64::new(5));
            let read = Arc::clone(&clock);
            let pace = Pace::new(LIMIT, move || Duration::from_micros(read.load(Ordering::SeqCst)));
            let micros = micros.iter().copied().collect();
            Self { micros, clock, pace, draft: Draft::default(), took: Vec::new(), now: 0 }
        }

        /// As a recorder does it.
        fn dispatch(&mut self, work: Work, units: u64) {
            if self.pace.is_full(&self.draft, work, units) {
                self.submit();
            }
            self.now += self.micros[&work] * units;
            if self.pace.add(&mut self.draft, work, units) {
                self.submit();
            }
        }

        /// The host waits for each submit.
        fn submit(&mut self) {
            let number = self.pace.submitted(std::mem::take(&mut self.draft));
            let took = std::mem::take(&mut self.now);
            self.took.push(took);
            self.pace.wait(true);
            self.clock.fetch_add(took, Ordering::SeqCst);
            self.pace.done(number);
            self.pace.wait(false);
        }
    }

    #[test]
    fn submits_end_before_the_limit_and_use_most_of_it() {
        let mut device = Device::new(&[(1, 100)]);
        (0..1000).for_each(|_| device.dispatch(1, 10));
        assert_eq!(device.took[0], 1000, "the first one is measured by itself");
        assert!(device.took[1..].iter().all(|took| *took == 12_000), "{:?}", device.took);
    }

    #[test]
    fn kernels_of_different_cost_are_told_apart() {
        let mut device = Device::new(&[(1, 5), (2, 700), (3, 90)]);
        for i in 0..3000 {
            device.dispatch(1, 20);
            device.dispatch(2 + i % 2, 2);
        }
        let took = &device.took[3..];
        assert!(took.iter().all(|took| (9_000..=12_000).contains(took)), "{took:?}");
    }

    /// The same kernel may do more in a workgroup later, as in a longer context.
    #[test]
    fn estimates_follow_work_that_grows() {
        let mut device = Device::new(&[(1, 10)]);
        (0..2000).for_each(|_| device.dispatch(1, 10));
        device.micros.insert(1, 40);
        let before = device.took.len();
        (0..4000).for_each(|_| device.dispatch(1, 10));
        let took = &device.took[before..];
        assert!(took[0] <= 48_000 && took[8..].iter().all(|took| *took <= 12_600), "{took:?}");
    }

    #[test]
    fn what_takes_longer_than_the_limit_is_submitted_by_itself() {
        let mut device = Device::new(&[(1, 20_000), (2, 10)]);
        for _ in 0..50 {
            device.dispatch(2, 1);
            device.dispatch(1, 1);
        }
        let most = device.took.iter().max();
        assert_eq!(most, Some(&20_000), "{:?}", device.took);
    }

    /// Nobody looked for ten seconds: that says nothing of the work.
    #[test]
    fn what_is_seen_too_late_is_forgotten() {
        let mut device = Device::new(&[(1, 100)]);
        (0..30).for_each(|_| device.dispatch(1, 10));
        let number = device.pace.submitted(std::mem::take(&mut device.draft));
        device.now = 0;
        device.clock.fetch_add(10_000_000, Ordering::SeqCst);
        device.pace.done(number);
        let before = device.took.len();
        (0..100).for_each(|_| device.dispatch(1, 10));
        assert!(device.took[before..].iter().all(|took| *took == 12_000), "{:?}", device.took);
    }

    /// Several submits are often seen to be done at once: the device took all of the time for all.
    #[test]
    fn submits_that_are_seen_together_are_measured_together() {
        let clock = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&clock);
        let pace = Pace::new(LIMIT, move || Duration::from_micros(read.load(Ordering::SeqCst)));
        let numbers = [4, 6].map(|units| {
            let mut draft = Draft::default();
            assert!(pace.add(&mut draft, 1, units));
            pace.submitted(draft)
        });
        pace.wait(true);
        clock.fetch_add(10_000, Ordering::SeqCst);
        numbers.into_iter().for_each(|number| pace.done(number));
        pace.wait(false);
        let mut draft = Draft::default();
        assert!(!pace.add(&mut draft, 1, 3), "it is known");
        assert!((draft.estimate - 3e6).abs() < 1.0, "{}", draft.estimate);
    }
}
