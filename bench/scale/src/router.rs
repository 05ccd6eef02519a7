//! Which worker is asked. The same code sends the questions of a simulation and those of a check
//! against real servers.

use clap::ValueEnum;
use longview_core::SplitMix64;
use serde::Serialize;

use crate::lru::Doc;

/// How a worker is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// A worker that holds the document, unless it has too much to do.
    Prefix,
    /// Any, by chance.
    Random,
    /// All in turn.
    RoundRobin,
}

/// What it goes by.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How a worker is chosen.
    pub routing: Routing,
    /// Unanswered questions of a worker from which on another one is asked, if that has less than
    /// half as many.
    pub most_unanswered: usize,
    /// How many documents are hot: those that are asked for most.
    pub n_hot: usize,
    /// Workers that are to hold a hot document.
    pub n_copies: usize,
}

/// Chooses workers, and knows what they hold and have to do.
#[derive(Clone, Debug)]
pub struct Router {
    rules: Rules,
    holders: Vec<Vec<usize>>,
    unanswered: Vec<usize>,
    next: usize,
    rng: SplitMix64,
}

impl Router {
    /// One for so many workers and documents, which nobody holds yet.
    pub fn new(rules: Rules, n_workers: usize, n_docs: usize, seed: u64) -> Self {
        let (holders, unanswered) = (vec![Vec::new(); n_docs], vec![0; n_workers]);
        Self { rules, holders, unanswered, next: 0, rng: SplitMix64::new(seed) }
    }

    /// The worker for a question, which is unanswered from then on.
    pub fn choose(&mut self, doc: Doc) -> usize {
        let n = self.unanswered.len();
        let worker = match self.rules.routing {
            Routing::Random => self.rng.below(n),
            Routing::RoundRobin => {
                self.next = (self.next + 1) % n;
                self.next
            }
            Routing::Prefix => self.by_prefix(doc),
        };
        self.unanswered[worker] += 1;
        worker
    }

    fn by_prefix(&self, doc: Doc) -> usize {
        let n = self.unanswered.len();
        // Of workers with as little to do another one for each document.
        let spread = |w: usize| (w + doc as usize) % n;
        let order = |w: &usize| (self.unanswered[*w], spread(*w));
        let holders = &self.holders[doc as usize];
        let idlest = (0..n).min_by_key(order).unwrap_or(0);
        let Some(holder) = holders.iter().copied().min_by_key(order) else { return idlest };
        if (doc as usize) < self.rules.n_hot && holders.len() < self.rules.n_copies.min(n) {
            let others = (0..n).filter(|w| !holders.contains(w));
            return others.min_by_key(order).unwrap_or(holder);
        }
        let busy = self.unanswered[holder];
        if busy > self.rules.most_unanswered && 2 * self.unanswered[idlest] < busy {
            return idlest;
        }
        holder
    }

    /// A question is answered.
    pub fn answered(&mut self, worker: usize) {
        self.unanswered[worker] = self.unanswered[worker].saturating_sub(1);
    }

    /// Whether the worker has the document, or reads it.
    pub fn holds(&self, worker: usize, doc: Doc) -> bool {
        self.holders[doc as usize].contains(&worker)
    }

    /// The worker has the document now, or reads it.
    pub fn holds_now(&mut self, worker: usize, doc: Doc) {
        if !self.holds(worker, doc) {
            self.holders[doc as usize].push(worker);
        }
    }

    /// The worker no longer has the document.
    pub fn lost(&mut self, worker: usize, doc: Doc) {
        self.holders[doc as usize].retain(|w| *w != worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(routing: Routing, n_hot: usize) -> Router {
        let rules = Rules { routing, most_unanswered: 2, n_hot, n_copies: 2 };
        Router::new(rules, 3, 10, 1)
    }

    #[test]
    fn the_holder_is_asked_until_it_has_too_much_to_do() {
        let mut router = router(Routing::Prefix, 0);
        router.holds_now(1, 5);
        let first: Vec<_> = (0..4).map(|_| router.choose(5)).collect();
        assert_eq!(first[..3], [1, 1, 1]);
        assert_ne!(first[3], 1, "3 are unanswered, and others have none");
        router.answered(1);
        assert_eq!(router.choose(5), 1);
    }

    #[test]
    fn hot_documents_get_their_copies() {
        let mut router = router(Routing::Prefix, 1);
        router.holds_now(1, 0);
        let second = router.choose(0);
        assert_ne!(second, 1);
        router.holds_now(second, 0);
        let third = router.choose(0);
        assert!(third == 1, "the holder with less to do");
    }

    #[test]
    fn turns_and_chance_reach_all() {
        let mut turns = router(Routing::RoundRobin, 0);
        assert_eq!((0..4).map(|_| turns.choose(0)).collect::<Vec<_>>(), [1, 2, 0, 1]);
        let mut chance = router(Routing::Random, 0);
        let mut counts = [0; 3];
        (0..3000).for_each(|_| counts[chance.choose(0)] += 1);
        assert!(counts.iter().all(|n| (850..1150).contains(n)), "{counts:?}");
    }
}
