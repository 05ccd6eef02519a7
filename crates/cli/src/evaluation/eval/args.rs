//! Options of `longview eval`.

use std::path::PathBuf;

use clap::Args;
use longview_eval::record::Question;
use longview_eval::tasks::TaskFiles;

use crate::args::{EngineArgs, PrefillModes, RopeArgs, numbers, one_of};
use crate::evaluation::compared::ComparedArgs;

/// Which of [`Question`] to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionChoice {
    One(Question),
    Both,
}

const QUESTIONS: &[(QuestionChoice, &str)] = &[
    (QuestionChoice::One(Question::Agnostic), "agnostic"),
    (QuestionChoice::One(Question::Aware), "aware"),
    (QuestionChoice::Both, "both"),
];

/// Options of `longview eval`.
#[derive(Args)]
#[command(
    mut_arg("prefill", |arg| arg.value_name("MODE,..").value_parser(PrefillModes::several)),
    after_help = "\
Each document is read once in each way of --prefill, and all policies at all budgets branch from
that state (h2o, and infllm by its own scores, need more of all queries and read it again). Answers
are appended to the file as they come; the same command goes on where it was stopped, and failed
samples are tried again.
A policy may have options by the names of `longview policies`: clusterkv:cluster-tokens=4:pooling=max,
or a budget of its own: quest:budget=300. A name that ends in .toml is a policy file.
The embedded model reads its own forms: needle-*, many-asked-*, niah-native, and with
--no-chat-template tasks that are like them. Where `full` fails, a task is marked."
)]
pub struct EvalArgs {
    /// List the tasks and groups of tasks, and do nothing else [default: off].
    #[arg(long)]
    pub list: bool,

    /// Tasks or groups of tasks.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', default_value = "needle-mixed")]
    pub tasks: Vec<String>,

    #[command(flatten)]
    pub compared: ComparedArgs,

    /// Tokens of document, question and answer together.
    #[arg(
        long,
        value_name = "TOKENS,..",
        value_delimiter = ',',
        default_value = "4096",
        value_parser = numbers::tokens
    )]
    pub lengths: Vec<usize>,

    /// Documents of each task at each length; of niah tasks, at each depth.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = numbers::count(1..=100_000))]
    pub samples: usize,

    /// aware: policies see the question in the prefill, then answer; agnostic: they compress the
    /// document alone, and each question goes through them token by token; both: one after the
    /// other.
    #[arg(long, value_name = "WHEN", default_value = "agnostic", value_parser = one_of(QUESTIONS))]
    pub question: QuestionChoice,

    /// File of the results, one JSON object a line.
    #[arg(short, long, value_name = "FILE", default_value = "results.jsonl")]
    pub output: PathBuf,

    /// Seed of everything random in the tasks.
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Folder of *.txt files for essays [default: sentences are generated].
    #[arg(long, value_name = "DIR")]
    pub text: Option<PathBuf>,

    /// Depths of the niah tasks.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10,
        value_parser = numbers::count(1..=100)
    )]
    pub depths: usize,

    /// SQuAD 2.0 for ruler-qa-1: dev-v2.0.json [default: none].
    #[arg(long, value_name = "FILE")]
    pub squad: Option<PathBuf>,

    /// HotpotQA for ruler-qa-2: hotpot_dev_distractor_v1.json [default: none].
    #[arg(long, value_name = "FILE")]
    pub hotpotqa: Option<PathBuf>,

    /// Folder of LongBench's data sets, each NAME.jsonl [default: none].
    #[arg(long, value_name = "DIR")]
    pub longbench: Option<PathBuf>,

    /// Give plain text even to a model with a chat template [default: off].
    #[arg(long)]
    pub no_chat_template: bool,

    /// Keep recalled tokens in separate device buffers although the CPU could read them where they
    /// are, so that hits and misses are real [default: off].
    #[arg(long)]
    pub simulate_device: bool,

    #[command(flatten)]
    pub engine: EngineArgs,

    #[command(flatten)]
    pub rope: RopeArgs,
}

impl EvalArgs {
    /// The files that tasks read.
    pub fn files(&self) -> TaskFiles {
        TaskFiles {
            squad: self.squad.clone(),
            hotpotqa: self.hotpotqa.clone(),
            longbench: self.longbench.clone(),
            depths: self.depths,
        }
    }
}
