//! How right an answer is, from 0 to 1: the metrics of RULER, InfiniteBench and LongBench as their
//! published programs compute them, and ours for needles and lists.

mod digits;
mod json;
mod longbench;
mod rouge;
mod similar;
mod words;

use self::digits::digit_runs;
pub use self::rouge::rouge_l;
pub use self::similar::{ratio, sequence_ratio};

/// A rule that compares an answer with its references.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Metric {
    /// RULER's `string_match_all`: the share of references that occur in the answer, upper and
    /// lower case alike.
    #[default]
    MatchAll,
    /// RULER's `string_match_part`: 1 if any reference occurs.
    MatchPart,
    /// 1 if the answer is a reference, but for white space around it.
    Exact,
    /// InfiniteBench: 1 if the first run of digits is a reference, as text.
    FirstInteger,
    /// InfiniteBench: 1 if the first number equals a reference as a number.
    FirstNumber,
    /// InfiniteBench: 1 if a reference is a word of the answer, cut at white space and
    /// `: " ' . , ? ! { }`.
    KvValue,
    /// The share of a reference's words, without articles, that occur in the answer; the best
    /// reference counts.
    WordRecall,
    /// The share of `name: value` references that the answer has as members of a JSON object.
    JsonMembers,
    /// LongBench: F1 of words, of normalised text.
    QaF1,
    /// LongBench: F1 of Chinese words.
    QaF1Zh,
    /// LongBench: ROUGE-L.
    RougeL,
    /// LongBench: ROUGE-L of Chinese words.
    RougeLZh,
    /// LongBench: 1 divided by the classes named, if the right one is.
    Classification {
        /// Names of all classes.
        classes: Vec<String>,
    },
    /// LongBench: the share of numbers in the answer that are the paragraph's.
    Retrieval,
    /// LongBench: the share of numbers in the answer that are the count.
    Count,
    /// LongBench: similarity of the first line that is no comment.
    CodeSimilarity,
    /// Another metric of the answer's first line alone.
    FirstLine(Box<Metric>),
}

impl Metric {
    /// The score of `prediction`; 0 without references.
    pub fn score(&self, prediction: &str, references: &[String]) -> f64 {
        let best = |one: &dyn Fn(&str) -> f64| {
            references.iter().map(|reference| one(reference)).fold(0.0, f64::max)
        };
        match self {
            Self::MatchAll => match_all(prediction, references),
            Self::MatchPart => best(&|r| holds(prediction, r)),
            Self::Exact => best(&|r| truth(prediction.trim() == r.trim())),
            Self::FirstInteger => best(&|r| truth(first_digits(prediction) == Some(r))),
            Self::FirstNumber => best(&|r| truth(is_first_number(prediction, r))),
            Self::KvValue => best(&|r| truth(kv_words(prediction).any(|word| word == r))),
            Self::WordRecall => best(&|r| words::recall(prediction, r)),
            Self::JsonMembers => json::members(prediction, references),
            Self::QaF1 => best(&|r| words::f1(&words::english(prediction), &words::english(r))),
            Self::QaF1Zh => best(&|r| words::f1(&words::chinese(prediction), &words::chinese(r))),
            Self::RougeL => best(&|r| rouge_l(prediction, r)),
            Self::RougeLZh => {
                best(&|r| rouge_l(&words::spaced_chinese(prediction), &words::spaced_chinese(r)))
            }
            Self::Classification { classes } => {
                best(&|r| longbench::classification(prediction, r, classes))
            }
            Self::Retrieval => best(&|r| longbench::retrieval(prediction, r)),
            Self::Count => best(&|r| longbench::count(prediction, r)),
            Self::CodeSimilarity => best(&|r| longbench::code_similarity(prediction, r)),
            Self::FirstLine(metric) => {
                let text = prediction.trim_start_matches('\n');
                metric.score(text.split('\n').next().unwrap_or_default(), references)
            }
        }
    }
}

fn truth(is_right: bool) -> f64 {
    f64::from(u8::from(is_right))
}

fn holds(prediction: &str, reference: &str) -> f64 {
    truth(prediction.to_lowercase().contains(&reference.to_lowercase()))
}

fn match_all(prediction: &str, references: &[String]) -> f64 {
    let found: f64 = references.iter().map(|reference| holds(prediction, reference)).sum();
    found / references.len().max(1) as f64
}

fn first_digits(text: &str) -> Option<&str> {
    digit_runs(text).next()
}

/// Whether the first number, with decimals if it has some, equals `reference`.
fn is_first_number(text: &str, reference: &str) -> bool {
    let Some(start) = text.find(|c: char| c.is_ascii_digit()) else { return false };
    let rest = &text[start..];
    let digits = |s: &str| s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    let whole = digits(rest);
    let end = match rest[whole..].strip_prefix('.').map(digits) {
        Some(decimals) if decimals > 0 => whole + 1 + decimals,
        _ => whole,
    };
    match (rest[..end].parse::<f64>(), reference.parse::<f64>()) {
        (Ok(found), Ok(wanted)) => found == wanted,
        _ => false,
    }
}

fn kv_words(text: &str) -> impl Iterator<Item = &str> {
    let is_border = |c: char| c.is_whitespace() || ":\"'.,?!{}".contains(c);
    text.split(is_border).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests;
