//! Lines of the parsers that the committed corpora and the unit tests reach, by the compiler's own
//! counters.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{capture, cargo, root, run as run_child, target_directory};
use crate::setup::{self, Source, Tool};

/// What reads the files of strangers. Modules of tests are left out.
const PARSERS: &[&str] = &[
    "crates/model/src/gguf/",
    "crates/model/src/weights/shard.rs",
    "crates/model/src/weights/set.rs",
    "crates/model/src/config.rs",
    "crates/model/src/config/",
    "crates/model/src/generation.rs",
    "crates/model/src/json.rs",
    "crates/model/src/tokenizer/",
    "crates/model/src/chat.rs",
    "crates/model/src/chat/",
    "crates/scheduler/src/session_file/",
];

/// The packages whose tests reach them.
const TESTS: &str = "test --package longview-model --package longview-scheduler \
                     --package longview-fuzz --tests --no-run --message-format json";

/// A package of which only these tests read files: all of them take many minutes with counters.
const SOME: (&str, &str) = ("scheduler", "session_file");

/// Lines of a file, and those that were reached.
#[derive(Debug, PartialEq)]
struct Lines {
    file: String,
    all: u64,
    reached: u64,
}

impl Lines {
    fn percent(&self) -> f64 {
        100.0 * self.reached as f64 / self.all.max(1) as f64
    }
}

/// Runs the tests with counters, and prints a line for each file.
pub(super) fn report() -> Result<()> {
    let tools = tools()?;
    let folder = target_directory()?.join("coverage");
    let profiles = folder.join("profiles");
    let _ = fs::remove_dir_all(&profiles);
    let wrapper = wrapper(&folder)?;
    let with_counters = |command: &mut Command| {
        command.env("RUSTC_WORKSPACE_WRAPPER", &wrapper);
        command.env("LLVM_PROFILE_FILE", profiles.join("%m-%p.profraw"));
    };
    let mut build = cargo(TESTS);
    with_counters(&mut build);
    let programs = programs(&capture(&mut build)?);
    for program in &programs {
        let mut command = program.command();
        with_counters(&mut command);
        run_child(&mut command)?;
    }
    let merged = folder.join("all.profdata");
    let mut merge = Command::new(tools.join("llvm-profdata"));
    run_child(merge.args(["merge", "-sparse", "-o"]).arg(&merged).arg(&profiles))?;
    let mut export = Command::new(tools.join("llvm-cov"));
    export.args(["export", "--format=lcov", "--instr-profile"]).arg(&merged);
    for program in &programs {
        export.arg("--object").arg(&program.path);
    }
    print(&parsers(&capture(&mut export)?)?);
    Ok(())
}

/// A compiler that adds counters. Cargo calls it for the crates of the workspace alone, and keeps
/// what it makes apart, so that everything else is built once for this and for tests.
fn wrapper(folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let path = folder.join("rustc-with-counters.sh");
    fs::write(&path, "#!/bin/sh\nexec \"$@\" -Cinstrument-coverage\n")?;
    run_child(Command::new("chmod").arg("+x").arg(&path))?;
    Ok(path)
}

/// Where the toolchain has LLVM's programs, asked for where they are missing.
fn tools() -> Result<PathBuf> {
    let libraries = capture(Command::new("rustc").args(["--print", "target-libdir"]))?;
    let folder = Path::new(libraries.trim()).with_file_name("bin");
    let program = folder.join("llvm-cov").display().to_string();
    // A tool names its probe for as long as the program runs, and this is one string a run.
    let probe = vec![&*program.leak(), "--version"].leak();
    setup::require(&[Tool { name: "llvm-cov", probe, source: Source::Component("llvm-tools") }])?;
    Ok(folder)
}

/// A program of tests.
#[derive(Debug, PartialEq)]
struct Program {
    path: PathBuf,
    /// The folder of its package, where cargo runs it.
    package: PathBuf,
}

impl Program {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.package).arg("--quiet");
        if self.package.ends_with(SOME.0) {
            command.arg(SOME.1);
        }
        command
    }
}

/// The programs of tests that cargo built.
fn programs(messages: &str) -> Vec<Program> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let program = |message: Value| {
        // A program that tests call is built beside them.
        message["profile"]["test"].as_bool().filter(|is_test| *is_test)?;
        let path = PathBuf::from(message["executable"].as_str()?);
        let package = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        Some(Program { path, package })
    };
    messages.filter_map(program).collect()
}

/// The parsers among the files of a report in the format of lcov.
fn parsers(report: &str) -> Result<Vec<Lines>> {
    let mut found = Vec::new();
    for part in report.split("end_of_record") {
        let Some(path) = part.lines().find_map(|line| line.strip_prefix("SF:")) else { continue };
        if let Some(file) = parser(path) {
            let source = fs::read_to_string(path).with_context(|| file.clone())?;
            found.push(lines(file, &source, part));
        }
    }
    found.sort_by(|a, b| a.file.cmp(&b.file));
    if found.is_empty() {
        bail!("no parser is in the report: were they moved?");
    }
    Ok(found)
}

/// The path from the root, if a parser lies there and not its tests.
fn parser(path: &str) -> Option<String> {
    let path = Path::new(path).strip_prefix(root()).ok()?.to_str()?;
    let is_test = path.contains("/tests") || path.ends_with("gguf/writer.rs");
    let is_parser = PARSERS.iter().any(|parser| path.starts_with(parser));
    (is_parser && !is_test).then(|| path.to_owned())
}

/// Counts the lines of `DA:line,count`, up to the tests at the end of the file.
fn lines(file: String, source: &str, part: &str) -> Lines {
    let tests =
        source.lines().position(|line| line == "mod tests {" || line == "pub(super) mod tests {");
    let end = tests.unwrap_or(usize::MAX);
    let counts = part.lines().filter_map(|line| {
        let (at, count) = line.strip_prefix("DA:")?.split_once(',')?;
        let at: usize = at.parse().ok()?;
        (at <= end).then_some(count != "0")
    });
    let counts: Vec<bool> = counts.collect();
    let reached = counts.iter().filter(|count| **count).count() as u64;
    Lines { file, all: counts.len() as u64, reached }
}

fn print(lines: &[Lines]) {
    println!("\n{:<52} {:>6} {:>8} {:>8}", "file", "lines", "reached", "percent");
    let sum = |of: fn(&Lines) -> u64| lines.iter().map(of).sum();
    let all = Lines { file: "together".into(), all: sum(|l| l.all), reached: sum(|l| l.reached) };
    for one in lines.iter().chain([&all]) {
        println!("{:<52} {:>6} {:>8} {:>8.1}", one.file, one.all, one.reached, one.percent());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_parser_is_there() {
        for parser in PARSERS {
            assert!(root().join(parser).exists(), "{parser}");
        }
    }

    #[test]
    fn parsers_are_found_in_a_report() {
        let part = |name: &str| {
            format!("SF:{}\nDA:1,5\nDA:2,0\nend_of_record\n", root().join(name).display())
        };
        let [reader, tests, rope] = ["gguf/reader.rs", "gguf/tests.rs", "rope.rs"]
            .map(|name| part(&format!("crates/model/src/{name}")));
        let found = parsers(&[reader, tests, rope].concat()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].all, found[0].reached, found[0].percent()), (2, 1, 50.0));
        assert!(parsers("").is_err());
    }

    #[test]
    fn lines_of_tests_do_not_count() {
        let source = "fn a() {\n}\n#[cfg(test)]\nmod tests {\n}\n";
        let found = lines("a.rs".to_owned(), source, "DA:1,1\nDA:2,0\nDA:5,7");
        assert_eq!((found.all, found.reached), (2, 1));
    }

    #[test]
    fn programs_are_those_that_run() {
        let message = |path: &str, is_test: bool| {
            let manifest = "/x/scheduler/Cargo.toml";
            let profile = json!({"test": is_test});
            json!({"executable": path, "manifest_path": manifest, "profile": profile}).to_string()
        };
        let lines = [&message("/a/b", true), "warning", &message("/a/c", false)];
        let found = programs(&lines.join("\n"));
        assert_eq!(found, [Program { path: "/a/b".into(), package: "/x/scheduler".into() }]);
        let command = found[0].command();
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["--quiet", "session_file"]);
        assert!(root().join("crates").join(SOME.0).join("src").join(SOME.1).is_dir());
    }
}
