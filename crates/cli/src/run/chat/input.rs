//! What the user says: from a line editor at a terminal, else line by line from stdin.
//!
//! A text between `"""` may have several lines; it is a message whatever it begins with.

use std::io::{self, BufRead, Read};

use anyhow::{Context, Result};

use crate::files::input::utf8;
use crate::units;

/// What begins and ends a text of several lines.
pub const FENCE: &str = "\"\"\"";

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// A line, or a block that was pasted; it may be a command.
    Line(String),
    /// A text between fences.
    Block(String),
    /// Ctrl-C at the prompt, and whether nothing was typed.
    Interrupt {
        /// Nothing was typed.
        is_empty: bool,
    },
    /// Something that cannot be a turn, with the reason; the next line may be one.
    Refused(String),
    /// Nothing more comes.
    End,
}

/// A text that begins with a fence.
#[derive(Debug, PartialEq, Eq)]
pub enum Fenced<'a> {
    /// The text between the fences.
    Closed(&'a str),
    /// The second fence is missing.
    Open,
}

/// `text` as a block, if it begins with a fence.
pub fn fenced(text: &str) -> Option<Fenced<'_>> {
    let rest = text.trim_start().strip_prefix(FENCE)?;
    Some(match rest.trim_end().strip_suffix(FENCE) {
        Some(inside) => Fenced::Closed(inside.trim_matches(['\r', '\n'])),
        None => Fenced::Open,
    })
}

/// A line of at most so many bytes.
enum Bounded {
    Whole(Vec<u8>),
    /// It was longer; all of it is read, and nothing of it kept.
    TooLong,
    End,
}

/// Reads a line. One that is too long is passed over without keeping it.
fn read_line(reader: &mut impl BufRead, max_bytes: usize) -> io::Result<Bounded> {
    let mut bytes = Vec::new();
    // The line end is not counted.
    let most = max_bytes as u64 + 2;
    reader.by_ref().take(most).read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(Bounded::End);
    }
    let has_end = bytes.last() == Some(&b'\n');
    while matches!(bytes.last(), Some(b'\r' | b'\n')) {
        bytes.pop();
    }
    if bytes.len() <= max_bytes {
        return Ok(Bounded::Whole(bytes));
    }
    if !has_end {
        skip_line(reader)?;
    }
    Ok(Bounded::TooLong)
}

fn skip_line(reader: &mut impl BufRead) -> io::Result<()> {
    loop {
        let piece = reader.fill_buf()?;
        let end = piece.iter().position(|byte| *byte == b'\n');
        let (n, is_last) =
            (end.map_or(piece.len(), |at| at + 1), end.is_some() || piece.is_empty());
        reader.consume(n);
        if is_last {
            return Ok(());
        }
    }
}

/// Reads a line, or a block from fence to fence.
pub fn read_message(reader: &mut impl BufRead, max_bytes: usize) -> Result<Input> {
    let mut text = String::new();
    let mut problem = None;
    let mut is_inside = false;
    loop {
        let line = match read_line(reader, max_bytes).context("stdin: cannot be read")? {
            Bounded::Whole(bytes) => utf8(bytes, "stdin (one line)").map_err(|e| e.to_string()),
            Bounded::TooLong => Err(too_long(max_bytes)),
            Bounded::End if is_inside => {
                return Ok(Input::Refused(format!("the text that {FENCE} begins has no end")));
            }
            Bounded::End => return Ok(Input::End),
        };
        match line {
            Err(reason) if !is_inside => return Ok(Input::Refused(reason)),
            Err(reason) => problem = Some(reason),
            Ok(line) => {
                if is_inside {
                    text.push('\n');
                }
                // What follows a problem is only looked at for the end.
                if problem.is_some() {
                    text = FENCE.to_owned();
                }
                text.push_str(&line);
            }
        }
        if text.len() > max_bytes {
            problem = Some(too_long(max_bytes));
        }
        match (fenced(&text), problem.take()) {
            (None, _) => return Ok(Input::Line(text)),
            (Some(Fenced::Closed(_)), Some(reason)) => return Ok(Input::Refused(reason)),
            (Some(Fenced::Closed(inside)), None) => return Ok(Input::Block(inside.to_owned())),
            (Some(Fenced::Open), reason) => (problem, is_inside) = (reason, true),
        }
    }
}

fn too_long(max_bytes: usize) -> String {
    let most = units::count(max_bytes);
    format!("the text has more than {most} bytes, which no context of this size holds; shorten it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8], max_bytes: usize) -> Vec<Input> {
        let mut reader = io::BufReader::with_capacity(7, text);
        let mut found = Vec::new();
        loop {
            match read_message(&mut reader, max_bytes).unwrap() {
                Input::End => return found,
                input => found.push(input),
            }
        }
    }

    fn line(text: &str) -> Input {
        Input::Line(text.into())
    }

    fn block(text: &str) -> Input {
        Input::Block(text.into())
    }

    #[test]
    fn each_line_is_a_message() {
        assert_eq!(
            all(b"a b\r\n\n/help\nend", 99),
            [line("a b"), line(""), line("/help"), line("end")]
        );
    }

    #[test]
    fn a_block_has_all_its_lines() {
        let text = b"\"\"\"one\n\n  two\n\"\"\"\nthree\n\"\"\"/four\"\"\"\n";
        assert_eq!(all(text, 99), [block("one\n\n  two"), line("three"), block("/four")]);
        assert_eq!(all(b"\"\"\"\n\"\"\"\n", 99), [block("")]);
        let [Input::Refused(reason)] = &all(b"\"\"\"no end\n", 99)[..] else { panic!() };
        assert!(reason.contains("has no end"), "{reason}");
    }

    #[test]
    fn what_is_too_long_is_passed_over_and_named() {
        let is_too_long = |input: &Input| match input {
            Input::Refused(reason) => reason.contains("more than 8 bytes"),
            _ => false,
        };
        let found = all(b"12345678\n123456789\nshort\n1234567890123456789012345", 8);
        assert_eq!((&found[0], &found[2]), (&line("12345678"), &line("short")));
        assert!(is_too_long(&found[1]) && is_too_long(&found[3]), "{found:?}");
        assert_eq!(found.len(), 4);
        let found = all(b"\"\"\"1234\n1234\n123456789\n\"\"\"\nnext\n", 8);
        assert!(is_too_long(&found[0]), "{found:?}");
        assert_eq!(found[1..], [line("next")]);
    }

    #[test]
    fn bytes_that_are_no_text_cost_their_line_alone() {
        let found = all(b"caf\xe9\nfine\n", 99);
        assert!(matches!(&found[0], Input::Refused(reason) if reason.contains("not UTF-8")));
        assert_eq!(found[1..], [line("fine")]);
    }
}
