//! Words of an answer: normalised as LongBench does, and how many two texts share.

use std::collections::{BTreeSet, HashMap};
use std::sync::OnceLock;

use jieba_rs::Jieba;

/// Chinese punctuation and its Western relatives.
const ZH_PUNCTUATION: &str = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】\
    〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏";

/// Lower case, without ASCII punctuation and articles.
pub fn english(text: &str) -> Vec<String> {
    let kept: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let words = kept.split_whitespace().filter(|word| !["a", "an", "the"].contains(word));
    words.map(str::to_owned).collect()
}

/// Chinese words by jieba, lower case, without punctuation.
pub fn chinese(text: &str) -> Vec<String> {
    let normal = |word: &str| -> String {
        let keep = |c: &char| {
            !c.is_ascii_punctuation() && !ZH_PUNCTUATION.contains(*c) && !c.is_whitespace()
        };
        word.to_lowercase().chars().filter(keep).collect()
    };
    cut(text).into_iter().map(normal).filter(|word| !word.is_empty()).collect()
}

/// The text with a space between Chinese words.
pub fn spaced_chinese(text: &str) -> String {
    cut(text).join(" ")
}

fn cut(text: &str) -> Vec<&str> {
    static JIEBA: OnceLock<Jieba> = OnceLock::new();
    JIEBA.get_or_init(Jieba::new).cut(text, true).into_iter().map(|token| token.word).collect()
}

/// F1 of two bags of words.
pub fn f1(prediction: &[String], reference: &[String]) -> f64 {
    let mut left: HashMap<&String, usize> = HashMap::new();
    for word in reference {
        *left.entry(word).or_default() += 1;
    }
    let mut common = 0;
    for word in prediction {
        if let Some(n) = left.get_mut(word).filter(|n| **n > 0) {
            *n -= 1;
            common += 1;
        }
    }
    if common == 0 {
        return 0.0;
    }
    let precision = f64::from(common) / prediction.len() as f64;
    let recall = f64::from(common) / reference.len() as f64;
    2.0 * precision * recall / (precision + recall)
}

/// The share of the reference's different words that occur in the prediction.
pub fn recall(prediction: &str, reference: &str) -> f64 {
    let said: BTreeSet<String> = english(prediction).into_iter().collect();
    let wanted: BTreeSet<String> = english(reference).into_iter().collect();
    wanted.intersection(&said).count() as f64 / wanted.len().max(1) as f64
}
