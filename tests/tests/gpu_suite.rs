//! The program that is packed for machines with a GPU (`cargo xtask gpu`): a short part of it, on
//! backends that every machine has, and what it says where its device is absent.

use std::process::{Command, Output};

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longview-gpu"));
    // Hidden from CUDA, a GPU is as absent as a driver that is not there.
    command.args(words).env("CUDA_VISIBLE_DEVICES", "");
    command
}

fn run(words: &[&str]) -> Output {
    command(words).output().expect("the program starts")
}

fn text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Three ops with their views at three places, and a checkpoint in each way it is computed.
fn passes(backend: &str, fixture: &str, n_golden: usize) {
    let what = ["--only", "parity,golden", "--op", "embed,rope,argmax", "--filter", fixture];
    let output = run(&[&["--backend", backend][..], &what].concat());
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let last = text.lines().last().unwrap_or_default();
    let is_good = last.starts_with(&format!("on {backend}: ")) && last.contains(" 0 failed, 0 not");
    assert!(is_good, "{text}");
    let n_ok = text.lines().filter(|line| line.starts_with("ok ")).count();
    assert_eq!(n_ok, 2 + n_golden, "two places of views, and the checkpoint: {text}");
    assert!(!text.contains("FAILED") && !text.contains("panicked"), "{text}");
}

#[test]
fn the_cpu_passes() {
    passes("cpu", "llama3-gqa", 2);
}

#[test]
fn cuda_without_a_gpu_passes() {
    passes("cuda-emulated", "qwen2-yarn rounded", 1);
}

/// All checks of a backend in one process: it computes once what is compared with.
#[test]
fn what_can_be_lost_is_found_again() {
    for (backend, filter, n_passed) in [
        ("cuda-emulated", "a_device_lost,a_policy_that_cannot_be_had", 4),
        ("wgpu", "lost,a_policy_that_cannot_be_had", 6),
        ("cpu", "a_policy_that_cannot_be_had", 1),
    ] {
        let output = run(&["--backend", backend, "--only", "faults", "--filter", filter]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        let last = format!("on {backend}: {n_passed} passed, 0 failed, 0 not run\n");
        // Drivers may add to what is said of errors.
        assert!(output.stdout.ends_with(last.as_bytes()), "{}", text(&output));
    }
}

/// Rows of 8 bits in the device cache, which tests of the WGSL backend have too.
#[test]
fn rows_of_8_bits_are_recalled_without_a_gpu() {
    let what = ["--backend", "cuda-emulated", "--only", "policy", "--filter"];
    let filter = "recalled_rows_are_attended_rounded,8_bits_survive_a_lost_device";
    let output = run(&[&what[..], &[filter]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(output.stdout.ends_with(b"2 passed, 0 failed, 0 not run\n"), "{}", text(&output));
}

#[test]
fn that_tokens_are_graphs_is_seen_where_there_are_any() {
    for (backend, counts) in
        [("cuda-emulated", "1 passed, 0 failed, 0"), ("cpu", "0 passed, 0 failed, 1")]
    {
        let what = ["--only", "faults", "--filter", "as_graphs"];
        let output = run(&[&["--backend", backend][..], &what].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        let last = format!("on {backend}: {counts} not run\n");
        assert!(text(&output).ends_with(&last), "{}", text(&output));
    }
}

/// What `run.sh` asks first, to see whether the program starts at all.
#[test]
fn it_says_its_version() {
    let output = run(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output).starts_with("longview-gpu 0."), "{}", text(&output));
}

#[test]
fn an_absent_device_is_told_and_no_success() {
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(text(&output).starts_with("NOT RUN on cuda: "), "{}", text(&output));
}

#[test]
fn files_that_are_missing_are_named() {
    let mut command = command(&["--backend", "cpu", "--only", "golden"]);
    let output = command.env("LONGVIEW_FILES", "nowhere").output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("longview-gpu: nowhere"), "{}", text(&output));
}

#[test]
fn a_call_that_makes_no_sense_is_told_what_there_is() {
    for words in [&["--backend", "tpu"][..], &["--only", "speed"], &["--now", "x"], &["--op"]] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output).contains("usage: longview-gpu [--backend "), "{}", text(&output));
    }
}
