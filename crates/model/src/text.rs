//! Text from files of strangers, as it may stand in a message.

use longview_core::quoted;

/// Characters of a file's own words that a message quotes.
const MAX_QUOTED: usize = 200;

/// `text` on one line, cut where it grows long: a file may hold megabytes where a name is expected.
pub(crate) fn clip(text: &str) -> String {
    quoted(text, MAX_QUOTED)
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
