//! Texts that may be far too long. To encode a text takes up to 300 times its bytes, so one that
//! cannot fit is counted piece by piece and refused as soon as that is sure.

use super::encode::{Specials, Tokenizer};
use super::error::TokenizerError;
use super::quiet::guarded;

/// Bytes that are encoded at once to count.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes at the end of a piece in which a place to cut is looked for.
const CUT_BYTES: usize = 256;
/// Tokens of a piece that may be there only because the text was cut around it.
const CUT_TOKENS: usize = 64;
/// Bytes of text for each token of the limit that are not worth counting first.
const CHEAP_BYTES: usize = 8;

/// What came of a text that had a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within<T> {
    /// It was not found too long. It may still be a little longer than the limit.
    Fits(T),
    /// It has more tokens than the limit.
    TooLong {
        /// Tokens that were counted before the rest was left.
        at_least: usize,
        /// Tokens of the whole text, if its end is as its beginning.
        about: usize,
    },
}

impl Tokenizer {
    /// As [`Tokenizer::encode`], for a text that may be far longer than `limit` tokens.
    pub fn encode_within(
        &self,
        text: &str,
        specials: Specials,
        limit: usize,
    ) -> Result<Within<Vec<u32>>, TokenizerError> {
        match self.check_length(text, limit)? {
            Within::Fits(()) => self.encode(text, specials).map(Within::Fits),
            Within::TooLong { at_least, about } => Ok(Within::TooLong { at_least, about }),
        }
    }

    /// Whether `text` may have `limit` tokens or less, in memory that depends on the limit alone.
    pub fn check_length(&self, text: &str, limit: usize) -> Result<Within<()>, TokenizerError> {
        if text.len() <= PIECE_BYTES.max(limit.saturating_mul(CHEAP_BYTES)) {
            return Ok(Within::Fits(()));
        }
        let mut at_least = 0;
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(cut(rest));
            rest = after;
            let encoded = guarded(|| self.inner.encode_fast(piece, false));
            let encoded = encoded.map_err(|reason| self.failed("encoding", reason))?;
            at_least += encoded.len().saturating_sub(CUT_TOKENS);
            if at_least > limit {
                let read = text.len() - rest.len();
                let about = at_least as f64 * (text.len() as f64 / read as f64);
                return Ok(Within::TooLong { at_least, about: about as usize });
            }
        }
        Ok(Within::Fits(()))
    }
}

/// Where a piece of `text` ends: before white space if there is some, as words begin there.
fn cut(text: &str) -> usize {
    if text.len() <= PIECE_BYTES {
        return text.len();
    }
    let end = text.floor_char_boundary(PIECE_BYTES);
    let start = text.floor_char_boundary(PIECE_BYTES - CUT_BYTES);
    text[start..end].rfind(char::is_whitespace).map_or(end, |at| start + at)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::tokenizer::TokenizerConfig;

    fn needle() -> Tokenizer {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/needle/tokenizer.json");
        Tokenizer::open(&path, &TokenizerConfig::default()).unwrap()
    }

    /// Texts of about a megabyte of which tokens are of unlike lengths.
    fn texts() -> [String; 5] {
        let mut number = 12_345_678_901_u64;
        let digits = (0..100_000).map(|_| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            format!("{:09}", number >> 35)
        });
        [
            "The wind rose over the hills, and the sea was grey.\n".repeat(20_000),
            digits.collect(),
            " ".repeat(1_000_000),
            "Größe 大きさ 𝄞".repeat(40_000),
            "=".repeat(1_000_000),
        ]
    }

    #[test]
    fn what_is_counted_is_never_more_than_there_is() {
        let tokenizer = needle();
        for text in texts() {
            let n = tokenizer.encode(&text, Specials::AsWritten).unwrap().len();
            let fits = tokenizer.encode_within(&text, Specials::AsWritten, n).unwrap();
            let Within::Fits(ids) = fits else { panic!("{n} tokens fit into {n}: {fits:?}") };
            assert_eq!(ids.len(), n);
            // What is lost to the cuts is small.
            let few = n / 16;
            let too_long = tokenizer.check_length(&text, few).unwrap();
            let Within::TooLong { at_least, about } = too_long else {
                panic!("{n} tokens do not fit into {few}")
            };
            assert!(at_least > few && at_least <= n, "{at_least} of {n}");
            assert!(about.abs_diff(n) < n / 20, "about {about}, and it has {n}");
        }
    }

    #[test]
    fn a_text_far_too_long_is_left_after_its_beginning() {
        let tokenizer = needle();
        let text = "0123456789".repeat(3_000_000);
        let start = std::time::Instant::now();
        let found = tokenizer.encode_within(&text, Specials::Add, 4096).unwrap();
        let Within::TooLong { at_least, .. } = found else { panic!("30 MB fit into 4096 tokens") };
        assert!(at_least > 4096 && at_least < 200_000, "{at_least}");
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    }
}
