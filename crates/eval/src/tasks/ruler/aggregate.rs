//! The words that occur most often: in a list (CWE), and in a coded text by Zipf's law (FWE).

use longview_core::SplitMix64;

use super::super::task::{Setting, Task};
use super::answer::{Answer, sample};
use crate::error::EvalError;
use crate::sample::Sample;
use crate::score::Metric;
use crate::words::{self, Words};

/// Words that are common in a list.
const N_COMMON: usize = 10;
/// From this length on a list has the published counts; a shorter one those for short lists.
const LONG: usize = 4096;
/// How often each of them occurs, and each other word: from [`LONG`] on, and below.
const REPEATS: [(usize, usize); 2] = [(30, 3), (6, 1)];
/// The same in the solved example, and how many different words that has.
const EXAMPLES: [(usize, usize, usize); 2] = [(10, 3, 40), (3, 1, 20)];
const CWE_MAX_NEW: usize = 120;
const CWE_ASK: &str = "\nQuestion: What are the 10 most common words in the above list?";
const CWE_LEAD: &str = " Answer: The top 10 words that appear most often in the list are:";

/// Exponent of the frequencies.
const ALPHA: i32 = 2;
/// zeta(2), the sum of all `k^-2`.
const ZETA: f64 = std::f64::consts::PI * std::f64::consts::PI / 6.0;
const FWE_MAX_NEW: usize = 50;

pub(super) struct CommonWords;

pub(super) struct FrequentWords;

/// A numbered list in random order, and its common words.
fn numbered(
    common: &[String],
    others: &[String],
    repeats: (usize, usize),
    rng: &mut SplitMix64,
) -> String {
    let mut all: Vec<&String> = Vec::new();
    all.extend(common.iter().flat_map(|word| std::iter::repeat_n(word, repeats.0)));
    all.extend(others.iter().flat_map(|word| std::iter::repeat_n(word, repeats.1)));
    let order = words::shuffled(all.len(), rng);
    let lines: Vec<String> =
        order.into_iter().enumerate().map(|(i, at)| format!("{}. {}", i + 1, all[at])).collect();
    lines.join(" ")
}

fn cwe_document(list: &str) -> String {
    format!(
        "Below is a numbered list of words. In these words, some appear more often than others. \
         Memorize the ones that appear most often.\n{list}"
    )
}

impl Task for CommonWords {
    fn name(&self) -> &str {
        "ruler-cwe"
    }

    fn about(&self) -> String {
        "the 10 words that a list has 30 times (6 in short lists), others 3 times (1)".to_owned()
    }

    fn sample(&self, setting: &Setting<'_>) -> Result<Sample, EvalError> {
        let mut rng = setting.rng(self.name());
        let mut words = Words::new();
        let mut some = |n: usize, rng: &mut SplitMix64| -> Vec<String> {
            (0..n).map(|_| words.next(rng)).collect()
        };
        let form = usize::from(setting.length < LONG);
        let (often, seldom, n_example) = EXAMPLES[form];
        let (shown, rest) = (some(N_COMMON, &mut rng), some(n_example - N_COMMON, &mut rng));
        let example = numbered(&shown, &rest, (often, seldom), &mut rng);
        let named: Vec<String> =
            shown.iter().enumerate().map(|(i, word)| format!("{}. {word}", i + 1)).collect();
        let example =
            format!("{}{CWE_ASK}{CWE_LEAD} {}\n", cwe_document(&example), named.join(" "));
        let common = some(N_COMMON, &mut rng);
        // Enough for the length: a word and its number take two tokens at least.
        let others = some(setting.length / (2 * REPEATS[form].1) + 1, &mut rng);
        let seed = rng.next_u64();
        setting.largest(self.name(), 1, others.len(), &|n| {
            let list = numbered(&common, &others[..n], REPEATS[form], &mut SplitMix64::new(seed));
            let document = format!("{example}{}", cwe_document(&list));
            let answer = Answer {
                references: common.clone(),
                max_new: CWE_MAX_NEW,
                metric: Metric::MatchAll,
                depth: None,
            };
            sample(document, CWE_ASK.to_owned(), CWE_LEAD.to_owned(), answer)
        })
    }
}

impl Task for FrequentWords {
    fn name(&self) -> &str {
        "ruler-fwe"
    }

    fn about(&self) -> String {
        "the three most frequent words of a coded text, by Zipf's law".to_owned()
    }

    fn sample(&self, setting: &Setting<'_>) -> Result<Sample, EvalError> {
        let mut rng = setting.rng(self.name());
        let n_words = (setting.length / 50).max(4);
        let mut vocabulary: Vec<String> = Vec::with_capacity(n_words);
        while vocabulary.len() < n_words {
            let word = words::letters(6, 'a', 'z', &mut rng);
            if !vocabulary.contains(&word) {
                vocabulary.push(word);
            }
        }
        // The most frequent one is noise.
        let answers = vocabulary[1..4].to_vec();
        vocabulary[0] = "...".to_owned();
        let seed = rng.next_u64();
        setting.largest(self.name(), 16, usize::MAX, &|n| {
            let text = coded(&vocabulary, n, &mut SplitMix64::new(seed));
            let document = format!(
                "Read the following coded text and track the frequency of each coded word. Find \
                 the three most frequently appeared coded words. {text}"
            );
            let ask = "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. \
                       What are the three most frequently appeared words in the above coded text?";
            let lead = " Answer: According to the coded text above, the three most frequently \
                        appeared words are:";
            let answer = Answer {
                references: answers.clone(),
                max_new: FWE_MAX_NEW,
                metric: Metric::MatchAll,
                depth: None,
            };
            sample(document, ask.to_owned(), lead.to_owned(), answer)
        })
    }
}

/// A text of about `n` words: the one of rank k stands there `n k^-2 / zeta(2)` times.
fn coded(vocabulary: &[String], n: usize, rng: &mut SplitMix64) -> String {
    let mut all: Vec<&str> = Vec::with_capacity(n);
    for (i, word) in vocabulary.iter().enumerate() {
        let times = n as f64 * ((i + 1) as f64).powi(-ALPHA) / ZETA;
        all.extend(std::iter::repeat_n(word.as_str(), times as usize));
    }
    let order = words::shuffled(all.len(), rng);
    order.into_iter().map(|i| all[i]).collect::<Vec<_>>().join(" ")
}
