//! Words and signs of Rust code, as far as the rules on imports and matches need them.

use super::scan::is_word;

/// A word, `::`, `=>`, or a single character of punctuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    /// Counted from 0.
    pub(crate) line: usize,
}

impl Token<'_> {
    pub(crate) fn is_word(&self) -> bool {
        self.text.starts_with(is_word)
    }
}

/// Signs of two characters that stay together.
const PAIRS: &[&str] = &["::", "=>", "->"];

/// Takes `code` apart; comments and the text of literals must be gone (see [`super::scan::Scan`]).
pub(crate) fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 0);
    while let Some(first) = code[at..].chars().next() {
        let rest = &code[at..];
        let n = if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if PAIRS.iter().any(|pair| rest.starts_with(pair)) {
            2
        } else {
            first.len_utf8()
        };
        if !first.is_whitespace() {
            found.push(Token { text: &rest[..n], line });
        }
        line += usize::from(first == '\n');
        at += n;
    }
    found
}

/// The index of the bracket that closes the one at `open`; the last token where none does.
pub(crate) fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return i;
        }
    }
    tokens.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_signs_are_told_apart() {
        let found = tokens("use a::{b_1};\nx => y->z");
        let texts: Vec<_> = found.iter().map(|token| token.text).collect();
        let expected = ["use", "a", "::", "{", "b_1", "}", ";", "x", "=>", "y", "->", "z"];
        assert_eq!(texts, expected);
        assert_eq!((found[6].line, found[7].line), (0, 1));
    }

    #[test]
    fn brackets_close_in_pairs() {
        let found = tokens("f({ [ ] }) ; {");
        assert_eq!(closing(&found, 1), 6);
        assert_eq!(closing(&found, 2), 5);
        assert_eq!(closing(&found, 8), 8);
    }
}
