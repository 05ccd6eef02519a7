//! The simulation: questions, the router, workers and what moves between them.

use crate::load::{Question, Zipf};
use crate::lru::Doc;
use crate::queue::{Queue, Time, seconds, time};
use crate::router::{Router, Rules};
use crate::times::Rates;
use crate::worker::{Ask, Done, Limits, Phase, Worker};

/// Storage that all workers share.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// Seconds until the first byte comes.
    pub latency: f64,
    /// Bytes a second that one worker receives at most.
    pub worker_bytes_per_s: f64,
    /// Bytes a second that it gives to all workers together.
    pub total_bytes_per_s: f64,
}

/// What a document takes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Its tokens.
    pub tokens: u64,
    /// In memory: bytes, or 1 where the room is a number of documents.
    pub memory: u64,
    /// Bytes on the disk.
    pub disk: u64,
}

/// All that a run needs beside its questions.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Workers that answer.
    pub n_workers: usize,
    /// Each of them.
    pub limits: Limits,
    /// What they compute, and how fast.
    pub rates: Rates,
    /// Which is asked.
    pub rules: Rules,
    /// Storage that they share, if they do.
    pub store: Option<Store>,
    /// Documents, the one that is asked for most first.
    pub docs: Vec<Sizes>,
    /// Of chance in routing.
    pub seed: u64,
}

/// What the copies of hot documents took that were made before a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Copies {
    /// How many were made, those again that had made room.
    pub n: u64,
    /// Bytes that came from the store for them.
    pub fetched_bytes: u64,
    /// Seconds in which workers without a store read them, all together.
    pub reading: f64,
}

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Seconds to the first token of each question, in the order of the questions.
    pub ttft: Vec<f64>,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Those that were read.
    pub read_tokens: u64,
    /// Sessions that were opened.
    pub opened: u64,
    /// Bytes that were read from local disks.
    pub disk_bytes: u64,
    /// Bytes that came from shared storage.
    pub fetched_bytes: u64,
    /// Bytes that went there.
    pub sent_bytes: u64,
    /// What copies took before.
    pub copies: Copies,
    /// Seconds in which workers computed, all together.
    pub busy: f64,
    /// Seconds from the first arrival to the end of the last answer.
    pub seconds: f64,
}

impl Outcome {
    /// The share of prompts that was known.
    pub fn avoided(&self) -> f64 {
        1.0 - self.read_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// Seconds to the first token that this share of the questions had at most (nearest rank).
    pub fn ttft(&self, share: f64) -> f64 {
        quantile(&self.ttft, share)
    }
}

/// The value that `share` of all do not exceed (nearest rank); 0 of none.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives(usize),
    /// A worker has done what it was computing.
    Computed(usize),
    /// A session is in a worker's memory.
    Opened(usize, Doc),
}

/// A simulation before it runs.
pub struct Simulation {
    setup: Setup,
    router: Router,
    workers: Vec<Worker>,
    /// What the storage has.
    stored: Vec<bool>,
    /// When each worker's link, and that of the storage, is free again.
    links: Vec<Time>,
    store_free: Time,
    queue: Queue<Event>,
    outcome: Outcome,
}

impl Simulation {
    /// Workers that hold nothing yet.
    pub fn new(setup: Setup) -> Self {
        let (n, n_docs) = (setup.n_workers, setup.docs.len());
        Self {
            router: Router::new(setup.rules, n, n_docs, setup.seed),
            workers: (0..n).map(|_| Worker::new(setup.limits)).collect(),
            stored: vec![false; n_docs],
            links: vec![0; n],
            store_free: 0,
            queue: Queue::new(),
            outcome: Outcome::default(),
            setup,
        }
    }

    /// Lets one question about each document and then `n` at random pass in no time: afterwards
    /// every document was read once, and memory and disks hold what they hold after a long time.
    /// What copies of hot documents take is counted.
    pub fn warm(&mut self, n: usize, zipf: &Zipf, seed: u64) {
        let mut rng = longview_core::SplitMix64::new(seed);
        let each = (0..self.setup.docs.len() as Doc).rev();
        let drawn = (0..n).map(|_| zipf.draw(&mut rng));
        for doc in each.chain(drawn) {
            let worker = self.router.choose(doc);
            self.router.answered(worker);
            self.count_copy(worker, doc);
            self.keep(worker, doc);
            self.stored[doc as usize] = self.setup.store.is_some();
        }
    }

    /// Answers all questions, which are in the order of their time.
    pub fn run(mut self, questions: &[Question]) -> Outcome {
        self.answer(questions);
        self.outcome
    }

    fn answer(&mut self, questions: &[Question]) {
        self.outcome.ttft = vec![f64::NAN; questions.len()];
        if let Some(first) = questions.first() {
            self.queue.add(first.at, Event::Arrives(0));
        }
        let mut end = 0;
        while let Some((now, event)) = self.queue.next() {
            end = now;
            match event {
                Event::Arrives(i) => self.arrive(now, questions, i),
                Event::Computed(worker) => self.computed(now, questions, worker),
                Event::Opened(worker, doc) => {
                    self.keep(worker, doc);
                    self.workers[worker].opened(doc);
                }
            }
            if let Event::Computed(worker) | Event::Opened(worker, _) = event {
                self.go_on(now, worker);
            }
        }
        self.outcome.seconds = seconds(end - questions.first().map_or(0, |first| first.at));
    }

    fn arrive(&mut self, now: Time, questions: &[Question], i: usize) {
        if let Some(next) = questions.get(i + 1) {
            self.queue.add(next.at, Event::Arrives(i + 1));
        }
        let question = questions[i];
        let doc = question.doc;
        let worker = self.router.choose(doc);
        let known = self.workers[worker].holds(doc) || self.stored[doc as usize];
        let sizes = self.setup.docs[doc as usize];
        self.outcome.prompt_tokens += sizes.tokens + self.setup.rates.question_tokens;
        self.outcome.read_tokens += self.setup.rates.question_tokens;
        let ask = Ask { question: i, doc, tokens: sizes.tokens, answer: question.answer };
        if self.workers[worker].ask(ask, known) {
            self.outcome.read_tokens += sizes.tokens;
            self.router.holds_now(worker, doc);
        }
        self.go_on(now, worker);
    }

    fn computed(&mut self, now: Time, questions: &[Question], worker: usize) {
        for done in self.workers[worker].computed(&self.setup.rates) {
            match done {
                Done::FirstToken(i) => self.outcome.ttft[i] = seconds(now - questions[i].at),
                Done::Answer => self.router.answered(worker),
                Done::Document(doc) => {
                    let sizes = self.setup.docs[doc as usize];
                    self.keep(worker, doc);
                    if self.setup.store.is_some() && !self.stored[doc as usize] {
                        self.stored[doc as usize] = true;
                        self.outcome.sent_bytes += sizes.disk;
                    }
                }
            }
        }
    }

    /// Lets a worker that computes nothing begin with what there is.
    fn go_on(&mut self, now: Time, worker: usize) {
        if self.workers[worker].phase != Phase::Idle {
            return;
        }
        for doc in self.workers[worker].admit() {
            self.open(now, worker, doc);
        }
        if let Some(took) = self.workers[worker].begin(&self.setup.rates) {
            self.outcome.busy += took;
            self.queue.add(now + time(took), Event::Computed(worker));
        }
    }

    fn open(&mut self, now: Time, worker: usize, doc: Doc) {
        let sizes = self.setup.docs[doc as usize];
        let local = time(self.setup.rates.open(sizes.disk));
        self.outcome.opened += 1;
        let mut at = now;
        match self.setup.store {
            // The file comes through the storage's link and the worker's, each of which serves one
            // after the other; then it is opened as from the disk.
            Some(store) if !self.workers[worker].disk.holds(doc) => {
                let begin = now + time(store.latency);
                let bytes = sizes.disk as f64;
                let sent = begin.max(self.store_free) + time(bytes / store.total_bytes_per_s);
                let link = self.links[worker].max(begin) + time(bytes / store.worker_bytes_per_s);
                (self.store_free, self.links[worker]) = (sent, link);
                self.outcome.fetched_bytes += sizes.disk;
                at = sent.max(link);
            }
            _ => self.outcome.disk_bytes += sizes.disk,
        }
        self.queue.add(at + local, Event::Opened(worker, doc));
    }

    /// A worker has a document now, in memory and on its disk. The router hears of it, and of those
    /// that went for it and are in neither any more.
    fn keep(&mut self, worker: usize, doc: Doc) {
        let sizes = self.setup.docs[doc as usize];
        self.router.holds_now(worker, doc);
        let has = &mut self.workers[worker];
        let mut gone = has.memory.insert(doc, sizes.memory);
        gone.extend(has.disk.insert(doc, sizes.disk));
        for gone in gone {
            if !has.holds(gone) {
                self.router.lost(worker, gone);
            }
        }
    }

    /// Counts what a further copy of a hot document takes: it comes from the store, or is read.
    fn count_copy(&mut self, worker: usize, doc: Doc) {
        let is_hot = (doc as usize) < self.setup.rules.n_hot;
        if !is_hot || self.workers[worker].holds(doc) {
            return;
        }
        if self.workers.iter().all(|one| !one.holds(doc)) {
            return;
        }
        let sizes = self.setup.docs[doc as usize];
        self.outcome.copies.n += 1;
        match self.setup.store {
            Some(_) => self.outcome.copies.fetched_bytes += sizes.disk,
            None => self.outcome.copies.reading += self.setup.rates.read(0, sizes.tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::questions;
    use crate::router::Routing;

    /// One worker with one place that answers with one token in a fixed time, and needs `read`
    /// seconds for each token of a document.
    fn setup(service: f64, read: f64, n_workers: usize, routing: Routing) -> Setup {
        let rates = Rates {
            prefill: [read, 0.0, 0.0],
            question: [service, 0.0, 0.0],
            step: [0.0; 3],
            open: [0.5, 0.0, 0.0],
            end: 0.0,
            question_tokens: 10,
            disk_bytes_per_token: 1.0,
            host_bytes_per_token: 1.0,
        };
        let limits =
            Limits { slots: 1, chunk: 512, max_stall: 0.2, opening: 2, memory: 100, disk: 1000 };
        let rules = Rules { routing, most_unanswered: 8, n_hot: 0, n_copies: 1 };
        let docs = vec![Sizes { tokens: 100, memory: 100, disk: 100 }; 4];
        Setup { n_workers, limits, rates, rules, store: None, docs, seed: 1 }
    }

    /// Pollaczek and Khinchine: the mean wait of M/D/1 is `rho s / (2 (1 - rho))`.
    #[test]
    fn one_place_waits_as_long_as_the_formula_says() {
        for rho in [0.3, 0.5, 0.7] {
            let all = questions(400_000, &Zipf::new(1, 1.0), rho, 1, 4);
            let outcome = Simulation::new(setup(1.0, 0.0, 1, Routing::Prefix)).run(&all);
            let mean = outcome.ttft.iter().sum::<f64>() / all.len() as f64 - 1.0;
            let expected = rho / (2.0 * (1.0 - rho));
            assert!((mean / expected - 1.0).abs() < 0.03, "{rho}: {mean} instead of {expected}");
        }
    }

    fn at(seconds: f64, doc: Doc) -> Question {
        Question { at: time(seconds), doc, answer: 1 }
    }

    #[test]
    fn a_document_is_read_once_then_known_then_opened() {
        // Memory has room for one document, the disk for all.
        let all = [at(0.0, 0), at(100.0, 0), at(200.0, 1), at(300.0, 0)];
        let outcome = Simulation::new(setup(1.0, 0.1, 1, Routing::Prefix)).run(&all);
        let expected = [11.0, 1.0, 11.0, 1.5];
        for (got, wanted) in outcome.ttft.iter().zip(expected) {
            assert!((got - wanted).abs() < 1e-6, "{:?} instead of {expected:?}", outcome.ttft);
        }
        assert_eq!((outcome.prompt_tokens, outcome.read_tokens), (440, 240));
        assert_eq!((outcome.disk_bytes, outcome.fetched_bytes), (100, 0));
    }

    #[test]
    fn a_store_gives_others_what_one_has_read() {
        let all = [at(0.0, 0), at(100.0, 0)];
        let alone = setup(1.0, 0.1, 2, Routing::RoundRobin);
        let store = Store { latency: 2.0, worker_bytes_per_s: 100.0, total_bytes_per_s: 50.0 };
        let shared = Setup { store: Some(store), ..alone.clone() };
        let outcome = Simulation::new(alone).run(&all);
        assert_eq!(outcome.read_tokens, 220, "each worker reads it");
        let outcome = Simulation::new(shared).run(&all);
        assert_eq!(
            (outcome.read_tokens, outcome.sent_bytes, outcome.fetched_bytes),
            (120, 100, 100)
        );
        // Latency, 100 bytes through the slower link, opening, the question.
        assert!((outcome.ttft[1] - (2.0 + 2.0 + 0.5 + 1.0)).abs() < 1e-6, "{:?}", outcome.ttft);
    }

    #[test]
    fn the_router_knows_who_holds_what() {
        // Rooms for as few documents as make them leave memory and disk in either order.
        for (memory, disk) in [(100, 200), (200, 200), (300, 200), (200, 100)] {
            let mut setup = setup(0.5, 0.001, 2, Routing::Prefix);
            (setup.limits.memory, setup.limits.disk) = (memory, disk);
            // What is small in memory may be large on the disk.
            let sizes = |i: u64| Sizes { tokens: 100, memory: 50 + 10 * i, disk: 100 - 10 * i };
            setup.docs = (0..6).map(sizes).collect();
            let zipf = Zipf::new(6, 0.5);
            let mut simulation = Simulation::new(setup);
            for round in 0..20 {
                simulation.warm(7, &zipf, round);
                simulation.answer(&questions(20, &zipf, 1.0, 1, round));
                for (w, worker) in simulation.workers.iter().enumerate() {
                    for doc in 0..6 {
                        let (says, is) = (simulation.router.holds(w, doc), worker.holds(doc));
                        assert_eq!(says, is, "{memory}, {disk}, {round}: {doc} at {w}");
                    }
                }
            }
        }
    }

    #[test]
    fn copies_of_hot_documents_are_read_or_come_from_the_store() {
        let mut alone = setup(1.0, 0.1, 4, Routing::Prefix);
        (alone.rules.n_hot, alone.rules.n_copies) = (2, 3);
        let store = Store { latency: 2.0, worker_bytes_per_s: 1.0, total_bytes_per_s: 1.0 };
        let shared = Setup { store: Some(store), ..alone.clone() };
        let copies = |setup| {
            let mut simulation = Simulation::new(setup);
            simulation.warm(100, &Zipf::new(4, 1.0), 1);
            simulation.outcome.copies
        };
        // Two more of each; a document has 100 tokens and 100 bytes.
        let copies = [copies(alone), copies(shared)];
        assert_eq!(copies.map(|copies| copies.n), [4, 4]);
        assert_eq!(copies.map(|copies| copies.fetched_bytes), [0, 400]);
        assert!((copies[0].reading - 40.0).abs() < 1e-6 && copies[1].reading == 0.0);
    }

    #[test]
    fn what_is_asked_for_in_memory_stays_on_the_disk() {
        let mut setup = setup(1.0, 0.1, 1, Routing::Prefix);
        (setup.limits.memory, setup.limits.disk) = (200, 200);
        // Both are read, the first one is asked for again, and a third one needs room.
        let all = [at(0.0, 0), at(100.0, 1), at(200.0, 0), at(300.0, 2)];
        let mut simulation = Simulation::new(setup);
        simulation.answer(&all);
        let on_disk = [0, 1, 2].map(|doc| simulation.workers[0].disk.holds(doc));
        assert_eq!(on_disk, [true, false, true]);
    }

    #[test]
    fn runs_follow_from_their_seeds() {
        let all = questions(2_000, &Zipf::new(4, 1.0), 1.5, 1, 4);
        let run = || Simulation::new(setup(0.5, 0.01, 3, Routing::Random)).run(&all);
        assert_eq!(run(), run());
    }
}
