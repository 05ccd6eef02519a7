//! `cargo xtask measure`: figures on the sources of a checkout, of today or of an old commit.
//!
//! They say how a change moved what it was about: lengths of functions, circles between modules,
//! arrows that lead up between the scheduler's rooms, `expect`s, and `Option`s in its states.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use anyhow::Result;

use crate::args::{Parsed, UsageError};
use crate::process;
use crate::tidy::files::{File, Kind, Repo};
use crate::tidy::lex::{Token, closing, tokens};
use crate::tidy::modules::graphs;
use crate::tidy::rooms::{self, room, room_of};
use crate::tidy::scan::{Function, Scan};

pub(crate) const OPTIONS: &str = "[FOLDER]";
pub(crate) const ABOUT: &str = "figures on the sources of this checkout or another one: lines, \
                                functions, circles, upward arrows, expects, Options, unit tests";

const SCHEDULER: &str = "crates/scheduler/src/";

/// The rooms of the files that lay side by side before there were rooms.
const FLAT: &[(&str, &str)] = &[
    ("adaptive", "index"),
    ("ahead", "recall"),
    ("cache", "recall"),
    ("certificate", "recall"),
    ("chunk", "sequence"),
    ("clusterer", "index"),
    ("held", "store"),
    ("host_attention", "recall"),
    ("importance", "index"),
    ("indexing", "sequence"),
    ("keep", "eviction"),
    ("layer", "sequence"),
    ("mirror", "store"),
    ("observe", "index"),
    ("plan", "sequence"),
    ("projection", "index"),
    ("refine", "recall"),
    ("resolver", "recall"),
    ("rows", "store"),
    ("select", "recall"),
    ("shape", "layout"),
    ("sight", "inspect"),
    ("speculate", "recall"),
    ("stats", "inspect"),
    ("step", "sequence"),
    ("tail", "recall"),
    ("tier", "store"),
    ("turn", "eviction"),
    ("watch", "inspect"),
];

/// What `layer.rs` held of the layout; the rest of it was the state of a layer.
const LAYOUT_IN_LAYER: &[&str] =
    &["DeviceLayout", "LAST_QUERIES", "LayerMode", "Recorded", "device_rows", "layer_mode"];

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (folder, options) = match args {
        [folder, options @ ..] if !folder.starts_with('-') => (Some(folder), options),
        options => (None, options),
    };
    Parsed::parse(options, &[], &[])?;
    let root = folder.map_or(process::root(), Path::new);
    if !root.join("Cargo.toml").is_file() {
        let message = format!("{}: no checkout, there is no Cargo.toml", root.display());
        return Err(UsageError(message).into());
    }
    print!("{}", report(&Repo::read(root)?));
    Ok(())
}

fn report(repo: &Repo) -> String {
    let sources = Source::all(repo);
    let parts = [
        lines(&sources),
        functions(&sources),
        circles(repo),
        arrows(repo),
        expects(&sources),
        options(&sources),
        unit_tests(&sources),
    ];
    parts.join("\n")
}

/// A Rust file, read once for all figures.
struct Source<'a> {
    file: &'a File,
    /// The package's folder, without a slash at its end.
    package: &'a str,
    scan: Scan,
    /// For each line, whether it is test code.
    test_lines: Vec<bool>,
    /// Code that is no test.
    product: String,
}

impl<'a> Source<'a> {
    fn all(repo: &'a Repo) -> Vec<Self> {
        let rust = repo.files.iter().filter(|file| file.kind() == Kind::Rust);
        rust.map(|file| Self::of(file, package_of(repo, &file.path))).collect()
    }

    fn of(file: &'a File, package: &'a str) -> Self {
        let scan = Scan::of(&file.text);
        let mut test_lines = scan.test_lines();
        test_lines.resize(file.text.lines().count(), false);
        test_lines.iter_mut().for_each(|is_test| *is_test |= file.is_test);
        let product = if file.is_test { String::new() } else { scan.code_without_tests() };
        Self { file, package, scan, test_lines, product }
    }

    fn is_scheduler(&self) -> bool {
        self.file.path.starts_with(SCHEDULER)
    }
}

/// The innermost package around a file.
fn package_of<'a>(repo: &'a Repo, path: &str) -> &'a str {
    let around = repo.packages().map(|(_, folder)| folder).filter(|f| path.starts_with(f));
    around.max_by_key(|folder| folder.len()).unwrap_or("in no package").trim_end_matches('/')
}

fn lines(sources: &[Source<'_>]) -> String {
    let mut by_package: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for source in sources {
        let (product, tests) = by_package.entry(source.package).or_default();
        let n_tests = source.test_lines.iter().filter(|is_test| **is_test).count();
        *product += source.test_lines.len() - n_tests;
        *tests += n_tests;
    }
    let mut text = row("lines of Rust", ["all", "product", "tests"]);
    let mut sum = (0, 0);
    for (package, (product, tests)) in by_package {
        text += &row(package, [product + tests, product, tests]);
        sum = (sum.0 + product, sum.1 + tests);
    }
    text + &row("all", [sum.0 + sum.1, sum.0, sum.1])
}

fn row<T: ToString>(name: &str, cells: impl IntoIterator<Item = T>) -> String {
    let cells: String = cells.into_iter().map(|cell| format!("{:>9}", cell.to_string())).collect();
    format!("{name:<28}{cells}\n")
}

fn functions(sources: &[Source<'_>]) -> String {
    let mut found: Vec<(&Source<'_>, Function)> = Vec::new();
    for source in sources {
        found.extend(source.scan.functions().into_iter().map(|function| (source, function)));
    }
    found.sort_by_key(|(source, f)| (f.n_lines, std::cmp::Reverse((&source.file.path, f.line))));
    let is_product = |source: &Source<'_>, f: &Function| !source.test_lines[f.line];
    let mut text = row("functions", ["number", "median", "p90", "p99", "longest"]);
    let mut add = |name, keep: &dyn Fn(&Source<'_>, &Function) -> bool| {
        let kept: Vec<_> = found.iter().filter(|(source, f)| keep(source, f)).collect();
        let Some((source, longest)) = kept.last() else { return };
        let at = |percent: usize| kept[(kept.len() * percent).div_ceil(100).max(1) - 1].1.n_lines;
        let line = row(name, [kept.len(), at(50), at(90), at(99), longest.n_lines]);
        text += &format!("{}  `{}` in {}\n", line.trim_end(), longest.name, source.file.path);
    };
    add("all", &|_, _| true);
    add("product", &is_product);
    add("tests", &|source, f| !is_product(source, f));
    add("scheduler, product", &|source, f| source.is_scheduler() && is_product(source, f));
    text
}

fn circles(repo: &Repo) -> String {
    let mut by_package: BTreeMap<&str, BTreeSet<BTreeSet<&str>>> = BTreeMap::new();
    let mut modules: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let graphs = graphs(repo);
    for graph in &graphs {
        let files = graph.files.iter().map(String::as_str);
        modules.entry(&graph.package).or_default().extend(files);
        let knots = graph.knots().into_iter().map(|knot| knot.files);
        by_package.entry(&graph.package).or_default().extend(knots);
    }
    let mut text = row("circles between modules", ["circles", "modules", "of", "largest"]);
    let mut sum = (0, 0, 0, 0);
    for (package, knots) in by_package {
        let inside = knots.iter().flatten().collect::<BTreeSet<_>>().len();
        let largest = knots.iter().map(BTreeSet::len).max().unwrap_or(0);
        let n = modules[package].len();
        text += &row(package, [knots.len(), inside, n, largest]);
        sum = (sum.0 + knots.len(), sum.1 + inside, sum.2 + n, largest.max(sum.3));
    }
    text + &row("all", [sum.0, sum.1, sum.2, sum.3])
}

/// The room of a file, before and after there were rooms.
fn room_then(path: &str, name: Option<&str>) -> Option<&'static str> {
    let flat = path.strip_prefix(SCHEDULER).and_then(|path| path.strip_suffix(".rs"));
    if flat == Some("layer") && name.is_some_and(|name| LAYOUT_IN_LAYER.contains(&name)) {
        return room("layout");
    }
    let then = FLAT.iter().find(|(stem, _)| flat == Some(stem));
    room_of(path).or_else(|| then.and_then(|(_, name)| room(name)))
}

fn arrows(repo: &Repo) -> String {
    let graphs = graphs(repo);
    let Some(graph) = rooms::scheduler(&graphs) else { return String::new() };
    let arrows = rooms::upward(graph, room_then);
    let mut by_rooms: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for arrow in &arrows {
        *by_rooms.entry(arrow.rooms).or_default() += 1;
    }
    let mut text = row("upward arrows between rooms", ["imports"]);
    for ((from, to), n) in by_rooms {
        text += &row(&format!("{from} -> {to}"), [n]);
    }
    let placed = graph.files.iter().filter(|path| room_then(path, None).is_some()).count();
    text += &row("all", [arrows.len()]);
    text + &format!("({placed} of {} files are in a room)\n", graph.files.len())
}

fn expects(sources: &[Source<'_>]) -> String {
    let mut by_package: BTreeMap<&str, usize> = BTreeMap::new();
    for source in sources {
        let n = source.product.matches(".expect(").count();
        *by_package.entry(source.package).or_default() += n;
    }
    let mut text = row("`.expect(` outside of tests", ["number"]);
    let mut sum = 0;
    for (package, n) in by_package.into_iter().filter(|(_, n)| *n > 0) {
        text += &row(package, [n]);
        sum += n;
    }
    text + &row("all", [sum])
}

/// `Option` fields of a sequence and of the state of a layer: of a struct `Layer` where there is
/// one, and of an enum `LayerState` with what its variants hold.
fn options(sources: &[Source<'_>]) -> String {
    let scheduler = sources.iter().filter(|source| source.is_scheduler());
    let code: Vec<_> = scheduler.map(|source| tokens(&source.product)).collect();
    let mut names = VecDeque::from(["Sequence", "Layer", "LayerState"]);
    let mut text = row("`Option` fields", ["options", "fields"]);
    while let Some(name) = names.pop_front() {
        let Some(fields) = code.iter().find_map(|tokens| fields_of(tokens, name)) else { continue };
        let options = fields.types.iter().filter(|field| field[0].text == "Option");
        text += &row(name, [options.count(), fields.types.len()]);
        // A variant, or a struct around another one, is what it holds.
        if fields.is_unnamed {
            names.extend(fields.types.iter().filter_map(|field| held_by(field)));
        }
    }
    text
}

/// The types of what a struct or an enum holds.
struct Fields<'a, 'b> {
    types: Vec<&'b [Token<'a>]>,
    /// An enum, or a struct without names.
    is_unnamed: bool,
}

/// The fields of the struct or enum `name`, where the code defines it.
fn fields_of<'a, 'b>(tokens: &'b [Token<'a>], name: &str) -> Option<Fields<'a, 'b>> {
    let defines =
        |pair: &[Token<'_>]| matches!(pair[0].text, "struct" | "enum") && pair[1].text == name;
    let at = tokens.windows(2).position(defines)?;
    let mut depth = 0usize;
    let open = tokens.iter().enumerate().skip(at).find(|(_, token)| {
        depth = depth + usize::from(token.text == "<") - usize::from(token.text == ">");
        depth == 0 && matches!(token.text, "{" | "(" | ";")
    });
    let (open, bracket) = open?;
    let inside = &tokens[open + 1..closing(tokens, open).max(open + 1)];
    let is_enum = tokens[at].text == "enum";
    let types = match bracket.text {
        "{" if is_enum => variants(inside),
        "{" => named(inside),
        "(" => pieces(inside),
        _ => vec![],
    };
    Some(Fields { types, is_unnamed: is_enum || bracket.text == "(" })
}

/// What the variants of an enum hold, one after the other.
fn variants<'a, 'b>(inside: &'b [Token<'a>]) -> Vec<&'b [Token<'a>]> {
    let held = pieces(inside).into_iter().flat_map(|variant| {
        let end = variant.len().saturating_sub(1);
        match variant.get(1).map(|token| token.text) {
            Some("(") => pieces(&variant[2..end]),
            Some("{") => named(&variant[2..end]),
            _ => vec![],
        }
    });
    held.collect()
}

/// Types of `name: Type, ..`.
fn named<'a, 'b>(inside: &'b [Token<'a>]) -> Vec<&'b [Token<'a>]> {
    pieces(inside)
        .into_iter()
        .filter_map(|field| field.get(2..))
        .filter(|t| !t.is_empty())
        .collect()
}

/// Parts between commas outside of all brackets, without attributes and visibilities: the types of
/// fields without names.
fn pieces<'a, 'b>(inside: &'b [Token<'a>]) -> Vec<&'b [Token<'a>]> {
    let mut depth = 0i32;
    let parts = inside.split(|token| {
        match token.text {
            "(" | "[" | "{" | "<" => depth += 1,
            ")" | "]" | "}" | ">" => depth -= 1,
            _ => {}
        }
        depth == 0 && token.text == ","
    });
    parts.map(bare).filter(|part| !part.is_empty()).collect()
}

fn bare<'a, 'b>(mut part: &'b [Token<'a>]) -> &'b [Token<'a>] {
    let text = |part: &[Token<'_>], i: usize| part.get(i).map_or("", |token| token.text).to_owned();
    loop {
        let skip = match (text(part, 0).as_str(), text(part, 1).as_str()) {
            ("#", "[") | ("pub", "(") => closing(part, 1) + 1,
            ("pub", _) => 1,
            _ => return part,
        };
        part = &part[skip.min(part.len())..];
    }
}

/// The name of a type, in a box too: the last of its path.
fn held_by<'a>(field: &[Token<'a>]) -> Option<&'a str> {
    let inside = if field[0].text == "Box" { field.get(2..)? } else { field };
    let path = inside.iter().take_while(|token| token.is_word() || token.text == "::");
    path.last().map(|token| token.text)
}

fn unit_tests(sources: &[Source<'_>]) -> String {
    let mut by_room: BTreeMap<&str, usize> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_scheduler()) {
        let n = source.scan.code.matches("#[test]").count();
        let room = room_then(&source.file.path, None).unwrap_or("in no room");
        *by_room.entry(room).or_default() += n;
    }
    let mut text = row("unit tests of the scheduler", ["number"]);
    let sum: usize = by_room.values().sum();
    for (room, n) in by_room {
        text += &row(room, [n]);
    }
    text + &row("all", [sum])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::snippet;

    fn repo(files: &[(&str, &str)]) -> Repo {
        let manifest = "[package]\nname = \"s\"\n";
        let files = files.iter().map(|(path, text)| snippet(&format!("{SCHEDULER}{path}"), text));
        let manifest = snippet("crates/scheduler/Cargo.toml", manifest);
        Repo::of([manifest].into_iter().chain(files).collect())
    }

    /// Cells of the row of that name in the part that begins with `part`.
    fn cells(report: &str, part: &str, name: &str) -> Vec<String> {
        let start = report.find(part).unwrap_or_else(|| panic!("{part} is missing:\n{report}"));
        let mut rows = report[start..].lines().take_while(|line| !line.is_empty());
        let line = rows.find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn flat_files_are_counted_in_the_rooms_that_they_came_to() {
        let report = report(&repo(&[
            ("lib.rs", "mod cache;\nmod layer;\nmod shape;\nmod step;\nmod store;"),
            ("cache.rs", "use crate::step::Step;\nuse crate::layer::{Layer, LayerMode};"),
            ("layer.rs", "use crate::cache::Cache;"),
            ("shape.rs", "use crate::cache::Cache;\nuse crate::store::S;"),
            ("step.rs", "#[cfg(test)]\nmod tests {\n    #[test]\n    fn f() {}\n}\n"),
            ("store/mod.rs", ""),
        ]));
        let arrow = |name| cells(&report, "upward arrows", name);
        assert_eq!(arrow("recall -> sequence"), ["2"]);
        assert_eq!(arrow("layout -> recall"), ["1"]);
        assert_eq!(arrow("all"), ["4"]);
        assert!(report.contains("(6 of 6 files are in a room)"), "{report}");
        assert_eq!(cells(&report, "circles", "crates/scheduler"), ["1", "2", "6", "2"]);
        assert_eq!(cells(&report, "unit tests", "sequence"), ["1"]);
        assert_eq!(cells(&report, "lines of Rust", "all"), ["15", "10", "5"]);
    }

    #[test]
    fn options_are_counted_in_structs_and_in_what_variants_hold() {
        let report = report(&repo(&[
            ("lib.rs", ""),
            ("a.rs", "struct Layer<B> { a: Option<B>, pub(crate) b: Vec<Option<u8>>, c: u8 }"),
            (
                "b.rs",
                "enum LayerState { Dense, Recall(a::Recall<B>), Kept(Box<KeptState>), \
                 X(Option<u8>), Y { #[x] a: Vec<(u8, u8)>, b: Option<u8> } }",
            ),
            (
                "c.rs",
                "struct Kept { a: Option<u8>, b: Option<u8> }\nstruct Recall<F: Fn(u8)> { c: F }\n\
                 struct KeptState(pub(super) Kept);",
            ),
            ("d.rs", "pub struct Sequence<B: Backend> { a: Option<B> }\nstruct Unit;"),
        ]));
        let options = |name| cells(&report, "`Option` fields", name);
        assert_eq!(options("Layer "), ["1", "3"]);
        assert_eq!(options("LayerState"), ["2", "5"]);
        assert_eq!(options("KeptState"), ["0", "1"]);
        assert_eq!(options("Kept "), ["2", "2"]);
        assert_eq!(options("Recall"), ["0", "1"]);
        assert_eq!(options("Sequence"), ["1", "1"]);
    }

    #[test]
    fn functions_and_expects_are_counted_outside_of_tests() {
        let text = "fn a() {\n    x.expect(\"so\");\n}\nfn b() {}\n#[expect(y)]\n\
                    #[cfg(test)]\nmod tests {\n    fn c() {\n\n\n    x.expect(\"so\");\n    }\n}\n";
        let report = report(&repo(&[("lib.rs", text)]));
        let longest = ["`c`", "in", "crates/scheduler/src/lib.rs"];
        let all = cells(&report, "functions", "all");
        assert_eq!(
            (&all[..5], &all[5..]),
            (&["3", "3", "5", "5", "5"].map(String::from)[..], &longest.map(String::from)[..])
        );
        assert_eq!(cells(&report, "functions", "product")[..4], ["2", "1", "3", "3"]);
        assert_eq!(cells(&report, "`.expect(`", "all"), ["1"]);
    }
}
