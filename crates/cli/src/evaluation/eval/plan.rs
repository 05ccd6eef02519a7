//! What was asked for, checked before anything runs.

use std::collections::BTreeMap;

use anyhow::Result;
use longview_engine::PrefillMode;
use longview_eval::haystack::TextSource;
use longview_eval::policies::Candidate;
use longview_eval::record::Question;
use longview_eval::tasks::{self, Task};

use super::args::{EvalArgs, QuestionChoice};

/// Tasks, policies and lengths.
pub struct Plan {
    /// The tasks, in the order of the command line.
    pub tasks: Vec<Box<dyn Task>>,
    /// Policies at their budgets.
    pub policies: Vec<Candidate>,
    /// Ways to read documents, in the order of the command line.
    pub modes: Vec<PrefillMode>,
    /// Lengths, each once, rising.
    pub lengths: Vec<usize>,
    /// When policies learn of questions.
    pub questions: Vec<Question>,
}

impl Plan {
    /// Fails for what does not exist or cannot be.
    pub fn new(args: &EvalArgs) -> Result<Self> {
        let mut lengths = args.lengths.clone();
        lengths.sort_unstable();
        lengths.dedup();
        Ok(Self {
            tasks: tasks::select(&args.tasks, &args.files())?,
            policies: policies(args)?,
            modes: args.engine.prefill.all().collect(),
            lengths,
            questions: match args.question {
                QuestionChoice::One(question) => vec![question],
                QuestionChoice::Both => vec![Question::Agnostic, Question::Aware],
            },
        })
    }

    /// What makes samples and answers what they are, besides model, engine and seed.
    pub fn settings(&self, args: &EvalArgs, text: &TextSource) -> BTreeMap<String, String> {
        let path = |path: &Option<std::path::PathBuf>| {
            path.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string())
        };
        let all = [
            // Other ways are among the options of a policy: one file holds answers of several.
            ("--prefill", PrefillMode::Exact.to_string()),
            ("--text", text.name()),
            ("--depths", args.depths.to_string()),
            ("--squad", path(&args.squad)),
            ("--hotpotqa", path(&args.hotpotqa)),
            ("--longbench", path(&args.longbench)),
            ("--no-chat-template", args.no_chat_template.to_string()),
        ];
        all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Every policy at every budget, read in every way.
fn policies(args: &EvalArgs) -> Result<Vec<Candidate>> {
    let mut all = Vec::new();
    for candidate in args.compared.candidates()? {
        for mode in args.engine.prefill.all() {
            all.push(candidate.clone().with_prefill(mode)?);
        }
    }
    Ok(all)
}
