//! Policies side by side on one model: what `eval`, `probe` and `speed` compare.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use longview_eval::policies::{self, Candidate, PolicySpec};
use longview_model::folder::ModelFolder;

use crate::args::{PolicyFile, numbers};
use crate::files::{check_appended, model_files};
use crate::load::open_folder;
use crate::models::place;
use longview_startup::embedded;

/// The policies, their budgets, and the model.
#[derive(Args)]
pub struct ComparedArgs {
    /// Policies, each PRESET[:OPTION=VALUE].. or a policy file.
    #[arg(long, value_name = "POLICY,..", value_delimiter = ',', default_value = "full,longview")]
    pub policies: Vec<String>,

    /// Tokens that a KV head attends; `full` runs once whatever they are.
    #[arg(
        long,
        value_name = "TOKENS,..",
        value_delimiter = ',',
        default_value = "512",
        value_parser = numbers::tokens
    )]
    pub budgets: Vec<usize>,

    /// Folder of the model in Hugging Face layout, a GGUF file, or the name of a downloaded model
    /// [default: the embedded model].
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
}

impl ComparedArgs {
    /// Every policy at every budget.
    pub fn candidates(&self) -> Result<Vec<Candidate>> {
        let specs = self.policies.iter().map(|text| spec(text)).collect::<Result<Vec<_>>>()?;
        Ok(policies::candidates(&specs, &self.budgets)?)
    }

    /// Fails before any work if results cannot be added to `output`, or if it is one of the files
    /// that are read: the model's, policy files and `others`.
    pub fn check_output(&self, output: &Path, others: &[(&str, Option<&Path>)]) -> Result<()> {
        let model = self.model.as_deref().and_then(|path| place(path).ok().flatten());
        let mut inputs = model.as_deref().map(model_files).unwrap_or_default();
        for policy in self.policies.iter().filter(|text| is_file(text)) {
            inputs.push(("a file of --policies".to_owned(), policy.into()));
        }
        for (option, path) in others {
            inputs.extend(path.map(|path| (format!("the file of {option}"), path.to_owned())));
        }
        check_appended("-o", output, &inputs)
    }

    /// Opens the model.
    pub fn folder(&self) -> Result<ModelFolder> {
        match &self.model {
            Some(path) => open_folder(path),
            None => Ok(embedded::open()?),
        }
    }
}

fn is_file(text: &str) -> bool {
    text.ends_with(".toml")
}

/// A policy by its text, or by the file of that name.
fn spec(text: &str) -> Result<PolicySpec> {
    if !is_file(text) {
        return Ok(PolicySpec::parse(text)?);
    }
    let file = PolicyFile::read(text.as_ref())?;
    Ok(PolicySpec::new(file.preset, file.options))
}
