//! What a file is, by how it begins.

use std::collections::HashSet;
use std::path::Path;

use longview_scheduler::SESSION_MAGIC;

use super::target::head_of;

const GGUF_MAGIC: &[u8] = b"GGUF";
/// What every line of a results file begins with.
const RESULTS_START: &[u8] = b"{\"kind\":";
/// What the page of a report has near its beginning.
const PAGE_MARK: &str = "<meta name=\"generator\" content=\"longview report\">";
/// What a script of completions has near its beginning.
pub const COMPLETIONS_MARK: &str = "# Written by `longview completions`";

/// The kinds of files that commands write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A session, by `run --save-session`.
    Session,
    /// Lines of results, by `eval`, `probe` and `speed`.
    Results,
    /// The page of a report.
    Page,
    /// A plot of a report, or its table; the page beside it says that it belongs to it.
    Svg,
    Png,
    Scores,
    /// A script for a shell.
    Completions,
    /// A model, by `quantize`.
    Gguf,
    /// The text of a document, by `kv export --text`: no file that is there is known for one.
    Text,
}

impl FileKind {
    /// What a message calls one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Session => "a saved session",
            Self::Results => "a results file",
            Self::Page => "the page of a report",
            Self::Svg | Self::Png => "a plot of a report",
            Self::Scores => "the table of a report",
            Self::Completions => "a completion script of longview",
            Self::Gguf => "a GGUF model",
            Self::Text => "an empty file",
        }
    }

    /// Whether a file that begins with `head` is of this kind. An empty file is of every kind.
    pub fn is_own(self, head: &[u8]) -> bool {
        if head.is_empty() {
            return true;
        }
        match self {
            Self::Session => head.starts_with(SESSION_MAGIC),
            Self::Results => {
                let head = head.trim_ascii_start();
                head.starts_with(RESULTS_START) || RESULTS_START.starts_with(head)
            }
            Self::Page => contains(head, PAGE_MARK),
            Self::Svg => head.starts_with(b"<svg"),
            Self::Png => head.starts_with(b"\x89PNG"),
            Self::Scores => head.starts_with(b"### ") || head.starts_with(b"Percent right"),
            Self::Completions => contains(head, COMPLETIONS_MARK),
            Self::Gguf => head.starts_with(GGUF_MAGIC),
            Self::Text => false,
        }
    }

    /// Whether `head` may be what a writer of this kind left when it was stopped.
    pub fn may_be_part(self, head: &[u8]) -> bool {
        let starts: &[&[u8]] = match self {
            Self::Session => &[SESSION_MAGIC],
            Self::Page => &[b"<!doctype html>"],
            Self::Gguf => &[GGUF_MAGIC],
            Self::Completions => &[COMPLETIONS_MARK.as_bytes(), b"#compdef longview"],
            _ => &[],
        };
        self.is_own(head) || starts.iter().any(|start| start.starts_with(head))
    }
}

fn contains(head: &[u8], mark: &str) -> bool {
    head.windows(mark.len()).any(|window| window == mark.as_bytes())
}

/// The files beside the page of a report that it names as its own.
pub fn files_of_page(page: &Path) -> HashSet<String> {
    const START: &str = "<meta name=\"files\" content=\"";
    let head = head_of(page).unwrap_or_default();
    if !FileKind::Page.is_own(&head) {
        return HashSet::new();
    }
    let head = String::from_utf8_lossy(&head);
    let names = head.split_once(START).and_then(|(_, rest)| rest.split_once('"'));
    names.map_or("", |(names, _)| names).split(' ').map(str::to_owned).collect()
}

/// What a file that begins with `head` seems to be.
pub fn seems(head: &[u8]) -> &'static str {
    const STARTS: &[(&[u8], &str)] = &[
        (SESSION_MAGIC, "a saved session"),
        (RESULTS_START, "a results file"),
        (GGUF_MAGIC, "a GGUF model"),
        (b"\x89PNG", "a PNG image"),
        (b"\xff\xd8\xff", "a JPEG image"),
        (b"%PDF", "a PDF document"),
        (b"\x1f\x8b", "a gzip file"),
        (b"PK\x03\x04", "a zip file"),
        (b"\x7fELF", "a program"),
        (b"<!doctype html", "a page of HTML"),
        (b"<svg", "an SVG image"),
    ];
    if let Some((_, what)) = STARTS.iter().find(|(start, _)| head.starts_with(start)) {
        return what;
    }
    // Eight bytes of length, then JSON.
    if head.len() > 9 && head[8] == b'{' && head[6..8] == [0, 0] {
        return "weights of a model (safetensors)";
    }
    match std::str::from_utf8(head) {
        _ if head.contains(&0) => "a binary file",
        // The head may end inside of a letter.
        Err(error) if error.error_len().is_some() => "a binary file",
        _ if matches!(head.trim_ascii_start().first(), Some(b'{' | b'[')) => "a JSON file",
        _ => "a text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart() {
        let session = b"\x89LVS\r\n\x1a\n\x01";
        let weights = b"\x10\x20\0\0\0\0\0\0{\"a\":1}";
        for (head, what) in [
            (&session[..], "a saved session"),
            (weights, "weights of a model (safetensors)"),
            (b"{\"kind\":\"run\"}\n", "a results file"),
            (b"{\"model_type\":1}", "a JSON file"),
            ("Émile".as_bytes(), "a text"),
            (&"é".as_bytes()[..1], "a text"),
            (b"a\0b", "a binary file"),
            (b"caf\xe9 au lait", "a binary file"),
        ] {
            assert_eq!(seems(head), what);
        }
        assert!(FileKind::Session.is_own(session) && FileKind::Session.is_own(b""));
        for other in [&weights[..], b"text", b"{\"kind\":\"run\"}", &session[..4]] {
            assert!(!FileKind::Session.is_own(other));
        }
        assert!(FileKind::Session.may_be_part(&session[..4]));
        assert!(!FileKind::Session.may_be_part(b"text"));
        assert!(FileKind::Results.is_own(b"{\"ki") && !FileKind::Results.is_own(b"{\"a\":1}"));
    }
}
