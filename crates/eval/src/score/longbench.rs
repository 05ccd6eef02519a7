//! LongBench's scores of classes, numbers and code.

use super::digits::digit_runs;
use super::similar::ratio;

/// 1 divided by the number of classes that the prediction names, if `reference` is one of them.
/// Classes that are part of the right name are passed over.
pub fn classification(prediction: &str, reference: &str, classes: &[String]) -> f64 {
    let mut named: Vec<&str> =
        classes.iter().map(String::as_str).filter(|class| prediction.contains(class)).collect();
    let mut i = 0;
    while i < named.len() {
        let is_part = reference.contains(named[i]) && named[i] != reference;
        if is_part {
            // The official loop removes from the list it walks over, so the class that moves up
            // is not looked at.
            let first = named.iter().position(|class| *class == named[i]).unwrap_or(i);
            named.remove(first);
        }
        i += 1;
    }
    if named.contains(&reference) { 1.0 / named.len() as f64 } else { 0.0 }
}

/// The share of numbers in the prediction that are the first one of the reference ("Paragraph 3").
pub fn retrieval(prediction: &str, reference: &str) -> f64 {
    digit_runs(reference).next().map_or(0.0, |number| count(prediction, number))
}

/// The share of numbers in the prediction that are the reference.
pub fn count(prediction: &str, reference: &str) -> f64 {
    let numbers: Vec<&str> = digit_runs(prediction).collect();
    let right = numbers.iter().filter(|number| **number == reference).count();
    right as f64 / numbers.len().max(1) as f64
}

/// Similarity of the reference and the first line that is no comment and no fence.
pub fn code_similarity(prediction: &str, reference: &str) -> f64 {
    let mut lines = prediction.trim_start_matches('\n').split('\n');
    let line = lines.find(|line| !["`", "#", "//"].iter().any(|mark| line.contains(mark)));
    ratio(line.unwrap_or_default(), reference)
}
