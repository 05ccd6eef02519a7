//! Words of strangers in messages: names in files, fields of requests, answers of models. An escape
//! sequence among them could move a terminal's cursor, change its colours or forge a line.

/// Whether a terminal acts on `c` rather than shows it: control characters, ends of lines, and
/// characters that turn the order of others around.
pub fn acts_on_terminal(c: char) -> bool {
    let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}');
    let isolates = matches!(c, '\u{2066}'..='\u{2069}');
    c.is_control() || turns || isolates || matches!(c, '\u{2028}' | '\u{2029}')
}

/// `text` as a message quotes it: on one line, some `most` characters and three dots where it has
/// more, with nothing that a terminal acts on.
pub fn quoted(text: &str, most: usize) -> String {
    let (mut quoted, mut n_chars) = (String::new(), 0);
    for c in text.chars() {
        if n_chars >= most {
            quoted.push_str("...");
            break;
        }
        if acts_on_terminal(c) && !matches!(c, '\n' | '\r' | '\t') {
            let letters = c.escape_default();
            n_chars += letters.len();
            quoted.extend(letters);
        } else {
            n_chars += 1;
            // Of control characters only ends of lines and tabs come here.
            quoted.push(if c.is_control() { ' ' } else { c });
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_is_one_short_line_without_control_characters() {
        assert_eq!(quoted("no \"system\"", 200), "no \"system\"");
        assert_eq!(quoted("a\nb\u{1b}[31mc\u{202e}\u{9b}", 200), "a b\\u{1b}[31mc\\u{202e}\\u{9b}");
        assert_eq!(quoted(&"é".repeat(1000), 200), format!("{}...", "é".repeat(200)));
        assert_eq!(quoted(&"é".repeat(200), 200), "é".repeat(200));
        // Six letters of a quote for each of these.
        assert_eq!(quoted(&"\u{1b}".repeat(1000), 60), format!("{}...", "\\u{1b}".repeat(10)));
    }
}
