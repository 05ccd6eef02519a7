//! A small evaluation with the embedded model, from tasks to a results file: what the scores must
//! not fall below, that policies that cannot answer do not, and that a second run asks nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{CancelToken, Engine, EngineError, EngineOptions};
use longview_eval::haystack::TextSource;
use longview_eval::policies::{Candidate, PolicySpec, candidates};
use longview_eval::prompt::Prompter;
use longview_eval::record::{Answer, Question, Run};
use longview_eval::results::ResultsFile;
use longview_eval::runner::{self, Evaluation, Outcome, Progress};
use longview_eval::summary::Mean;
use longview_eval::tasks::{self, Task, TaskFiles};
use longview_model::folder::ModelFolder;
use longview_scheduler::{PolicyOptions, Preset, RecallMode};
use pollster::block_on;

/// A small evaluation and its file.
struct Bench {
    tasks: Vec<Box<dyn Task>>,
    policies: Vec<Candidate>,
    length: usize,
    samples: usize,
    questions: Vec<Question>,
    options: EngineOptions,
    /// Tokens of the engine's context; those of the document if it is not said.
    context: Option<usize>,
    path: PathBuf,
}

fn folder() -> ModelFolder {
    ModelFolder::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/needle")).unwrap()
}

impl Bench {
    fn new(name: &str, tasks: &[&str], policies: &[&str], budgets: &[usize]) -> Self {
        let names: Vec<String> = tasks.iter().map(|task| (*task).to_owned()).collect();
        let specs: Vec<PolicySpec> =
            policies.iter().map(|text| PolicySpec::parse(text).unwrap()).collect();
        let file = format!("longview-eval-{name}-{}.jsonl", std::process::id());
        Self {
            tasks: tasks::select(&names, &TaskFiles::default()).unwrap(),
            policies: candidates(&specs, budgets).unwrap(),
            length: 2048,
            samples: 1,
            questions: vec![Question::Agnostic],
            options: EngineOptions::default(),
            context: None,
            path: std::env::temp_dir().join(file),
        }
    }

    /// The same with documents of that length, so many of each task.
    fn of(mut self, length: usize, samples: usize) -> Self {
        (self.length, self.samples) = (length, samples);
        self
    }

    /// Runs what the file lacks; `watch` may cancel.
    fn run(&self, watch: &mut dyn FnMut(&Progress<'_>, &CancelToken)) -> (Outcome, Vec<Answer>) {
        let folder_of_words = folder();
        let evaluation = Evaluation {
            tasks: &self.tasks,
            policies: &self.policies,
            lengths: &[self.length],
            samples: self.samples,
            questions: &self.questions,
            seed: 1,
            text: &TextSource::Generated,
            prompter: Prompter::new(folder_of_words.tokenizer().unwrap(), None),
        };
        evaluation.check().unwrap();
        let run = Run { model: "needle".to_owned(), seed: 1, ..Run::default() };
        let mut results = ResultsFile::open(&self.path, &run).unwrap();
        let backend = Arc::new(CpuBackend::new(CpuOptions::default()).unwrap());
        let mut load = |length: usize| -> Result<_, EngineError> {
            let ctx_size = self.context.unwrap_or(length);
            let options = EngineOptions { ctx_size, ..self.options.clone() };
            let policy = PolicyOptions::new(Preset::Full);
            Engine::load(Arc::clone(&backend), folder(), options, &policy)
        };
        let cancel = CancelToken::default();
        let mut watch = |progress: &Progress<'_>| watch(progress, &cancel);
        let outcome =
            block_on(runner::run(&evaluation, &mut results, &mut load, &cancel, &mut watch));
        (outcome.unwrap(), results.answers().to_vec())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What does not differ from run to run, in a form that is read when it does.
fn said(answers: &[Answer]) -> Vec<String> {
    let line = |a: &Answer| {
        let who = format!("{} {} {}", a.task, a.policy.policy, a.policy.budget);
        format!("{who} {} {} {:.3}: {}", a.sample, a.index, a.score, a.prediction)
    };
    answers.iter().map(line).collect()
}

/// The mean score of a policy, in per cent.
fn mean(answers: &[Answer], policy: &str, question: Question) -> f64 {
    let of_these = |answer: &&Answer| answer.policy.policy == policy && answer.question == question;
    let scores: Vec<f64> = answers.iter().filter(of_these).map(|answer| answer.score).collect();
    100.0 * Mean::of(&scores).unwrap_or_else(|| panic!("{policy} did not answer")).mean
}

#[test]
fn recall_loses_at_most_two_points_at_8k() {
    let policies = ["full", "longview", "clusterkv"];
    let bench = Bench::new("floor", &["needle-mixed"], &policies, &[512]).of(8192, 3);
    let (outcome, answers) = bench.run(&mut |_, _| {});
    assert_eq!((outcome.answered, outcome.total, outcome.failed), (216, 216, 0));
    let full = mean(&answers, "full", Question::Agnostic);
    assert!(full >= 90.0, "full attention answers {full} %");
    for policy in ["longview", "clusterkv"] {
        let recalled = mean(&answers, policy, Question::Agnostic);
        assert!(recalled >= full - 2.0, "{policy} answers {recalled} %, full attention {full} %");
    }
    let (again, same) = bench.run(&mut |_, _| {});
    assert_eq!((again.answered, again.skipped), (0, 216));
    assert_eq!(said(&same), said(&answers));
}

#[test]
fn every_kind_of_policy_answers_in_both_modes() {
    let policies = ["full", "clusterkv", "streaming-llm", "snapkv", "h2o"];
    let tasks = ["needle-keys", "needle-passkey"];
    let mut bench = Bench::new("modes", &tasks, &policies, &[256]).of(1024, 2);
    bench.questions.push(Question::Aware);
    let (outcome, answers) = bench.run(&mut |_, _| {});
    // (4 questions and 1) of 2 documents, 5 policies, 2 modes.
    assert_eq!((outcome.answered, outcome.failed), (100, 0));
    for question in [Question::Agnostic, Question::Aware] {
        let full = mean(&answers, "full", question);
        assert!(full >= 90.0, "{question:?}: full attention answers {full} %");
        assert!(mean(&answers, "clusterkv", question) >= 80.0, "{question:?}");
        let control = mean(&answers, "streaming-llm", question);
        assert!(control <= 60.0, "{question:?}: what is not recalled was answered: {control} %");
    }
    let (aware, agnostic) =
        (mean(&answers, "snapkv", Question::Aware), mean(&answers, "snapkv", Question::Agnostic));
    assert!(
        aware > agnostic,
        "snapkv that saw the question: {aware} %, that did not: {agnostic} %"
    );
    for answer in &answers {
        assert!(answer.prompt_tokens + answer.generated_tokens <= 1024, "{answer:?}");
        assert_eq!(answer.policy.budget, if answer.policy.policy == "full" { 0 } else { 256 });
        assert!(answer.prefill_s > 0.0 && answer.decode_s > 0.0, "{answer:?}");
    }
}

#[test]
fn a_run_that_was_cancelled_goes_on_with_the_same_answers() {
    let bench = |name| Bench::new(name, &["needle-keys"], &["full", "quest"], &[128]).of(768, 2);
    let (stopped, whole) = (bench("stopped"), bench("whole"));
    let (outcome, some) = stopped.run(&mut |progress, cancel| {
        if progress.done == 5 {
            cancel.cancel();
        }
    });
    assert!(outcome.is_cancelled);
    assert_eq!((outcome.answered, some.len(), outcome.total), (5, 5, 16));
    let (outcome, mut resumed) = stopped.run(&mut |_, _| {});
    assert_eq!((outcome.skipped, outcome.answered, outcome.is_cancelled), (5, 11, false));
    let (_, mut direct) = whole.run(&mut |_, _| {});
    for answers in [&mut resumed, &mut direct] {
        answers.sort_by_key(|a| (a.sample, a.policy.clone(), a.index));
    }
    assert_eq!(said(&resumed), said(&direct));
}

#[test]
fn a_policy_that_needs_a_prefill_of_its_own_answers_beside_others() {
    let policies = ["full", "infllm", "clusterkv"];
    let mut bench = Bench::new("own", &["needle-keys"], &policies, &[256]).of(768, 1);
    bench.questions.push(Question::Aware);
    let (outcome, answers) = bench.run(&mut |_, _| {});
    // 4 questions, 3 policies, 2 modes.
    assert_eq!((outcome.failed, outcome.answered, answers.len()), (0, 24, 24));
}

#[test]
fn a_policy_that_cannot_be_set_answers_nothing_and_the_others_do() {
    // Ahead of its layer no step can speculate, which is known only when the policy is set.
    let policies = ["full", "infinigen", "clusterkv"];
    let mut bench = Bench::new("unset", &["needle-keys"], &policies, &[256]).of(768, 1);
    bench.options.simulate_device = true;
    bench.options.recall = RecallMode::Speculative { gate: 0.9 };
    bench.questions.push(Question::Aware);
    let (outcome, answers) = bench.run(&mut |_, _| {});
    let who = |policy: &str| answers.iter().filter(|a| a.policy.policy == policy).count();
    assert_eq!((who("full"), who("infinigen"), who("clusterkv")), (8, 0, 8));
    assert_eq!((outcome.failed, outcome.answered, outcome.total), (8, 16, 24));
}

#[test]
fn a_policy_that_fails_ends_nothing() {
    // A budget that leaves nothing to recall at this length is an error of the policy alone.
    let bench =
        Bench::new("failure", &["needle-passkey"], &["quest:sinks=60", "full"], &[64]).of(512, 1);
    let (outcome, answers) = bench.run(&mut |_, _| {});
    assert_eq!((outcome.failed, outcome.answered, outcome.total), (1, 1, 2));
    assert_eq!(answers[0].policy.policy, "full");
    let text = std::fs::read_to_string(&bench.path).unwrap();
    let failure = text.lines().find(|line| line.contains("\"failure\"")).unwrap();
    assert!(failure.contains("raise --budget to 72 or more"), "{failure}");
    let which = r#""question":"agnostic","index":0,"seed":1"#;
    assert!(failure.contains(which), "{failure}");
}

#[test]
fn a_sample_that_fails_counts_all_its_answers() {
    let mut bench =
        Bench::new("short", &["needle-keys"], &["full", "clusterkv"], &[128]).of(768, 1);
    bench.context = Some(512);
    let (outcome, answers) = bench.run(&mut |_, _| {});
    assert_eq!((outcome.failed, outcome.total, answers.len()), (8, 8, 0));
    let text = std::fs::read_to_string(&bench.path).unwrap();
    assert_eq!(text.matches("\"failure\"").count(), 1, "{text}");
}
