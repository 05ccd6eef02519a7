//! ROUGE-L (Lin, 2004) as the `rouge` package of Python computes it, which LongBench uses: of
//! whole summaries, by the union of what the sentences have in common, words counted once.

use std::collections::BTreeSet;

/// The F value; 0 where either text has no words.
pub fn rouge_l(prediction: &str, reference: &str) -> f64 {
    let (said, wanted) = (sentences(prediction), sentences(reference));
    let (n_said, n_wanted) = (different(&said), different(&wanted));
    if n_said == 0 || n_wanted == 0 {
        return 0.0;
    }
    let mut union: BTreeSet<&str> = BTreeSet::new();
    for sentence in &wanted {
        for other in &said {
            union.extend(common(sentence, other));
        }
    }
    let (recall, precision) =
        (union.len() as f64 / n_wanted as f64, union.len() as f64 / n_said as f64);
    2.0 * precision * recall / (precision + recall + 1e-8)
}

/// Words of the parts between full stops. A part of white space alone counts as one empty word, as
/// it does there.
fn sentences(text: &str) -> Vec<Vec<&str>> {
    let parts = text.split('.').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let words: Vec<&str> = part.split_whitespace().collect();
            if words.is_empty() { vec![""] } else { words }
        })
        .collect()
}

fn different(sentences: &[Vec<&str>]) -> usize {
    sentences.iter().flatten().collect::<BTreeSet<_>>().len()
}

/// The words of the longest common subsequence; of several the one that the package finds.
fn common<'a>(x: &[&'a str], y: &[&str]) -> Vec<&'a str> {
    let width = y.len() + 1;
    let mut table = vec![0u32; (x.len() + 1) * width];
    for i in 1..=x.len() {
        for j in 1..=y.len() {
            table[i * width + j] = if x[i - 1] == y[j - 1] {
                table[(i - 1) * width + j - 1] + 1
            } else {
                table[(i - 1) * width + j].max(table[i * width + j - 1])
            };
        }
    }
    let (mut i, mut j) = (x.len(), y.len());
    let mut words = Vec::new();
    while i > 0 && j > 0 {
        if x[i - 1] == y[j - 1] {
            (i, j) = (i - 1, j - 1);
            words.push(x[i]);
        } else if table[(i - 1) * width + j] > table[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    words
}
