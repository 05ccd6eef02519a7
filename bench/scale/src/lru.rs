//! What a worker holds in a tier, as long as there is room: what was used longest ago goes first.

use std::collections::{BTreeMap, HashMap};

/// The number of a document; 0 is asked for most.
pub type Doc = u32;

/// A store with room for so much.
#[derive(Clone, Debug)]
pub struct Lru {
    room: u64,
    used: u64,
    turn: u64,
    /// When each was used last, and its size.
    held: HashMap<Doc, (u64, u64)>,
    order: BTreeMap<u64, Doc>,
}

impl Lru {
    /// An empty store. `room` is in the unit of the sizes.
    pub fn new(room: u64) -> Self {
        Self { room, used: 0, turn: 0, held: HashMap::new(), order: BTreeMap::new() }
    }

    /// Whether it is there.
    pub fn holds(&self, doc: Doc) -> bool {
        self.held.contains_key(&doc)
    }

    /// A use; whether it is there.
    pub fn touch(&mut self, doc: Doc) -> bool {
        let Some((last, _)) = self.held.get_mut(&doc) else { return false };
        self.turn += 1;
        self.order.remove(last);
        *last = self.turn;
        self.order.insert(self.turn, doc);
        true
    }

    /// Takes a document in, and returns those that went for it. One that is larger than all the
    /// room is not taken.
    pub fn insert(&mut self, doc: Doc, size: u64) -> Vec<Doc> {
        if self.touch(doc) {
            return Vec::new();
        }
        if size > self.room {
            return vec![doc];
        }
        let mut gone = Vec::new();
        while self.used + size > self.room {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            self.used -= self.held.remove(&oldest).map_or(0, |(_, size)| size);
            gone.push(oldest);
        }
        self.turn += 1;
        self.used += size;
        self.held.insert(doc, (self.turn, size));
        self.order.insert(self.turn, doc);
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Zipf;

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let mut lru = Lru::new(10);
        assert!(lru.insert(1, 4).is_empty() && lru.insert(2, 4).is_empty());
        assert!(lru.touch(1));
        assert_eq!(lru.insert(3, 4), [2]);
        assert!(lru.holds(1) && lru.holds(3) && !lru.holds(2));
        assert_eq!(lru.insert(4, 11), [4], "larger than all: not taken");
        assert_eq!(lru.insert(5, 10), [1, 3]);
    }

    /// The states of LRU with room for two are ordered pairs; the stationary probability that the
    /// last two distinct documents are (i, j) is `p_i p_j / (1 - p_i)` (King 1971). A question hits
    /// if it is for one of them.
    #[test]
    fn hits_under_zipf_are_those_of_the_exact_chain() {
        let zipf = Zipf::new(6, 1.0);
        let p: Vec<f64> = (0..6).map(|i| zipf.share(i)).collect();
        let mut expected = 0.0;
        for i in 0..6 {
            for j in (0..6).filter(|j| *j != i) {
                expected += p[i] * p[j] / (1.0 - p[i]) * (p[i] + p[j]);
            }
        }
        let (mut lru, mut rng) = (Lru::new(2), longview_core::SplitMix64::new(2));
        let n = 300_000;
        let mut n_hits = 0;
        for _ in 0..n {
            let doc = zipf.draw(&mut rng);
            n_hits += usize::from(lru.holds(doc));
            lru.insert(doc, 1);
        }
        let share = n_hits as f64 / f64::from(n);
        assert!((share - expected).abs() < 0.004, "{share} instead of {expected}");
    }
}
