//! The simulation against real servers: the same questions at the same moments, routed by the same
//! code.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::load::{self, Question, Zipf};
use crate::lru::Doc;
use crate::real::{self, Folder, Serving, Start};
use crate::router::{Router, Rules};
use crate::sim::{Outcome, Setup, Simulation, Sizes};
use crate::times::Rates;
use crate::worker::Limits;

/// What is compared.
pub struct Plan {
    /// How servers are started.
    pub start: Start,
    /// Servers, each on the processor of its number.
    pub n_workers: usize,
    /// Which is asked.
    pub rules: Rules,
    /// Documents that are asked about.
    pub n_docs: usize,
    /// Words of the shortest and the longest.
    pub words: (u64, u64),
    /// Questions that are asked.
    pub n_questions: usize,
    /// Questions a second.
    pub rate: f64,
    /// Tokens of an answer.
    pub answer: u64,
    /// Seed of documents, questions and their moments.
    pub seed: u64,
}

/// What was simulated, and what came.
pub struct Compared {
    /// By the simulation.
    pub simulated: Outcome,
    /// By real servers.
    pub real: Outcome,
}

/// Asks real servers and the simulation.
///
/// # Errors
/// Where a server fails or refuses.
pub fn check(plan: &Plan, rates: Rates) -> Result<Compared> {
    let folder = Folder::new("longview-scale-check")?;
    let servers: Vec<_> = (0..plan.n_workers)
        .map(|w| Serving::start(&plan.start, w, &folder.path().join(w.to_string())))
        .collect::<Result<_>>()?;
    let words = load::lengths(plan.n_docs, plan.words.0, plan.words.1, plan.seed);
    let texts: Vec<_> =
        words.iter().enumerate().map(|(i, words)| real::text(*words, i as u64)).collect();
    let count = |text: &String| real::count(&servers[0].address, text);
    let tokens: Vec<u64> = texts.iter().map(count).collect::<Result<_>>()?;
    // What a server does for the first time takes longer: each answers once before.
    for server in &servers {
        let read = real::read(&server.address, &real::text(300, 1 << 30))?;
        real::ask(&server.address, &read.id, 4)?;
    }
    let zipf = Zipf::new(plan.n_docs, 1.0);
    let questions = load::questions(plan.n_questions, &zipf, plan.rate, plan.answer, plan.seed);
    let simulated = simulate(plan, rates, &tokens, &questions);
    let addresses: Vec<_> = servers.iter().map(|server| server.address.clone()).collect();
    let opened = || addresses.iter().map(|address| real::opened(address)).sum::<Result<u64>>();
    let before = opened()?;
    let mut real = Client::new(plan, addresses.clone(), texts).run(&questions)?;
    real.opened = opened()? - before;
    Ok(Compared { simulated, real })
}

fn simulate(plan: &Plan, rates: Rates, tokens: &[u64], questions: &[Question]) -> Outcome {
    let size = |tokens: &u64| Sizes {
        tokens: *tokens,
        memory: 1,
        disk: (*tokens as f64 * rates.disk_bytes_per_token) as u64,
    };
    let setup = Setup {
        n_workers: plan.n_workers,
        // What the server does where nothing is said.
        limits: Limits {
            slots: 4,
            chunk: 512,
            max_stall: 0.2,
            opening: 2,
            memory: plan.start.keep,
            disk: u64::MAX,
        },
        rates,
        rules: plan.rules,
        store: None,
        docs: tokens.iter().map(size).collect(),
        seed: plan.seed,
    };
    Simulation::new(setup).run(questions)
}

/// What all clients know.
struct Client {
    addresses: Vec<String>,
    texts: Vec<String>,
    state: Mutex<State>,
    is_read: Condvar,
}

struct State {
    router: Router,
    /// The id of a document at a worker; none while it is read there.
    ids: HashMap<(usize, Doc), Option<String>>,
    outcome: Outcome,
    failed: Option<anyhow::Error>,
}

impl Client {
    fn new(plan: &Plan, addresses: Vec<String>, texts: Vec<String>) -> Arc<Self> {
        let router = Router::new(plan.rules, plan.n_workers, plan.n_docs, plan.seed);
        let ttft = vec![f64::NAN; plan.n_questions];
        let outcome = Outcome { ttft, ..Outcome::default() };
        let state = State { router, ids: HashMap::new(), outcome, failed: None };
        Arc::new(Self { addresses, texts, state: Mutex::new(state), is_read: Condvar::new() })
    }

    fn run(self: Arc<Self>, questions: &[Question]) -> Result<Outcome> {
        let began = Instant::now();
        let origin = questions.first().map_or(0, |first| first.at);
        let mut clients = Vec::new();
        for (i, question) in questions.iter().copied().enumerate() {
            let due = began + Duration::from_nanos(question.at - origin);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let this = Arc::clone(&self);
            clients.push(thread::spawn(move || {
                if let Err(error) = this.ask(i, question, due) {
                    let mut state = this.lock();
                    state.failed.get_or_insert(error);
                    this.is_read.notify_all();
                }
            }));
        }
        for client in clients {
            client.join().map_err(|_| anyhow!("a client ended with a fault"))?;
        }
        let mut state = self.lock();
        state.outcome.seconds = began.elapsed().as_secs_f64();
        match state.failed.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut state.outcome)),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, i: usize, question: Question, due: Instant) -> Result<()> {
        let doc = question.doc;
        let mut state = self.lock();
        let worker = state.router.choose(doc);
        state.router.holds_now(worker, doc);
        let is_new = !state.ids.contains_key(&(worker, doc));
        if is_new {
            state.ids.insert((worker, doc), None);
        }
        drop(state);
        let address = &self.addresses[worker];
        if is_new {
            let read = real::read(address, &self.texts[doc as usize])?;
            let mut state = self.lock();
            state.outcome.read_tokens += read.tokens;
            state.ids.insert((worker, doc), Some(read.id));
            self.is_read.notify_all();
        }
        let id = self.id_of(worker, doc)?;
        let sent = due.elapsed().as_secs_f64();
        let answer = real::ask(address, &id, question.answer)?;
        let mut state = self.lock();
        state.router.answered(worker);
        let outcome = &mut state.outcome;
        outcome.ttft[i] = sent + answer.ttft;
        outcome.prompt_tokens += answer.prompt_tokens;
        outcome.read_tokens += answer.prompt_tokens - answer.cached_tokens;
        Ok(())
    }

    /// The id of a document at a worker, as soon as it has read it.
    fn id_of(&self, worker: usize, doc: Doc) -> Result<String> {
        let mut state = self.lock();
        loop {
            if let Some(Some(id)) = state.ids.get(&(worker, doc)) {
                return Ok(id.clone());
            }
            if state.failed.is_some() {
                return Err(anyhow!("another client failed"));
            }
            state = self.is_read.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
