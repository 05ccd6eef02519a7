//! The passages of a document that an answer attended to most.
//!
//! A passage is a sentence or a line. Its weight is the share of what the document's tokens had
//! beyond an even share, over all heads of all layers and the first steps of the answer: see
//! `Sequence::add_attention` of the scheduler.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Passages of an answer at most.
pub const MOST_PASSAGES: usize = 8;
/// Characters of a passage, about: longer sentences are cut between words.
const LONG: usize = 320;
/// Shares below this are noise.
const LEAST_WEIGHT: f64 = 0.02;

/// A part of the document that an answer rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Passage {
    /// Bytes of the document's text.
    pub place: Range<usize>,
    /// Share of the attention that the whole document received.
    pub weight: f64,
}

impl Passage {
    /// Its place in UTF-16 units of the document's text, as JavaScript counts.
    pub fn utf16(&self, text: &str) -> Range<usize> {
        let units = |part: &str| part.encode_utf16().count();
        let start = units(&text[..self.place.start]);
        start..start + units(&text[self.place.clone()])
    }
}

/// The pieces of a text that can be passages, and which of them the tokens of a prompt are in.
#[derive(Clone, Debug)]
pub struct TextPieces {
    /// Without the spaces at their ends. A piece of spaces alone, such as the end of a line behind
    /// that of a sentence, is empty: it is nothing to show.
    pieces: Vec<Range<usize>>,
    /// The piece of each token; none for a token of no text.
    of_token: Vec<Option<u32>>,
}

impl TextPieces {
    /// The pieces of `text`; `places` says for each token which bytes of it the token stands for.
    pub fn new(text: &str, places: &[Range<usize>]) -> Self {
        let whole = sentences(text);
        let piece = |place: &Range<usize>| {
            let at = whole.partition_point(|sentence| sentence.end <= place.start);
            u32::try_from(at).ok().filter(|_| !place.is_empty() && at < whole.len())
        };
        let of_token = places.iter().map(piece).collect();
        let trimmed = |place: Range<usize>| {
            let words = text[place.clone()].trim();
            let start = place.start + text[place.clone()].find(words).unwrap_or(0);
            start..start + words.len()
        };
        Self { of_token, pieces: whole.into_iter().map(trimmed).collect() }
    }

    /// The passages that received most, most first, where `mass` says what each token received.
    pub fn passages(&self, mass: &[f32]) -> Vec<Passage> {
        let mut sums = vec![0.0f64; self.pieces.len()];
        let mut total = 0.0;
        for (piece, mass) in self.of_token.iter().zip(mass) {
            let Some(piece) = piece else { continue };
            sums[*piece as usize] += f64::from(*mass);
            total += f64::from(*mass);
        }
        let mut best: Vec<(f64, &Range<usize>)> =
            sums.iter().map(|sum| sum / total).zip(&self.pieces).collect();
        // Nothing was received: no number is at least the least weight.
        best.retain(|(weight, place)| *weight >= LEAST_WEIGHT && !place.is_empty());
        best.sort_by(|a, b| b.0.total_cmp(&a.0));
        best.truncate(MOST_PASSAGES);
        let passage =
            |(weight, place): (f64, &Range<usize>)| Passage { place: place.clone(), weight };
        best.into_iter().map(passage).collect()
    }
}

/// The text in pieces that follow one another: up to the end of a line or a sentence, or between
/// two words of a long one.
fn sentences(text: &str) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let end = at + c.len_utf8();
        let before_space = chars.peek().is_none_or(|(_, next)| next.is_whitespace());
        let ends = c == '\n'
            || matches!(c, '。' | '！' | '？')
            || (matches!(c, '.' | '!' | '?') && before_space)
            || (end - start > LONG && before_space)
            || end - start > 2 * LONG;
        if ends {
            pieces.push(start..end);
            start = end;
        }
    }
    if start < text.len() {
        pieces.push(start..text.len());
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passages(text: &str, places: &[Range<usize>], mass: &[f32]) -> Vec<Passage> {
        TextPieces::new(text, places).passages(mass)
    }

    #[test]
    fn pieces_cover_the_text() {
        let text = "One. Two 3.5 is! Three\nfour 東京。五";
        let pieces: Vec<&str> = sentences(text).into_iter().map(|piece| &text[piece]).collect();
        assert_eq!(pieces, ["One.", " Two 3.5 is!", " Three\n", "four 東京。", "五"]);
        let long = "word ".repeat(500) + &"x".repeat(2000);
        let pieces = sentences(&long);
        assert!(pieces.iter().all(|piece| piece.len() <= 2 * LONG + 1));
        assert_eq!(pieces.iter().map(ExactSizeIterator::len).sum::<usize>(), long.len());
    }

    #[test]
    fn the_sentence_that_received_most_comes_first() {
        let text = "Ärger ist groß. The key is 42. Nothing.";
        let words = [0..7, 7..10, 10..17, 18..21, 22..25, 26..28, 29..32, 33..41];
        let places: Vec<Range<usize>> = std::iter::once(0..0).chain(words).collect();
        let mass = [9.0, 0.0, 0.1, 0.0, 0.2, 0.3, 0.1, 0.29, 0.01];
        let found = passages(text, &places, &mass);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(&text[found[0].place.clone()], "The key is 42.");
        let units: Vec<u16> = text.encode_utf16().collect();
        let first = String::from_utf16(&units[found[0].utf16(text)]).unwrap();
        assert_eq!(first, "The key is 42.", "behind letters of two bytes");
        assert!((found[0].weight - 0.89).abs() < 1e-6 && (found[1].weight - 0.1).abs() < 1e-6);
        assert_eq!(passages(text, &places, &[0.0; 9]), []);
    }

    #[test]
    fn spaces_are_no_passage() {
        let text = "One.\nTwo.";
        let found = passages(text, &[0..4, 4..5, 5..9], &[0.1, 0.6, 0.3]);
        let shown: Vec<Range<usize>> = found.into_iter().map(|p| p.place).collect();
        assert_eq!(shown, [5..9, 0..4]);
    }
}
