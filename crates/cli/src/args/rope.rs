//! Contexts beyond what a model was trained for.

use std::fmt;

use clap::{Args, ValueEnum};
use longview_engine::RopeOverride;
use longview_model::config::ModelConfig;

use super::numbers;

/// How positions are stretched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided alike.
    Linear,
    /// Slow frequencies divided, fast ones kept.
    Yarn,
}

/// RoPE scaling in place of the model's own.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "RoPE")]
pub struct RopeArgs {
    /// RoPE scaling in place of the model's own [default: what config.json says].
    #[arg(long, value_name = "METHOD", value_enum)]
    rope_scaling: Option<RopeScaling>,

    /// By how much the context is expanded, a factor from 1 to 1000; needed by linear and yarn
    /// [default: none].
    #[arg(
        long,
        value_name = "FACTOR",
        value_parser = factor,
        requires = "rope_scaling",
        required_if_eq_any([("rope_scaling", "linear"), ("rope_scaling", "yarn")])
    )]
    rope_scale: Option<f64>,

    /// Tokens of the context that the model was trained for, for yarn [default:
    /// max_position_embeddings of config.json].
    #[arg(
        long,
        value_name = "TOKENS",
        value_parser = numbers::tokens,
        requires = "rope_scaling"
    )]
    yarn_orig_ctx: Option<usize>,
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if (1.0..=1000.0).contains(&factor) => Ok(factor),
        _ => Err("must be a number from 1 to 1000".to_owned()),
    }
}

impl fmt::Display for RopeArgs {
    /// As on the command line, without the option's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = match self.rope_scaling {
            None => return f.write_str("the model's"),
            Some(RopeScaling::None) => "none",
            Some(RopeScaling::Linear) => "linear",
            Some(RopeScaling::Yarn) => "yarn",
        };
        f.write_str(method)?;
        if let Some(factor) = self.rope_scale {
            write!(f, " --rope-scale {factor}")?;
        }
        self.yarn_orig_ctx.map_or(Ok(()), |tokens| write!(f, " --yarn-orig-ctx {tokens}"))
    }
}

impl RopeArgs {
    /// By how much the context is stretched, if that was said: 1 for no scaling at all.
    pub fn factor(&self) -> Option<f64> {
        self.rope_scaling.map(|_| self.rope_scale.unwrap_or(1.0))
    }

    /// The context that the stretching begins at, if that was said.
    pub fn original_context(&self) -> Option<usize> {
        self.yarn_orig_ctx
    }

    /// The scaling to use instead of the model's, if any.
    pub fn scaling(&self, config: &ModelConfig) -> Option<RopeOverride> {
        let factor = self.rope_scale.unwrap_or(1.0);
        let trained = || config.max_position_embeddings;
        Some(match self.rope_scaling? {
            RopeScaling::None => RopeOverride::None,
            RopeScaling::Linear => RopeOverride::Linear { factor },
            RopeScaling::Yarn => RopeOverride::Yarn {
                factor,
                original_context: self.yarn_orig_ctx.unwrap_or_else(trained),
            },
        })
    }
}
