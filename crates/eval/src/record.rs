//! The lines of a results file: what a run measured, one JSON object a line, in any order.
//!
//! Times are in seconds, shares in 0..=1, lengths and budgets in tokens of the model at hand.
//! Fields that a run could not know are absent. A reader passes over kinds and fields that it does
//! not know.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// Who wrote the lines that follow.
    Run(Run),
    /// One question answered.
    Answer(Answer),
    /// One answer, or all of a sample, that there is none of; the others were given.
    Failure(Failure),
    /// Attention of one query head, compared with full attention.
    Probe(Probe),
    /// How well a stretch of text was predicted.
    Perplexity(Perplexity),
    /// What a decoded token cost.
    Speed(Speed),
    /// What the device cache found, by head.
    Cache(Cache),
    /// Singular values of a head's queries or keys.
    Spectrum(Spectrum),
}

/// Where numbers come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The command line.
    pub command: String,
    /// Folder name of the model.
    pub model: String,
    /// Tells the model from others of that name: config, samples of the weights, tokenizer. Absent
    /// in older files, which are not compared by it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fingerprint: String,
    /// The version of the program and, where known, its commit.
    pub version: String,
    /// Processor, cores, memory, device.
    pub machine: String,
    /// `cpu`, `wgpu`, `cuda`.
    pub device: String,
    /// Type of stored keys and values.
    pub kv_type: String,
    /// Of tasks and policies.
    pub seed: u64,
    /// What else makes samples or answers what they are, by option: answers of other settings
    /// cannot be put beside these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// A policy at a budget. Two records are about the same policy if these are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyLabel {
    /// The preset.
    pub policy: String,
    /// Options that differ from the preset's, by their command line names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// B: tokens that a KV head attends; 0 for all.
    pub budget: usize,
}

/// Whether a policy chose what to keep with the question before it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Document and question are prefilled, then the answer is decoded.
    #[default]
    Aware,
    /// The document alone is prefilled; each question goes through the policy token by token, all
    /// from the same state.
    Agnostic,
}

/// One question answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The task, as on the command line.
    pub task: String,
    /// Who answered.
    #[serde(flatten)]
    pub policy: PolicyLabel,
    /// The length that was asked for.
    pub length: usize,
    /// Number of the document, from 0.
    pub sample: usize,
    /// Number of the question about it, from 0.
    #[serde(default)]
    pub index: usize,
    /// Seed of the run.
    pub seed: u64,
    /// What the policy knew.
    pub question: Question,
    /// Where the answer lies, 0 for the start; of tasks with one needle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<f64>,
    /// By the task's metric.
    pub score: f64,
    /// What was said.
    pub prediction: String,
    /// What would have been right.
    pub references: Vec<String>,
    /// Tokens of document and question.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// Time of the prefill that this answer shares with others.
    pub prefill_s: f64,
    /// The part of all blocks that was attended, where the prompt was read sparsely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_density: Option<f64>,
    /// Time of question and answer.
    pub decode_s: f64,
    /// Hits of hits and misses of the device cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_rate: Option<f64>,
    /// Keys and values on the device.
    #[serde(default)]
    pub device_bytes: u64,
}

/// One answer that could not be given, or one sample that could not be run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The task or text.
    pub task: String,
    /// Who should have answered; absent where the sample failed for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyLabel>,
    /// The length that was asked for.
    pub length: usize,
    /// Number of the document.
    pub sample: usize,
    /// What the policy knew; like the next two absent where the sample failed for all, and in older
    /// files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<Question>,
    /// Number of the question about the document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Seed of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// What went wrong.
    pub error: String,
}

/// Attention of one query head under a policy, compared with attention to all tokens, as means over
/// the steps that were probed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Name of the text.
    pub text: String,
    /// Whose choice.
    #[serde(flatten)]
    pub policy: PolicyLabel,
    /// Tokens before the first probed step.
    pub length: usize,
    /// Number of the layer, from 0.
    pub layer: usize,
    /// The query head.
    pub head: usize,
    /// Decode steps that the means are over.
    pub steps: usize,
    /// Share of the head's true top B tokens that were attended. B is the policy's budget, however
    /// many tokens it attended; of all tokens where it has none.
    pub recall: f64,
    /// The same for the best choice that the group could have made together.
    pub recall_group: f64,
    /// Attention that was kept.
    pub mass: f64,
    /// Attention that the head's true top B tokens hold.
    pub mass_best: f64,
    /// Tokens attended; 0 in files that do not say. Sinks and recent tokens may make it more than
    /// B, and a threshold less.
    #[serde(default)]
    pub attended: f64,
    /// `|out - full| / |full|`.
    pub error: f64,
    /// Ada-KV's bound of the eviction loss, `2 (1 - mass)` times the largest norm of a value row.
    pub loss_bound: f64,
    /// Median of the certificate's upper bound of what was left out, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certified: Option<f64>,
    /// Recall in each probed step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recall_steps: Vec<f32>,
    /// Attention kept in each probed step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mass_steps: Vec<f32>,
    /// Relative error in each probed step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub error_steps: Vec<f32>,
    /// The bound of what was left out in each probed step, where the policy asks for bounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bound_steps: Vec<f32>,
    /// Steps from one probed step to the next.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stride: usize,
    /// Recall by age: in each eighth of the context, the last eighth last; none where no true top
    /// token lies, for which older files have 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recency: Vec<Option<f64>>,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// How well a stretch of text was predicted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Perplexity {
    /// Name of the text.
    pub text: String,
    /// Under which policy.
    #[serde(flatten)]
    pub policy: PolicyLabel,
    /// Tokens before the first scored one.
    pub position: usize,
    /// Scored tokens.
    pub tokens: usize,
    /// Their summed negative log likelihood, in nats.
    pub nll: f64,
}

/// What a decoded token cost, as the median over steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Under which policy.
    #[serde(flatten)]
    pub policy: PolicyLabel,
    /// Tokens in the context.
    pub context: usize,
    /// Tokens decoded.
    pub steps: usize,
    /// Time of them all.
    #[serde(default)]
    pub decode_s: f64,
    /// Whether keys and values were injected instead of computed.
    pub injected: bool,
    /// Time of a step.
    pub step_s: f64,
    /// Of it in selection.
    pub select_s: f64,
    /// Of it in fetching.
    pub fetch_s: f64,
    /// Of it in attention.
    pub attend_s: f64,
    /// Time of the prefill, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_s: Option<f64>,
    /// Of it waiting for clusters or making another index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index_s: Option<f64>,
    /// Hits of hits and misses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_rate: Option<f64>,
    /// Keys and values on the device.
    pub device_bytes: u64,
    /// Keys and values on the host.
    pub host_bytes: u64,
}

/// What the device cache found, by KV head.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cache {
    /// Name of the text; empty in older files.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Under which policy.
    #[serde(flatten)]
    pub policy: PolicyLabel,
    /// Past steps whose recalled rows stayed on the device, R.
    pub cache_steps: usize,
    /// Tokens in the context.
    pub length: usize,
    /// Number of the layer, from 0.
    pub layer: usize,
    /// The KV head.
    pub head: usize,
    /// Rows found.
    pub hits: u64,
    /// Rows fetched.
    pub misses: u64,
}

/// Singular values of a head's queries or keys, largest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spectrum {
    /// Name of the text.
    pub text: String,
    /// Tokens.
    pub length: usize,
    /// Number of the layer, from 0.
    pub layer: usize,
    /// The KV head.
    pub head: usize,
    /// `q` or `k`.
    pub side: String,
    /// Singular values, largest first.
    pub values: Vec<f64>,
}
