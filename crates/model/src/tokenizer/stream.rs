//! Text of tokens as they are generated, never a part of a character.

use super::encode::Tokenizer;
use super::error::TokenizerError;

/// What a decoder writes for bytes that are not (yet) a character.
pub(super) const REPLACEMENT: char = '\u{FFFD}';

/// Tokens held back before the text is given up as it is. A character has at most four bytes, so
/// that many byte tokens in a row without a character are not UTF-8 at all.
const MAX_BUFFERED: usize = 16;

/// Decodes one token at a time. The pieces joined are the text of all tokens.
///
/// A token may hold a part of a character, and the text of a token may depend on the one before
/// (a leading space that the first token of a text loses; runs of byte tokens that only make sense
/// together). So the last piece is decoded again with each new token, and only what it adds is
/// given out, once it no longer ends inside a character.
#[derive(Clone, Debug, Default)]
pub struct TokenStream {
    skip_special: bool,
    /// Tokens of the last piece, then those held back.
    ids: Vec<u32>,
    /// How many of `ids` were given out already.
    n_given: usize,
}

impl TokenStream {
    /// A stream at the start of a text; special tokens are left out if `skip_special`.
    pub fn new(skip_special: bool) -> Self {
        Self { skip_special, ..Self::default() }
    }

    /// The text that `id` completes; often empty.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, TokenizerError> {
        self.ids.push(id);
        let fresh = self.fresh(tokenizer)?;
        let n_held = self.ids.len() - self.n_given;
        let unfinished = fresh.is_empty() || fresh.ends_with(REPLACEMENT);
        if unfinished && n_held <= MAX_BUFFERED {
            return Ok(String::new());
        }
        self.ids.drain(..self.n_given);
        self.n_given = self.ids.len();
        Ok(fresh)
    }

    /// The rest at the end of a text; bytes without a character become U+FFFD.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, TokenizerError> {
        let fresh = self.fresh(tokenizer)?;
        self.ids.clear();
        self.n_given = 0;
        Ok(fresh)
    }

    /// What the held tokens add to the text of the last piece.
    fn fresh(&self, tokenizer: &Tokenizer) -> Result<String, TokenizerError> {
        let given = tokenizer.decode(&self.ids[..self.n_given], self.skip_special)?;
        let all = tokenizer.decode(&self.ids, self.skip_special)?;
        match all.strip_prefix(given.as_str()) {
            Some(fresh) => Ok(fresh.to_owned()),
            // A run of byte tokens that a later byte made invalid as a whole changes what was
            // given out; that cannot be taken back, so the held tokens speak for themselves.
            None => tokenizer.decode(&self.ids[self.n_given..], self.skip_special),
        }
    }
}
