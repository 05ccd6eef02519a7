//! A place in a text that may not be complete.

/// Why something is not there.
pub(crate) enum Miss {
    /// It may come.
    Short,
    /// It will not.
    Wrong,
}

/// The place, which moves behind what was found.
pub(crate) struct Cursor<'a> {
    text: &'a str,
    pub(crate) at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    pub(crate) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(crate) fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Space, then `word`.
    pub(crate) fn word(&mut self, word: &str) -> Result<(), Miss> {
        self.space();
        if self.rest().starts_with(word) {
            self.at += word.len();
            return Ok(());
        }
        Err(if word.starts_with(self.rest()) { Miss::Short } else { Miss::Wrong })
    }

    /// Space, then a name of a tool.
    pub(crate) fn name(&mut self) -> Result<&'a str, Miss> {
        self.space();
        let is_other = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
        match self.rest().find(is_other) {
            None => Err(Miss::Short),
            Some(0) => Err(Miss::Wrong),
            Some(n) => {
                let name = &self.rest()[..n];
                self.at += n;
                Ok(name)
            }
        }
    }
}

/// Bytes at the end of `text` that may be the beginning of `mark`.
pub(crate) fn kept(text: &str, mark: &str) -> usize {
    let longest = mark.len().saturating_sub(1).min(text.len());
    let may_begin = |n: &usize| mark.is_char_boundary(*n) && text.ends_with(&mark[..*n]);
    (1..=longest).rev().find(may_begin).unwrap_or(0)
}
