//! Paths that a Rust file names, and the modules that it declares.
//!
//! Read from the words of the code alone, without a compiler: test code, comments, attributes and
//! what macros make are not seen.

use super::lex::{Token, closing, tokens};
use super::scan::Scan;

/// `mod name;` or `mod name { .. }`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    /// The modules in this file around it.
    pub(crate) inside: Vec<String>,
    pub(crate) name: String,
    /// Whether its body is in this file.
    pub(crate) is_inline: bool,
}

/// A path in code: `a::b`, or a name of a `use`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// The modules in this file around it.
    pub(crate) inside: Vec<String>,
    /// Without a `self` at the end; `*` for all names.
    pub(crate) segments: Vec<String>,
    /// The name that a `use` gives it.
    pub(crate) alias: Option<String>,
    /// Counted from 0.
    pub(crate) line: usize,
}

/// What a file declares and names.
#[derive(Default)]
pub(crate) struct Named {
    pub(crate) declared: Vec<Declared>,
    pub(crate) paths: Vec<Path>,
}

impl Named {
    pub(crate) fn of(text: &str) -> Self {
        let code = Scan::of(text).code_without_tests();
        let mut reader =
            Reader { tokens: &tokens(&code), at: 0, inside: Vec::new(), named: Self::default() };
        while reader.at < reader.tokens.len() {
            reader.step();
        }
        reader.named
    }
}

struct Reader<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    /// Names of the modules around, and where each ends.
    inside: Vec<(String, usize)>,
    named: Named,
}

impl<'a> Reader<'a> {
    /// The text `ahead` of here; empty at the end.
    fn peek(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text)
    }

    fn before(&self) -> &'a str {
        self.at.checked_sub(1).map_or("", |at| self.tokens[at].text)
    }

    fn step(&mut self) {
        while self.inside.last().is_some_and(|(_, end)| *end <= self.at) {
            self.inside.pop();
        }
        match self.peek(0) {
            "#" if self.peek(1) == "[" => self.at = closing(self.tokens, self.at + 1) + 1,
            "#" if self.peek(1) == "!" => self.at = closing(self.tokens, self.at + 2) + 1,
            // `pub(crate)` names no import.
            "pub" if self.peek(1) == "(" => self.at = closing(self.tokens, self.at + 1) + 1,
            "mod" => self.module(),
            "use" => self.import(),
            _ if self.tokens[self.at].is_word() => self.path(),
            _ => self.at += 1,
        }
    }

    fn module(&mut self) {
        let (name, next) = (self.peek(1), self.peek(2));
        let is_inline = next == "{";
        if is_inline || next == ";" {
            let inside = self.modules();
            self.named.declared.push(Declared { inside, name: name.into(), is_inline });
        }
        if is_inline {
            self.inside.push((name.into(), closing(self.tokens, self.at + 2)));
        }
        self.at += 3;
    }

    fn modules(&self) -> Vec<String> {
        self.inside.iter().map(|(name, _)| name.clone()).collect()
    }

    /// `use` with its tree; not `use<'a>` of a return type.
    fn import(&mut self) {
        self.at += 1;
        if self.peek(0) == "<" {
            return;
        }
        if self.peek(0) == "::" {
            // A path from the outside: no module of this crate.
            while !matches!(self.peek(0), ";" | "") {
                self.at += 1;
            }
            return;
        }
        self.tree(&mut Vec::new());
    }

    /// One branch of a `use`, up to its comma, brace or semicolon.
    fn tree(&mut self, prefix: &mut Vec<String>) {
        let depth = prefix.len();
        let line = self.tokens.get(self.at).map_or(0, |token| token.line);
        loop {
            match self.peek(0) {
                "{" => {
                    self.at += 1;
                    while !matches!(self.peek(0), "}" | "") {
                        self.tree(prefix);
                        self.at += usize::from(self.peek(0) == ",");
                    }
                    self.at += 1;
                    break;
                }
                "" | ";" | "," | "}" => break,
                segment => prefix.push(segment.to_owned()),
            }
            self.at += 1;
            if self.peek(0) == "::" {
                self.at += 1;
                continue;
            }
            self.leaf(prefix, line);
            break;
        }
        prefix.truncate(depth);
    }

    fn leaf(&mut self, prefix: &[String], line: usize) {
        let mut segments = prefix.to_vec();
        if segments.len() > 1 && segments.last().is_some_and(|last| last == "self") {
            segments.pop();
        }
        let mut alias = segments.last().cloned().filter(|name| name != "*");
        if self.peek(0) == "as" {
            alias = Some(self.peek(1).to_owned());
            self.at += 2;
        }
        self.named.paths.push(Path { inside: self.modules(), segments, alias, line });
    }

    /// A path of two segments or more; a word alone is none.
    fn path(&mut self) {
        let is_tail = matches!(self.before(), "::" | ".");
        let line = self.tokens[self.at].line;
        let mut segments = vec![self.peek(0).to_owned()];
        self.at += 1;
        while self.peek(0) == "::" && self.tokens.get(self.at + 1).is_some_and(Token::is_word) {
            segments.push(self.peek(1).to_owned());
            self.at += 2;
        }
        if !is_tail && segments.len() > 1 {
            self.named.paths.push(Path { inside: self.modules(), segments, alias: None, line });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        let named = Named::of(text);
        let told = |path: &Path| {
            let alias = path.alias.as_ref().map(|alias| format!(" as {alias}"));
            format!("{}{}", path.segments.join("::"), alias.unwrap_or_default())
        };
        named.paths.iter().map(told).collect()
    }

    #[test]
    fn imports_are_read_in_every_form() {
        let cases: &[(&str, &[&str])] = &[
            ("use a::B;", &["a::B as B"]),
            ("pub(crate) use super::a::{self, B as C};", &["super::a as a", "super::a::B as C"]),
            (
                "use crate::{a::*, b::{C, d::E}, F};",
                &["crate::a::*", "crate::b::C as C", "crate::b::d::E as E", "crate::F as F"],
            ),
            ("use ::a::B;", &[]),
            ("use self::a;", &["self::a as a"]),
            ("use a::{B,};", &["a::B as B"]),
            ("fn f() { use a::B; }", &["a::B as B"]),
            ("fn f<'a>(x: &'a u8) -> impl Sized + use<'a> { c::d() }", &["c::d"]),
        ];
        for (text, expected) in cases {
            assert_eq!(paths(text), *expected, "{text}");
        }
    }

    #[test]
    fn paths_in_code_are_read_and_what_is_no_code_is_not() {
        assert_eq!(
            paths("let x: a::B<c::D> = crate::e::F::<g::H>::new();"),
            ["a::B", "c::D", "crate::e::F", "g::H"]
        );
        assert_eq!(paths("$crate::a::b!(x)"), ["crate::a::b"]);
        assert_eq!(paths("pub(in crate::a) fn f() {}"), [""; 0]);
        assert_eq!(paths("#[expect(a::b)] x; #![warn(c::d)] y;"), [""; 0]);
        assert_eq!(paths("// crate::a\n/// [`crate::b::C`]\n\"crate::d\""), [""; 0]);
        assert_eq!(paths("#[cfg(test)]\nmod tests { use super::*; }\nuse a::B;"), ["a::B as B"]);
        assert_eq!(paths("<T as a::B>::c(); x.y"), ["a::B"]);
    }

    #[test]
    fn declarations_know_what_they_are_inside_of() {
        let named =
            Named::of("mod a;\npub mod b { mod c; use super::d; }\nuse e::F;\nfn mod_x() {}");
        let told = |d: &Declared| format!("{}/{} {}", d.inside.join("/"), d.name, d.is_inline);
        let declared: Vec<_> = named.declared.iter().map(told).collect();
        assert_eq!(declared, ["/a false", "/b true", "b/c false"]);
        let inside: Vec<_> = named.paths.iter().map(|path| path.inside.join("/")).collect();
        assert_eq!(inside, ["b", ""]);
        assert_eq!(named.paths[1].line, 2);
    }
}
