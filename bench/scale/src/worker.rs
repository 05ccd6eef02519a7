//! One worker as the server's engine thread is (`crates/server/src/worker`): in each round a chunk
//! of one prompt, then a step of all answers; a few places; sessions are opened beside it.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::lru::{Doc, Lru};
use crate::times::Rates;

/// Of the time that answers may wait, what chunks and steps are planned to take (`pace.rs`).
const PLANNED: f64 = 0.65;
/// Fewest tokens of a chunk (`pace.rs`).
const LEAST: u64 = 16;

/// How one worker is set up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests that run at the same time (`--parallel`).
    pub slots: usize,
    /// Tokens of a chunk at most (`--chunk-size`).
    pub chunk: u64,
    /// Seconds that an answer waits for its next token (`--max-stall`).
    pub max_stall: f64,
    /// Sessions that are opened at the same time.
    pub opening: usize,
    /// Room in memory, in the unit of a document's size.
    pub memory: u64,
    /// Room on the disk.
    pub disk: u64,
}

/// A question as a worker gets it.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Its number.
    pub question: usize,
    /// What it is about.
    pub doc: Doc,
    /// Tokens of that.
    pub tokens: u64,
    /// Tokens of the answer.
    pub answer: u64,
}

#[derive(Clone, Copy, Debug)]
enum Job {
    /// Reads a document, for all who wait for it.
    Build { doc: Doc, tokens: u64 },
    /// Answers.
    Ask { ask: Ask, on_disk: OnDisk },
}

/// Whether the disk was asked for a question's session (`OnDisk` of `crates/server/src/job.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnDisk {
    /// Not yet: nobody came to this question while a place was free.
    NotAsked,
    /// It is being opened, for this question too.
    Opening,
    /// Nothing is needed from there.
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    job: Job,
    n_read: u64,
    turn: u64,
}

#[derive(Clone, Copy, Debug)]
struct Answering {
    tokens: u64,
    n_left: u64,
}

/// What a worker computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing until a question or a session comes.
    Idle,
    /// So many tokens of the prompt at this place.
    Chunk(usize, u64),
    /// A step of all answers.
    Step,
}

/// What came of a chunk or a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The first token of this question's answer.
    FirstToken(usize),
    /// The end of an answer.
    Answer,
    /// A document is read.
    Document(Doc),
}

/// A worker.
pub struct Worker {
    limits: Limits,
    /// Documents in memory.
    pub memory: Lru,
    /// Documents on its disk.
    pub disk: Lru,
    /// What it computes.
    pub phase: Phase,
    waiting: VecDeque<Job>,
    reading: Vec<Reading>,
    answering: Vec<Answering>,
    opening: HashSet<Doc>,
    /// Who waits for a document that is read, or will be.
    builds: HashMap<Doc, Vec<Ask>>,
    turn: u64,
    /// Whether a step comes next.
    steps_next: bool,
    /// Seconds of ends of answers, which the next round takes longer.
    owed: f64,
}

impl Worker {
    /// One that holds nothing and does nothing.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            memory: Lru::new(limits.memory),
            disk: Lru::new(limits.disk),
            phase: Phase::Idle,
            waiting: VecDeque::new(),
            reading: Vec::new(),
            answering: Vec::new(),
            opening: HashSet::new(),
            builds: HashMap::new(),
            turn: 0,
            steps_next: false,
            owed: 0.0,
        }
    }

    /// Whether it can answer about a document without reading it, from what it has.
    pub fn holds(&self, doc: Doc) -> bool {
        self.memory.holds(doc) || self.disk.holds(doc)
    }

    /// Takes a question. `known`: the document need not be read. Returns whether a reading begins
    /// for it.
    pub fn ask(&mut self, ask: Ask, known: bool) -> bool {
        if let Some(waiters) = self.builds.get_mut(&ask.doc) {
            waiters.push(ask);
            return false;
        }
        if known {
            // A question is a use of the document on the disk too, wherever it is answered from.
            self.disk.touch(ask.doc);
            self.waiting.push_back(Job::Ask { ask, on_disk: OnDisk::NotAsked });
            return false;
        }
        self.builds.insert(ask.doc, vec![ask]);
        self.waiting.push_back(Job::Build { doc: ask.doc, tokens: ask.tokens });
        true
    }

    /// A session was put into memory, and those for whom it was opened can begin. A question that
    /// was not come to yet finds it there, or has it opened once more where it was given up since.
    pub fn opened(&mut self, opened: Doc) {
        self.opening.remove(&opened);
        for job in &mut self.waiting {
            if let Job::Ask { ask, on_disk: on_disk @ OnDisk::Opening } = job
                && ask.doc == opened
            {
                *on_disk = OnDisk::Done;
            }
        }
    }

    /// Gives places to what waits, in order, and returns the documents that are to be opened.
    pub fn admit(&mut self) -> Vec<Doc> {
        let mut to_open = Vec::new();
        let mut at = 0;
        while self.reading.len() + self.answering.len() < self.limits.slots {
            let Some(job) = self.waiting.get(at).copied() else { break };
            let begins = match job {
                Job::Build { .. } => true,
                Job::Ask { ask, on_disk } => {
                    on_disk == OnDisk::Done
                        || (on_disk == OnDisk::NotAsked && self.memory.touch(ask.doc))
                }
            };
            if begins {
                self.waiting.remove(at);
                self.reading.push(Reading { job, n_read: 0, turn: self.turn });
                continue;
            }
            if let Job::Ask { ask, on_disk: OnDisk::NotAsked } = job
                && let Some(opens) = self.asks_disk(ask.doc)
            {
                self.waiting[at] = Job::Ask { ask, on_disk: OnDisk::Opening };
                to_open.extend(opens.then_some(ask.doc));
            }
            at += 1;
        }
        to_open
    }

    /// Has a document's session opened, where that is not going on; returns whether. `None`: too
    /// many are being opened.
    fn asks_disk(&mut self, doc: Doc) -> Option<bool> {
        if self.opening.contains(&doc) {
            return Some(false);
        }
        if self.opening.len() == self.limits.opening {
            return None;
        }
        self.opening.insert(doc);
        Some(true)
    }

    /// Begins the next chunk or step, and returns how long it takes in seconds.
    pub fn begin(&mut self, rates: &Rates) -> Option<f64> {
        let reading = (0..self.reading.len()).min_by_key(|i| self.reading[*i].turn);
        let step_next = self.steps_next || reading.is_none();
        let took = match reading {
            _ if step_next && !self.answering.is_empty() => {
                self.phase = Phase::Step;
                self.steps_next = false;
                self.step(rates)
            }
            Some(i) => {
                self.turn += 1;
                self.reading[i].turn = self.turn;
                self.steps_next = true;
                let (n, took) = self.chunk(self.reading[i], rates);
                self.phase = Phase::Chunk(i, n);
                took
            }
            None => return None,
        };
        Some(took + std::mem::take(&mut self.owed))
    }

    fn step(&self, rates: &Rates) -> f64 {
        let tokens = self.answering.iter().map(|answer| answer.tokens).sum();
        rates.step(self.answering.len(), tokens)
    }

    fn chunk(&self, reading: Reading, rates: &Rates) -> (u64, f64) {
        let (tokens, from) = match reading.job {
            Job::Ask { ask, .. } => return (1, rates.question(ask.tokens)),
            Job::Build { tokens, .. } => (tokens, reading.n_read),
        };
        let mut n = self.limits.chunk;
        if !self.answering.is_empty() {
            let left = (PLANNED * self.limits.max_stall - self.step(rates)).max(0.0);
            let each = rates.read(from, from + 1).max(1e-12);
            n = ((left / each) as u64 / LEAST * LEAST).clamp(LEAST, n);
        }
        let to = (from + n).min(tokens);
        (to - from, rates.read(from, to))
    }

    /// What it was computing is done.
    pub fn computed(&mut self, rates: &Rates) -> Vec<Done> {
        let mut all = Vec::new();
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => {}
            Phase::Chunk(i, n) => all.extend(self.has_read(i, n)),
            Phase::Step => self.answering.iter_mut().for_each(|answer| answer.n_left -= 1),
        }
        let n_before = self.answering.len();
        self.answering.retain(|answer| answer.n_left > 0);
        let n_ended = n_before - self.answering.len();
        self.owed += rates.end * n_ended as f64;
        all.extend((0..n_ended).map(|_| Done::Answer));
        all
    }

    fn has_read(&mut self, i: usize, n: u64) -> Option<Done> {
        self.reading[i].n_read += n;
        let Reading { job, n_read, .. } = self.reading[i];
        match job {
            Job::Ask { ask, .. } => {
                self.reading.swap_remove(i);
                let n_left = ask.answer.saturating_sub(1);
                self.answering.push(Answering { tokens: ask.tokens, n_left });
                Some(Done::FirstToken(ask.question))
            }
            Job::Build { tokens, .. } if n_read < tokens => None,
            Job::Build { doc, .. } => {
                self.reading.swap_remove(i);
                let asks = self.builds.remove(&doc).unwrap_or_default();
                // Who waited sends the question now: the session is in memory.
                let done = |ask| Job::Ask { ask, on_disk: OnDisk::Done };
                let asks = asks.into_iter().map(done);
                self.waiting.extend(asks);
                Some(Done::Document(doc))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(question: usize, doc: Doc) -> Ask {
        Ask { question, doc, tokens: 100, answer: 1 }
    }

    /// Documents 1 to 3 lie on the disk, memory holds one.
    fn worker(slots: usize, opening: usize) -> Worker {
        let limits =
            Limits { slots, chunk: 512, max_stall: 0.2, opening, memory: 1, disk: u64::MAX };
        let mut worker = Worker::new(limits);
        (1..=3).for_each(|doc| {
            worker.disk.insert(doc, 1);
        });
        worker
    }

    fn open(worker: &mut Worker, doc: Doc) {
        worker.memory.insert(doc, 1);
        worker.opened(doc);
    }

    #[test]
    fn a_session_is_opened_for_those_who_asked_for_it() {
        let mut worker = worker(3, 2);
        for (question, doc) in [(0, 1), (1, 1), (2, 2)] {
            assert!(!worker.ask(ask(question, doc), true));
        }
        assert_eq!(worker.admit(), [1, 2], "one opening serves both questions");
        open(&mut worker, 1);
        open(&mut worker, 2);
        // The first document is given up, but its questions have it.
        assert!(worker.admit().is_empty());
        assert_eq!(worker.reading.len(), 3);
    }

    #[test]
    fn a_question_that_nobody_came_to_has_its_session_opened_again() {
        let mut worker = worker(1, 2);
        worker.ask(ask(0, 1), true);
        assert_eq!(worker.admit(), [1]);
        open(&mut worker, 1);
        assert!(worker.admit().is_empty());
        // The only place is taken when these come.
        worker.ask(ask(1, 2), true);
        worker.ask(ask(2, 1), true);
        open(&mut worker, 2);
        worker.reading.clear();
        assert!(worker.admit().is_empty());
        worker.reading.clear();
        assert_eq!(worker.admit(), [1], "it was given up for the second document");
    }
}
