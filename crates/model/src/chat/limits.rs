//! Limits of a template's source, checked before the parser sees it.
//!
//! minijinja's parser bounds some of its recursion, but not chains: `not not not ..`, `1 + 1 + ..`,
//! `x|f|f ..`, `a.b.b ..` and `elif` build trees that are as deep as they are long, and the parser,
//! the code generator and `drop` walk them on the stack. Its own lexer tells us how long each chain
//! can be at most, so both agree on where a tag ends.

use minijinja::machinery::{Token, WhitespaceConfig, tokenize};

/// Tokens of one tag. Published templates have up to about 60.
pub(super) const MAX_TAG_TOKENS: usize = 700;
/// Brackets within brackets. Published templates have up to about 5.
pub(super) const MAX_BRACKETS: usize = 50;
/// Blocks within blocks; each `elif` is one within the `if`. Published templates have up to
/// about 10.
pub(super) const MAX_BLOCKS: usize = 100;

/// The line and the reason if `source` is beyond a limit. What the lexer does not understand is
/// left to the parser, which goes no further.
pub(super) fn check(source: &str) -> Result<(), (usize, String)> {
    let spaces = WhitespaceConfig { trim_blocks: true, lstrip_blocks: true, ..Default::default() };
    let mut scan = Scan::default();
    for token in tokenize(source, false, Default::default(), spaces) {
        let Ok((token, span)) = token else { break };
        scan.take(&token).map_err(|reason| (span.start_line as usize, reason))?;
    }
    Ok(())
}

/// Where the scan is.
#[derive(Default)]
struct Scan<'a> {
    /// Tokens of the tag so far.
    n_tokens: usize,
    /// Brackets that are open.
    brackets: usize,
    /// The first word of a `{% %}` tag.
    word: Option<&'a str>,
    /// The tag has an `=` outside of brackets.
    assigns: bool,
    /// Blocks that are open, each with what it adds to the depth.
    blocks: Vec<usize>,
    depth: usize,
}

impl<'a> Scan<'a> {
    fn take(&mut self, token: &Token<'a>) -> Result<(), String> {
        self.n_tokens += 1;
        match token {
            Token::VariableStart | Token::BlockStart => {
                (self.n_tokens, self.brackets, self.word, self.assigns) = (0, 0, None, false);
            }
            // Text and comments between tags belong to none.
            Token::TemplateData(_) | Token::VariableEnd => self.n_tokens = 0,
            Token::BlockEnd => self.end_tag()?,
            Token::Ident(word) if self.n_tokens == 1 => self.word = Some(*word),
            Token::Assign if self.brackets == 0 => self.assigns = true,
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                self.brackets += 1;
                within(self.brackets, MAX_BRACKETS, "brackets within brackets")?;
            }
            Token::BracketClose | Token::ParenClose | Token::BraceClose => {
                self.brackets = self.brackets.saturating_sub(1);
            }
            _ => {}
        }
        within(self.n_tokens, MAX_TAG_TOKENS, "words and signs in one tag")
    }

    fn end_tag(&mut self) -> Result<(), String> {
        self.n_tokens = 0;
        match self.word {
            Some("if" | "for" | "with" | "block" | "autoescape" | "filter" | "macro" | "call") => {
                self.open()
            }
            Some("set") if !self.assigns => self.open(),
            Some("elif") => {
                if let Some(added) = self.blocks.last_mut() {
                    *added += 1;
                }
                self.depth += 1;
            }
            Some(word) if word.starts_with("end") => {
                self.depth = self.depth.saturating_sub(self.blocks.pop().unwrap_or(0));
            }
            _ => {}
        }
        within(self.depth, MAX_BLOCKS, "blocks within blocks")
    }

    fn open(&mut self) {
        self.blocks.push(1);
        self.depth += 1;
    }
}

fn within(found: usize, limit: usize, what: &str) -> Result<(), String> {
    if found > limit {
        return Err(format!("more than {limit} {what}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
