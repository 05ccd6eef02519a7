//! Text from files of strangers, as it may stand in a message.

/// Bytes of a file's own words that a message quotes.
const MAX_QUOTED: usize = 200;

/// `text` on one line, cut where it grows long. A terminal obeys control characters, and a file
/// may hold megabytes where a name is expected.
pub(crate) fn clip(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        if out.len() >= MAX_QUOTED {
            out.push_str("...");
            break;
        }
        match letter {
            '\n' | '\r' | '\t' => out.push(' '),
            _ if is_control(letter) => out.extend(letter.escape_default()),
            _ => out.push(letter),
        }
    }
    out
}

/// Control characters, and those that change the direction of what follows.
fn is_control(letter: char) -> bool {
    let turns = matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}');
    letter.is_control()
        || turns
        || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_is_one_short_line_without_control_characters() {
        assert_eq!(clip("no \"system\""), "no \"system\"");
        assert_eq!(clip("a\nb\u{1b}[31mc\u{202e}"), "a b\\u{1b}[31mc\\u{202e}");
        assert_eq!(clip(&"x".repeat(1000)), format!("{}...", "x".repeat(200)));
    }
}
