//! What a task is, and what a sample of it is made from.

use longview_core::SplitMix64;

use crate::error::EvalError;
use crate::haystack::TextSource;
use crate::prompt::Prompter;
use crate::sample::Sample;

/// What a sample is made from.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// Counts tokens.
    pub prompter: Prompter<'a>,
    /// Where long texts come from.
    pub text: &'a TextSource,
    /// Tokens of document, question and answer, at most.
    pub length: usize,
    /// Seed of the run.
    pub seed: u64,
    /// Number of the document, from 0.
    pub sample: usize,
}

/// A kind of documents with questions.
pub trait Task: Send + Sync {
    /// As on the command line.
    fn name(&self) -> &str;

    /// What it is, in one line.
    fn about(&self) -> String;

    /// Questions of every sample.
    fn n_questions(&self) -> usize {
        1
    }

    /// Documents for `--samples N`.
    fn n_documents(&self, samples: usize) -> usize {
        samples
    }

    /// Whether the task can be made at all.
    ///
    /// # Errors
    /// [`EvalError::NoFile`] if it reads a file that was not given, or what is wrong with the file.
    fn check(&self) -> Result<(), EvalError> {
        Ok(())
    }

    /// The sample of a setting, as long as the length allows.
    ///
    /// # Errors
    /// [`EvalError::TooShort`] if the length does not hold the task's shortest form.
    fn sample(&self, setting: &Setting<'_>) -> Result<Sample, EvalError>;
}

impl Setting<'_> {
    /// The generator of this sample of `task`: the same at every length, so that lengths differ in
    /// their filler alone.
    pub fn rng(&self, task: &str) -> SplitMix64 {
        let name = task.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut rng = SplitMix64::new(self.seed ^ name);
        SplitMix64::new(rng.next_u64().wrapping_add(self.sample as u64))
    }

    /// A place in 0..1 for this sample: samples in a row lie far from each other, and any number of
    /// them covers the range evenly (multiples of the golden ratio).
    pub fn spread(&self) -> f64 {
        ((self.sample as f64 + 0.5) * 0.618_033_988_749_894_9).fract()
    }

    /// The largest sample of `least..=most` units (sentences, words, pairs) that fits the length,
    /// answer included. `build` must be a function of its argument that grows with it.
    ///
    /// # Errors
    /// [`EvalError::TooShort`] if even `least` units do not fit.
    pub fn largest(
        &self,
        task: &str,
        least: usize,
        most: usize,
        build: &dyn Fn(usize) -> Sample,
    ) -> Result<Sample, EvalError> {
        let measure = |size: usize| -> Result<(Sample, usize), EvalError> {
            let sample = build(size);
            let n = self.prompter.n_tokens(&sample)?;
            Ok((sample, n))
        };
        let (mut best, fewest) = measure(least)?;
        if fewest > self.length {
            let task = task.to_owned();
            return Err(EvalError::TooShort { task, length: self.length, needed: fewest });
        }
        // `low` fits with `at_low` tokens; `high` does not, with `at_high` where that is known.
        let (mut low, mut at_low) = (least, fewest);
        let (mut high, mut at_high) = (most.saturating_add(1), None);
        let mut step = 0;
        while high - low > 1 {
            let room = (self.length - at_low) as f64;
            let guess = match at_high {
                // Every third step halves, so that a crooked function costs a logarithm too.
                Some(_) if step % 3 == 2 => low + (high - low) / 2,
                Some(at) => low + (room * (high - low) as f64 / (at - at_low) as f64) as usize,
                None => {
                    let slope = (at_low - fewest) as f64 / (low - least).max(1) as f64;
                    let ahead = if low == least { 16.0 } else { 1.05 * room / slope.max(0.01) };
                    low + (ahead as usize).max(16)
                }
            };
            let size = guess.clamp(low + 1, high - 1);
            let (sample, n) = measure(size)?;
            if n <= self.length {
                (best, low, at_low) = (sample, size, n);
            } else {
                (high, at_high) = (size, Some(n));
            }
            step += 1;
        }
        Ok(best)
    }
}
