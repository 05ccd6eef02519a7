//! Similarity of two strings by matching blocks (Ratcliff and Obershelp, 1988), as Python's
//! `difflib` finds them: what `fuzz.ratio` is where nothing faster is installed.

use std::collections::{HashMap, HashSet};

/// From this length on, characters that are everywhere do not begin a block.
const POPULAR_FROM: usize = 200;

/// `fuzz.ratio / 100`: [`sequence_ratio`] in whole per cent.
pub fn ratio(a: &str, b: &str) -> f64 {
    (100.0 * sequence_ratio(a, b)).round_ties_even() / 100.0
}

/// Twice the characters in matching blocks, of the characters of both.
pub fn sequence_ratio(a: &str, b: &str) -> f64 {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.is_empty() && b.is_empty() {
        return 1.0;
    }
    let places = places(&b);
    let mut matched = 0;
    let mut parts = vec![(0, a.len(), 0, b.len())];
    while let Some((a_from, a_to, b_from, b_to)) = parts.pop() {
        let (i, j, n) = longest(&a[..a_to], &b[..b_to], (a_from, b_from), &places);
        if n > 0 {
            matched += n;
            parts.push((a_from, i, b_from, j));
            parts.push((i + n, a_to, j + n, b_to));
        }
    }
    2.0 * matched as f64 / (a.len() + b.len()) as f64
}

/// Where each character stands, without those that are in more than 1 % of the places of a long
/// text.
fn places(text: &[char]) -> HashMap<char, Vec<usize>> {
    let mut places: HashMap<char, Vec<usize>> = HashMap::new();
    for (at, c) in text.iter().enumerate() {
        places.entry(*c).or_default().push(at);
    }
    if text.len() >= POPULAR_FROM {
        let most = text.len() / 100 + 1;
        let popular: HashSet<char> =
            places.iter().filter(|(_, at)| at.len() > most).map(|(c, _)| *c).collect();
        places.retain(|c, _| !popular.contains(c));
    }
    places
}

/// The longest block that both have behind `from`, the first in `a` and then in `b`, and what it
/// grows to with characters that begin none: (place in a, place in b, length).
fn longest(
    a: &[char],
    b: &[char],
    from: (usize, usize),
    places: &HashMap<char, Vec<usize>>,
) -> (usize, usize, usize) {
    let (mut best_a, mut best_b, mut best) = (from.0, from.1, 0);
    // Length of the block that ends at a place of `b` and the character of `a` before.
    let mut ends: HashMap<usize, usize> = HashMap::new();
    for (i, c) in a.iter().enumerate().skip(from.0) {
        let mut new_ends = HashMap::new();
        let at = places.get(c).map_or(&[][..], Vec::as_slice);
        for j in at.iter().copied().filter(|j| (from.1..b.len()).contains(j)) {
            let before = j.checked_sub(1).and_then(|j| ends.get(&j)).copied().unwrap_or(0);
            let n = before + 1;
            new_ends.insert(j, n);
            if n > best {
                (best_a, best_b, best) = (i + 1 - n, j + 1 - n, n);
            }
        }
        ends = new_ends;
    }
    while best_a > from.0 && best_b > from.1 && a[best_a - 1] == b[best_b - 1] {
        (best_a, best_b, best) = (best_a - 1, best_b - 1, best + 1);
    }
    while best_a + best < a.len() && best_b + best < b.len() && a[best_a + best] == b[best_b + best]
    {
        best += 1;
    }
    (best_a, best_b, best)
}
