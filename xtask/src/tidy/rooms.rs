//! The scheduler's rooms: which of its folders may know which, and who may name a sequence.
//!
//! A room knows the rooms below it, never those above it or beside it. Mechanisms (recall,
//! eviction, inspect) own their state and take a narrow context; a sequence puts them together, so
//! none of them names [`WHOLES`].

use super::files::Repo;
use super::lex::{Token, tokens};
use super::modules::{Graph, graphs};
use super::scan::Scan;

const PACKAGE: &str = "crates/scheduler";
const SOURCES: &str = "crates/scheduler/src/";

/// Files and folders of the scheduler, each with its height. Equal heights do not know each other.
const ROOMS: &[(&str, u8)] = &[
    ("ids", 0),
    ("layout", 1),
    ("policy", 2),
    // What can go wrong names a preset and wraps the error of policies.
    ("error", 3),
    // What a sequence counts; every mechanism may add to it.
    ("stats", 3),
    ("store", 4),
    ("index", 5),
    ("recall", 6),
    ("eviction", 6),
    ("inspect", 6),
    ("sequence", 7),
    ("session_file", 8),
    // Re-exports everything, and is imported by nobody.
    ("lib", 9),
];

/// What puts the mechanisms together.
const WHOLES: &[&str] = &["Sequence", "Step"];

/// The only room that implements [`WHOLES`].
const OWNER: &str = "sequence";

/// Rooms that may name [`WHOLES`].
const NAMERS: &[&str] = &[OWNER, "session_file", "lib"];

/// An import from a room into one that is not below it.
pub(crate) struct Arrow<'a> {
    pub(crate) rooms: (&'static str, &'static str),
    pub(crate) files: (&'a str, &'a str),
    pub(crate) names: Vec<&'a str>,
}

/// What breaks the order of the rooms, or names a sequence where none may be known.
pub(crate) fn broken(repo: &Repo) -> Vec<String> {
    let graphs = graphs(repo);
    let Some(graph) = scheduler(&graphs) else { return vec![] };
    let mut problems = strays(graph);
    for arrow in upward(graph, |path, _| room_of(path)) {
        let ((from, to), (file, other)) = (arrow.rooms, arrow.files);
        let names = arrow.names.join(", ");
        problems.push(format!("{file}: {from} must not know {to}: {names} of {other}"));
    }
    let files = repo.files.iter().filter(|file| graph.files.contains(&file.path));
    problems.extend(files.flat_map(|file| wholes(&file.path, &file.text)));
    problems
}

/// The library's graph.
pub(crate) fn scheduler(graphs: &[Graph]) -> Option<&Graph> {
    let root = format!("{SOURCES}lib.rs");
    graphs.iter().find(|graph| graph.package == PACKAGE && graph.files.contains(&root))
}

/// The room of a file, by its path from the root.
pub(crate) fn room_of(path: &str) -> Option<&'static str> {
    let inside = path.strip_prefix(SOURCES)?;
    let first = inside.split('/').next().unwrap_or_default().trim_end_matches(".rs");
    room(first)
}

/// The room of that name.
pub(crate) fn room(name: &str) -> Option<&'static str> {
    ROOMS.iter().find(|(known, _)| *known == name).map(|(known, _)| *known)
}

/// Imports that lead into a room which is not below. `room_of` gets a file, and the name that is
/// imported from it where there is one; what is in no room is left out.
pub(crate) fn upward(
    graph: &Graph,
    room_of: impl Fn(&str, Option<&str>) -> Option<&'static str>,
) -> Vec<Arrow<'_>> {
    let height = |room| ROOMS.iter().find(|(known, _)| *known == room).map_or(0, |(_, h)| *h);
    let mut arrows: Vec<Arrow<'_>> = Vec::new();
    for ((file, other), names) in &graph.imports {
        let Some(from) = room_of(file, None) else { continue };
        for name in names {
            let Some(to) = room_of(other, Some(name)) else { continue };
            if from == to || height(to) < height(from) {
                continue;
            }
            let (files, rooms) = ((file.as_str(), other.as_str()), (from, to));
            match arrows.last_mut().filter(|last| (last.files, last.rooms) == (files, rooms)) {
                Some(last) => last.names.push(name),
                None => arrows.push(Arrow { rooms, files, names: vec![name] }),
            }
        }
    }
    arrows
}

/// Files in no room.
fn strays(graph: &Graph) -> Vec<String> {
    let strays = graph.files.iter().filter(|path| room_of(path).is_none());
    let message = "in no room: move it, or give it a height in ROOMS of xtask/src/tidy/rooms.rs";
    strays.map(|path| format!("{path}: {message}")).collect()
}

/// Where a file names or implements [`WHOLES`] and must not.
fn wholes(path: &str, text: &str) -> Vec<String> {
    let code = Scan::of(text).code_without_tests();
    let tokens = tokens(&code);
    let room = room_of(path);
    let mut problems = Vec::new();
    if !room.is_some_and(|room| NAMERS.contains(&room)) {
        for whole in WHOLES {
            let named = (0..tokens.len()).filter(|i| names(&tokens, *i, whole));
            let lines: Vec<_> = named.map(|i| tokens[i].line + 1).collect();
            if let Some(first) = lines.first() {
                let message = format!("names `{whole}` ({} times): take a context", lines.len());
                problems.push(format!("{path}:{first}: {message}"));
            }
        }
    }
    if room != Some(OWNER) {
        for (whole, line) in implemented(&tokens) {
            let message = format!("implements `{whole}`, which stands in {OWNER}/ alone");
            problems.push(format!("{path}:{}: {message}", line + 1));
        }
    }
    problems
}

/// Whether the word at `i` is the type `whole`, and no variant of an enum.
fn names(tokens: &[Token<'_>], i: usize, whole: &str) -> bool {
    let is_variant = i > 1
        && tokens[i - 1].text == "::"
        && tokens[i - 2].text.starts_with(|c: char| c.is_uppercase());
    tokens[i].text == whole && !is_variant
}

/// Types of [`WHOLES`] that have an `impl` here, with their lines.
fn implemented<'a>(tokens: &[Token<'a>]) -> Vec<(&'a str, usize)> {
    let impls = (0..tokens.len()).filter(|i| tokens[*i].text == "impl");
    let found = impls.filter_map(|i| {
        let name = self_type(&tokens[i + 1..])?;
        WHOLES.contains(&name).then_some((name, tokens[i].line))
    });
    found.collect()
}

/// The last name of the type that an `impl` is for; `head` follows the word `impl`.
fn self_type<'a>(head: &[Token<'a>]) -> Option<&'a str> {
    let mut depth = 0usize;
    let mut name = None;
    let mut is_first_generics = head.first().is_some_and(|token| token.text == "<");
    for token in head {
        match token.text {
            "<" => depth += 1,
            ">" => {
                depth = depth.saturating_sub(1);
                is_first_generics &= depth > 0;
            }
            "{" | ";" | "where" | "(" | ")" | "," | "=" if depth == 0 => break,
            // What came before was the trait.
            "for" if depth == 0 => name = None,
            text if depth == 0 && !is_first_generics && token.is_word() => name = Some(text),
            _ => {}
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::snippet;

    /// A scheduler of these files, each with its text; `lib.rs` declares them.
    fn house(files: &[(&str, &str)]) -> Repo {
        let mut found = vec![snippet("crates/scheduler/Cargo.toml", "[package]\nname = \"s\"\n")];
        let mut lib = String::new();
        for (path, text) in files {
            let name = path.split('/').next().unwrap().trim_end_matches(".rs");
            lib += &format!("mod {name};\n");
            found.push(snippet(&format!("{SOURCES}{path}"), text));
        }
        found.push(snippet(&format!("{SOURCES}lib.rs"), &lib));
        Repo::of(found)
    }

    #[test]
    fn rooms_know_those_below() {
        let repo = house(&[
            ("layout/mod.rs", ""),
            ("policy.rs", "use crate::layout::Shape;"),
            ("error.rs", "use crate::policy::PolicyError;"),
            (
                "index/mod.rs",
                "use crate::{error::E, layout::L};\n#[cfg(test)]\nuse crate::recall::R;",
            ),
            ("recall/mod.rs", "use crate::index::I;"),
            ("sequence/mod.rs", "use crate::recall::R; pub struct Sequence; impl Sequence {}"),
            ("session_file.rs", "use crate::sequence::Sequence; fn f(s: &Sequence) {}"),
        ]);
        assert!(broken(&repo).is_empty(), "{:?}", broken(&repo));
    }

    #[test]
    fn a_planted_upward_arrow_is_reported() {
        let found = |index, recall| {
            broken(&house(&[
                ("index.rs", index),
                ("recall.rs", recall),
                ("eviction.rs", ""),
                ("sequence.rs", ""),
            ]))
        };
        assert!(found("", "use crate::index::I;").is_empty());
        let expected = "crates/scheduler/src/index.rs: index must not know recall: B, R of \
                        crates/scheduler/src/recall.rs";
        assert_eq!(found("use crate::recall::{R, B};", ""), [expected]);
        assert_eq!(found("", "use crate::eviction::Kept;").len(), 1, "a room beside it");
        assert_eq!(found("", "fn f() { crate::sequence::g() }").len(), 1);
        assert_eq!(found("use crate::Error;", "").len(), 1, "lib.rs is above all");
    }

    #[test]
    fn a_file_in_no_room_is_reported() {
        let found =
            broken(&house(&[("stray.rs", ""), ("store/mod.rs", "mod x;"), ("store/x.rs", "")]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/scheduler/src/stray.rs: in no room"), "{found:?}");
        assert!(broken(&Repo::of(vec![])).is_empty(), "no scheduler, no rooms");
    }

    #[test]
    fn mechanisms_name_no_sequence() {
        let found = |text| wholes("crates/scheduler/src/recall/cache.rs", text).len();
        for fine in
            ["struct SequenceOptions;", "// Sequence", "Phase::Step", "let step = sequence;"]
        {
            assert_eq!(found(fine), 0, "{fine}");
        }
        assert_eq!(found("fn f(s: &Sequence<B>) {}\nuse super::sequence::Step;"), 2);
        assert_eq!(found("#[cfg(test)]\nmod tests { fn f(s: Sequence) {} }"), 0);
        assert_eq!(
            wholes("crates/scheduler/src/session_file/io.rs", "f(s: &Sequence<B>)").len(),
            0
        );
    }

    #[test]
    fn a_sequence_is_implemented_in_its_room() {
        let found = |text| wholes("crates/scheduler/src/session_file/io.rs", text).len();
        assert_eq!(found("impl<B: Backend> Sequence<B> {}"), 1);
        assert_eq!(
            found("impl<'a, B: Fn() -> Vec<u8>> Drop for crate::sequence::Step<'a, B> {}"),
            1
        );
        assert_eq!(found("impl From<Sequence> for X {}\nfn f(g: impl Fn(&Sequence)) {}"), 0);
        assert_eq!(found("fn f() -> impl Iterator<Item = Sequence> + '_ { x }"), 0);
        assert_eq!(wholes("crates/scheduler/src/sequence/step.rs", "impl Step<'_> {}").len(), 0);
    }
}
