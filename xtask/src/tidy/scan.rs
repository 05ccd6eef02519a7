//! Just enough of a Rust lexer: what is code, what is comment, what is text in quotes; where a
//! function ends and which lines are tests. WGSL reads the same, as far as this goes.

use std::ops::Range;

/// A source file taken apart. All parts have the lines of the original.
pub(crate) struct Scan {
    /// Code without comments; literals are there but empty.
    pub(crate) code: String,
    /// The text of comments, with their slashes.
    pub(crate) comments: String,
}

impl Scan {
    pub(crate) fn of(text: &str) -> Self {
        let chars = text.chars().collect();
        let mut scanner =
            Scanner { chars, at: 0, scan: Scan { code: String::new(), comments: String::new() } };
        while scanner.at < scanner.chars.len() {
            scanner.step();
        }
        scanner.scan
    }

    /// For each line, whether it belongs to an item of test code (see [`is_test_cfg`]).
    pub(crate) fn test_lines(&self) -> Vec<bool> {
        let mut is_test = vec![false; self.code.lines().count()];
        for range in self.test_items() {
            let (first, last) = (line_of(&self.code, range.start), line_of(&self.code, range.end));
            is_test.iter_mut().take(last + 1).skip(first).for_each(|line| *line = true);
        }
        is_test
    }

    /// The code without items of test code; the lines stay where they are.
    pub(crate) fn code_without_tests(&self) -> String {
        let mut bytes = self.code.clone().into_bytes();
        for range in self.test_items() {
            let last = (range.end + 1).min(bytes.len());
            bytes[range.start..last].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
        }
        String::from_utf8(bytes).unwrap_or_default()
    }

    /// From the attribute to what ends the item: its brace or semicolon.
    fn test_items(&self) -> Vec<Range<usize>> {
        let attributes = self.code.match_indices("#[cfg(").map(|(at, _)| at);
        let is_test = |at: &usize| {
            let attribute = self.code[*at..].split_once(")]").map_or("", |(before, _)| before);
            is_test_cfg(&format!("{attribute})]"))
        };
        let end = |at: usize| item_end(&self.code[at..]).map_or(self.code.len(), |end| at + end);
        attributes.filter(is_test).map(|at| at..end(at)).collect()
    }

    /// Every function with a body.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let starts = words(&self.code, "fn");
        starts.into_iter().filter_map(|at| self.function(at)).collect()
    }

    fn function(&self, at: usize) -> Option<Function> {
        let rest = self.code[at + 2..].trim_start();
        let name: String = rest.chars().take_while(|c| is_word(*c)).collect();
        let end = at + item_end(&self.code[at..])?;
        if name.is_empty() || !self.code[..=end].ends_with('}') {
            return None;
        }
        let line = line_of(&self.code, at);
        Some(Function { name, line, n_lines: line_of(&self.code, end) - line + 1 })
    }
}

/// A function and its length.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Counted from 0.
    pub(crate) line: usize,
    pub(crate) n_lines: usize,
}

/// Whether an attribute keeps its item for tests: `#[cfg(test)]`, or `#[cfg(all(.., test, ..))]`.
pub(crate) fn is_test_cfg(attribute: &str) -> bool {
    let inside = attribute.trim().strip_prefix("#[cfg(").and_then(|rest| rest.strip_suffix(")]"));
    inside.is_some_and(|inside| {
        let all = inside.strip_prefix("all(").and_then(|rest| rest.strip_suffix(')'));
        inside == "test" || all.is_some_and(|all| all.split(',').any(|part| part.trim() == "test"))
    })
}

/// Offsets of `word` where it stands alone.
pub(crate) fn words(text: &str, word: &str) -> Vec<usize> {
    let stands_alone = |at: usize| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    };
    text.match_indices(word).map(|(at, _)| at).filter(|at| stands_alone(*at)).collect()
}

/// The line of an offset, counted from 0.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The offset of what ends the first item of `code`: its closing brace or its semicolon.
fn item_end(code: &str) -> Option<usize> {
    let (mut nested, mut braces) = (0usize, 0usize);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => nested += 1,
            ')' | ']' => nested = nested.saturating_sub(1),
            '{' => braces += 1,
            '}' => {
                braces = braces.saturating_sub(1);
                if braces == 0 && nested == 0 {
                    return Some(at);
                }
            }
            ';' if braces == 0 && nested == 0 => return Some(at),
            _ => {}
        }
    }
    None
}

struct Scanner {
    chars: Vec<char>,
    at: usize,
    scan: Scan,
}

impl Scanner {
    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            ('/', '/') => self.comment_until(|s| s.peek(0) == '\n'),
            ('/', '*') => self.block_comment(),
            ('"', _) => self.quoted('"'),
            ('\'', '\\') => self.quoted('\''),
            ('\'', _) if self.peek(2) == '\'' => self.quoted('\''),
            (c, _) if is_word(c) => self.word(),
            _ => self.code(),
        }
    }

    /// The character ahead; NUL at the end.
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn ended(&self) -> bool {
        self.at >= self.chars.len()
    }

    fn code(&mut self) {
        let c = self.peek(0);
        self.scan.code.push(c);
        if c == '\n' {
            self.scan.comments.push(c);
        }
        self.at += 1;
    }

    fn comment(&mut self) {
        let c = self.peek(0);
        self.scan.comments.push(c);
        if c == '\n' {
            self.scan.code.push(c);
        }
        self.at += 1;
    }

    /// A character of a literal: only line ends are kept.
    fn skip(&mut self) {
        if self.peek(0) == '\n' { self.code() } else { self.at += 1 }
    }

    fn comment_until(&mut self, is_end: impl Fn(&Self) -> bool) {
        while !self.ended() && !is_end(self) {
            self.comment();
        }
    }

    /// Block comments nest.
    fn block_comment(&mut self) {
        let mut depth = 0;
        loop {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => depth += 1,
                ('*', '/') => depth -= 1,
                _ => {
                    self.comment();
                    if self.ended() {
                        return;
                    }
                    continue;
                }
            }
            self.comment();
            self.comment();
            if depth == 0 {
                return;
            }
        }
    }

    fn quoted(&mut self, quote: char) {
        self.code();
        while !self.ended() && self.peek(0) != quote {
            if self.peek(0) == '\\' {
                self.skip();
            }
            self.skip();
        }
        self.code();
    }

    /// A word, which may turn out to be the prefix of a raw string.
    fn word(&mut self) {
        let start = self.at;
        while is_word(self.peek(0)) {
            self.code();
        }
        let word: String = self.chars[start..self.at].iter().collect();
        let hashes = (0..).take_while(|i| self.peek(*i) == '#').count();
        if ["r", "br", "cr"].contains(&word.as_str()) && self.peek(hashes) == '"' {
            self.raw_string(hashes);
        }
    }

    fn raw_string(&mut self, hashes: usize) {
        for _ in 0..=hashes {
            self.code();
        }
        let is_end = |s: &Self| s.peek(0) == '"' && (1..=hashes).all(|i| s.peek(i) == '#');
        while !self.ended() && !is_end(self) {
            self.skip();
        }
        for _ in 0..=hashes {
            self.code();
        }
    }
}

#[test]
fn comments_and_literals_are_told_from_code() {
    let cases = [
        ("a // b \"c\"\nd", "a \nd", "// b \"c\"\n"),
        ("a /* b /* c */ \n d */ e", "a \n e", "/* b /* c */ \n d */"),
        (r#"f("x // y\" z", 1)"#, r#"f("", 1)"#, ""),
        ("f(r#\"a \" // \"#, 2)", "f(r#\"\"#, 2)", ""),
        ("f(br\"\\\", b\"\\\"\")", "f(br\"\", b\"\")", ""),
        ("'{' '\\'' 'a 'static", "'' '' 'a 'static", ""),
        ("r#fn + bar\"x\"", "r#fn + bar\"\"", ""),
        ("\"a\nb\" c", "\"\n\" c", "\n"),
    ];
    for (text, code, comments) in cases {
        let scan = Scan::of(text);
        assert_eq!((scan.code.as_str(), scan.comments.as_str()), (code, comments), "{text}");
    }
}

#[test]
fn unfinished_text_ends() {
    for text in ["/* a", "\"a", "\"a\\", "r#\"a\"", "'\\", "//", "'"] {
        Scan::of(text);
    }
}

#[test]
fn functions_are_measured_from_fn_to_brace() {
    let text = "\
fn a(x: [u8; 3]) -> fn(u8) {
    \"}\"; { fn b() {} }
}
trait T { fn c(); fn d<const N: usize>(&self)
    where Self: Sized
    {}
}
";
    let of = |name: &str, line, n_lines| Function { name: name.into(), line, n_lines };
    assert_eq!(Scan::of(text).functions(), [of("a", 0, 3), of("b", 1, 1), of("d", 3, 3)]);
}

#[test]
fn lines_of_tests_are_known() {
    let text =
        "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\n#[cfg(test)]\nmod c;\nfn d() {}";
    let expected = [false, true, true, true, true, true, true, false];
    assert_eq!(Scan::of(text).test_lines(), expected);
}

#[test]
fn test_code_is_known_by_its_attribute() {
    for test in ["#[cfg(test)]", "  #[cfg(all(test, loom))]", "#[cfg(all(not(miri), test))]"] {
        assert!(is_test_cfg(test), "{test}");
    }
    for product in ["#[cfg(any(test, unix))]", "#[cfg(not(test))]", "#[cfg(unix)]", "#[test]"] {
        assert!(!is_test_cfg(product), "{product}");
    }
}

#[test]
fn code_without_tests_keeps_its_lines() {
    let text = "use a;\n#[cfg(test)]\nmod tests {\n use b;\n}\n#[cfg(all(test, x))]\nuse c;\nd";
    let code = Scan::of(text).code_without_tests();
    let lines: Vec<_> = code.lines().map(str::trim).collect();
    assert_eq!(lines, ["use a;", "", "", "", "", "", "", "d"]);
}

#[test]
fn a_word_stands_alone() {
    assert_eq!(words("fn fnord _fn fn", "fn"), [0, 13]);
}
