//! Random settings of a preset, as users and files may give them: mostly options that it has, with
//! values at the ends of ranges, around budget and context, and some that mean nothing.

use longview_core::SplitMix64;

use super::options::{BudgetOption, OPTIONS, OptionInfo, PolicyOptions};
use super::preset::Preset;
use super::range::ValueRange;

/// Names that some option has as a value, and words that none has.
const WORDS: &[&str] = &[
    "max",
    "mean",
    "quest",
    "dynamic",
    "fix",
    "shared",
    "separate",
    "uniform",
    "ada",
    "mass",
    "device",
    "host",
    "drop",
    "means",
    "sample:1",
    "sample:70",
    "sample:1073741824",
    "verified:0.3,0.2",
    "verified:1e-45,1e-45",
    "worst-case",
    "sampled",
    "text",
    "cache",
    "group-first",
    "pool-first",
    "local",
    "last",
    "random",
    "top",
    "top-joint",
    "svd",
    "projected",
    "adaptive",
    "keys-first",
    "queries-first",
    "together",
    "cosine",
    "l2",
    "inner-product",
    "sum",
    "size-weighted",
    "avg",
    "true",
    "false",
    "0",
    "18446744073709551615",
    "auto",
    "",
    "x",
    "-1",
    "\u{1b}[2J",
];

/// Numbers around the ends of ranges and what they are compared with.
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-0",
    "-1",
    "0.5",
    "0.2",
    "0.95",
    "1e-45",
    "1e-30",
    "0.99999994",
    "1.0000001",
    "2",
    "20",
    "1000",
    "1001",
    "1e30",
    "1e40",
    "inf",
    "-inf",
    "nan",
    "many",
];

/// Whole numbers that a fixed word or a power of two is near to.
const WHOLES: &[usize] = &[
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    127,
    128,
    129,
    255,
    256,
    320,
    1023,
    1024,
    1025,
    4096,
    65_535,
    65_536,
    65_537,
    (1 << 24) + 1,
    (1 << 30) - 1,
    1 << 30,
    (1 << 30) + 1,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 32) + 1,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    usize::MAX - 63,
    usize::MAX - 1,
    usize::MAX,
];

/// One setting: options as text, in the order in which they are given.
pub(crate) struct Setting {
    pub preset: Preset,
    pub given: Vec<(&'static str, String)>,
    pub context: usize,
}

impl Setting {
    /// The next one for contexts of up to `most` tokens.
    pub fn draw(rng: &mut SplitMix64, preset: Preset, most: usize) -> Self {
        let context = match rng.below(4) {
            0 => most,
            1 => 1 + rng.below(most.min(64)),
            _ => 1 + rng.below(most),
        };
        let mut given: Vec<(&'static str, String)> = Vec::new();
        let budget = 1 + rng.below(2 * context.min(4096));
        if rng.below(4) > 0 {
            given.push(("budget", budget.to_string()));
        }
        let own = preset.info().options;
        for _ in 0..rng.below(6) {
            let any = OPTIONS[rng.below(OPTIONS.len())].name;
            let name = if rng.below(40) == 0 { any } else { own[rng.below(own.len())] };
            if given.iter().any(|(known, _)| *known == name) {
                continue;
            }
            if let Some(option) = OptionInfo::find(name) {
                given.push((name, value(rng, option, [budget, context])));
            }
        }
        Self { preset, given, context }
    }

    /// What can be set of it. What cannot be is changed as the error says, or left out where the
    /// value can be none.
    ///
    /// # Panics
    /// If an error does not name its option, or its advice does not help.
    pub fn options(&self) -> PolicyOptions {
        let mut options = PolicyOptions::new(self.preset);
        for (name, value) in &self.given {
            let Err(error) = options.set(name, value) else { continue };
            let message = error.to_string();
            assert!(message.starts_with(&format!("--{name}")), "{name} = {value}: {message}");
            assert!(!message.contains(char::is_control), "{message:?}");
            if let Some(advice) = error.advice() {
                assert_eq!(advice.option(), *name, "{message}");
                options.follow(&advice).unwrap_or_else(|e| panic!("{message}: {e}"));
            }
        }
        options
    }
}

fn value(rng: &mut SplitMix64, option: &OptionInfo, near: [usize; 2]) -> String {
    let is_small = rng.below(2) == 0;
    match option.range {
        ValueRange::Any => loop {
            let word = WORDS[rng.below(WORDS.len())];
            let fits = PolicyOptions::new(Preset::Full).set(option.name, word).is_ok();
            if fits || rng.below(200) == 0 {
                return word.to_owned();
            }
        },
        ValueRange::Between(..) => NUMBERS[rng.below(NUMBERS.len())].to_owned(),
        ValueRange::Whole { .. } | ValueRange::Odd { .. } if is_small => {
            rng.below(1 + near[0] / 2).to_string()
        }
        ValueRange::Whole { least, most } => whole(rng, [least, most], near),
        ValueRange::Odd { most } => whole(rng, [1, most], near),
    }
}

fn whole(rng: &mut SplitMix64, ends: [usize; 2], near: [usize; 2]) -> String {
    let number = match rng.below(4) {
        0 => ends[rng.below(2)],
        1 => near[rng.below(2)],
        2 => near[rng.below(2)] / (1 + rng.below(8)),
        _ => WHOLES[rng.below(WHOLES.len())],
    };
    match rng.below(24) {
        0 => number.wrapping_add(1).to_string(),
        1 => number.wrapping_sub(1).to_string(),
        2 => WORDS[rng.below(WORDS.len())].to_owned(),
        3 => format!("-{number}"),
        4 => format!("{number}0000000000000000000"),
        _ => number.to_string(),
    }
}

/// A budget that was given as tokens.
pub(crate) fn given_budget(options: &PolicyOptions) -> Option<usize> {
    match options.budget {
        Some(BudgetOption::Tokens(tokens)) => Some(tokens),
        Some(BudgetOption::Auto) | None => None,
    }
}
