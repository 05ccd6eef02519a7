//! Lengths of functions in CUDA and WGSL.
//!
//! A phase of a kernel often cannot become a function: in WGSL neither registers nor workgroup
//! memory are passed by reference, and in CUDA the tile in registers is most of the state. So a
//! kernel may be long, but each says why.

use super::files::{File, Kind, Repo};
use super::scan::{Function, Scan, is_word, line_of};
use super::sources::MAX_KERNEL;

/// A longer function needs a row in [`LONG`].
const MAX_LINES: usize = 120;

/// Functions over [`MAX_LINES`]: the file's name wherever it lies, the function, the reason.
const LONG: &[(&str, &str, &str)] = &[
    (
        "attend_tiles.wgsl",
        "attend_tile",
        "scores, weights and sums of a tile stay in registers from phase to phase, and WGSL passes \
         no workgroup memory to a function",
    ),
    (
        "attend_list.wgsl",
        "attend_list",
        "running maxima, sums and outputs of a lane live through all phases, and parts of phases \
         are left out by variant, which is chosen line by line",
    ),
    (
        "attend_list.cu",
        "attend_plain",
        "outputs of a lane stay in registers: in another function their array would have an \
         address, and spill wherever that one is not inlined",
    ),
];

/// Functions that are too long, and rows that say so of one that is not.
pub(crate) fn long_functions(repo: &Repo) -> Vec<String> {
    check(repo, LONG)
}

fn check(repo: &Repo, reasons: &[(&str, &str, &str)]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut used = vec![false; reasons.len()];
    for file in repo.files.iter().filter(|f| matches!(f.kind(), Kind::Shader | Kind::Cpp)) {
        for function in functions(file).iter().filter(|f| f.n_lines > MAX_LINES) {
            let row = reasons.iter().position(|(name, of, _)| {
                *of == function.name && file.path.rsplit('/').next() == Some(*name)
            });
            row.iter().for_each(|row| used[*row] = true);
            let said = format!("`{}` has {} lines, over", function.name, function.n_lines);
            if function.n_lines > MAX_KERNEL {
                problems
                    .push(file.problem(function.line, &format!("{said} {MAX_KERNEL}: split it")));
            } else if row.is_none() {
                let advice = "split it, or say why not in LONG of xtask/src/tidy/kernels.rs";
                let message = format!("{said} {MAX_LINES}: {advice}");
                problems.push(file.problem(function.line, &message));
            }
        }
    }
    let stale = reasons.iter().zip(used).filter(|(_, used)| !used);
    problems.extend(stale.map(|((name, function, _), _)| {
        format!("{name}: `{function}` is not over {MAX_LINES} lines: take it off the list LONG")
    }));
    problems
}

fn functions(file: &File) -> Vec<Function> {
    let scan = Scan::of(&file.text);
    if file.kind() == Kind::Shader { scan.functions() } else { cpp_functions(&scan.code) }
}

/// Functions with a body in C++ or CUDA code without comments: what stands outside of all bodies,
/// ends in a bracket of parameters and goes on with a brace.
fn cpp_functions(code: &str) -> Vec<Function> {
    let code = without_directives(code);
    let mut found = Vec::new();
    let (mut head, mut at) = (0, 0);
    while let Some(step) = code[at..].find([';', '{', '}']) {
        let end = at + step;
        let is_body = code.as_bytes()[end] == b'{';
        let name = is_body.then(|| function_name(&code[head..end])).flatten();
        at = end + 1;
        if let Some(name) = name {
            let last = body_end(&code, end);
            let blank = code[head..end].len() - code[head..end].trim_start().len();
            let line = line_of(&code, head + blank);
            found.push(Function { name, line, n_lines: line_of(&code, last) - line + 1 });
            at = last + 1;
        }
        head = at;
    }
    found
}

/// Lines of the preprocessor become empty.
fn without_directives(code: &str) -> String {
    let mut kept = String::new();
    let mut goes_on = false;
    for line in code.split_inclusive('\n') {
        let is_directive = goes_on || line.trim_start().starts_with('#');
        goes_on = is_directive && line.trim_end().ends_with('\\');
        kept.push_str(if is_directive { "\n" } else { line });
    }
    kept
}

/// The name of the function whose body follows `head`; for a macro that makes a kernel, its first
/// argument.
fn function_name(head: &str) -> Option<String> {
    let head = head.trim_end().trim_end_matches("const").trim_end_matches("noexcept").trim_end();
    let inside = head.strip_suffix(')')?;
    let mut depth = 1usize;
    let open = inside.char_indices().rev().find(|(_, c)| {
        depth = depth + usize::from(*c == ')') - usize::from(*c == '(');
        depth == 0
    });
    let (before, arguments) = inside.split_at(open?.0);
    let last = |text: &str| text.rsplit(|c| !is_word(c)).next().unwrap_or_default().to_owned();
    let name = last(before.trim_end());
    let is_macro = name.len() > 1 && !name.contains(char::is_lowercase);
    let first = arguments[1..].split(',').next().unwrap_or_default().trim();
    let name = if is_macro { first.to_owned() } else { name };
    (!name.is_empty()).then_some(name)
}

/// The offset of the brace that closes the one at `open`; the last character where none does.
fn body_end(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    let mut braces = code[open..].char_indices().filter(|(_, c)| matches!(c, '{' | '}'));
    let end = braces.find(|(_, c)| {
        if *c == '{' {
            depth += 1;
        } else {
            depth -= 1;
        }
        depth == 0
    });
    end.map_or(code.len() - 1, |(at, _)| open + at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::snippet;

    fn lengths(code: &str) -> Vec<(String, usize, usize)> {
        cpp_functions(&Scan::of(code).code)
            .into_iter()
            .map(|f| (f.name, f.line, f.n_lines))
            .collect()
    }

    #[test]
    fn functions_of_cuda_are_found() {
        let code = "\
#define DEVICE __device__ \\
    inline
struct Pair {
    float a;
    Pair(int x) { f(x); }
};
template <typename T, u32 N>
DEVICE T sum(const T (&x)[N],
             u32 n) {
    if (n > 0) { return f(x); }
    return T{};
}
namespace {
constexpr u32 N = 3;
static const int TABLE[] = {1, 2};
KERNEL(sum_f32, SumArgs, THREADS) { sum<float, 4>(p); }
}  // namespace
__global__ void __launch_bounds__(256, 2) plain(int x) {
}
int declared(int x);
";
        let of = |name: &str, line, n_lines| (name.to_owned(), line, n_lines);
        let expected =
            [of("Pair", 4, 1), of("sum", 6, 6), of("sum_f32", 15, 1), of("plain", 17, 2)];
        assert_eq!(lengths(code), expected);
    }

    /// A function of `n` lines in CUDA, or in WGSL.
    fn source(path: &str, n: usize) -> File {
        let head = if path.ends_with(".wgsl") { "fn f() {" } else { "KERNEL(f, Args, 32) {" };
        snippet(path, &format!("// x\n{head}\n{}}}\n", "x;\n".repeat(n - 2)))
    }

    #[test]
    fn a_long_function_needs_a_reason_in_any_folder() {
        for path in
            ["shaders/a.wgsl", "shaders/shared/a.wgsl", "kernels/a.cu", "kernels/shared/a.cuh"]
        {
            let name = path.rsplit('/').next().unwrap();
            let found = |n, rows: &[_]| check(&Repo::of(vec![source(path, n)]), rows);
            assert_eq!(found(120, &[]), [""; 0], "{path}");
            let long = found(121, &[]);
            assert_eq!(long.len(), 1, "{path}");
            assert!(
                long[0].starts_with(&format!("{path}:2: `f` has 121 lines, over 120")),
                "{long:?}"
            );
            let row = (name, "f", "one phase");
            assert_eq!(found(200, &[row]), [""; 0], "{path}");
            assert_eq!(found(201, &[row]).len(), 1, "{path}");
            assert_eq!(found(5, &[row]).len(), 1, "a stale row");
            assert_eq!(found(121, &[(name, "g", "another")]).len(), 2, "{path}");
        }
    }
}
