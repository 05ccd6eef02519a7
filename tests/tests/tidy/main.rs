//! The repository's own rules, as far as a program can check them. CONTRIBUTING.md and the design
//! say why; a message here says what to do instead.
//!
//! Every rule is a function from text to problems, with snippets beside it that it must and must
//! not report; the tests below apply the rules to the files that git tracks or would track.

mod docs;
mod files;
mod layers;
mod ops;
mod scan;
mod sources;
mod tokens;

use files::{Kind, Repo};

/// What is wrong in all files of the kinds that a rule looks at.
fn problems(kinds: &[Kind], rule: impl Fn(&files::File) -> Vec<String>) -> Vec<String> {
    Repo::get().files.iter().filter(|file| kinds.contains(&file.kind())).flat_map(rule).collect()
}

#[track_caller]
fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "{} problems\n{}\n", problems.len(), problems.join("\n"));
}

const CODE: &[Kind] = &[Kind::Rust, Kind::Shader, Kind::Cpp, Kind::OtherCode];

#[test]
fn the_repository_was_found() {
    let repo = Repo::get();
    assert!(repo.files.len() > 50, "{} files", repo.files.len());
    assert!(repo.file("Cargo.toml").is_some_and(|file| file.text.contains("[workspace]")));
    assert!(repo.file("tests/tests/tidy/main.rs").is_some());
}

#[test]
fn files_are_short() {
    assert_none(&problems(CODE, sources::long_file));
}

#[test]
fn lines_are_short() {
    assert_none(&problems(CODE, sources::long_lines));
}

#[test]
fn functions_are_short() {
    let files = Repo::get().files.iter().filter(|f| [Kind::Rust, Kind::Shader].contains(&f.kind()));
    assert_none(&sources::long_functions(files));
}

#[test]
fn rust_files_open_with_a_module_doc() {
    assert_none(&problems(&[Kind::Rust], sources::no_module_doc));
}

#[test]
fn kernels_open_by_saying_what_they_compute() {
    assert_none(&problems(&[Kind::Shader, Kind::Cpp], sources::no_head_comment));
}

#[test]
fn unsafe_stays_where_it_is_listed_and_says_why_it_holds() {
    assert_none(&problems(&[Kind::Rust], sources::stray_unsafe));
}

#[test]
fn the_list_of_unsafe_modules_is_not_stale() {
    assert_none(&sources::stale_unsafe_list(Repo::get()));
}

#[test]
fn no_banned_token() {
    assert_none(&problems(CODE, tokens::banned));
}

#[test]
fn no_machine_path_and_no_other_registry() {
    assert_none(&problems(Kind::ALL, tokens::machine_traces));
}

#[test]
fn crates_keep_to_their_layer() {
    assert_none(&layers::broken(Repo::get()));
}

#[test]
fn crates_inherit_the_lints_of_the_workspace() {
    assert_none(&layers::own_lints(Repo::get()));
}

#[test]
fn the_code_map_names_the_crates_that_exist() {
    assert_none(&docs::code_map(Repo::get()));
}

#[test]
fn the_readme_shows_the_two_commands() {
    assert_none(&docs::readme(Repo::get()));
}

#[test]
fn links_between_documents_lead_somewhere() {
    let exists = |path: &str| files::root().join(path).exists();
    assert_none(&problems(&[Kind::Markdown], |file| docs::dead_links(file, exists)));
}

#[test]
fn an_op_has_one_stem_everywhere() {
    assert_none(&ops::stems(Repo::get()));
}
