//! The program that holds published checkpoints against their references, without checkpoints: what
//! is not there is said, and is an error where it must be there.

use std::process::{Command, Output};

fn published(args: &[&str], required: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_published"));
    command.args(args).env("REQUIRE_MODELS", required).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn checkpoints_that_are_not_there_are_counted_and_fatal_where_they_are_required() {
    let nowhere = concat!(env!("CARGO_MANIFEST_DIR"), "/no-such-folder");
    let output = published(&[nowhere], "");
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}");
    let line = "NOT RUN  gemma-3-270m-q4_k_m.gguf is not there; `cargo xtask models` fetches it";
    assert_eq!(out.matches(line).count(), 6, "{out}");
    assert!(out.ends_with("\n0 passed, 0 failed, 10 NOT RUN\n"), "{out}");
    assert_eq!(published(&[nowhere], "1").status.code(), Some(1));
}

#[test]
fn a_checkpoint_that_is_damaged_fails() {
    let folder = std::env::temp_dir().join(format!("longview-published-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["SmolLM2-135M-Instruct.Q4_1.gguf", "alice29.txt"] {
        std::fs::write(folder.join(name), "GGUF").unwrap();
    }
    let output = published(&[folder.to_str().unwrap()], "");
    std::fs::remove_dir_all(&folder).unwrap();
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(out.ends_with("\n0 passed, 4 failed, 6 NOT RUN\n"), "{out}");
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    for args in [&[][..], &["folder", "--windows"], &["folder", "--windows", "0"], &["a", "b"]] {
        let output = published(args, "");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).starts_with("usage: published FOLDER"), "{args:?}");
    }
}
