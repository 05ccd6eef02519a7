//! Which KV rows of a head are on the device: the hit/miss cache of recalled clusters.
//!
//! Cluster-granular: one table entry per cluster holds the epoch (step) of its last use and a chain
//! of slots. A cluster is stored closest member first, so what is cached of it is always a prefix,
//! and a trimmed cluster is a shorter prefix of the same rows. A step costs O(tokens selected):
//! clusters fall out by a queue of uses in epoch order, never by a scan over the sequence. Plain
//! bookkeeping: no device, no clock.

use std::collections::VecDeque;

use longview_core::{ClusterId, Slot};

const NO_SLOT: u32 = u32::MAX;

/// Steps whose uses have memory from the start. More of them come one by one, as steps do.
const RESERVED_STEPS: usize = 16;

/// A cluster that a step wants, and how many of its closest tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The cluster.
    pub cluster: ClusterId,
    /// Tokens, at most its size.
    pub take: u32,
}

/// A row that must be fetched: the `member`-th closest token of `cluster` into `slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The cluster.
    pub cluster: ClusterId,
    /// Place inside the cluster, 0 for the closest.
    pub member: u32,
    /// Where it goes.
    pub slot: Slot,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Epoch of the last use; 0 for never.
    epoch: u32,
    /// Length of the cached prefix; its slots hang off `first`.
    cached: u32,
    first: u32,
}

const EMPTY: Entry = Entry { epoch: 0, cached: 0, first: NO_SLOT };

/// The device cache of one (layer, KV head).
#[derive(Debug)]
pub struct ClusterCache {
    entries: Vec<Entry>,
    next: Vec<u32>,
    free: Vec<u32>,
    uses: VecDeque<(u32, ClusterId)>,
    epoch: u32,
    cache_steps: u32,
}

impl ClusterCache {
    /// A cache of `n_slots` rows that keeps clusters for `cache_steps` steps (R). Clusters of the
    /// last R steps must fit: `n_slots` is at least R times the tokens that one step selects, and
    /// at least once. With an R of 0 nothing is kept and every wanted row is a miss.
    /// `max_clusters` is a reservation, so that growth does not allocate, and so is what
    /// a few steps use.
    pub fn new(
        n_slots: usize,
        cache_steps: usize,
        max_clusters: usize,
        max_selected: usize,
    ) -> Self {
        Self {
            entries: Vec::with_capacity(max_clusters),
            next: vec![NO_SLOT; n_slots],
            free: (0..n_slots as u32).rev().collect(),
            uses: VecDeque::with_capacity((cache_steps.min(RESERVED_STEPS) + 1) * max_selected + 1),
            epoch: 0,
            cache_steps: cache_steps as u32,
        }
    }

    /// Makes room for clusters up to `n_clusters`, and forgets those from `n_clusters` on.
    pub fn set_clusters(&mut self, n_clusters: usize) {
        for cluster in n_clusters..self.entries.len() {
            self.shorten(cluster, 0);
        }
        self.entries.resize(n_clusters, EMPTY);
        self.uses.retain(|(_, cluster)| cluster.index() < n_clusters);
    }

    /// Forgets everything: the device's rows are gone.
    pub fn clear(&mut self) {
        let n = self.entries.len();
        self.set_clusters(0);
        self.set_clusters(n);
    }

    /// One step: marks the wanted clusters as used, lets go of those not used for R steps, and
    /// appends the slot of each wanted token to `slots` (in the order of `wants`, closest first)
    /// and each absent one to `misses`. Returns the number of hits.
    ///
    /// # Panics
    /// If the wants of R steps exceed the slots, or a cluster is wanted twice (a broken invariant
    /// of the caller).
    pub fn look_up(
        &mut self,
        wants: &[Want],
        slots: &mut Vec<Slot>,
        misses: &mut Vec<Miss>,
    ) -> usize {
        self.epoch += 1;
        if self.cache_steps == 0 {
            self.expire(0);
        }
        for want in wants {
            let entry = &mut self.entries[want.cluster.index()];
            assert_ne!(entry.epoch, self.epoch, "cluster {} selected twice", want.cluster);
            entry.epoch = self.epoch;
            self.uses.push_back((self.epoch, want.cluster));
            if want.take < self.entries[want.cluster.index()].cached {
                self.shorten(want.cluster.index(), want.take);
            }
        }
        self.expire(self.cache_steps.max(1));
        wants.iter().map(|want| self.place(*want, slots, misses)).sum()
    }

    /// Frees clusters whose last use is `steps` or more steps ago.
    fn expire(&mut self, steps: u32) {
        while let Some((epoch, cluster)) = self.uses.front().copied() {
            if epoch + steps > self.epoch {
                break;
            }
            self.uses.pop_front();
            if self.entries[cluster.index()].epoch == epoch {
                self.shorten(cluster.index(), 0);
            }
        }
    }

    fn place(&mut self, want: Want, slots: &mut Vec<Slot>, misses: &mut Vec<Miss>) -> usize {
        let entry = self.entries[want.cluster.index()];
        let (mut slot, mut last) = (entry.first, NO_SLOT);
        for _ in 0..entry.cached {
            slots.push(Slot(slot));
            last = slot;
            slot = self.next[slot as usize];
        }
        for member in entry.cached..want.take {
            let new = self.free.pop().expect("the wants of R steps fit the slots");
            match last {
                NO_SLOT => self.entries[want.cluster.index()].first = new,
                last => self.next[last as usize] = new,
            }
            self.next[new as usize] = NO_SLOT;
            slots.push(Slot(new));
            misses.push(Miss { cluster: want.cluster, member, slot: Slot(new) });
            last = new;
        }
        self.entries[want.cluster.index()].cached = want.take;
        entry.cached as usize
    }

    /// Keeps the first `keep` rows of a cluster and frees the others.
    fn shorten(&mut self, cluster: usize, keep: u32) {
        let entry = &mut self.entries[cluster];
        if entry.cached <= keep {
            return;
        }
        let mut slot = entry.first;
        for i in 0..entry.cached {
            let next = self.next[slot as usize];
            if i >= keep {
                self.free.push(slot);
            }
            if i + 1 >= keep {
                self.next[slot as usize] = NO_SLOT;
            }
            slot = next;
        }
        entry.cached = keep;
        if keep == 0 {
            entry.first = NO_SLOT;
        }
    }

    /// Clusters of which rows are held, and how many of their closest.
    pub fn held(&self) -> impl Iterator<Item = (ClusterId, usize)> + '_ {
        let held = self.entries.iter().enumerate().filter(|(_, entry)| entry.cached > 0);
        held.map(|(i, entry)| (ClusterId(i as u32), entry.cached as usize))
    }

    /// Slots that hold no row.
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Slots that hold a row, counted along the chains (for tests of the invariant free + used =
    /// total).
    pub fn n_used(&self) -> usize {
        self.entries.iter().map(|e| e.cached as usize).sum()
    }

    /// All slots.
    pub fn n_slots(&self) -> usize {
        self.next.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use longview_core::SplitMix64;

    use super::*;

    fn want(cluster: u32, take: u32) -> Want {
        Want { cluster: ClusterId(cluster), take }
    }

    fn step(cache: &mut ClusterCache, wants: &[Want]) -> (usize, Vec<Slot>, Vec<Miss>) {
        let (mut slots, mut misses) = (vec![], vec![]);
        let hits = cache.look_up(wants, &mut slots, &mut misses);
        (hits, slots, misses)
    }

    #[test]
    fn a_cluster_stays_for_r_steps_and_then_goes() {
        for r in 1..=3 {
            let mut cache = ClusterCache::new(10 * r, r, 8, 8);
            cache.set_clusters(8);
            assert_eq!(step(&mut cache, &[want(3, 5)]).0, 0);
            for _ in 1..r {
                step(&mut cache, &[want(1, 2)]);
            }
            assert_eq!(step(&mut cache, &[want(3, 5)]).0, 5, "R = {r}: still there");
            for _ in 0..r {
                step(&mut cache, &[want(1, 2)]);
            }
            assert_eq!(step(&mut cache, &[want(3, 5)]).0, 0, "R = {r}: gone");
        }
    }

    #[test]
    fn without_a_cache_every_step_fetches_all() {
        let mut cache = ClusterCache::new(10, 0, 8, 8);
        cache.set_clusters(8);
        for _ in 0..3 {
            let (hits, slots, misses) = step(&mut cache, &[want(3, 6), want(1, 4)]);
            assert_eq!((hits, slots.len(), misses.len()), (0, 10, 10));
            assert_eq!((cache.n_used(), cache.n_free()), (10, 0));
        }
    }

    #[test]
    fn a_longer_prefix_fetches_only_the_tail() {
        let mut cache = ClusterCache::new(20, 1, 4, 4);
        cache.set_clusters(4);
        let (_, first, _) = step(&mut cache, &[want(2, 4)]);
        let (hits, slots, misses) = step(&mut cache, &[want(2, 9)]);
        assert_eq!((hits, &slots[..4]), (4, &first[..]));
        assert_eq!(misses.iter().map(|m| m.member).collect::<Vec<_>>(), [4, 5, 6, 7, 8]);
    }

    /// Ten thousand random steps against a model that keeps whole sets.
    #[test]
    fn invariants_hold_over_random_steps() {
        let mut rng = SplitMix64::new(11);
        for r in 1..=3usize {
            let (n_clusters, budget) = (200, 96);
            let sizes: Vec<u32> = (0..n_clusters).map(|_| 1 + rng.below(24) as u32).collect();
            let mut cache = ClusterCache::new(r * budget, r, n_clusters, budget);
            cache.set_clusters(n_clusters);
            let mut contents: HashMap<u32, (u32, u32)> = HashMap::new();
            let mut history: Vec<HashSet<u32>> = vec![];
            for _ in 0..10_000 / r {
                let wants = random_wants(&mut rng, &sizes, budget as u32);
                let (hits, slots, misses) = step(&mut cache, &wants);
                assert_eq!(cache.n_free() + cache.n_used(), cache.n_slots());
                assert_eq!(slots.iter().collect::<HashSet<_>>().len(), slots.len(), "a slot twice");
                assert_eq!(hits + misses.len(), slots.len());
                for miss in &misses {
                    contents.insert(miss.slot.0, (miss.cluster.0, miss.member));
                }
                let expected = wants.iter().flat_map(|w| (0..w.take).map(|m| (w.cluster.0, m)));
                let found = slots.iter().map(|slot| contents[&slot.0]);
                assert!(expected.eq(found), "a slot holds another row");
                check_recency(&history, r, &wants, &misses);
                history.push(wants.iter().map(|w| w.cluster.0).collect());
            }
        }
    }

    /// A cluster that no step of the last R used has all its tokens among the misses.
    fn check_recency(history: &[HashSet<u32>], r: usize, wants: &[Want], misses: &[Miss]) {
        let recent = &history[history.len().saturating_sub(r)..];
        for want in wants {
            let fetched = misses.iter().filter(|m| m.cluster == want.cluster).count();
            if recent.iter().any(|set| set.contains(&want.cluster.0)) {
                assert!(fetched < want.take as usize, "a used cluster missed its closest token");
            } else {
                assert_eq!(fetched, want.take as usize);
            }
        }
    }

    fn random_wants(rng: &mut SplitMix64, sizes: &[u32], budget: u32) -> Vec<Want> {
        let (mut left, mut wants) = (budget, vec![]);
        // A drifting neighbourhood, so that hits and misses both happen.
        let base = rng.below(8) * 20;
        for i in rng.distinct(60, 60) {
            let cluster = (base as u32 + i) % sizes.len() as u32;
            let take = sizes[cluster as usize].min(left);
            if take > 0 {
                wants.push(want(cluster, take));
            }
            left -= take;
        }
        wants
    }

    #[test]
    fn a_shorter_prefix_frees_the_tail_and_keeps_the_closest() {
        let mut cache = ClusterCache::new(6, 1, 4, 4);
        cache.set_clusters(4);
        let (_, first, _) = step(&mut cache, &[want(2, 5)]);
        let (hits, slots, misses) = step(&mut cache, &[want(2, 2)]);
        assert_eq!((hits, &slots[..], misses.len()), (2, &first[..2], 0));
        assert_eq!((cache.n_used(), cache.n_free()), (2, 4));
        assert_eq!(cache.held().collect::<Vec<_>>(), [(ClusterId(2), 2)]);
        // What was let go is there for others in the same step, and comes back as misses.
        let (hits, _, misses) = step(&mut cache, &[want(0, 2), want(2, 4)]);
        assert_eq!(hits, 2);
        let misses: Vec<_> = misses.iter().map(|m| (m.cluster.0, m.member)).collect();
        assert_eq!(misses, [(0, 0), (0, 1), (2, 2), (2, 3)]);
        assert_eq!((cache.n_used(), cache.n_free(), cache.n_slots()), (6, 0, 6));
    }

    #[test]
    #[should_panic(expected = "selected twice")]
    fn a_cluster_may_be_wanted_once_a_step() {
        let mut cache = ClusterCache::new(6, 1, 4, 4);
        cache.set_clusters(4);
        step(&mut cache, &[want(2, 1), want(2, 1)]);
    }

    #[test]
    #[should_panic(expected = "the wants of R steps fit the slots")]
    fn more_than_the_slots_hold_may_not_be_wanted() {
        let mut cache = ClusterCache::new(6, 1, 4, 4);
        cache.set_clusters(4);
        step(&mut cache, &[want(2, 4), want(1, 3)]);
    }

    #[test]
    fn forgetting_clusters_frees_their_slots() {
        let mut cache = ClusterCache::new(30, 2, 8, 8);
        cache.set_clusters(8);
        step(&mut cache, &[want(7, 5), want(2, 5)]);
        cache.set_clusters(5);
        assert_eq!(cache.n_used(), 5);
        cache.set_clusters(8);
        assert_eq!(
            step(&mut cache, &[want(7, 5), want(2, 5)]).0,
            5,
            "the new cluster 7 is another one"
        );
        cache.clear();
        assert_eq!(cache.n_free(), 30);
    }
}
