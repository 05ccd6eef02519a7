//! Rules on sources: lengths, module docs, where `unsafe` may be.

use super::files::{File, Kind, Repo};
use super::scan::{Scan, words};

/// Beyond this a file has more than one subject.
const MAX_FILE_LINES: usize = 800;

/// Two panes side by side.
const MAX_COLUMNS: usize = 100;

/// A function that is read in one go.
const LONG_FUNCTION: usize = 70;

/// No function is longer.
const MAX_FUNCTION: usize = 120;

/// The same for a kernel, where a phase often cannot become a function (see [`super::kernels`]).
pub(crate) const MAX_KERNEL: usize = 200;

/// Share of functions that may be longer than [`LONG_FUNCTION`], in per cent.
const MAX_LONG_PERCENT: usize = 2;

/// Files whose long lines are right, with the reason.
const WIDE_FILES: &[(&str, &str)] =
    &[("tests/fixtures/make_tokenizers.py", "chat templates are quoted as models ship them")];

/// Where `unsafe` may be, with the reason. A prefix that ends in a slash is a folder.
const UNSAFE_MODULES: &[(&str, &str)] = &[
    ("crates/cli/src/device.rs", "an environment variable, set before there are threads"),
    ("crates/cpu/src/buffer.rs", "typed views of aligned bytes, and slices cut for threads"),
    ("crates/cpu/src/huge_pages.rs", "advice to the system about memory"),
    ("crates/cpu/src/kernels/", "raw pointers in inner loops"),
    ("crates/cpu/src/pages.rs", "maps pages that buffers share until one of them writes"),
    ("crates/cpu/src/pool.rs", "hands a borrowed closure to threads that outlive the borrow"),
    ("crates/cpu/src/simd/", "intrinsics"),
    ("crates/cpu/src/supported_isa.rs", "calls into code compiled for a detected instruction set"),
    ("crates/cpu/src/team.rs", "disjoint parts of one slice for several threads"),
    ("crates/cpu/tests/allocations.rs", "an allocator that counts"),
    ("crates/cuda/src/driver.rs", "a launch promises what its addresses point to"),
    ("crates/cuda/src/graphs.rs", "launches of what was promised when it was given"),
    ("crates/cuda/src/nvidia.rs", "calls into the CUDA driver"),
    ("crates/cuda/src/nvidia/context.rs", "calls into the CUDA driver"),
    ("crates/cuda/src/nvidia/cublaslt.rs", "calls into cuBLASLt"),
    ("crates/cuda/src/nvidia/lt_functions.rs", "the addresses of cuBLASLt's functions"),
    ("crates/cuda/src/nvidia/zeros.rs", "reads in a test what was written at its begin"),
    ("crates/cuda/src/probe.rs", "questions to the CUDA driver, and libraries loaded to be seen"),
    ("crates/cuda/src/queue.rs", "launches of kernels"),
    ("crates/cuda/src/staging.rs", "copies between memories that outlive them"),
    ("crates/cuda/src/stream.rs", "hands over what was promised when it was given"),
    ("crates/model/src/weights/shard.rs", "memory-mapped weights"),
    ("crates/wgpu/src/memory.rs", "a question to the Vulkan driver"),
    ("crates/wgpu/src/gpu.rs", "shader modules without bounding of loops"),
    ("crates/wgpu/src/pipeline_file.rs", "what a driver compiled, given back to it"),
    ("crates/wgpu/src/testing.rs", "an environment variable, set before a driver is loaded"),
    ("crates/wgpu/tests/common/mod.rs", "an environment variable, set before a driver is loaded"),
    ("tests/fuzz/src/memory.rs", "an allocator that refuses"),
    ("tests/src/backends.rs", "a launch that is meant to fault"),
    ("tests/cuda-emulation/src/", "kernels compiled as C++, and the memory that they get"),
    ("tests/cuda-emulation/tests/backend.rs", "copies between memories that outlive them"),
    ("tests/tests/no_alloc.rs", "an allocator that counts"),
    ("xtask/src/kernels/nvrtc.rs", "calls into the compiler of kernels"),
];

/// Longer than [`MAX_FILE_LINES`].
pub(crate) fn long_file(file: &File) -> Vec<String> {
    let n = file.text.lines().count();
    if n <= MAX_FILE_LINES {
        return vec![];
    }
    let message = format!("{n} lines, over {MAX_FILE_LINES}: split it by subject");
    vec![file.problem(n - 1, &message)]
}

/// Lines over [`MAX_COLUMNS`], but not those that hold a URL, and not those that are only too long
/// for a literal: a message or a datum that is broken up can no longer be searched for.
pub(crate) fn long_lines(file: &File) -> Vec<String> {
    if WIDE_FILES.iter().any(|(path, _)| *path == file.path) {
        return vec![];
    }
    let reads_as_rust = matches!(file.kind(), Kind::Rust | Kind::Shader | Kind::Cpp);
    let scan = if reads_as_rust { Scan::of(&file.text) } else { Scan::of("") };
    let (mut code, mut comments) = (scan.code.lines(), scan.comments.lines());
    let mut problems = Vec::new();
    for (i, line) in file.text.lines().enumerate() {
        let (code, comment) = (code.next().unwrap_or(line), comments.next().unwrap_or_default());
        let n = line.chars().count();
        let is_long_literal = comment.is_empty() && code.chars().count() <= MAX_COLUMNS;
        if n > MAX_COLUMNS && !line.contains("://") && !is_long_literal {
            problems.push(file.problem(i, &format!("{n} columns, over {MAX_COLUMNS}")));
        }
    }
    problems
}

/// Functions over [`MAX_FUNCTION`], or too many over [`LONG_FUNCTION`].
pub(crate) fn long_functions<'a>(files: impl Iterator<Item = &'a File>) -> Vec<String> {
    let (mut n_functions, mut long, mut too_long) = (0, vec![], vec![]);
    for file in files {
        for function in Scan::of(&file.text).functions() {
            n_functions += 1;
            let message = format!("`{}` has {} lines", function.name, function.n_lines);
            if function.n_lines > LONG_FUNCTION {
                long.push(file.problem(function.line, &message));
            }
            let most = if file.path.ends_with(".wgsl") { MAX_KERNEL } else { MAX_FUNCTION };
            if function.n_lines > most {
                let message = format!("{message}, over {most}: keep the control flow here");
                too_long.push(file.problem(function.line, &message));
            }
        }
    }
    if long.len() * 100 > n_functions * MAX_LONG_PERCENT {
        let share = format!("{} of {n_functions} functions", long.len());
        long.push(format!("{share} are over {LONG_FUNCTION} lines, over {MAX_LONG_PERCENT} %"));
        too_long.extend(long);
    }
    too_long
}

/// A file that does not begin by saying what it is for.
pub(crate) fn no_module_doc(file: &File) -> Vec<String> {
    if file.text.starts_with("//! ") {
        return vec![];
    }
    vec![file.problem(0, "begin with `//!`: what is this module for, and what does it trade?")]
}

/// A kernel that does not begin with a comment.
pub(crate) fn no_head_comment(file: &File) -> Vec<String> {
    if file.text.starts_with("// ") {
        return vec![];
    }
    vec![file.problem(0, "begin with `//`: what is computed, who owns what, what bounds it?")]
}

/// `unsafe` outside [`UNSAFE_MODULES`], or without a word on why it holds.
pub(crate) fn stray_unsafe(file: &File) -> Vec<String> {
    let scan = Scan::of(&file.text);
    let found: Vec<usize> = words(&scan.code, "unsafe");
    let lines: Vec<_> = found.iter().map(|at| super::scan::line_of(&scan.code, *at)).collect();
    if let Some(line) = lines.first()
        && !UNSAFE_MODULES.iter().any(|(prefix, _)| is_under(&file.path, prefix))
    {
        let message = "`unsafe` outside the modules for it: write it safely, or list the module \
                       with its reason in UNSAFE_MODULES of xtask/src/tidy/sources.rs";
        return vec![file.problem(*line, message)];
    }
    let mut problems = Vec::new();
    for (at, line) in found.iter().zip(lines) {
        let next = scan.code[at + "unsafe".len()..].trim_start();
        let claims = next.starts_with('{') || next.starts_with("impl");
        if claims && !is_explained(&scan, line) {
            problems.push(file.problem(line, "say above it why it holds: `// SAFETY: ..`"));
        }
    }
    problems
}

/// Entries of [`UNSAFE_MODULES`] where there is no `unsafe` any more.
pub(crate) fn stale_unsafe_list(repo: &Repo) -> Vec<String> {
    let has_unsafe = |prefix: &str| {
        let mut own = repo.files.iter().filter(|file| is_under(&file.path, prefix));
        own.any(|file| !words(&Scan::of(&file.text).code, "unsafe").is_empty())
    };
    let stale = UNSAFE_MODULES.iter().filter(|(prefix, _)| !has_unsafe(prefix));
    stale.map(|(prefix, _)| format!("{prefix} has no `unsafe`: take it off the list")).collect()
}

fn is_under(path: &str, prefix: &str) -> bool {
    if prefix.ends_with('/') { path.starts_with(prefix) } else { path == prefix }
}

/// Whether the comment above the statement that `line` belongs to holds a safety argument.
fn is_explained(scan: &Scan, line: usize) -> bool {
    let code: Vec<_> = scan.code.split('\n').collect();
    let comments: Vec<_> = scan.comments.split('\n').collect();
    let mut at = line;
    // Up to the comment: over attributes and the statement's own first lines.
    while comments[at].is_empty() {
        if at == 0 || at < line && code[at].trim_end().ends_with([';', '{', '}']) {
            return false;
        }
        at -= 1;
    }
    let mut above = comments[..=at].iter().rev().take_while(|comment| !comment.is_empty());
    above.any(|comment| comment.contains("SAFETY:"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::snippet;

    #[test]
    fn only_long_files_are_long() {
        assert!(long_file(&snippet("a.rs", &"x\n".repeat(800))).is_empty());
        let expected = ["a.rs:801: 801 lines, over 800: split it by subject"];
        assert_eq!(long_file(&snippet("a.rs", &"x\n".repeat(801))), expected);
    }

    #[test]
    fn a_line_is_long_unless_a_url_or_a_literal_makes_it_so() {
        let long = "word ".repeat(21);
        let reports = |path, text: &str| !long_lines(&snippet(path, text)).is_empty();
        assert!(reports("a.rs", &format!("let x = {long};")));
        assert!(reports("a.rs", &format!("// {long}")));
        assert!(reports("a.rs", &format!("let x = \"{long}\"; // {long}")));
        assert!(reports("a.py", &long));
        assert!(!reports("a.rs", &format!("    \"{long}\",")));
        assert!(!reports("a.rs", &format!("\"\n{long}\n\"")));
        assert!(!reports("a.rs", &format!("// https://example.org/ {long}")));
        assert!(!reports("a.rs", &"é".repeat(100)));
        assert!(!reports(WIDE_FILES[0].0, &long));
    }

    #[test]
    fn long_functions_are_counted_and_very_long_ones_named() {
        let function = |n: usize| format!("fn f() {{\n{}}}\n", "x;\n".repeat(n - 2));
        let check = |lengths: &[usize]| {
            let text: String = lengths.iter().map(|n| function(*n)).collect();
            long_functions([snippet("a.rs", &text)].iter())
        };
        assert!(check(&[70; 3]).is_empty());
        assert_eq!(check(&[71, 5]).len(), 2, "itself and the share");
        let mut many = vec![5; 99];
        many.push(71);
        assert!(check(&many).is_empty());
        many.push(121);
        many.extend([5; 60]);
        let found = check(&many);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("`f` has 121 lines, over 120"), "{found:?}");
    }

    #[test]
    fn a_module_doc_comes_first() {
        assert!(no_module_doc(&snippet("a.rs", "//! What it is for.\n")).is_empty());
        assert_eq!(no_module_doc(&snippet("a.rs", "fn main() {}\n")).len(), 1);
        assert_eq!(no_module_doc(&snippet("a.rs", "\n//! Late.\n")).len(), 1);
        assert_eq!(no_module_doc(&snippet("a.rs", "")).len(), 1);
    }

    #[test]
    fn a_kernel_opens_with_a_comment() {
        assert!(no_head_comment(&snippet("a.cu", "// out = x.\n")).is_empty());
        assert_eq!(no_head_comment(&snippet("a.cu", "#pragma once\n// Late.\n")).len(), 1);
    }

    const LISTED: &str = "crates/cpu/src/kernels/new.rs";

    #[test]
    fn unsafe_is_reported_outside_the_list() {
        let explained = "// SAFETY: it holds.\nunsafe { x() }\n";
        assert_eq!(stray_unsafe(&snippet("crates/ops/src/lib.rs", explained)).len(), 1);
        assert!(stray_unsafe(&snippet(LISTED, explained)).is_empty());
        let words = "// unsafe { x }\nlet unsafely = \"unsafe\";\n";
        assert!(stray_unsafe(&snippet("crates/ops/src/lib.rs", words)).is_empty());
    }

    #[test]
    fn a_safety_argument_stands_above_the_statement() {
        let explained = [
            "// SAFETY: it holds.\n// And so on.\nlet y =\n    unsafe { x() };",
            "// SAFETY: it holds.\n#[cfg(unix)]\nunsafe impl Send for T {}",
            "// SAFETY: it holds.\nf(a,\n    unsafe { x() })",
            "/// # Safety\n/// The caller's word.\nunsafe fn f() {}",
        ];
        for text in explained {
            assert!(stray_unsafe(&snippet(LISTED, text)).is_empty(), "{text}");
        }
        let bare = [
            "unsafe { x() }",
            "// It is fine.\nunsafe { x() }",
            "// SAFETY: of another.\nlet a = 1;\nunsafe { x() }",
            "unsafe impl Send for T {}",
        ];
        for text in bare {
            assert_eq!(stray_unsafe(&snippet(LISTED, text)).len(), 1, "{text}");
        }
    }

    #[test]
    fn an_entry_without_unsafe_is_stale() {
        let files = |text: &str| {
            let path = |prefix: &str| {
                let name = if prefix.ends_with('/') { "mod.rs" } else { "" };
                format!("{prefix}{name}")
            };
            UNSAFE_MODULES.iter().map(|(prefix, _)| snippet(&path(prefix), text)).collect()
        };
        assert!(stale_unsafe_list(&Repo::of(files("unsafe fn f() {}"))).is_empty());
        let stale = stale_unsafe_list(&Repo::of(files("// unsafe")));
        assert_eq!(stale.len(), UNSAFE_MODULES.len());
    }
}
