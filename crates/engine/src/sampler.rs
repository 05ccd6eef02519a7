//! From logits to a token: penalties, then truncation, then temperature, in the order of
//! llama.cpp's chain.
//!
//! Seeded and deterministic: the same logits, parameters and seed give the same tokens on every
//! machine. After the first call nothing is allocated.

use longview_core::SplitMix64;
use serde::Serialize;

use crate::error::EngineError;
use crate::output::{MAX_CANDIDATES, Output};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SamplingParams {
    /// 0 is greedy; otherwise logits are divided by it.
    pub temperature: f32,
    /// Keep the K most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest most likely tokens with this much probability; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the penalty window (Keskar et
    /// al. 2019); 1 is off.
    pub repeat_penalty: f32,
    /// Tokens that the penalty looks back; 0 is off.
    pub repeat_last_n: usize,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Fails on values that mean nothing, naming the option.
    pub fn validate(&self) -> Result<(), EngineError> {
        let bad = |option: &'static str, value: f32, range: &'static str| {
            Err(EngineError::Sampling { option, value, range })
        };
        match self {
            p if !(p.temperature >= 0.0 && p.temperature.is_finite()) => {
                bad("--temp", p.temperature, "a finite number, 0 or more")
            }
            p if !(p.top_p > 0.0 && p.top_p <= 1.0) => {
                bad("--top-p", p.top_p, "above 0, at most 1")
            }
            p if !(p.min_p >= 0.0 && p.min_p <= 1.0) => bad("--min-p", p.min_p, "from 0 to 1"),
            p if !(p.repeat_penalty > 0.0 && p.repeat_penalty.is_finite()) => {
                bad("--repeat-penalty", p.repeat_penalty, "a finite number above 0")
            }
            _ => Ok(()),
        }
    }

    /// Whether the choice is the largest logit, so that the device can make it.
    pub fn is_argmax(&self) -> bool {
        self.temperature == 0.0 && !self.penalises()
    }

    /// What a step has to say for this choice: where the K largest logits decide, the device finds
    /// them. A penalty may bring any token among them.
    pub(crate) fn output(&self) -> Output {
        match self.top_k {
            _ if self.is_argmax() => Output::Best,
            k @ 1..=MAX_CANDIDATES if !self.penalises() => Output::Candidates(k),
            _ => Output::Logits,
        }
    }

    fn penalises(&self) -> bool {
        self.repeat_penalty != 1.0 && self.repeat_last_n > 0
    }
}

/// A seeded chooser with its scratch memory.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    rng: SplitMix64,
    candidates: Vec<(f32, u32)>,
    /// Which tokens were penalised in this call; none between two of them.
    seen: Vec<bool>,
}

impl Sampler {
    /// A sampler for a vocabulary of `n_vocab` tokens.
    pub fn new(params: SamplingParams, n_vocab: usize) -> Result<Self, EngineError> {
        params.validate()?;
        let rng = SplitMix64::new(params.seed);
        let (candidates, seen) = (Vec::with_capacity(n_vocab), vec![false; n_vocab]);
        Ok(Self { params, rng, candidates, seen })
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Chooses a token; `history` holds the tokens so far, oldest first. Fails on logits that are
    /// not numbers.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, EngineError> {
        self.take_in(logits.iter().copied().zip(0..))?;
        self.penalise(history);
        Ok(self.choose())
    }

    /// Chooses among some of the logits and their tokens. Where these are the `top_k` largest and
    /// there is no penalty, it is the choice that [`Sampler::sample`] makes from all. Fails on
    /// logits that are not numbers.
    ///
    /// # Panics
    /// Without any logits.
    pub fn sample_candidates(&mut self, logits: &[f32], ids: &[u32]) -> Result<u32, EngineError> {
        self.take_in(logits.iter().copied().zip(ids.iter().copied()))?;
        Ok(self.choose())
    }

    /// Probabilities and tokens that the last choice was drawn from, the likeliest first; `None`
    /// where the largest logit was taken.
    pub fn drawn_from(&self) -> Option<&[(f32, u32)]> {
        (self.params.temperature > 0.0).then_some(&self.candidates)
    }

    fn take_in(&mut self, logits: impl Iterator<Item = (f32, u32)>) -> Result<(), EngineError> {
        self.candidates.clear();
        self.candidates.extend(logits);
        match self.candidates.iter().find(|(l, _)| l.is_nan() || *l == f32::INFINITY) {
            Some(&(_, token)) => Err(EngineError::NonFinite { token }),
            None => Ok(()),
        }
    }

    fn choose(&mut self) -> u32 {
        if self.params.temperature == 0.0 {
            return self.largest();
        }
        self.keep_top_k();
        self.normalise(1.0);
        self.keep_top_p();
        self.keep_min_p();
        self.draw_at_temperature();
        self.draw()
    }

    fn penalise(&mut self, history: &[u32]) {
        let SamplingParams { repeat_penalty, repeat_last_n, .. } = self.params;
        if repeat_penalty == 1.0 {
            return;
        }
        let window = &history[history.len().saturating_sub(repeat_last_n)..];
        self.seen.resize(self.candidates.len(), false);
        for token in window.iter().map(|token| *token as usize) {
            // Once per token, however often it stands in the window, which may be long.
            let Some((logit, _)) = self.candidates.get_mut(token) else { continue };
            if !std::mem::replace(&mut self.seen[token], true) {
                *logit =
                    if *logit > 0.0 { *logit / repeat_penalty } else { *logit * repeat_penalty };
            }
        }
        for token in window {
            if let Some(seen) = self.seen.get_mut(*token as usize) {
                *seen = false;
            }
        }
    }

    fn largest(&self) -> u32 {
        let first = self.candidates[0];
        self.candidates.iter().fold(first, |best, c| if c.0 > best.0 { *c } else { best }).1
    }

    /// The K most likely first; all are sorted, because the later cuts need the order.
    fn keep_top_k(&mut self) {
        // As the device orders them: plus zero, minus zero is zero.
        let order = |a: &(f32, u32), b: &(f32, u32)| {
            (b.0 + 0.0).total_cmp(&(a.0 + 0.0)).then(a.1.cmp(&b.1))
        };
        let k = self.params.top_k;
        if k > 0 && k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(k - 1, order);
            self.candidates.truncate(k);
        }
        self.candidates.sort_unstable_by(order);
    }

    /// Softmax of the sorted candidates, kept beside nothing else: logits become probabilities.
    fn normalise(&mut self, temperature: f32) {
        let top = self.candidates[0].0;
        let mut sum = 0.0f64;
        for (value, _) in &mut self.candidates {
            *value = ((*value - top) / temperature).exp();
            sum += f64::from(*value);
        }
        let scale = (1.0 / sum) as f32;
        self.candidates.iter_mut().for_each(|(value, _)| *value *= scale);
    }

    fn keep_top_p(&mut self) {
        if self.params.top_p >= 1.0 {
            return;
        }
        let mut sum = 0.0;
        let enough = self.candidates.iter().position(|(p, _)| {
            sum += p;
            sum >= self.params.top_p
        });
        self.candidates.truncate(enough.map_or(self.candidates.len(), |i| i + 1));
    }

    fn keep_min_p(&mut self) {
        let least = self.params.min_p * self.candidates[0].0;
        let keep = self.candidates.partition_point(|(p, _)| *p >= least);
        self.candidates.truncate(keep.max(1));
    }

    /// Probabilities to the power 1 / temperature, as if the logits had been divided by it.
    fn draw_at_temperature(&mut self) {
        for (value, _) in &mut self.candidates {
            *value = value.ln();
        }
        self.normalise(self.params.temperature);
    }

    fn draw(&mut self) -> u32 {
        let mut left = self.rng.next_f32();
        for (p, token) in &self.candidates {
            left -= p;
            if left < 0.0 {
                return *token;
            }
        }
        // Rounding may leave a sliver: it belongs to the most likely token.
        self.candidates[0].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, -1.0, 2.0];

    fn counts(params: SamplingParams, n: usize) -> [usize; 5] {
        let mut sampler = Sampler::new(params, 5).unwrap();
        let mut counts = [0; 5];
        (0..n).for_each(|_| counts[sampler.sample(&LOGITS, &[]).unwrap() as usize] += 1);
        counts
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        assert_eq!(counts(SamplingParams::default(), 3), [0, 3, 0, 0, 0]);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let params = SamplingParams { temperature: 1.0, ..Default::default() };
        let found = counts(params, 100_000);
        let sum: f32 = LOGITS.iter().map(|l| l.exp()).sum();
        for (count, logit) in found.iter().zip(LOGITS) {
            let expected = logit.exp() / sum;
            assert!((*count as f32 / 1e5 - expected).abs() < 0.006, "{found:?}");
        }
    }

    #[test]
    fn temperature_sharpens() {
        let params = SamplingParams { temperature: 0.5, ..Default::default() };
        let found = counts(params, 100_000);
        let sum: f32 = LOGITS.iter().map(|l| (2.0 * l).exp()).sum();
        assert!((found[2] as f32 / 1e5 - (2.0f32).exp() / sum).abs() < 0.006, "{found:?}");
    }

    #[test]
    fn each_cut_keeps_what_it_says() {
        let base = SamplingParams { temperature: 1.0, ..Default::default() };
        let kept = |p: SamplingParams| counts(p, 2000).map(|n| n > 0);
        assert_eq!(kept(SamplingParams { top_k: 3, ..base }), [false, true, true, false, true]);
        assert_eq!(kept(SamplingParams { top_p: 0.5, ..base }), [false, true, false, false, true]);
        assert_eq!(kept(SamplingParams { min_p: 0.3, ..base }), [false, true, true, false, true]);
        assert_eq!(kept(SamplingParams { top_k: 1, ..base }), [false, true, false, false, false]);
    }

    #[test]
    fn what_was_drawn_from_is_what_the_cuts_left() {
        let base = SamplingParams { temperature: 1.0, ..Default::default() };
        let mut sampler = Sampler::new(SamplingParams { top_k: 3, ..base }, 5).unwrap();
        let drawn = sampler.sample(&LOGITS, &[]).unwrap();
        let from = sampler.drawn_from().unwrap();
        assert_eq!(from.iter().map(|(_, id)| *id).collect::<Vec<_>>(), [1, 4, 2]);
        assert!(from.iter().any(|(_, id)| *id == drawn));
        assert!((from.iter().map(|(p, _)| p).sum::<f32>() - 1.0).abs() < 1e-6);
        let mut greedy = Sampler::new(SamplingParams::default(), 5).unwrap();
        greedy.sample(&LOGITS, &[]).unwrap();
        assert_eq!(greedy.drawn_from(), None);
    }

    #[test]
    fn the_penalty_counts_a_token_once_and_turns_the_choice() {
        let params = SamplingParams { repeat_penalty: 3.0, ..Default::default() };
        let mut sampler = Sampler::new(params, 5).unwrap();
        assert_eq!(sampler.sample(&LOGITS, &[1, 1, 4]).unwrap(), 2);
        let forgets = SamplingParams { repeat_last_n: 1, ..params };
        assert_eq!(Sampler::new(forgets, 5).unwrap().sample(&LOGITS, &[1, 4]).unwrap(), 1);
    }

    #[test]
    fn the_same_seed_draws_the_same_tokens() {
        let draw = |seed| {
            let params = SamplingParams { temperature: 1.0, seed, ..Default::default() };
            let mut sampler = Sampler::new(params, 5).unwrap();
            (0..50).map(|_| sampler.sample(&LOGITS, &[]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn a_step_is_asked_for_no_more_than_the_choice_needs() {
        let greedy = SamplingParams::default();
        let drawn = SamplingParams { temperature: 0.8, ..greedy };
        let penalty = |p: SamplingParams| SamplingParams { repeat_penalty: 1.1, ..p };
        assert_eq!(greedy.output(), Output::Best);
        assert_eq!(SamplingParams { top_k: 40, ..greedy }.output(), Output::Best);
        assert_eq!(penalty(greedy).output(), Output::Logits);
        for (top_k, output) in [
            (0, Output::Logits),
            (1, Output::Candidates(1)),
            (256, Output::Candidates(256)),
            (257, Output::Logits),
        ] {
            let params = SamplingParams { top_k, ..drawn };
            assert_eq!(params.output(), output);
            assert_eq!(penalty(params).output(), Output::Logits);
            let forgets = SamplingParams { repeat_last_n: 0, ..penalty(params) };
            assert_eq!(forgets.output(), output);
        }
    }

    #[test]
    fn logits_that_are_not_numbers_and_bad_parameters_are_errors() {
        let mut sampler = Sampler::new(SamplingParams::default(), 2).unwrap();
        let error = sampler.sample(&[0.0, f32::NAN], &[]).unwrap_err();
        assert!(error.to_string().contains("token 1"), "{error}");
        let error = sampler.sample_candidates(&[f32::INFINITY, 0.0], &[9, 1]).unwrap_err();
        assert!(error.to_string().contains("token 9"), "{error}");
        let params = SamplingParams { top_p: 0.0, ..Default::default() };
        assert!(Sampler::new(params, 2).unwrap_err().to_string().contains("--top-p 0"));
        let params = SamplingParams { temperature: f32::NAN, ..Default::default() };
        assert!(Sampler::new(params, 2).is_err());
    }
}
