//! Paragraphs in lines that fit into a window.

/// `text` in lines of at most `columns`, of which all but the first begin with `indent` blanks. The
/// first keeps those that it has. A word that is longer than a line has one of its own.
pub fn wrapped(text: &str, indent: usize, columns: usize) -> String {
    let begin = text.len() - text.trim_start_matches(' ').len();
    let mut wrapped = text[..begin].to_owned();
    let mut n_columns = begin;
    let mut is_first = true;
    for word in text.split_whitespace() {
        let n_chars = word.chars().count();
        if !is_first && n_columns + 1 + n_chars > columns {
            wrapped.push('\n');
            wrapped.push_str(&" ".repeat(indent));
            n_columns = indent;
        } else if !is_first {
            wrapped.push(' ');
            n_columns += 1;
        }
        wrapped.push_str(word);
        n_columns += n_chars;
        is_first = false;
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_and_no_word_is_lost() {
        let text = "  options: one two three four";
        assert_eq!(wrapped(text, 4, 100), text);
        assert_eq!(wrapped(text, 4, 18), "  options: one two\n    three four");
        assert_eq!(wrapped(text, 4, 3), "  options:\n    one\n    two\n    three\n    four");
        assert_eq!(wrapped("ä ö ü", 0, 3), "ä ö\nü", "characters count, not bytes");
        assert_eq!(wrapped("", 2, 10), "");
    }
}
