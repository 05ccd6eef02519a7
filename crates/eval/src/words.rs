//! Words that mean nothing to anybody: names and values of tasks, from the seed.

use std::collections::BTreeSet;

use longview_core::SplitMix64;

const CONSONANTS: &[u8] = b"bcdfghklmnprstvwz";
const VOWELS: &[u8] = b"aeiou";

/// Words of two to four syllables, all different.
#[derive(Debug, Default)]
pub struct Words(BTreeSet<String>);

impl Words {
    /// None given out yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A word that was not given out before.
    pub fn next(&mut self, rng: &mut SplitMix64) -> String {
        loop {
            let word = pronounceable(2 + rng.below(3), rng);
            if self.0.insert(word.clone()) {
                return word;
            }
        }
    }

    /// Two such words and a hyphen, as RULER's adjective and noun.
    pub fn pair(&mut self, rng: &mut SplitMix64) -> String {
        format!("{}-{}", self.next(rng), self.next(rng))
    }
}

fn pick(from: &[u8], rng: &mut SplitMix64) -> char {
    char::from(from[rng.below(from.len())])
}

fn pronounceable(n_syllables: usize, rng: &mut SplitMix64) -> String {
    let mut word = String::with_capacity(2 * n_syllables + 1);
    for _ in 0..n_syllables {
        word.push(pick(CONSONANTS, rng));
        word.push(pick(VOWELS, rng));
    }
    if rng.below(2) == 0 {
        word.push(pick(b"lmnrst", rng));
    }
    word
}

/// `n` letters between `first` and `last`.
pub fn letters(n: usize, first: char, last: char, rng: &mut SplitMix64) -> String {
    let (first, last) = (first as u8, last as u8);
    (0..n).map(|_| char::from(first + rng.below(usize::from(last - first) + 1) as u8)).collect()
}

/// A number of `n` digits that begins with none but 0.
pub fn number(n: usize, rng: &mut SplitMix64) -> String {
    let mut text = String::with_capacity(n);
    text.push(char::from(b'1' + rng.below(9) as u8));
    text.extend((1..n).map(|_| char::from(b'0' + rng.below(10) as u8)));
    text
}

/// A random UUID (RFC 9562, version 4).
pub fn uuid(rng: &mut SplitMix64) -> String {
    let high = rng.next_u64() & !0xf000 | 0x4000;
    let low = rng.next_u64() & !(0b11 << 62) | (0b10 << 62);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// The numbers below `n` in random order.
pub fn shuffled(n: usize, rng: &mut SplitMix64) -> Vec<usize> {
    rng.distinct(n, n).into_iter().map(|i| i as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_different_and_pronounceable() {
        let (mut words, mut rng) = (Words::new(), SplitMix64::new(1));
        let all: BTreeSet<String> = (0..5000).map(|_| words.next(&mut rng)).collect();
        assert_eq!(all.len(), 5000);
        assert!(all.iter().all(|w| (4..=9).contains(&w.len())), "{all:?}");
        let pair = words.pair(&mut rng);
        assert_eq!(pair.split('-').count(), 2, "{pair}");
    }

    #[test]
    fn numbers_have_their_digits() {
        let mut rng = SplitMix64::new(2);
        for _ in 0..200 {
            let text = number(7, &mut rng);
            assert!(text.len() == 7 && !text.starts_with('0'), "{text}");
        }
        let text = letters(500, 'A', 'Z', &mut rng);
        assert!(text.bytes().all(|b| b.is_ascii_uppercase()));
        assert!(text.contains('A') && text.contains('Z'));
    }

    #[test]
    fn uuids_have_version_and_variant() {
        let mut rng = SplitMix64::new(3);
        for _ in 0..200 {
            let text = uuid(&mut rng);
            let parts: Vec<usize> = text.split('-').map(str::len).collect();
            assert_eq!(parts, [8, 4, 4, 4, 12], "{text}");
            assert_eq!(&text[14..15], "4", "{text}");
            assert!("89ab".contains(&text[19..20]), "{text}");
        }
    }
}
