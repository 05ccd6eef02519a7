//! llama.cpp's form of grammars (GBNF) in Lark's form, which llguidance reads.
//!
//! The two say the same in other words: `root` is `start`, names get numbers because Lark knows
//! small letters alone, and a class of characters is a regular expression.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

use serde_json::json;

use crate::error::clip;

/// A part of a grammar.
#[derive(Debug, PartialEq)]
enum Token {
    Name(String),
    Is,
    Text(String),
    /// A regular expression of one character.
    Class(String),
    /// A sign that both forms share, or a repetition.
    Sign(String),
}

/// The same grammar for llguidance, or what it is not.
pub(crate) fn to_lark(grammar: &str) -> Result<String, String> {
    let tokens = tokens(grammar)?;
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut lark = String::new();
    let mut defined = Vec::new();
    let mut used = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let is_rule = tokens.get(i + 1) == Some(&Token::Is);
        match token {
            Token::Name(name) => {
                let n = numbers.len();
                let number = *numbers.entry(name).or_insert(n);
                let called = if name == "root" { "start".into() } else { format!("r{number}") };
                if is_rule {
                    defined.push(name);
                    lark += "\n";
                } else {
                    used.push(name);
                }
                lark += &called;
            }
            Token::Is => lark += ":",
            Token::Text(text) => lark += &json!(text).to_string(),
            Token::Class(class) => lark += &format!("/{class}/"),
            Token::Sign(sign) => {
                // A repetition belongs to what stands before it.
                if !matches!(sign.as_str(), "(" | ")" | "|") {
                    lark.truncate(lark.trim_end().len());
                }
                lark += sign;
            }
        }
        lark += " ";
    }
    if !defined.iter().any(|name| *name == "root") {
        return Err("it has no rule named root".to_owned());
    }
    match used.into_iter().find(|name| !defined.contains(name)) {
        Some(name) => Err(format!("the rule {} is used and not defined", clip(name))),
        None => Ok(lark),
    }
}

fn tokens(grammar: &str) -> Result<Vec<Token>, String> {
    let mut chars = grammar.chars().peekable();
    let mut tokens = Vec::new();
    while let Some(c) = chars.next() {
        let token = match c {
            _ if c.is_whitespace() => continue,
            '#' => {
                while chars.next_if(|c| *c != '\n').is_some() {}
                continue;
            }
            ':' if chars.next() == Some(':') && chars.next() == Some('=') => Token::Is,
            '"' => Token::Text(text(&mut chars)?),
            '[' => Token::Class(class(&mut chars)?),
            '.' => Token::Class("(?s:.)".to_owned()),
            '(' | ')' | '|' | '*' | '+' | '?' => Token::Sign(c.into()),
            '{' => Token::Sign(repetition(&mut chars)?),
            _ if c.is_ascii_alphanumeric() => {
                let mut name = String::from(c);
                let is_more = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
                while let Some(c) = chars.next_if(is_more) {
                    name.push(c);
                }
                Token::Name(name)
            }
            _ => return Err(format!("{c:?} has no meaning in it")),
        };
        tokens.push(token);
    }
    Ok(tokens)
}

/// What follows an opening quote.
fn text(chars: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    let mut text = String::new();
    loop {
        match chars.next().ok_or("a text has no end")? {
            '"' => return Ok(text),
            '\\' => text.push(escaped(chars)?),
            c => text.push(c),
        }
    }
}

/// What follows an opening bracket, as a regular expression.
fn class(chars: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    let not = chars.next_if_eq(&'^').map_or("", |_| "^");
    let mut class = format!("[{not}");
    loop {
        match chars.next().ok_or("a class of characters has no end")? {
            ']' => break,
            '-' if !class.ends_with(['[', '^']) && chars.peek() != Some(&']') => class.push('-'),
            '\\' => push(&mut class, escaped(chars)?),
            c => push(&mut class, c),
        }
    }
    if class.ends_with(['[', '^']) {
        return Err("a class of characters is empty".to_owned());
    }
    Ok(class + "]")
}

/// One character of a class, so that it means itself.
fn push(class: &mut String, c: char) {
    if c.is_ascii_alphanumeric() {
        class.push(c);
    } else {
        // Writing to a text does not fail.
        let _ = write!(class, "\\x{{{:X}}}", u32::from(c));
    }
}

fn escaped(chars: &mut Peekable<Chars<'_>>) -> Result<char, String> {
    let c = chars.next().ok_or("it ends behind a backslash")?;
    let n_digits = match c {
        'n' => return Ok('\n'),
        'r' => return Ok('\r'),
        't' => return Ok('\t'),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        '"' | '\\' | '[' | ']' | '-' | '^' | '/' => return Ok(c),
        _ => return Err(format!("\\{} has no meaning in it", clip(&c.to_string()))),
    };
    let digits: String = chars.take(n_digits).collect();
    let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
    code.ok_or_else(|| format!("\\{c}{} is no character", clip(&digits)))
}

/// `{n}`, `{n,}` or `{n,m}`.
fn repetition(chars: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    let inner: String = chars.take_while(|c| *c != '}').filter(|c| *c != ' ').collect();
    let is_number = |n: &str| n.len() <= 4 && n.bytes().all(|b| b.is_ascii_digit());
    let (from, to) = inner.split_once(',').unwrap_or((&inner, &inner));
    if !(is_number(from) && is_number(to) && !from.is_empty()) {
        return Err(format!("{{{}}} is no repetition of at most 9999", clip(&inner)));
    }
    Ok(format!("{{{inner}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammars_are_said_in_other_words() {
        let gbnf =
            "# a list\nroot ::= \"a\\n\" Item-1{2,} (\" \" | [^\\]a-z-])* .?\nItem-1 ::= [0-9]+";
        let lark = to_lark(gbnf).unwrap();
        let expected = "\nstart : \"a\\n\" r1{2,} ( \" \" | /[^\\x{5D}a-z\\x{2D}]/ )* \
                        /(?s:.)/? \nr1 : /[0-9]/+ ";
        assert_eq!(lark, expected);
    }

    #[test]
    fn what_is_none_is_refused() {
        for (gbnf, reason) in [
            ("a ::= \"b\"", "no rule named root"),
            ("root ::= b", "b is used and not defined"),
            ("root ::= \"b", "a text has no end"),
            ("root ::= [b", "has no end"),
            ("root ::= []", "is empty"),
            ("root ::= \"\\q\"", "\\q has no meaning"),
            ("root ::= \"\\xzz\"", "is no character"),
            ("root ::= \"a\"{x}", "{x} is no repetition"),
            ("root ::= \"a\"{99999}", "no repetition of at most"),
            ("root ::= %", "'%' has no meaning"),
            ("root :: \"a\"", "':' has no meaning"),
        ] {
            let error = to_lark(gbnf).unwrap_err();
            assert!(error.contains(reason), "{gbnf}: {error}");
        }
    }

    #[test]
    fn what_a_reason_quotes_is_short_and_no_control_character() {
        let name = "b".repeat(5_000);
        let error = to_lark(&format!("root ::= {name}")).unwrap_err();
        assert_eq!(error, format!("the rule {}... is used and not defined", &name[..64]));
        for gbnf in ["root ::= \"a\"{2\u{7f}3}", "root ::= \"\\\u{7f}\"", "root ::= \"\\x\u{1b}["] {
            let error = to_lark(gbnf).unwrap_err();
            assert!(!error.contains(char::is_control), "{error:?}");
        }
        let error = to_lark(&format!("root ::= \"a\"{{{}}}", "9".repeat(5_000))).unwrap_err();
        assert!(
            error.len() < 120 && error.ends_with("is no repetition of at most 9999"),
            "{error}"
        );
    }
}
