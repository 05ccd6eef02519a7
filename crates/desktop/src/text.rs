//! A text in rows of a width, so that a window lays out only those that it shows.
//!
//! Rows are found by the widths of characters alone, which the font is asked for once: a book of a
//! megabyte takes milliseconds, and larger texts are cut on a thread of their own. What shaping
//! adds or takes (kerning) is within the margin of the page.

use std::ops::Range;

/// Widths of a font's characters.
#[derive(Clone, Debug, PartialEq)]
pub struct Advances {
    ascii: [f32; 128],
    /// Of ideographs and emoji: the size of the font.
    wide: f32,
    /// Of all others: that of a broad letter.
    other: f32,
}

impl Advances {
    /// Asks `width` for those of ASCII; `size` is the font's.
    pub fn new(size: f32, mut width: impl FnMut(char) -> f32) -> Self {
        let mut ascii = [0.0; 128];
        for code in 32..127u8 {
            ascii[usize::from(code)] = width(char::from(code));
        }
        ascii[usize::from(b'\t')] = 4.0 * ascii[usize::from(b' ')];
        Self { wide: size, other: ascii[usize::from(b'n')].max(0.6 * size), ascii }
    }

    fn of(&self, c: char) -> f32 {
        match u32::from(c) {
            code @ 0..128 => self.ascii[code as usize],
            // Marks that stand on the letter before them, and joiners.
            0x300..=0x36f | 0x200b..=0x200f | 0xfe00..=0xfe0f => 0.0,
            0x1100..=0x11ff | 0x2e80..=0xd7ff | 0xf900..=0xfaff | 0xff00..=0xffef => self.wide,
            0x1f000.. => self.wide,
            _ => self.other,
        }
    }
}

/// The rows of a text: the bytes that each shows. Every byte but line ends is in one row.
pub fn rows(text: &str, advances: &Advances, width: f32) -> Vec<Range<usize>> {
    let mut rows = Vec::with_capacity(text.len() / 48 + 1);
    let mut begin = 0;
    for line in text.split_inclusive('\n') {
        let shown = line.trim_end_matches(['\n', '\r']);
        cut(text, begin..begin + shown.len(), advances, width, &mut rows);
        begin += line.len();
    }
    rows
}

/// Cuts one line between words, or inside of a word that is wider than a row.
fn cut(
    text: &str,
    line: Range<usize>,
    advances: &Advances,
    width: f32,
    rows: &mut Vec<Range<usize>>,
) {
    let (mut begin, mut used) = (line.start, 0.0);
    // Where the row may end, and what stands behind it.
    let (mut breakable, mut behind) = (line.start, 0.0);
    for (at, c) in text[line.clone()].char_indices() {
        let at = line.start + at;
        let advance = advances.of(c);
        if used + advance > width && at > begin && !c.is_whitespace() {
            let (end, rest) =
                if breakable > begin { (breakable, used - behind) } else { (at, 0.0) };
            rows.push(begin..end);
            (begin, used, breakable) = (end, rest, end);
        }
        used += advance;
        if c.is_whitespace() || advance == advances.wide {
            (breakable, behind) = (at + c.len_utf8(), used);
        }
    }
    rows.push(begin..line.end);
}

/// The row that shows a byte.
pub fn row_of(rows: &[Range<usize>], byte: usize) -> usize {
    rows.partition_point(|row| row.end <= byte).min(rows.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, width: f32) -> Vec<&str> {
        let advances = Advances::new(2.0, |_| 1.0);
        rows(text, &advances, width).into_iter().map(|row| &text[row]).collect()
    }

    #[test]
    fn rows_end_between_words_and_at_line_ends() {
        assert_eq!(shown("one two three\n\nfour", 8.0), ["one two ", "three", "", "four"]);
        assert_eq!(shown("abcdefghij", 4.0), ["abcd", "efgh", "ij"]);
        assert_eq!(shown("a abcdefghij", 4.0), ["a ", "abcd", "efgh", "ij"]);
        assert_eq!(shown("東京都大阪", 4.0), ["東京", "都大", "阪"]);
        assert_eq!(shown("x\r\ny", 9.0), ["x", "y"]);
        assert_eq!(shown("", 9.0), Vec::<&str>::new());
    }

    #[test]
    fn every_byte_is_in_one_row_and_can_be_found() {
        let text = "A line that is long enough to be cut, é and 終わり.\nAnd one more. ".repeat(40);
        let advances = Advances::new(2.0, |_| 1.0);
        let rows = rows(&text, &advances, 17.0);
        for (i, row) in rows.iter().enumerate() {
            assert_eq!(row_of(&rows, row.start), i + usize::from(row.is_empty()), "{row:?}");
        }
        let covered: usize = rows.iter().map(ExactSizeIterator::len).sum();
        assert_eq!(covered + text.matches('\n').count(), text.len());
    }
}
