//! Policies side by side on one model: what `eval`, `probe` and `speed` compare.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use longview_eval::policies::{self, Candidate, PolicySpec};
use longview_model::folder::ModelFolder;

use crate::args::{PolicyFile, numbers};
use crate::embedded;
use crate::load::open_folder;

/// The policies, their budgets, and the model.
#[derive(Args)]
pub struct ComparedArgs {
    /// Policies, each PRESET[:OPTION=VALUE].. or a policy file.
    #[arg(long, value_name = "POLICY,..", value_delimiter = ',', default_value = "full,clusterkv")]
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

    /// Folder of the model in Hugging Face layout [default: the embedded model].
    #[arg(short, long, value_name = "DIR")]
    pub model: Option<PathBuf>,
}

impl ComparedArgs {
    /// Every policy at every budget.
    pub fn candidates(&self) -> Result<Vec<Candidate>> {
        let specs = self.policies.iter().map(|text| spec(text)).collect::<Result<Vec<_>>>()?;
        Ok(policies::candidates(&specs, &self.budgets)?)
    }

    /// Opens the model.
    pub fn folder(&self) -> Result<ModelFolder> {
        match &self.model {
            Some(path) => open_folder(path),
            None => embedded::open(),
        }
    }
}

/// A policy by its text, or by the file of that name.
fn spec(text: &str) -> Result<PolicySpec> {
    if !text.ends_with(".toml") {
        return Ok(PolicySpec::parse(text)?);
    }
    let file = PolicyFile::read(text.as_ref())?;
    Ok(PolicySpec::new(file.preset, file.options))
}
