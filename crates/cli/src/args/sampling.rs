//! How tokens are chosen.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use longview_core::SplitMix64;
use longview_engine::{Draft, GenerationParams, SamplingParams};
use longview_model::generation::GenerationDefaults;

use super::names::one_of;
use super::numbers::{count, number, whole};

/// Options of the sampler. What is not given comes from the model's authors.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0 always takes the likeliest token [default: generation_config.json of the
    /// model if it samples, else 0].
    #[arg(
        long,
        value_name = "T",
        allow_negative_numbers = true,
        value_parser = number("from 0 to 100", |t| (0.0..=100.0).contains(&t))
    )]
    temp: Option<f32>,

    /// Keep the K likeliest tokens; 0 keeps all [default: generation_config.json, else 0].
    #[arg(
        long,
        value_name = "K",
        allow_negative_numbers = true,
        value_parser = count(0..=1 << 30)
    )]
    top_k: Option<usize>,

    /// Keep the fewest tokens with this much probability; 1 keeps all [default:
    /// generation_config.json, else 1].
    #[arg(
        long,
        value_name = "P",
        allow_negative_numbers = true,
        value_parser = number("above 0, at most 1", |p| p > 0.0 && p <= 1.0)
    )]
    top_p: Option<f32>,

    /// Keep tokens at least this likely relative to the likeliest; 0 keeps all [default:
    /// generation_config.json, else 0].
    #[arg(
        long,
        value_name = "P",
        allow_negative_numbers = true,
        value_parser = number("from 0 to 1", |p| (0.0..=1.0).contains(&p))
    )]
    min_p: Option<f32>,

    /// Factor against tokens that occurred; 1 is off [default: generation_config.json, else 1].
    #[arg(
        long,
        value_name = "FACTOR",
        allow_negative_numbers = true,
        value_parser = number("from 0.001 to 1000", |f| (1e-3..=1e3).contains(&f))
    )]
    repeat_penalty: Option<f32>,

    /// Tokens that --repeat-penalty looks back; 0 is off, -1 all of them.
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = SamplingParams::default().repeat_last_n as i64,
        allow_negative_numbers = true,
        value_parser = whole(-1..=1 << 30)
    )]
    repeat_last_n: i64,

    /// Seed of the draws: the same seed gives the same text. -1: a random one, which --stats and
    /// --json show.
    #[arg(
        short,
        long,
        value_name = "N",
        default_value = "0",
        allow_negative_numbers = true,
        value_parser = seed
    )]
    seed: u64,

    /// Text that ends the answer and is not shown; may be given several times [default: none].
    #[arg(
        long,
        short = 'r',
        visible_alias = "reverse-prompt",
        value_name = "TEXT",
        value_parser = NonEmptyStringValueParser::new()
    )]
    stop: Vec<String>,

    /// Go on after tokens that end an answer [default: off].
    #[arg(long)]
    ignore_eos: bool,

    /// Answers that repeat what was read, faster: lookup: what followed the same tokens earlier is
    /// computed on trial, several tokens a step. The answer is the same, token by token; --stats
    /// and --json say how much was drafted and accepted. Policies that cannot take a token back
    /// refuse [default: lookup in a chat about a document where the policy can, else off].
    #[arg(long, value_name = "HOW", value_parser = one_of(DRAFTS))]
    draft: Option<Draft>,
}

/// Where drafts come from.
pub const DRAFTS: &[(Draft, &str)] = &[(Draft::Lookup, "lookup"), (Draft::Off, "off")];

/// The name of a kind of drafts.
pub fn draft_name(draft: Draft) -> &'static str {
    DRAFTS.iter().find(|(known, _)| *known == draft).map_or("off", |(_, name)| *name)
}

/// A seed, or a random one for -1.
fn seed(text: &str) -> Result<u64, String> {
    if text == "-1" {
        return Ok(random_seed());
    }
    text.parse().map_err(|_| format!("must be a whole number from 0 to {}, or -1", u64::MAX))
}

/// Another number in every run. 32 bits are enough, and can be typed again.
fn random_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut rng = SplitMix64::new(now.as_nanos() as u64 ^ (u64::from(std::process::id()) << 32));
    rng.next_u64() >> 32
}

impl SamplingArgs {
    /// The seed of the draws.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Where drafts come from, if that was said.
    pub fn draft(&self) -> Option<Draft> {
        self.draft
    }

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
            repeat_last_n: usize::try_from(self.repeat_last_n).unwrap_or(usize::MAX),
            seed: self.seed,
        };
        let (stop, ignore_eos) = (self.stop.clone(), self.ignore_eos);
        let draft = self.draft.unwrap_or_default();
        GenerationParams { max_tokens, sampling, stop, ignore_eos, draft }
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

    #[test]
    fn all_that_the_authors_say_is_used_and_the_user_goes_before_them() {
        let defaults = GenerationDefaults {
            do_sample: Some(true),
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            min_p: Some(0.05),
            repetition_penalty: Some(1.1),
            ..Default::default()
        };
        let numbers = |line: &str| {
            let p = sampling(line, &defaults);
            (p.temperature, p.top_k, p.top_p, p.min_p, p.repeat_penalty)
        };
        assert_eq!(numbers(""), (0.6, 20, 0.95, 0.05, 1.1));
        let line = "--temp 0.1 --top-k 3 --top-p 0.5 --min-p 0.2 --repeat-penalty 2";
        assert_eq!(numbers(line), (0.1, 3, 0.5, 0.2, 2.0));
        assert_eq!(sampling("--repeat-last-n -1", &defaults).repeat_last_n, usize::MAX);
    }
}
