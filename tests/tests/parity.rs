//! Every backend against the reference, over the whole corpus.
//!
//! The CPU backend runs once for each instruction set that this machine has; the run of its own
//! crate varies the number of threads. The WGSL backend runs at each tier. The program behind
//! `cargo xtask parity` is called as a user calls it.

use std::process::{Command, Output};

use longview_cpu::{CpuOptions, Isa};
use longview_ops::Op;
use longview_ops::parity::{ParityStatus, ParitySummary, format_parity};
use longview_tests::backends::{UnknownBackend, cpu_rows, not_run, parse_list, wgpu_rows};
use longview_wgpu::{Tier, WgpuOptions};

fn passes_everything(isa: Isa) {
    let rows = cpu_rows(CpuOptions { threads: 2, isa: Some(isa) }, None);
    let (summary, table) = (ParitySummary::of(&rows), format_parity(&rows));
    assert!(summary.failed == 0 && summary.not_run == 0, "{isa}\n{table}");
    assert!(summary.passed > Op::ALL.len(), "{isa}\n{table}");
}

#[test]
fn the_cpu_passes_on_every_instruction_set_of_this_machine() {
    let tiers: Vec<_> = Isa::ALL.iter().copied().filter(|isa| isa.is_available()).collect();
    assert!(tiers.contains(&Isa::Portable));
    tiers.into_iter().for_each(passes_everything);
}

/// The program, with an op that takes no time.
fn parity(args: &[&str], required: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_parity"));
    command.args(["--op", "embed"]).args(args).env("REQUIRE_BACKENDS", required);
    command.output().expect("the program starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Nothing may be missing from a run but what no WGSL device has: host memory that kernels read.
fn wgpu_passes(tier: Tier) {
    if std::env::var_os("LONGVIEW_NO_GPU").is_some() {
        not_run();
        return;
    }
    let rows = wgpu_rows(&WgpuOptions { adapter: None, tier: Some(tier) }, None);
    let (summary, table) = (ParitySummary::of(&rows), format_parity(&rows));
    assert!(summary.failed == 0 && summary.passed >= 500, "{tier}\n{table}");
    let missing = rows.iter().filter(|row| matches!(row.status, ParityStatus::NotRun { .. }));
    let missing: Vec<_> = missing.map(|row| row.op).collect();
    assert_eq!(missing, [Some(Op::KvGather)], "{tier}\n{table}");
}

#[test]
fn wgpu_passes_without_optional_features() {
    wgpu_passes(Tier::Core);
}

#[test]
fn wgpu_passes_with_f16() {
    wgpu_passes(Tier::F16);
}

#[test]
fn wgpu_passes_with_subgroups() {
    wgpu_passes(Tier::Subgroups);
}

#[test]
fn absent_backends_are_rows_and_fail_only_where_required() {
    let output = parity(&["--backends", "cpu,cuda"], "cpu");
    let table = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{table}{}", stderr(&output));
    assert!(table.contains("NOT RUN: not in this build"), "{table}");
    assert!(table.ends_with(" passed, 0 failed, 1 not run\n"), "{table}");

    let output = parity(&["--backends", "cpu,cuda"], "cuda");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "required backend cuda was not run: not in this build\n");
}

#[test]
fn a_backend_that_is_required_but_not_asked_for_fails() {
    let output = parity(&["--backends", "cuda"], "cpu");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "required backend cpu was not asked for\n");
}

#[test]
fn wrong_calls_are_told_what_there_is() {
    let calls: [(&[&str], &str, &str); 5] = [
        (&["--backends", "gpu"], "", "unknown backend 'gpu': one of cpu, wgpu, cuda"),
        (&[], "cpu,tpu", "REQUIRE_BACKENDS: unknown backend 'tpu': one of cpu, wgpu, cuda"),
        (&["--op", "softmax"], "", "unknown op 'softmax': one of embed, rms_norm, "),
        (&["--op"], "", "--op needs a value"),
        (&["--all"], "", "unknown option '--all'"),
    ];
    for (args, required, message) in calls {
        let output = parity(args, required);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(message), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn lists_of_backends_are_read() {
    assert_eq!(parse_list("cuda, cpu,"), Ok(vec!["cuda", "cpu"]));
    assert_eq!(parse_list(""), Ok(vec![]));
    assert_eq!(parse_list("cpu,metal"), Err(UnknownBackend("metal".into())));
}
