//! Words that must not be there, each with what to write instead.

use super::files::{File, Kind};
use super::scan::{Scan, words};

/// Where a token is banned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In code, tests included.
    Code,
    /// In code of `crates/` that is no test.
    Product,
    /// As [`Place::Product`], but not in the faces, which talk to a terminal.
    Library,
}

struct Ban {
    token: &'static str,
    instead: &'static str,
    place: Place,
}

const BANS: &[Ban] = &[
    Ban {
        token: "todo!",
        instead: "write it, or return an error that names what is missing",
        place: Place::Code,
    },
    Ban {
        token: "unimplemented!",
        instead: "return an error that names what is missing",
        place: Place::Code,
    },
    Ban {
        token: "dbg!",
        instead: "take it out, or assert what you looked for",
        place: Place::Code,
    },
    Ban {
        token: "#[ignore",
        instead: "make the test fast, or gate it by REQUIRE_BACKENDS: nobody runs ignored tests",
        place: Place::Code,
    },
    Ban { token: "assert!(true", instead: "assert what must hold", place: Place::Code },
    Ban {
        token: ".unwrap()",
        instead: "return the error, or `.expect(\"why it holds\")`",
        place: Place::Product,
    },
    Ban {
        token: "println!",
        instead: "return the text: only faces talk to a terminal",
        place: Place::Library,
    },
    Ban {
        token: "print!",
        instead: "return the text: only faces talk to a terminal",
        place: Place::Library,
    },
    Ban {
        token: "eprintln!",
        instead: "return the text: only faces talk to a terminal",
        place: Place::Library,
    },
    Ban {
        token: "eprint!",
        instead: "return the text: only faces talk to a terminal",
        place: Place::Library,
    },
];

/// Faces: crates that may print.
const FACES: &[&str] = &["crates/cli/", "crates/desktop/src/main.rs"];

/// Files that may contain a banned token, with the reason.
const EXCUSED: &[(&str, &str, &str)] = &[];

/// Notes to oneself. In comments, in any language.
const NOTES: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Banned tokens in code, and notes in comments.
pub(crate) fn banned(file: &File) -> Vec<String> {
    let mut problems = notes(file);
    if file.kind() != Kind::Rust {
        return problems;
    }
    let scan = Scan::of(&file.text);
    let test_lines = scan.test_lines();
    for (i, line) in scan.code.lines().enumerate() {
        let is_test = file.is_test || test_lines.get(i) == Some(&true);
        for ban in BANS.iter().filter(|ban| applies(ban, file, is_test)) {
            if has(line, ban.token) {
                let message = format!("`{}`: {}", ban.token, ban.instead);
                problems.push(file.problem(i, &message));
            }
        }
    }
    problems
}

fn applies(ban: &Ban, file: &File, is_test: bool) -> bool {
    let is_product = file.path.starts_with("crates/") && !is_test;
    let is_face = FACES.iter().any(|face| file.path.starts_with(face));
    let is_excused =
        EXCUSED.iter().any(|(path, token, _)| *path == file.path && *token == ban.token);
    !is_excused
        && match ban.place {
            Place::Code => true,
            Place::Product => is_product,
            Place::Library => is_product && !is_face,
        }
}

/// Whether `line` has the token, and not as the end of a longer word (`println!` has `print`).
fn has(line: &str, token: &str) -> bool {
    let continues = |at: usize| {
        let before = line[..at].chars().next_back();
        before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    };
    let is_word = token.starts_with(|c: char| c.is_alphabetic());
    line.match_indices(token).any(|(at, _)| !(is_word && continues(at)))
}

fn notes(file: &File) -> Vec<String> {
    let is_rust = matches!(file.kind(), Kind::Rust | Kind::Shader | Kind::Cpp);
    let text = if is_rust { Scan::of(&file.text).comments } else { file.text.clone() };
    let mut problems = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for note in NOTES.iter().filter(|note| !words(line, note).is_empty()) {
            let message = format!("`{note}`: do it, or open an issue and say what holds today");
            problems.push(file.problem(i, &message));
        }
    }
    problems
}

/// Paths of the machines that this repository is written on.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tmp/ba", "sh_jobs")];

/// The registry that `Cargo.lock` may name.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Settings that send a package manager to a host of one's own.
const OTHER_REGISTRIES: &[&str] =
    &["--index-url", "--extra-index-url", "[source.", "[registries.", "replace-with"];

/// What only makes sense on one machine or in one network.
pub(crate) fn machine_traces(file: &File) -> Vec<String> {
    let mut problems = Vec::new();
    let configures =
        file.path.ends_with("requirements.txt") || file.path.starts_with(concat!(".car", "go/"));
    for (i, line) in file.text.lines().enumerate() {
        if let Some(path) = MACHINE_PATHS.iter().find(|path| names_path(line, path)) {
            let message = format!("`{path}` is a path of one machine: use one from the root");
            problems.push(file.problem(i, &message));
        }
        let other = OTHER_REGISTRIES.iter().any(|setting| line.contains(setting));
        let source = line.strip_prefix("source = \"registry+");
        let is_foreign = source.is_some() && !line.contains(REGISTRY);
        if is_foreign || configures && other {
            problems.push(file.problem(i, "a registry of one's own: name the public one, or none"));
        }
    }
    problems
}

/// Whether a path that begins with `path` stands in the line; parts of longer ones do not count.
fn names_path(line: &str, path: &str) -> bool {
    let continues = |at: usize| {
        let before = line[..at].chars().next_back();
        before.is_some_and(|c| c.is_alphanumeric() || "._-}~*/".contains(c))
    };
    line.match_indices(path).any(|(at, _)| !continues(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::snippet;

    fn count(path: &str, text: &str) -> usize {
        banned(&snippet(path, text)).len()
    }

    #[test]
    fn banned_tokens_are_found_in_code_only() {
        for text in ["todo!()", "unimplemented!()", "dbg!(x)", "#[ignore]", "assert!(true)"] {
            assert_eq!(count("tests/tests/a.rs", text), 1, "{text}");
            assert_eq!(count("tests/tests/a.rs", &format!("// {text}\n\"{text}\"")), 0, "{text}");
        }
        let found = banned(&snippet("xtask/src/a.rs", "fn f() {\n    todo!()\n}"));
        let expected = "xtask/src/a.rs:2: `todo!`: write it, or return an error that names what is \
                        missing";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn unwrap_is_for_tests() {
        let text = "let a = b.unwrap();";
        assert_eq!(count("crates/a/src/lib.rs", text), 1);
        assert_eq!(count("crates/a/tests/lib.rs", text), 0);
        assert_eq!(count("tests/tests/lib.rs", text), 0);
        assert_eq!(count("crates/a/src/lib.rs", &format!("#[cfg(test)]\nmod t {{\n{text}\n}}")), 0);
        assert_eq!(count("crates/a/src/lib.rs", "b.unwrap_or_default(); b.expect(\"so\");"), 0);
    }

    #[test]
    fn libraries_do_not_print() {
        for text in ["println!()", "print!()", "eprintln!()", "eprint!()"] {
            assert_eq!(count("crates/a/src/lib.rs", text), 1, "{text}");
            assert_eq!(count("crates/cli/src/main.rs", text), 0, "{text}");
            assert_eq!(count("crates/a/examples/b.rs", text), 0, "{text}");
        }
        assert_eq!(count("crates/a/src/lib.rs", "my_print!()"), 0);
    }

    #[test]
    fn notes_to_oneself_are_found_in_comments() {
        let note = NOTES[0];
        assert_eq!(count("crates/a/src/lib.rs", &format!("let a = 1; // {note}: more")), 1);
        assert_eq!(count("scripts/a.py", &format!("# {note} more")), 1);
        assert_eq!(count("crates/a/src/lib.rs", &format!("let a = \"{note}\";")), 0);
        assert_eq!(count("crates/a/src/lib.rs", &format!("// the {note}S list")), 0);
    }

    #[test]
    fn traces_of_a_machine_are_found_anywhere() {
        let count = |path, text: &str| machine_traces(&snippet(path, text)).len();
        for path in MACHINE_PATHS {
            assert_eq!(count("README.md", &format!("see `{path}x`")), 1);
            assert_eq!(count("a.rs", &format!("\"{path}\"")), 1);
            assert_eq!(count("a.rs", &format!("https://example.org{path}x")), 0);
        }
        let source = |host| format!("source = \"registry+https://{host}\"");
        assert_eq!(count("Cargo.lock", &source("example.org/index")), 1);
        assert_eq!(count("Cargo.lock", &source("github.com/rust-lang/crates.io-index")), 0);
        assert_eq!(count(".cargo/config.toml", "[source.mirror]"), 1);
        assert_eq!(count(".cargo/config.toml", "[alias]"), 0);
        assert_eq!(count("tests/fixtures/requirements.txt", "--index-url x"), 1);
        assert_eq!(count("README.md", "pip has --index-url"), 0);
    }
}
