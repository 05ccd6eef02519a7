//! What a sequence counts: per step, and in total.

use std::time::Duration;

use serde::Serialize;
use serde::ser::SerializeStruct;

/// Counters of one sequence. Rows are KV rows: one token of one KV head of one layer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// Decode steps.
    pub steps: u64,
    /// Recalled rows that were on the device.
    pub hits: u64,
    /// Recalled rows that were fetched.
    pub misses: u64,
    /// Bytes of the fetched rows.
    pub fetched_bytes: u64,
    /// Rows attended in decode steps.
    pub attended_rows: u64,
    /// Rows attended in the last decode step, `[L, Hkv]`.
    pub attended_last: Vec<u32>,
    /// Clusters selected in decode steps; 0 where the device looks rows up, which does not tell.
    pub selected_clusters: u64,
    /// Decode steps that recalled what the query before chose, those taken back included.
    pub speculated_steps: u64,
    /// Of these, steps that were taken back and run again exactly. `hits`, `misses`,
    /// `fetched_bytes` and times include both runs; `steps`, `attended_rows` and
    /// `selected_clusters` the second alone.
    pub repeated_steps: u64,
    /// KV heads of layers whose query had moved too far.
    pub failed_gates: u64,
    /// Time scoring and choosing clusters.
    pub select: Duration,
    /// Time looking up hits and misses and moving rows.
    pub fetch: Duration,
    /// Time in decode attention.
    pub attend: Duration,
    /// Time waited for clustering that other work did not hide.
    pub cluster_wait: Duration,
    /// Windows and segments that were clustered.
    pub clusterings: u64,
    /// Bounds of what steps left out, where the policy asks for them.
    pub bounds: Bounds,
    /// Rows that were let go of for good, by policies that evict by attention.
    pub evictions: u64,
}

impl Stats {
    /// Counters at zero for `n_layers` x `n_kv_heads`.
    pub fn new(n_layers: usize, n_kv_heads: usize) -> Self {
        Self { attended_last: vec![0; n_layers * n_kv_heads], ..Self::default() }
    }

    /// All at zero, nothing allocated.
    fn without_memory() -> Self {
        Self {
            steps: 0,
            hits: 0,
            misses: 0,
            fetched_bytes: 0,
            attended_rows: 0,
            attended_last: Vec::new(),
            selected_clusters: 0,
            speculated_steps: 0,
            repeated_steps: 0,
            failed_gates: 0,
            select: Duration::ZERO,
            fetch: Duration::ZERO,
            attend: Duration::ZERO,
            cluster_wait: Duration::ZERO,
            clusterings: 0,
            bounds: Bounds::empty(),
            evictions: 0,
        }
    }

    /// Share of recalled rows that were on the device; `None` if nothing was recalled through the
    /// cache.
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }

    /// Mean tokens attended by a KV head of a layer in a step.
    pub fn mean_attended(&self) -> Option<f64> {
        let cells = self.steps * self.attended_last.len() as u64;
        (cells > 0).then(|| self.attended_rows as f64 / cells as f64)
    }

    /// Zero again, without allocating.
    pub fn reset(&mut self) {
        let mut attended_last = std::mem::take(&mut self.attended_last);
        attended_last.fill(0);
        let mut bounds = std::mem::replace(&mut self.bounds, Bounds::empty());
        bounds.clear();
        *self = Self { attended_last, bounds, ..Self::without_memory() };
    }
}

/// Bounds of many steps, layers and query heads, counted by size.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// By the logarithm of U / Z to the base two, in parts of [`PARTS`].
    counts: Vec<u64>,
    n: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self::new()
    }
}

impl Serialize for Bounds {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Bounds", 4)?;
        fields.serialize_field("n", &self.n)?;
        fields.serialize_field("median", &self.median())?;
        fields.serialize_field("of_most", &self.of_most())?;
        fields.serialize_field("share_telling", &self.share_telling())?;
        fields.end()
    }
}

/// Parts of a power of two that are told apart: sizes of neighbours differ by 4 %.
const PARTS: i32 = 16;

/// The smallest and largest power of two that is told apart, in such parts.
const POWERS: std::ops::Range<i32> = -32 * PARTS..32 * PARTS;

/// The share of choices for which a summary says what was left out at most.
const MOST: f64 = 0.99;

impl Bounds {
    /// None yet.
    pub fn new() -> Self {
        Self { counts: vec![0; POWERS.len()], n: 0 }
    }

    /// None, and no room for any.
    pub(crate) fn empty() -> Self {
        Self { counts: Vec::new(), n: 0 }
    }

    /// Counts one: U / Z.
    pub fn add(&mut self, ratio: f64) {
        let power = (f64::from(PARTS) * ratio.log2()).ceil();
        let power = power.clamp(f64::from(POWERS.start), f64::from(POWERS.end - 1));
        self.counts[(power as i32 - POWERS.start) as usize] += 1;
        self.n += 1;
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.n
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.n = 0;
    }

    /// The median bound of the share of attention that was left out, rounded up by 4 % of U / Z at
    /// most.
    pub fn median(&self) -> Option<f64> {
        self.at(0.5)
    }

    /// The bound that 99 % of all bounds are at most, rounded as the median is.
    pub fn of_most(&self) -> Option<f64> {
        self.at(MOST)
    }

    /// The smallest bound that the share `part` of all bounds do not exceed.
    fn at(&self, part: f64) -> Option<f64> {
        let (mut seen, wanted) = (0, part * self.n as f64);
        let at = self.counts.iter().position(|n| {
            seen += n;
            seen as f64 >= wanted
        })?;
        let ratio = (f64::from(POWERS.start + at as i32) / f64::from(PARTS)).exp2();
        (self.n > 0).then(|| ratio / (1.0 + ratio))
    }

    /// Share of bounds that say something: U is at most Z, so at most half was left out.
    pub fn share_telling(&self) -> Option<f64> {
        let telling = &self.counts[..(1 - POWERS.start) as usize];
        (self.n > 0).then(|| telling.iter().sum::<u64>() as f64 / self.n as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_counted_by_size() {
        let mut bounds = Bounds::new();
        assert_eq!((bounds.median(), bounds.share_telling()), (None, None));
        [0.1, 0.9, 5.0].into_iter().for_each(|ratio| bounds.add(ratio));
        // 0.9 is at most 1: at most half was left out.
        let up = (-2.0f64 / 16.0).exp2();
        assert_eq!(bounds.median(), Some(up / (1.0 + up)));
        assert_eq!(bounds.share_telling(), Some(2.0 / 3.0));
        bounds.add(0.0);
        bounds.add(f64::INFINITY);
        assert_eq!(bounds.len(), 5);
        bounds.clear();
        assert!(bounds.is_empty());
    }

    #[test]
    fn bounds_between_sizes_that_are_told_apart_count_as_the_larger_one() {
        let mut bounds = Bounds::new();
        for ratio in [1e-9, 3e-5, 1.0 / 3.0, 0.7, 41.0] {
            bounds.clear();
            bounds.add(ratio);
            let [share, median] = [ratio / (1.0 + ratio), bounds.median().unwrap()];
            assert!((share..1.045 * share).contains(&median), "{median} for {share}");
            assert_eq!(bounds.of_most(), Some(median));
        }
        bounds.clear();
        // A power of two counts as itself; 1 tells something, what is above does not.
        bounds.clear();
        bounds.add(1.0);
        assert_eq!((bounds.median(), bounds.share_telling()), (Some(0.5), Some(1.0)));
        bounds.add(1.5);
        assert_eq!(bounds.share_telling(), Some(0.5));
        // Of an even number the lower one is the median.
        assert_eq!(bounds.median(), Some(0.5));
        bounds.add(1.5);
        let up = (10.0f64 / 16.0).exp2();
        assert_eq!(bounds.median(), Some(up / (1.0 + up)));
    }

    #[test]
    fn most_bounds_are_99_of_100() {
        let mut bounds = Bounds::new();
        (0..99).for_each(|_| bounds.add(0.5));
        bounds.add(1.0);
        assert_eq!((bounds.of_most(), bounds.share_telling()), (Some(0.5 / 1.5), Some(1.0)));
        bounds.add(1.0);
        assert_eq!((bounds.median(), bounds.of_most()), (Some(0.5 / 1.5), Some(0.5)));
    }

    #[test]
    fn rates_are_of_what_was_counted() {
        let mut stats = Stats::new(2, 3);
        assert_eq!((stats.hit_rate(), stats.mean_attended()), (None, None));
        (stats.hits, stats.misses) = (3, 1);
        (stats.steps, stats.attended_rows) = (2, 60);
        assert_eq!(stats.hit_rate(), Some(0.75));
        // Two steps of two layers of three heads.
        assert_eq!(stats.mean_attended(), Some(5.0));
    }

    #[test]
    fn a_reset_keeps_nothing_but_memory() {
        let mut stats = Stats::new(1, 2);
        stats.attended_last = vec![7, 8];
        stats.bounds.add(0.5);
        (stats.hits, stats.misses, stats.fetched_bytes, stats.evictions) = (1, 2, 3, 4);
        (stats.select, stats.cluster_wait) = (Duration::from_secs(1), Duration::from_secs(2));
        stats.reset();
        let fresh = Stats::new(1, 2);
        assert_eq!(format!("{stats:?}"), format!("{fresh:?}"));
        stats.bounds.add(0.5);
        assert_eq!(stats.bounds.len(), 1, "there is room for bounds again");
    }
}
