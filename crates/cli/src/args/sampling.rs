//! How tokens are chosen.

use clap::Args;
use longview_engine::{GenerationParams, SamplingParams};
use longview_model::generation::GenerationDefaults;

/// Options of the sampler. What is not given comes from the model's authors.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0 always takes the likeliest token [default: generation_config.json of the
    /// model if it samples, else 0].
    #[arg(long, value_name = "T")]
    temp: Option<f32>,

    /// Keep the K likeliest tokens; 0 keeps all [default: generation_config.json, else 0].
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,

    /// Keep the fewest tokens with this much probability; 1 keeps all [default:
    /// generation_config.json, else 1].
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,

    /// Keep tokens at least this likely relative to the likeliest; 0 keeps all [default:
    /// generation_config.json, else 0].
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,

    /// Factor against tokens that occurred; 1 is off [default: generation_config.json, else 1].
    #[arg(long, value_name = "FACTOR")]
    repeat_penalty: Option<f32>,

    /// Tokens that --repeat-penalty looks back; 0 is off.
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = SamplingParams::default().repeat_last_n
    )]
    repeat_last_n: usize,

    /// Seed of the draws: the same seed gives the same text.
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Text that ends the answer and is not shown; may be given several times [default: none].
    #[arg(long, short = 'r', visible_alias = "reverse-prompt", value_name = "TEXT")]
    stop: Vec<String>,

    /// Go on after tokens that end an answer [default: off].
    #[arg(long)]
    ignore_eos: bool,
}

impl SamplingArgs {
    /// Parameters for at most `max_tokens` tokens of a model with these defaults.
    pub fn params(
        &self,
        defaults: &GenerationDefaults,
        max_tokens: Option<usize>,
    ) -> GenerationParams {
        let off = SamplingParams::default();
        let model_temp = match defaults.do_sample {
            Some(true) => defaults.temperature.unwrap_or(1.0),
            _ => off.temperature,
        };
        let model_top_k = defaults.top_k.map_or(off.top_k, |k| k as usize);
        let penalty = defaults.repetition_penalty.unwrap_or(off.repeat_penalty);
        let sampling = SamplingParams {
            temperature: self.temp.unwrap_or(model_temp),
            top_k: self.top_k.unwrap_or(model_top_k),
            top_p: self.top_p.or(defaults.top_p).unwrap_or(off.top_p),
            min_p: self.min_p.or(defaults.min_p).unwrap_or(off.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(penalty),
            repeat_last_n: self.repeat_last_n,
            seed: self.seed,
        };
        let (stop, ignore_eos) = (self.stop.clone(), self.ignore_eos);
        GenerationParams { max_tokens, sampling, stop, ignore_eos }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sampling: SamplingArgs,
    }

    fn sampling(line: &str, defaults: &GenerationDefaults) -> SamplingParams {
        let words = std::iter::once("x").chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().sampling.params(defaults, None).sampling
    }

    #[test]
    fn the_models_authors_are_asked_where_the_user_says_nothing() {
        let mut defaults = GenerationDefaults { temperature: Some(0.6), ..Default::default() };
        assert_eq!(sampling("", &defaults).temperature, 0.0);
        defaults.do_sample = Some(true);
        defaults.top_k = Some(20);
        let both = sampling("--top-p 0.9", &defaults);
        assert_eq!((both.temperature, both.top_k, both.top_p), (0.6, 20, 0.9));
        assert_eq!(sampling("--temp 0", &defaults).temperature, 0.0);
    }
}
