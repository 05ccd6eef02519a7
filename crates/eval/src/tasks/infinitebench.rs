//! InfiniteBench (Zhang et al., 2024, arXiv 2402.13718): the four tasks that need no download. The
//! published sets have fixed sizes; here each fills the length.

use longview_core::SplitMix64;

use super::task::{Setting, Task};
use crate::error::EvalError;
use crate::haystack;
use crate::sample::{Question, Sample};
use crate::score::Metric;
use crate::words;

const INSTRUCTION: &str = "There is an important info hidden inside a lot of irrelevant text. Find \
    it and memorize it. I will quiz you about the important information there.";

/// The largest number of any list that is searched.
const MAX_NUMBER: usize = 99;

/// Most that one end of a list's range is moved by.
const MAX_MOVED: usize = 20;

pub(super) fn tasks() -> Vec<Box<dyn Task>> {
    vec![
        Box::new(Hidden { is_long: false }),
        Box::new(Hidden { is_long: true }),
        Box::new(KvRetrieval),
        Box::new(MathFind),
    ]
}

/// A pass key, or a sequence of digits that repeat.
struct Hidden {
    is_long: bool,
}

struct KvRetrieval;

struct MathFind;

/// Five digits, or ten of which five repeat the one before.
fn key(is_long: bool, rng: &mut SplitMix64) -> String {
    if !is_long {
        return words::number(5, rng);
    }
    let repeats = rng.distinct(9, 5);
    let mut digits: Vec<usize> = vec![rng.below(10)];
    for i in 0..9 {
        let last = digits[i];
        let other = (last + 1 + rng.below(9)) % 10;
        digits.push(if repeats.contains(&(i as u32)) { last } else { other });
    }
    digits.iter().map(usize::to_string).collect()
}

impl Task for Hidden {
    fn name(&self) -> &str {
        if self.is_long { "infinitebench-number-string" } else { "infinitebench-passkey" }
    }

    fn about(&self) -> String {
        if self.is_long {
            "10 digits, five of them repeated, in noise".to_owned()
        } else {
            "a key of 5 digits in noise".to_owned()
        }
    }

    fn sample(&self, setting: &Setting<'_>) -> Result<Sample, EvalError> {
        let key = key(self.is_long, &mut setting.rng(self.name()));
        let (what, end, max_new) = if self.is_long {
            ("sequence of digits", "sequence of digits", 12)
        } else {
            ("pass key", "pass key", 6)
        };
        let needle = format!("The {what} is {key}. Remember it. {key} is the {end}.");
        let depth = setting.spread();
        setting.largest(self.name(), 1, usize::MAX, &|n| {
            let mut lines = vec![haystack::NOISE; n];
            lines.insert((depth * n as f64) as usize, &needle);
            let document = format!("{INSTRUCTION}\n\n{}", lines.join("\n"));
            let question = Question {
                ask: format!("\n\nWhat is the {what}?"),
                lead: format!("\nThe {what} is"),
                references: vec![key.clone()],
                max_new,
                metric: Metric::FirstInteger,
                depth: Some(depth),
                ..Question::default()
            };
            Sample { document, questions: vec![question], chat: true }
        })
    }
}

impl Task for KvRetrieval {
    fn name(&self) -> &str {
        "infinitebench-kv-retrieval"
    }

    fn about(&self) -> String {
        "the value of a key in a JSON object of UUIDs".to_owned()
    }

    fn sample(&self, setting: &Setting<'_>) -> Result<Sample, EvalError> {
        let mut rng = setting.rng(self.name());
        let (key, value) = (words::uuid(&mut rng), words::uuid(&mut rng));
        let seed = rng.next_u64();
        let depth = setting.spread();
        setting.largest(self.name(), 1, usize::MAX, &|n| {
            let mut rng = SplitMix64::new(seed);
            let pair = |key: &str, value: &str| format!("\"{key}\": \"{value}\"");
            let mut pairs: Vec<String> =
                (1..n).map(|_| pair(&words::uuid(&mut rng), &words::uuid(&mut rng))).collect();
            pairs.insert((depth * n as f64) as usize, pair(&key, &value));
            let document = format!(
                "Extract the value corresponding to the specified key in the JSON object \
                 below.\n\nJSON data:\n{{{}}}",
                pairs.join(", ")
            );
            let question = Question {
                ask: format!("\n\nKey: \"{key}\"\nThe value associated with the specified key is:"),
                references: vec![value.clone()],
                max_new: 50,
                metric: Metric::KvValue,
                depth: Some(depth),
                ..Question::default()
            };
            Sample { document, questions: vec![question], chat: true }
        })
    }
}

/// What may be asked of a list: whether from the largest number down, and how many different ones
/// come before.
const FINDS: [(&str, bool, usize); 6] = [
    ("largest", true, 0),
    ("second largest", true, 1),
    ("third largest", true, 2),
    ("smallest", false, 0),
    ("second smallest", false, 1),
    ("third smallest", false, 2),
];

impl Task for MathFind {
    fn name(&self) -> &str {
        "infinitebench-math-find"
    }

    fn about(&self) -> String {
        "the largest, smallest or median of a long list of numbers".to_owned()
    }

    fn sample(&self, setting: &Setting<'_>) -> Result<Sample, EvalError> {
        let seed = setting.rng(self.name()).next_u64();
        setting.largest(self.name(), 5, usize::MAX, &|n| {
            let mut rng = SplitMix64::new(seed);
            let numbers = numbers(setting.sample, n, &mut rng);
            let (what, answer) = find(setting.sample, &numbers);
            let list: Vec<String> = numbers.iter().map(usize::to_string).collect();
            let document =
                format!("Find the {what} number from the list below:\n\n[{}]", list.join(", "));
            let question = Question {
                ask: format!(
                    "\n\nYou should answer with only one number, no other words. The {what} number \
                     of the list is:"
                ),
                references: vec![answer],
                max_new: 3,
                metric: Metric::FirstNumber,
                ..Question::default()
            };
            Sample { document, questions: vec![question], chat: true }
        })
    }
}

/// The list of sample `i`. The end of its range that is asked about is moved at random: otherwise
/// a long list, which holds every number of its range, would have the same answer each time.
fn numbers(i: usize, n: usize, rng: &mut SplitMix64) -> Vec<usize> {
    let is_upper = match FINDS.get(i % (FINDS.len() + 1)) {
        Some((_, is_upper, _)) => *is_upper,
        // The middle moves with either end.
        None => rng.below(2) == 0,
    };
    let (least, most) = if is_upper {
        (0, MAX_NUMBER - rng.below(MAX_MOVED + 1))
    } else {
        (rng.below(MAX_MOVED), MAX_NUMBER)
    };
    (0..n).map(|_| least + rng.below(most - least + 1)).collect()
}

/// What sample `i` asks of `numbers`, and the answer. Equal numbers count once, but for the median,
/// which of an even list is the mean of the middle two.
fn find(i: usize, numbers: &[usize]) -> (&'static str, String) {
    let mut rising = numbers.to_vec();
    rising.sort_unstable();
    let n = rising.len();
    match FINDS.get(i % (FINDS.len() + 1)) {
        Some((what, is_upper, before)) => {
            rising.dedup();
            // A short list may have too few different numbers.
            let place = (*before).min(rising.len() - 1);
            let place = if *is_upper { rising.len() - 1 - place } else { place };
            (what, rising[place].to_string())
        }
        None => {
            let twice = rising[n / 2] + rising[(n - 1) / 2];
            let half = if twice % 2 == 1 { ".5" } else { "" };
            ("median", format!("{}{half}", twice / 2))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_of_nine_digits_repeat_the_one_before() {
        for seed in 0..50 {
            let key = key(true, &mut SplitMix64::new(seed));
            let same = key.as_bytes().windows(2).filter(|pair| pair[0] == pair[1]).count();
            assert_eq!((key.len(), same), (10, 5), "{key}");
        }
    }

    #[test]
    fn places_of_a_list_are_found() {
        let numbers = [5, 1, 9, 9, 2, 4];
        let found: Vec<(&str, String)> = (0..7).map(|i| find(i, &numbers)).collect();
        let wanted = ["9", "5", "4", "1", "2", "4", "4.5"];
        assert_eq!(found.iter().map(|(_, n)| n.as_str()).collect::<Vec<_>>(), wanted);
        assert_eq!(found[6].0, "median");
        assert_eq!(find(6, &[3, 1, 2]).1, "2");
        assert_eq!((find(2, &[7, 7]).1, find(5, &[7, 8]).1), ("7".into(), "8".into()));
    }

    #[test]
    fn long_lists_have_to_be_read() {
        for i in 0..7 {
            let of = |seed| find(i, &numbers(i, 5000, &mut SplitMix64::new(seed)));
            let answers: std::collections::HashSet<String> = (0..40).map(|s| of(s).1).collect();
            assert!(answers.len() > 8, "{}: {answers:?}", of(0).0);
        }
        let ends = |i: usize, seed| {
            let all = numbers(i, 5000, &mut SplitMix64::new(seed));
            (all.iter().copied().min().unwrap(), all.iter().copied().max().unwrap())
        };
        for seed in 0..40 {
            let (least, most) = ends(1, seed);
            assert!(least == 0 && (79..=99).contains(&most), "{least} to {most}");
            let (least, most) = ends(4, seed);
            assert!(most == 99 && (0..20).contains(&least), "{least} to {most}");
        }
    }
}
