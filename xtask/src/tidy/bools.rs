//! No `match` on a truth value: `if` and `else` say the same in the words that everybody reads.

use super::files::File;
use super::lex::{Token, closing, tokens};
use super::scan::Scan;

/// Every `match` with an arm `true` or `false`.
pub(crate) fn matches_on_bools(file: &File) -> Vec<String> {
    let code = Scan::of(&file.text).code;
    let tokens = tokens(&code);
    let words = (0..tokens.len()).filter(|i| tokens[*i].text == "match");
    let found =
        words.filter(|i| body_of(&tokens, *i).is_some_and(|body| has_bool_arm(&tokens, body)));
    found
        .map(|i| file.problem(tokens[i].line, "`match` on a bool: write `if .. else ..`"))
        .collect()
}

/// The index of the brace that opens the arms.
fn body_of(tokens: &[Token<'_>], at: usize) -> Option<usize> {
    let mut i = at + 1;
    loop {
        match tokens.get(i)?.text {
            "{" if matches!(tokens[i - 1].text, "unsafe" | "async" | "move" | "else" | "loop") => {
                i = closing(tokens, i);
            }
            "{" => return Some(i),
            "(" | "[" => i = closing(tokens, i),
            ";" | "}" => return None,
            _ => {}
        }
        i += 1;
    }
}

/// Whether an arm begins with a truth value alone, which only a `bool` can match.
fn has_bool_arm(tokens: &[Token<'_>], body: usize) -> bool {
    let mut i = body + 1;
    let end = closing(tokens, body);
    while i < end {
        let (before, after) = (tokens[i - 1].text, tokens[i + 1].text);
        match tokens[i].text {
            "(" | "[" | "{" => i = closing(tokens, i),
            "true" | "false" => {
                let opens = matches!(before, "{" | "," | "}" | "]");
                if opens && matches!(after, "=>" | "if" | "|") {
                    return true;
                }
            }
            _ => {}
        }
        i += 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::snippet;

    fn found(text: &str) -> Vec<String> {
        matches_on_bools(&snippet("a.rs", text))
    }

    #[test]
    fn a_match_on_a_bool_is_reported_with_its_line() {
        let text = "fn f() {\n    match x.is_y(|z| { z }) {\n        true => 1,\n        false => 2,\n    }\n}";
        assert_eq!(found(text), ["a.rs:2: `match` on a bool: write `if .. else ..`"]);
        for text in [
            "match x { false => {} true => {} }",
            "match x { /* so */ true if y => 1, _ => 2 }",
            "match unsafe { x() } { true => 1, false => 2 }",
            "match x { y if z(y) => { 1 } true => 2, false => 3 }",
            "match x { #[cfg(unix)] true => 1, _ => 2 }",
            "match a { Some(b) => match b { true => 1, false => 2 }, None => 3 }",
        ] {
            assert_eq!(found(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn other_matches_are_fine() {
        for text in [
            "match (a, b) { (true, false) => 1, _ => 2 }",
            "match x { Some(true) => true, Some(false) => false, None => true }",
            "match x { 1 => f(true), _ => false, }",
            "match x { A => true, B => { false } }",
            "if x { true } else { false }",
            "// match x { true => 1 }\n\"match x { true => 1 }\"",
            "matches!(x, true)",
            "match",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
    }
}
