//! Which module of a crate imports which, and where that runs in a circle.
//!
//! A module is a file, and an import is a path that leads into another file of the same target
//! (library, binary, test): `use crate::..`, `use super::..`, and such paths in code. A path is
//! followed down the modules as far as they go: `crate::a::b::C` is an import of `a::b`,
//! and of nothing else. Where it ends in a file is all that counts, not who defines the name there:
//! `crate::C` is an import of `lib.rs`, and `super::C` one of the parent, whether `C` is defined or
//! only re-exported there.
//!
//! Parent and child:
//!
//! - `mod a;` alone is no import. A parent may hold what its children share, and they import it
//!   (`super::C`), as long as the parent names nothing of theirs.
//! - A re-export (`pub use a::C`) and any other path of the parent into a child is an import. A
//!   parent may re-export its children or use them, as long as they import nothing that ends in the
//!   parent's file: neither its own items nor what it re-exports. They name a sibling by the
//!   sibling's path (`super::b::C`), which is no import of the parent.
//!
//! So a folder has either a `mod.rs` of what is common, below its children, or one that is a front,
//! above them; both at once is a circle.
//!
//! Test code is left out: the rule is about how the product can be read and changed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::files::Repo;
use super::paths::{Named, Path};

/// Circles shown in full, the shortest first, unless all are asked for.
const SHOWN: usize = 12;

/// Names shown for one import.
const SHOWN_NAMES: usize = 4;

type Names = BTreeSet<String>;

/// The imports between the files of one target.
pub(crate) struct Graph {
    /// The package's folder, without a slash at its end.
    pub(crate) package: String,
    /// Files by the path from the root.
    pub(crate) files: BTreeSet<String>,
    /// Who imports what from whom.
    pub(crate) imports: BTreeMap<(String, String), Names>,
}

/// Modules that all reach each other.
pub(crate) struct Knot<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) files: BTreeSet<&'a str>,
}

/// One problem for each knot of modules, in every target of every package.
pub(crate) fn circles(repo: &Repo, show_all: bool) -> Vec<String> {
    let graphs = graphs(repo);
    let told: Vec<_> =
        graphs.iter().flat_map(Graph::knots).map(|knot| knot.told(show_all)).collect();
    // Test targets share modules: a knot in one of them is one problem.
    let mut seen = BTreeSet::new();
    told.into_iter().filter(|text| seen.insert(text.clone())).collect()
}

/// The graphs of all targets of all packages.
pub(crate) fn graphs(repo: &Repo) -> Vec<Graph> {
    let files: BTreeMap<_, _> =
        repo.files.iter().map(|file| (file.path.as_str(), file.text.as_str())).collect();
    let mut folders: Vec<_> = repo.packages().map(|(_, folder)| folder).collect();
    folders.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
    let mut found = Vec::new();
    for path in files.keys() {
        let package = folders.iter().find(|folder| path.starts_with(**folder));
        if let Some(package) = package
            && is_target_root(&path[package.len()..])
        {
            found.push(Graph::of(package, path, &files));
        }
    }
    found.sort_by(|a, b| a.package.cmp(&b.package));
    found
}

/// Whether cargo makes a target of a file; the path starts in the package's folder.
fn is_target_root(path: &str) -> bool {
    let parts: Vec<_> = path.split('/').collect();
    match parts[..] {
        ["build.rs"] | ["src", "lib.rs" | "main.rs"] => true,
        ["src", "bin", name] | ["tests" | "benches" | "examples", name] => name.ends_with(".rs"),
        ["src", "bin", _, name] | ["tests" | "benches" | "examples", _, name] => name == "main.rs",
        _ => false,
    }
}

/// The modules of a target: path from its root, and file.
type Modules = BTreeMap<Vec<String>, String>;

impl Graph {
    /// The target whose root is the file `root`.
    fn of(package: &str, root: &str, files: &BTreeMap<&str, &str>) -> Self {
        let mut modules = Modules::from([(vec![], root.to_owned())]);
        let mut named = Vec::new();
        let mut queue = VecDeque::from([(Vec::new(), root.to_owned())]);
        while let Some((path, file)) = queue.pop_front() {
            let Some(text) = files.get(file.as_str()) else { continue };
            let found = Named::of(text);
            for declared in &found.declared {
                let below = [&declared.inside[..], std::slice::from_ref(&declared.name)].concat();
                let child = [&path[..], &below].concat();
                if declared.is_inline {
                    modules.insert(child, file.clone());
                } else if let Some(place) = file_of(&file, path.is_empty(), &below, files) {
                    modules.insert(child.clone(), place.clone());
                    queue.push_back((child, place));
                }
            }
            named.push((path, file, found));
        }
        let mut graph = Self {
            package: package.trim_end_matches('/').to_owned(),
            files: modules.values().cloned().collect(),
            imports: BTreeMap::new(),
        };
        for (module, file, found) in &named {
            graph.add_imports(&modules, module, file, found);
        }
        graph
    }

    fn add_imports(&mut self, modules: &Modules, module: &[String], file: &str, named: &Named) {
        let mut aliases = BTreeMap::new();
        // A `use` may name what another one of the file brought in.
        for _ in 0..2 {
            for path in named.paths.iter().filter(|path| path.alias.is_some()) {
                let here = [module, &path.inside].concat();
                if let Some((target, [])) = resolve(modules, &here, path, &aliases) {
                    aliases.insert((here, path.alias.clone().unwrap_or_default()), target);
                }
            }
        }
        for path in &named.paths {
            let here = [module, &path.inside].concat();
            let Some((target, rest)) = resolve(modules, &here, path, &aliases) else { continue };
            let target_file = &modules[&target];
            if target_file != file {
                let name = rest.first().cloned().unwrap_or_else(|| "the module".into());
                let names = self.imports.entry((file.to_owned(), target_file.clone()));
                names.or_default().insert(name);
            }
        }
    }

    /// Sets of more than one module that all reach each other, the largest first.
    pub(crate) fn knots(&self) -> Vec<Knot<'_>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.files.iter().map(|file| (file.as_str(), self.reached_from(file))).collect();
        let mut knots = Vec::new();
        let mut taken = BTreeSet::new();
        for (file, others) in &reached {
            let mutual = others.iter().filter(|other| reached[*other].contains(file));
            let files: BTreeSet<_> = mutual.copied().collect();
            if files.len() > 1 && !taken.contains(file) {
                taken.extend(files.iter().copied());
                knots.push(Knot { graph: self, files });
            }
        }
        knots.sort_by_key(|knot| std::cmp::Reverse(knot.files.len()));
        knots
    }

    fn imported_by<'a>(&'a self, file: &str) -> impl Iterator<Item = &'a str> {
        let imports = self.imports.keys().filter(move |(from, _)| from == file);
        imports.map(|(_, to)| to.as_str())
    }

    fn reached_from(&self, file: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut queue: Vec<&str> = self.imported_by(file).collect();
        while let Some(next) = queue.pop() {
            if reached.insert(next) {
                queue.extend(self.imported_by(next));
            }
        }
        reached
    }
}

impl<'a> Knot<'a> {
    /// What to print: its size, and circles in it with the names that close them.
    fn told(&self, show_all: bool) -> String {
        let n_imports = self.imports().count();
        let mut text = format!(
            "{}: {} modules import each other in a circle, by {n_imports} imports",
            self.graph.package,
            self.files.len()
        );
        let circles = self.short_circles();
        let shown = if show_all { circles.len() } else { SHOWN };
        for circle in circles.iter().take(shown) {
            text += &format!("\n    {}", self.line(circle));
        }
        if circles.len() > shown {
            let more = circles.len() - shown;
            text += &format!("\n    and {more} more, each the shortest for an import: --all");
        }
        if show_all && self.files.len() > 2 {
            text += "\n    all imports of the circle:";
            for ((from, to), names) in self.imports() {
                text +=
                    &format!("\n    {} -> {}: {}", self.short(from), self.short(to), some(names));
            }
        }
        text
    }

    fn imports(&self) -> impl Iterator<Item = (&(String, String), &Names)> {
        let is_inside = |(from, to): &(String, String)| {
            [from, to].iter().all(|f| self.files.contains(f.as_str()))
        };
        self.graph.imports.iter().filter(move |(ends, _)| is_inside(ends))
    }

    /// For each import of the knot the shortest circle that goes through it, without repetition.
    fn short_circles(&self) -> Vec<Vec<&'a str>> {
        let mut found = BTreeSet::new();
        for (from, to) in self.graph.imports.keys() {
            if self.files.contains(from.as_str())
                && let Some(mut circle) = self.way(to, from)
            {
                // The same circle begins at the same file, whichever import led to it.
                let first = (0..circle.len()).min_by_key(|i| circle[*i]).unwrap_or(0);
                circle.rotate_left(first);
                found.insert((circle.len(), circle));
            }
        }
        found.into_iter().map(|(_, circle)| circle).collect()
    }

    /// The files on the shortest way, both ends included.
    fn way(&self, from: &str, to: &str) -> Option<Vec<&'a str>> {
        let from = *self.files.get(from)?;
        let mut came_from = BTreeMap::from([(from, None)]);
        let mut queue = VecDeque::from([from]);
        while let Some(file) = queue.pop_front() {
            if file == to {
                let back = std::iter::successors(Some(file), |file| came_from[file]);
                let mut way: Vec<_> = back.collect();
                way.reverse();
                return Some(way);
            }
            for next in self.graph.imported_by(file).filter(|next| self.files.contains(next)) {
                if !came_from.contains_key(next) {
                    came_from.insert(next, Some(file));
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// `a.rs -(Name)-> b.rs -(Other)-> a.rs`.
    fn line(&self, circle: &[&str]) -> String {
        let mut text = self.short(circle[0]).to_owned();
        for (i, from) in circle.iter().enumerate() {
            let to = circle[(i + 1) % circle.len()];
            let names = &self.graph.imports[&((*from).to_owned(), to.to_owned())];
            text += &format!(" -({})-> {}", some(names), self.short(to));
        }
        text
    }

    /// The path from the package's sources.
    fn short<'b>(&self, file: &'b str) -> &'b str {
        let inside = file.strip_prefix(&self.graph.package).unwrap_or(file);
        let inside = inside.trim_start_matches('/');
        inside.strip_prefix("src/").unwrap_or(inside)
    }
}

fn some(names: &Names) -> String {
    let mut text = names.iter().take(SHOWN_NAMES).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN_NAMES {
        text += &format!(" and {} more", names.len() - SHOWN_NAMES);
    }
    text
}

/// The file of the module that `below` names, declared in `parent`.
fn file_of(
    parent: &str,
    is_root: bool,
    below: &[String],
    files: &BTreeMap<&str, &str>,
) -> Option<String> {
    let (folder, name) = parent.rsplit_once('/').map_or(("", parent), |(f, name)| (f, name));
    let stem = name.strip_suffix(".rs")?;
    let folder =
        if is_root || stem == "mod" { folder.to_owned() } else { format!("{folder}/{stem}") };
    let base = format!("{folder}/{}", below.join("/"));
    let places = [format!("{base}.rs"), format!("{base}/mod.rs")];
    places.into_iter().find(|place| files.contains_key(place.as_str()))
}

/// Modules that names of `use`s stand for, by where the `use` is and the name.
type Aliases = BTreeMap<(Vec<String>, String), Vec<String>>;

/// The module that a path leads to, and what is left of the path; `None` outside of the crate.
fn resolve<'a>(
    modules: &Modules,
    here: &[String],
    path: &'a Path,
    aliases: &Aliases,
) -> Option<(Vec<String>, &'a [String])> {
    let (first, mut rest) = path.segments.split_first()?;
    let mut module = match first.as_str() {
        "crate" => vec![],
        "self" => here.to_vec(),
        "super" => here[..here.len().checked_sub(1)?].to_vec(),
        name => {
            let child = [here, &[name.to_owned()]].concat();
            let alias = aliases.get(&(here.to_vec(), name.to_owned()));
            if modules.contains_key(&child) { child } else { alias?.clone() }
        }
    };
    while let Some((next, after)) = rest.split_first() {
        let child = [&module[..], std::slice::from_ref(next)].concat();
        if next == "super" {
            module.pop()?;
        } else if modules.contains_key(&child) {
            module = child;
        } else {
            break;
        }
        rest = after;
    }
    modules.contains_key(&module).then_some((module, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::snippet;

    /// A package `crates/a` with these sources.
    fn package(sources: &[(&str, &str)]) -> Repo {
        let manifest = snippet("crates/a/Cargo.toml", "[package]\nname = \"a\"\n");
        let sources = sources.iter().map(|(path, text)| snippet(&format!("crates/a/{path}"), text));
        Repo::of([manifest].into_iter().chain(sources).collect())
    }

    /// Imports of the first target, shortly.
    fn imports(sources: &[(&str, &str)]) -> Vec<String> {
        let graphs = graphs(&package(sources));
        let knot = Knot { graph: &graphs[0], files: BTreeSet::new() };
        let told = |((from, to), names): (&(String, String), &Names)| {
            format!("{} -> {}: {}", knot.short(from), knot.short(to), some(names))
        };
        graphs[0].imports.iter().map(told).collect()
    }

    fn circles_of(sources: &[(&str, &str)]) -> Vec<String> {
        circles(&package(sources), false)
    }

    #[test]
    fn a_path_is_an_import_of_the_module_that_it_leads_to() {
        let found = imports(&[
            ("src/lib.rs", "mod a;\nmod b;\npub use b::C;"),
            ("src/a.rs", "mod d;\nuse crate::b::{C, e::F};\nfn f() { d::g(); crate::C::new(); }"),
            ("src/a/d.rs", "use super::super::b;\nfn g() { b::e::h(); super::f(); }"),
            ("src/b/mod.rs", "pub mod e;\npub struct C;"),
            ("src/b/e.rs", "use self::inner::X;\nmod inner { use super::super::C; }"),
        ]);
        assert_eq!(
            found,
            [
                "a.rs -> a/d.rs: g",
                "a.rs -> b/e.rs: F",
                "a.rs -> b/mod.rs: C",
                "a.rs -> lib.rs: C",
                "a/d.rs -> a.rs: f",
                "a/d.rs -> b/e.rs: h",
                "a/d.rs -> b/mod.rs: the module",
                "b/e.rs -> b/mod.rs: C",
                "lib.rs -> b/mod.rs: C",
            ]
        );
    }

    #[test]
    fn names_from_elsewhere_are_no_imports() {
        let found = imports(&[
            ("src/lib.rs", "mod a;\nmod b;\nuse std::fmt;\nfn f() { fmt::x(); other::b::y(); }"),
            ("src/a.rs", "//! [`crate::b::C`]\n#[cfg(test)]\nmod tests { use crate::b::C; }"),
            ("src/b.rs", "pub(in crate::a) fn f() { \"crate::a::X\"; /* crate::a::Y */ }"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_front_above_its_children_is_no_circle() {
        let front = "mod a;\nmod b;\npub use a::A;\npub use b::B;";
        let sources = |b| [("src/lib.rs", front), ("src/a.rs", "pub struct A;"), ("src/b.rs", b)];
        assert!(circles_of(&sources("use super::a::A;")).is_empty());
        assert!(circles_of(&sources("use crate::a::A;")).is_empty());
        let expected = "crates/a: 2 modules import each other in a circle, by 2 imports\n    \
                        b.rs -(A)-> lib.rs -(B)-> b.rs";
        assert_eq!(circles_of(&sources("use super::A;")), [expected]);
        assert_eq!(circles_of(&sources("use crate::A;")), [expected]);
        assert_eq!(circles_of(&sources("use super::*;")).len(), 1);
    }

    #[test]
    fn a_parent_below_its_children_is_no_circle() {
        let common = |own| [("src/lib.rs", own), ("src/a.rs", "use super::Common;\npub struct A;")];
        assert!(circles_of(&common("mod a;\npub struct Common;")).is_empty());
        assert_eq!(circles_of(&common("mod a;\npub struct Common;\nfn f() -> a::A {}")).len(), 1);
    }

    #[test]
    fn a_planted_circle_is_found_and_its_shortest_ways_are_shown() {
        let sources = |c| {
            [
                ("src/main.rs", "mod a;\nmod b;\nmod c;\nfn main() { a::run(); }"),
                ("src/a.rs", "use crate::b::{B, f};"),
                ("src/b.rs", "use crate::c::C;"),
                ("src/c.rs", c),
            ]
        };
        assert!(circles_of(&sources("pub struct C;")).is_empty());
        let expected = "crates/a: 3 modules import each other in a circle, by 3 imports\n    \
                        a.rs -(B, f)-> b.rs -(C)-> c.rs -(A)-> a.rs";
        assert_eq!(circles_of(&sources("use crate::a::A;")), [expected]);
        let all = circles(&package(&sources("use crate::a::A;")), true);
        assert!(
            all[0].ends_with(
                "all imports of the circle:\n    a.rs -> b.rs: B, f\n    \
                                  b.rs -> c.rs: C\n    c.rs -> a.rs: A"
            ),
            "{}",
            all[0]
        );
    }

    #[test]
    fn tests_and_binaries_are_targets_and_share_what_is_reported() {
        let circle = [
            ("tests/common/mod.rs", "mod x;\npub use x::X;"),
            ("tests/common/x.rs", "use super::X;"),
        ];
        let mut sources = vec![
            ("tests/one.rs", "mod common;"),
            ("tests/two/main.rs", "mod y;"),
            ("tests/two/y.rs", ""),
            ("src/bin/tool.rs", ""),
            ("tests/common/other.rs", ""),
        ];
        sources.extend(circle);
        assert_eq!(graphs(&package(&sources)).len(), 3);
        assert_eq!(circles_of(&sources).len(), 1);
        sources.push(("tests/three.rs", "mod common;"));
        assert_eq!(circles_of(&sources).len(), 1);
    }
}
