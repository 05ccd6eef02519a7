//! Text on its way to a terminal. Names, messages of templates and answers of models come from
//! strangers: an escape sequence in them could move the cursor, change colours or forge a line.

use std::borrow::Cow;
use std::io::{self, Write};

use longview_core::acts_on_terminal;

/// The most lines of one message.
const MAX_LINES: usize = 10;
/// The most characters of one line of a message.
const MAX_LINE_CHARS: usize = 1500;
/// The most characters of a message.
const MAX_CHARS: usize = 4000;
/// The most characters of one line where all of them together are too long.
const MAX_SHARE: usize = MAX_CHARS / MAX_LINES;

/// `text` with everything that a terminal would act on spelled out, but for line ends and tabs.
pub fn escaped(text: &str) -> Cow<'_, str> {
    let is_kept = |c: char| matches!(c, '\n' | '\t') || !acts_on_terminal(c);
    if text.chars().all(is_kept) {
        return text.into();
    }
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if is_kept(c) { clean.push(c) } else { clean.extend(c.escape_default()) }
    }
    clean.into()
}

/// A message as it may be shown: at most 10 lines and 4,000 characters, none of them one that a
/// terminal acts on.
pub fn message(text: &str) -> String {
    let text = escaped(text.trim_end_matches('\n'));
    let n_lines = text.lines().count();
    let n_shown = if n_lines > MAX_LINES { MAX_LINES - 1 } else { n_lines };
    let shown = |most: usize| -> Vec<Cow<'_, str>> {
        text.lines().take(n_shown).map(|line| shortened(line, most)).collect()
    };
    let mut lines = shown(MAX_LINE_CHARS);
    if lines.iter().map(|line| line.chars().count()).sum::<usize>() > MAX_CHARS {
        lines = shown(MAX_SHARE);
    }
    if n_lines > n_shown {
        lines.push(format!("... and {} more lines", n_lines - n_shown).into());
    }
    lines.join("\n")
}

/// `line` without its middle if it has more than `most` characters. Its end is kept, because what
/// to do stands there.
fn shortened(line: &str, most: usize) -> Cow<'_, str> {
    let n = line.chars().count();
    if n <= most {
        return line.into();
    }
    let (head, tail) = (most * 3 / 5, most * 3 / 10);
    let at = |chars: usize| line.char_indices().nth(chars).map_or(line.len(), |(at, _)| at);
    let left_out = n - head - tail;
    let (head, tail) = (&line[..at(head)], &line[at(n - tail)..]);
    format!("{head}... ({left_out} more characters) ...{tail}").into()
}

/// Lets through what a terminal shows, line ends and tabs, and drops what it would act on.
pub struct Shown<W> {
    inner: W,
    is_terminal: bool,
}

impl<W: Write> Shown<W> {
    /// Filters what goes to `inner` if it is a terminal; elsewhere every byte is kept.
    pub fn new(inner: W, is_terminal: bool) -> Self {
        Self { inner, is_terminal }
    }
}

impl<W: Write> Write for Shown<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_terminal {
            self.inner.write_all(&visible(bytes))?;
            Ok(bytes.len())
        } else {
            self.inner.write(bytes)
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// `bytes` of UTF-8 without control characters other than line ends and tabs.
fn visible(bytes: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [byte, after @ ..] = rest {
        rest = after;
        match (byte, after) {
            (b'\n' | b'\t', _) => shown.push(*byte),
            (0..0x20 | 0x7f, _) => {}
            // U+0080 to U+009F.
            (0xc2, [0x80..=0x9f, after @ ..]) => rest = after,
            _ => shown.push(*byte),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_spelled_out() {
        assert!(matches!(escaped("plain\ttext\n"), Cow::Borrowed(_)));
        assert_eq!(escaped("a\x1b[2J\u{9b}b\r\x07\u{7f}"), "a\\u{1b}[2J\\u{9b}b\\r\\u{7}\\u{7f}");
        assert_eq!(escaped("x\u{202e}y"), "x\\u{202e}y");
    }

    #[test]
    fn a_message_has_ten_lines_at_most() {
        let text = |n: usize| (0..n).map(|i| format!("line {i}\n")).collect::<String>();
        assert_eq!(message(&text(10)), text(10).trim_end());
        let cut = message(&text(272));
        assert_eq!(cut.lines().count(), 10);
        assert!(cut.ends_with("line 8\n... and 263 more lines"), "{cut}");
    }

    #[test]
    fn a_huge_value_is_cut_in_the_middle() {
        let long = format!("error: {}: give another", "é".repeat(1 << 20));
        let cut = message(&long);
        assert!(cut.chars().count() < 1500, "{}", cut.len());
        assert!(cut.starts_with("error: éé") && cut.ends_with("é: give another"), "{cut}");
        assert!(cut.contains("more characters"), "{cut}");
        let many = vec!["x".repeat(1400); 300].join("\n");
        assert!(message(&many).len() < 5000 && message(&many).lines().count() == 10);
        let line = "y".repeat(1500);
        assert_eq!(message(&line), line);
    }

    #[test]
    fn a_terminal_gets_no_escape_sequence_and_a_pipe_gets_every_byte() {
        let text = "a\x1b[31mé\u{9b}0m\r\n\tb\u{7f}";
        let mut shown = Vec::new();
        Shown::new(&mut shown, true).write_all(text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(shown).unwrap(), "a[31mé0m\n\tb");
        let mut piped = Vec::new();
        Shown::new(&mut piped, false).write_all(text.as_bytes()).unwrap();
        assert_eq!(piped, text.as_bytes());
    }
}
