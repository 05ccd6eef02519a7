//! Runs tasks under policies: one prefill for each sample, and for each way of reading it, from
//! which all policies branch.
//!
//! **Aware**: document and question are prefilled, and the last token is taken back; under each
//! policy it is computed again and the answer decoded. Eviction policies have seen the whole
//! question, and nothing of the answer comes from exact attention. **Agnostic**: the document is
//! prefilled; under each policy each question's tokens go through the policy one by one, all from
//! the same state.

use std::ops::ControlFlow;
use std::time::Duration;

use longview_engine::{
    CancelToken, Engine, EngineError, FinishReason, GenerationParams, PrefillMode, Session,
};
use longview_ops::Backend;
use longview_scheduler::{LAST_QUERIES, PolicyOptions, Preset};

use crate::error::EvalError;
use crate::haystack::TextSource;
use crate::policies::Candidate;
use crate::prompt::{Prompt, Prompter};
use crate::record::{Answer, Failure, PolicyLabel, Question, Record};
use crate::results::{AnswerKey, ResultsFile};
use crate::tasks::{Sample, Setting, Task};

/// What to run.
pub struct Evaluation<'a> {
    /// What is asked, in this order.
    pub tasks: &'a [Box<dyn Task>],
    /// Policies at their budgets.
    pub policies: &'a [Candidate],
    /// Tokens of document, question and answer.
    pub lengths: &'a [usize],
    /// Documents of a task at a length.
    pub samples: usize,
    /// When policies learn of questions.
    pub questions: &'a [Question],
    /// Of everything random.
    pub seed: u64,
    /// Where long texts come from.
    pub text: &'a TextSource,
    /// Makes prompts for the model.
    pub prompter: Prompter<'a>,
}

/// How far a run is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress<'a> {
    /// Answers that are there, those of earlier runs included.
    pub done: usize,
    /// Answers in all.
    pub total: usize,
    /// The task at hand.
    pub task: &'a str,
    /// Tokens of document, question and answer.
    pub length: usize,
    /// Who answers; `None` during the prefill.
    pub policy: Option<&'a PolicyLabel>,
    /// Time since the run began.
    pub elapsed: Duration,
    /// Time left, once something is known of it.
    pub eta: Option<Duration>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Answers that this run added.
    pub answered: usize,
    /// Answers that were there before.
    pub skipped: usize,
    /// Answers that were asked for.
    pub total: usize,
    /// Answers that failed, alone or with their sample; the file says how.
    pub failed: usize,
    /// Whether the caller broke off.
    pub is_cancelled: bool,
}

/// Makes an engine for a context of that many tokens.
pub type Load<'l, B> = dyn FnMut(usize) -> Result<Engine<B>, EngineError> + 'l;

/// Is told how far the run is.
pub type OnProgress<'w> = dyn FnMut(&Progress<'_>) + 'w;

/// One document of a task at a length.
#[derive(Clone, Copy)]
struct Place<'a> {
    task: &'a dyn Task,
    length: usize,
    sample: usize,
}

/// One answer of a place.
#[derive(Clone, Copy)]
struct Point<'a> {
    policy: &'a Candidate,
    question: Question,
    index: usize,
}

/// Why a part of the run did not come to its end.
enum Stop {
    Cancelled,
    /// The sample, or the policy on it, failed.
    Failed(EvalError),
    /// The results file cannot be written.
    Fatal(EvalError),
}

impl<E: Into<EvalError>> From<E> for Stop {
    fn from(error: E) -> Self {
        match error.into() {
            EvalError::Engine(EngineError::Cancelled) => Stop::Cancelled,
            error => Stop::Failed(error),
        }
    }
}

/// Runs what `results` does not have yet. A sample that fails is noted there and ends nothing;
/// [`Evaluation::check`] says before what would fail everywhere.
///
/// # Errors
/// If an engine cannot be loaded, or the results cannot be written.
pub async fn run<B: Backend>(
    evaluation: &Evaluation<'_>,
    results: &mut ResultsFile,
    load: &mut Load<'_, B>,
    cancel: &CancelToken,
    on_progress: &mut OnProgress<'_>,
) -> Result<Outcome, EvalError> {
    let (mut outcome, mut todo) = (Outcome::default(), Vec::new());
    for length in evaluation.lengths {
        let places: Vec<Place<'_>> = evaluation.places(*length).collect();
        let open = places.iter().copied().filter(|place| {
            let (mut n, mut missing) = (0, 0);
            for point in evaluation.points(*place) {
                n += 1;
                missing += usize::from(!results.has(&evaluation.key(*place, &point)));
            }
            outcome.skipped += n - missing;
            outcome.total += n;
            missing > 0
        });
        todo.push((*length, open.collect::<Vec<_>>()));
    }
    let clock = Clock {
        tokens_left: todo.iter().map(|(length, open)| length * open.len()).sum(),
        ..Clock::default()
    };
    let mut runner = Runner { evaluation, results, cancel, on_progress, outcome, clock };
    for (length, open) in todo.into_iter().filter(|(_, open)| !open.is_empty()) {
        let mut engine = load(length)?;
        runner.clock.start(engine.backend().now());
        for place in open {
            match runner.place(&mut engine, place).await {
                Ok(()) => {}
                Err(Stop::Failed(error)) => runner.note_failure(place, None, &error)?,
                Err(Stop::Fatal(error)) => return Err(error),
                Err(Stop::Cancelled) => {
                    runner.outcome.is_cancelled = true;
                    return Ok(runner.outcome);
                }
            }
            runner.count_failed(place);
            runner.clock.read(length, engine.backend().now());
        }
    }
    Ok(runner.outcome)
}

impl Evaluation<'_> {
    /// Makes the first sample of every task at every length.
    ///
    /// # Errors
    /// What would go wrong in the run, before it begins.
    pub fn check(&self) -> Result<(), EvalError> {
        for task in self.tasks {
            task.check()?;
            for length in self.lengths {
                task.sample(&self.setting(*length, 0))?;
            }
        }
        Ok(())
    }

    fn setting(&self, length: usize, sample: usize) -> Setting<'_> {
        let Self { prompter, text, seed, .. } = *self;
        Setting { prompter, text, length, seed, sample }
    }

    fn places(&self, length: usize) -> impl Iterator<Item = Place<'_>> {
        self.tasks.iter().flat_map(move |task| {
            let task = &**task;
            (0..task.n_documents(self.samples)).map(move |sample| Place { task, length, sample })
        })
    }

    /// All answers of a place.
    fn points<'s>(&'s self, place: Place<'s>) -> impl Iterator<Item = Point<'s>> {
        self.questions.iter().flat_map(move |question| {
            self.policies.iter().flat_map(move |policy| {
                let point = move |index| Point { policy, question: *question, index };
                (0..place.task.n_questions()).map(point)
            })
        })
    }

    fn key(&self, place: Place<'_>, at: &Point<'_>) -> AnswerKey {
        AnswerKey {
            task: place.task.name().to_owned(),
            policy: at.policy.label.clone(),
            length: place.length,
            sample: place.sample,
            index: at.index,
            seed: self.seed,
            question: at.question,
        }
    }
}

/// Time, and the tokens of documents that it took: what the time left is estimated by.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    began: Option<Duration>,
    elapsed: Duration,
    tokens_done: usize,
    tokens_left: usize,
}

impl Clock {
    fn start(&mut self, now: Duration) {
        // Each engine's device has a clock of its own.
        self.began = Some(now.saturating_sub(self.elapsed));
    }

    fn tick(&mut self, now: Duration) {
        self.elapsed = now.saturating_sub(self.began.unwrap_or(now));
    }

    /// A document of that length is done.
    fn read(&mut self, length: usize, now: Duration) {
        self.tick(now);
        self.tokens_done += length;
        self.tokens_left -= length.min(self.tokens_left);
    }

    fn eta(&self) -> Option<Duration> {
        let share = self.tokens_left as f64 / self.tokens_done as f64;
        (self.tokens_done > 0).then(|| self.elapsed.mul_f64(share))
    }
}

/// A run under way.
struct Runner<'a, 'e> {
    evaluation: &'a Evaluation<'e>,
    results: &'a mut ResultsFile,
    cancel: &'a CancelToken,
    on_progress: &'a mut OnProgress<'a>,
    outcome: Outcome,
    clock: Clock,
}

/// A sample that is being asked about.
struct Work<'a> {
    place: Place<'a>,
    sample: &'a Sample,
    prompt: &'a Prompt,
    /// Answers that the file does not have.
    missing: Vec<Point<'a>>,
}

/// A question under a policy, and what of it is still to be fed.
struct Asked<'a> {
    work: &'a Work<'a>,
    point: &'a Point<'a>,
    ids: &'a [u32],
    /// Time of the prefill before it.
    read_s: f64,
}

impl Work<'_> {
    /// Those of one policy, or of all, and one kind of question.
    fn of(&self, question: Question, wanted: impl Fn(&Point<'_>) -> bool) -> Vec<Point<'_>> {
        let all = self.missing.iter().copied();
        all.filter(|point| point.question == question && wanted(point)).collect()
    }
}

/// Cheap to make and small: what a document is read under until the first policy is set.
fn neutral() -> PolicyOptions {
    PolicyOptions::new(Preset::StreamingLlm)
}

impl<'e> Runner<'_, 'e> {
    /// Reads a document and asks what is missing.
    async fn place<B: Backend>(
        &mut self,
        engine: &mut Engine<B>,
        place: Place<'e>,
    ) -> Result<(), Stop> {
        let evaluation = self.evaluation;
        let sample = place.task.sample(&evaluation.setting(place.length, place.sample))?;
        let prompt = evaluation.prompter.encode(&sample)?;
        let points = evaluation.points(place);
        let missing =
            points.filter(|point| !self.results.has(&evaluation.key(place, point))).collect();
        let work = Work { place, sample: &sample, prompt: &prompt, missing };
        let mut modes = Vec::new();
        for point in work.missing.iter().filter(|point| !point.policy.needs_own_prefill()) {
            if !modes.contains(&point.policy.prefill) {
                modes.push(point.policy.prefill);
            }
        }
        for mode in modes {
            match self.read(engine, &work, mode).await {
                // The document may be read in another way all the same.
                Err(Stop::Failed(error)) => {
                    self.note_failure(place, None, &error).map_err(Stop::Fatal)?;
                }
                result => result?,
            }
        }
        for point in work.missing.iter().filter(|point| point.policy.needs_own_prefill()) {
            let result = self.alone(engine, &work, point).await;
            self.survive(&work, point, result)?;
        }
        Ok(())
    }

    /// Reads a document in one way, and asks what is missing of those that share that.
    async fn read<B: Backend>(
        &mut self,
        engine: &mut Engine<B>,
        work: &Work<'_>,
        mode: Option<PrefillMode>,
    ) -> Result<(), Stop> {
        let shared =
            |point: &Point<'_>| !point.policy.needs_own_prefill() && point.policy.prefill == mode;
        let agnostic = work.of(Question::Agnostic, shared);
        let aware = work.of(Question::Aware, shared);
        let mut session = self.session(engine, &neutral(), mode)?;
        self.prefill(engine, &mut session, work, &work.prompt.document).await?;
        let read_s = session.timings().prefill.as_secs_f64();
        self.agnostic(engine, &mut session, work, &agnostic, read_s).await?;
        self.aware(engine, &mut session, work, &aware, read_s).await
    }

    /// A session that the caller can cancel.
    fn session<B: Backend>(
        &self,
        engine: &Engine<B>,
        policy: &PolicyOptions,
        prefill: Option<PrefillMode>,
    ) -> Result<Session<B>, Stop> {
        let prefill = prefill.unwrap_or(engine.options().prefill);
        let mut session = engine.session_with_prefill(policy, prefill)?;
        session.cancel_with(self.cancel.clone());
        Ok(session)
    }

    /// All questions under all policies from the state that the document left.
    async fn agnostic<B: Backend>(
        &mut self,
        engine: &mut Engine<B>,
        session: &mut Session<B>,
        work: &Work<'_>,
        points: &[Point<'_>],
        read_s: f64,
    ) -> Result<(), Stop> {
        let mut before: Option<&Point<'_>> = None;
        for point in points {
            // What an evicting policy let go of during a question does not come back by a cut.
            let is_set = before.is_some_and(|other| std::ptr::eq(other.policy, point.policy));
            let forgets = session.policy().residency.forgets();
            let ready = if is_set && !forgets {
                Ok(())
            } else {
                session.set_policy(&point.policy.options).await
            };
            // One that cannot be had leaves the one before in force.
            before = ready.is_ok().then_some(point);
            let asked = Asked { work, point, ids: &work.prompt.questions[point.index], read_s };
            let answer = match ready {
                Ok(()) => self.ask(engine, session, asked).await,
                Err(error) => Err(error.into()),
            };
            self.keep(work, point, answer)?;
            session.truncate(work.prompt.document.len()).await?;
        }
        Ok(())
    }

    /// Each question prefilled behind the document, and answered under all policies.
    async fn aware<B: Backend>(
        &mut self,
        engine: &mut Engine<B>,
        session: &mut Session<B>,
        work: &Work<'_>,
        points: &[Point<'_>],
        read_s: f64,
    ) -> Result<(), Stop> {
        let document = &work.prompt.document;
        for (index, question) in work.prompt.questions.iter().enumerate() {
            let of_this: Vec<_> = points.iter().filter(|point| point.index == index).collect();
            let (false, [rest @ .., last]) = (of_this.is_empty(), question.as_slice()) else {
                continue;
            };
            // The queries that policies observe are those of one prefill: the document's last are
            // computed again with each question, so that no question sees those of another.
            let base = document.len().saturating_sub(LAST_QUERIES);
            session.truncate(base).await?;
            session.set_policy(&neutral()).await?;
            session.reset_stats();
            let ids = [&document[base..], question].concat();
            self.prefill(engine, session, work, &ids).await?;
            let read_s = read_s + session.timings().prefill.as_secs_f64();
            for point in of_this {
                // What was observed stays when the last token goes.
                session.truncate(document.len() + rest.len()).await?;
                let asked = Asked { work, point, ids: std::slice::from_ref(last), read_s };
                let answer = match session.set_policy(&point.policy.options).await {
                    Ok(()) => self.ask(engine, session, asked).await,
                    Err(error) => Err(error.into()),
                };
                self.keep(work, point, answer)?;
            }
        }
        Ok(())
    }

    /// A question under a policy that no other's prefill serves.
    async fn alone<B: Backend>(
        &mut self,
        engine: &mut Engine<B>,
        work: &Work<'_>,
        point: &Point<'_>,
    ) -> Result<(), Stop> {
        let (document, question) = (&work.prompt.document, &work.prompt.questions[point.index]);
        let (read, fed) = match point.question {
            Question::Agnostic => (&[][..], question.as_slice()),
            Question::Aware => (question.as_slice(), &question[question.len() - 1..]),
        };
        let mut session = self.session(engine, &point.policy.options, point.policy.prefill)?;
        let ids = [document, read].concat();
        self.prefill(engine, &mut session, work, &ids).await?;
        if !read.is_empty() {
            session.truncate(ids.len() - 1).await?;
        }
        let read_s = session.timings().prefill.as_secs_f64();
        let asked = Asked { work, point, ids: fed, read_s };
        let answer = self.ask(engine, &mut session, asked).await;
        self.keep(work, point, answer)
    }

    async fn prefill<B: Backend>(
        &mut self,
        engine: &mut Engine<B>,
        session: &mut Session<B>,
        work: &Work<'_>,
        ids: &[u32],
    ) -> Result<(), Stop> {
        self.tell(work.place, None, engine.backend().now());
        let cancel = self.cancel;
        let mut go_on = |_| {
            if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        if engine.prefill(session, ids, &mut go_on).await? { Ok(()) } else { Err(Stop::Cancelled) }
    }

    /// Feeds the rest of a question through the policy and decodes the answer, greedily.
    async fn ask<B: Backend>(
        &mut self,
        engine: &mut Engine<B>,
        session: &mut Session<B>,
        asked: Asked<'_>,
    ) -> Result<Answer, Stop> {
        let Asked { work, point, ids, read_s } = asked;
        self.tell(work.place, Some(&point.policy.label), engine.backend().now());
        let question = &work.sample.questions[point.index];
        session.reset_stats();
        engine.feed(session, ids).await?;
        let params = GenerationParams {
            max_tokens: Some(question.max_new),
            stop: question.stop.clone(),
            ..GenerationParams::default()
        };
        let said = engine.generate(session, &params, &mut |_| ControlFlow::Continue(())).await?;
        if said.finish_reason == FinishReason::Cancelled {
            return Err(Stop::Cancelled);
        }
        let prompt_tokens = work.prompt.document.len() + work.prompt.questions[point.index].len();
        let blocks = session.sequence().block_counts();
        Ok(Answer {
            task: work.place.task.name().to_owned(),
            policy: point.policy.label.clone(),
            length: work.place.length,
            sample: work.place.sample,
            index: point.index,
            seed: self.evaluation.seed,
            question: point.question,
            depth: question.depth,
            score: question.metric.score(&said.text, &question.references),
            prediction: said.text,
            references: question.references.clone(),
            prompt_tokens,
            generated_tokens: said.ids.len(),
            prefill_s: read_s,
            prefill_density: (blocks.all > 0).then(|| blocks.density()),
            decode_s: session.timings().decode.as_secs_f64(),
            hit_rate: session.stats().hit_rate(),
            device_bytes: session.sequence().device_kv_bytes(),
        })
    }

    /// Writes an answer, or that there is none.
    fn keep(
        &mut self,
        work: &Work<'_>,
        point: &Point<'_>,
        answer: Result<Answer, Stop>,
    ) -> Result<(), Stop> {
        let written = answer.and_then(|answer| {
            self.results.append(&Record::Answer(answer)).map_err(Stop::Fatal)?;
            self.outcome.answered += 1;
            Ok(())
        });
        self.survive(work, point, written)
    }

    /// Notes the failure of one policy, so that the others go on.
    fn survive(
        &mut self,
        work: &Work<'_>,
        point: &Point<'_>,
        result: Result<(), Stop>,
    ) -> Result<(), Stop> {
        match result {
            Err(Stop::Failed(error)) => {
                self.note_failure(work.place, Some(point), &error).map_err(Stop::Fatal)
            }
            other => other,
        }
    }

    fn note_failure(
        &mut self,
        place: Place<'_>,
        point: Option<&Point<'_>>,
        error: &EvalError,
    ) -> Result<(), EvalError> {
        self.results.append(&Record::Failure(Failure {
            task: place.task.name().to_owned(),
            policy: point.map(|point| point.policy.label.clone()),
            length: place.length,
            sample: place.sample,
            question: point.map(|point| point.question),
            index: point.map(|point| point.index),
            seed: point.map(|_| self.evaluation.seed),
            error: error.to_string(),
        }))
    }

    /// Counts what a place was asked and has no answer to.
    fn count_failed(&mut self, place: Place<'_>) {
        let Self { evaluation, results, outcome, .. } = self;
        let points = evaluation.points(place);
        let open = points.filter(|point| !results.has(&evaluation.key(place, point)));
        outcome.failed += open.count();
    }

    fn tell(&mut self, place: Place<'_>, policy: Option<&PolicyLabel>, now: Duration) {
        self.clock.tick(now);
        (self.on_progress)(&Progress {
            done: self.outcome.skipped + self.outcome.answered,
            total: self.outcome.total,
            task: place.task.name(),
            length: place.length,
            policy,
            elapsed: self.clock.elapsed,
            eta: self.clock.eta(),
        });
    }
}
