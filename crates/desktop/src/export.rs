//! Questions and answers as Markdown, and the name of their file.

use std::path::{Path, PathBuf};

use longview_core::acts_on_terminal;

use crate::document::{Document, Reply};
use crate::figures::percent;
use crate::strings;

/// What the name of a file of answers ends with.
const ENDING: &str = ".answers.md";
/// Bytes of a name before that: file systems take 255, and people read less.
const MOST_BYTES: usize = 150;
/// Names that Windows has for devices, whatever stands behind a dot.
const DEVICES: [&str; 6] = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"];

/// A name for the answers to questions about the document `title` that every file system takes.
pub fn file_name(title: &str) -> String {
    let title = title.split_whitespace().collect::<Vec<_>>().join(" ");
    let clean: String = title.chars().filter(|c| !is_unseen(*c)).map(allowed).collect();
    let clean = &clean[..clean.floor_char_boundary(MOST_BYTES)];
    // A dot in front hides a file, and Windows drops one at the end.
    let clean = clean.trim_matches(['.', ' ']);
    let first = clean.split('.').next().unwrap_or_default();
    let name = match clean {
        "" => "document".to_owned(),
        _ if is_device(first.trim_end()) => format!("_{clean}"),
        clean => clean.to_owned(),
    };
    name + ENDING
}

/// Characters that stand for nothing, or turn the order of others around.
fn is_unseen(c: char) -> bool {
    acts_on_terminal(c) || c == '\u{feff}'
}

/// What stands for a character that Windows, or any system, does not take.
fn allowed(c: char) -> char {
    if matches!(c, '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|') { '-' } else { c }
}

fn is_device(name: &str) -> bool {
    let name = name.to_uppercase();
    let port = name.strip_prefix("COM").or_else(|| name.strip_prefix("LPT")).unwrap_or_default();
    let is_port = matches!(port, "¹" | "²" | "³") || matches!(port.as_bytes(), [b'1'..=b'9']);
    is_port || DEVICES.contains(&&*name)
}

/// A file of answers in `folder` that is not there yet.
pub fn free_path(folder: &Path, name: &str) -> PathBuf {
    let stem = name.strip_suffix(ENDING).unwrap_or(name);
    let numbered = (2..).map(|n| format!("{stem} {n}{ENDING}"));
    let paths = std::iter::once(name.to_owned()).chain(numbered).map(|name| folder.join(name));
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    paths.into_iter().find(is_free).unwrap_or_else(|| folder.join(name))
}

/// A document's questions, answers, and the passages that they rest on.
pub fn markdown(document: &Document) -> String {
    let mut out = format!("# {}\n", plain(&document.title));
    for exchange in &document.conversation {
        out += &format!("\n## {}\n", plain(&exchange.question));
        for reply in exchange.replies.iter().filter(|reply| reply.answer.is_some()) {
            add(&mut out, document, reply);
        }
    }
    out
}

fn add(out: &mut String, document: &Document, reply: &Reply) {
    let Some(answer) = &reply.answer else { return };
    *out += &format!("\n{}\n\n*{}.", quoted(reply.shown()), strings::attention(reply.attention));
    if let Some(attended) = answer.attended {
        *out += &format!(" {}", strings::attended(attended, answer.context));
    }
    *out += "*\n";
    for (i, passage) in answer.passages.iter().enumerate() {
        if i == 0 {
            *out += &format!("\n{}:\n\n", strings::PASSAGES);
        }
        let quote = plain(&document.quote(passage));
        *out += &format!("{}. > {quote} ({})\n", i + 1, percent(passage.weight));
    }
}

/// An answer, which is Markdown itself: as a quote its headings are not those of the page.
fn quoted(answer: &str) -> String {
    let lines = answer.trim_end().lines();
    lines.map(|line| format!("> {line}").trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// A text on one line in which nothing is markup.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.split_whitespace().collect::<Vec<_>>().join(" ").chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '#' | '|') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_taken_by_every_file_system() {
        for (title, name) in [
            ("Dr. Smith", "Dr. Smith"),
            ("story.txt", "story.txt"),
            ("Letters / 1890: A\\B", "Letters - 1890- A-B"),
            ("a<b>c|d?e*f\"g", "a-b-c-d-e-f-g"),
            ("../../etc/passwd", "-..-etc-passwd"),
            ("..hidden..", "hidden"),
            ("ends. . .", "ends"),
            (" two\n lines\t", "two lines"),
            ("a\0b\u{7f}c\u{202e}d", "abcd"),
            ("CON", "_CON"),
            ("nul.txt", "_nul.txt"),
            ("com1 .old", "_com1 .old"),
            ("LPT²", "_LPT²"),
            ("COM0", "COM0"),
            ("COM10", "COM10"),
            ("Console", "Console"),
            ("", "document"),
            (" . ", "document"),
            ("\u{1}", "document"),
            ("東京.txt and 2 more", "東京.txt and 2 more"),
        ] {
            assert_eq!(file_name(title), format!("{name}.answers.md"), "{title:?}");
        }
        for title in ["long name ".repeat(40), "東京".repeat(200), "é.".repeat(200)] {
            let name = file_name(&title);
            assert!(name.len() <= MOST_BYTES + ENDING.len(), "{name}");
            let stem = name.strip_suffix(ENDING).unwrap();
            assert!(!stem.ends_with(['.', ' ']) && title.starts_with(stem), "{name}");
        }
    }

    #[test]
    fn a_file_that_is_there_is_left_alone() {
        let folder = std::env::temp_dir().join(format!("longview-free-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let name = file_name("Dr. Smith");
        for shown in ["Dr. Smith.answers.md", "Dr. Smith 2.answers.md", "Dr. Smith 3.answers.md"] {
            let path = free_path(&folder, &name);
            assert_eq!(path, folder.join(shown));
            std::fs::write(path, "").unwrap();
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_answer_keeps_its_form_within_a_quote() {
        let answer = "# Two\n\n- a\n  - b\n\n```\nlet x = 1;\n\n  x\n```\n";
        let want = "> # Two\n>\n> - a\n>   - b\n>\n> ```\n> let x = 1;\n>\n>   x\n> ```";
        assert_eq!(quoted(answer), want);
    }

    #[test]
    fn what_a_document_says_is_no_markup() {
        assert_eq!(plain("# a\n*b* <c>"), "\\# a \\*b\\* \\<c\\>");
    }
}
