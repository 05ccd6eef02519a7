//! Kernels with subgroup operations on devices whose subgroups have other sizes.
//!
//! Mesa's software device makes subgroups of a vector's width, which it reads from the environment
//! when it is first opened. So each size has a process of its own; other devices do not look and
//! run the same thing several times.

use std::io::Write;
use std::process::Command;

use longview_ops::corpus::cases_of;
use longview_ops::fused_case::FusedCase;
use longview_ops::{Activation, Op};
use longview_wgpu::{ShaderLevel, WgpuOptions, adapters};
use pollster::block_on;

use crate::common;

/// Ops whose kernels put together what a workgroup has, and how many of their cases run.
const OPS: [(Op, usize); 4] =
    [(Op::RmsNorm, 4), (Op::Matvec, 5), (Op::AttendList, 5), (Op::QueryGate, 2)];

/// In the environment of the processes that the test starts.
const IS_CHILD: &str = "LONGVIEW_TEST_OF_SUBGROUPS";

/// What such a process does.
fn one_size_gives_what_the_reference_gives() {
    let level = ShaderLevel::Subgroups;
    let options = WgpuOptions { shader_level: Some(level), ..WgpuOptions::default() };
    let Some(backend) = common::device_with(&options) else { return };
    for (op, n) in OPS {
        let cases = cases_of(op);
        let every = (cases.len() / n).max(1);
        for case in cases.iter().filter(|case| !case.is_quantised()).step_by(every) {
            common::check_at(std::slice::from_ref(&backend), case);
        }
    }
    for n_rows in [1, 3, 8] {
        let case = FusedCase { n_rows, width: 1028, ..FusedCase::DECODE };
        let error = block_on(case.error_of(&backend, Activation::Silu)).unwrap();
        assert!(error.project <= case.most() && error.gated <= case.most(), "{case:?}: {error:?}");
    }
    let adapter = block_on(adapters()).into_iter().find(|a| a.name == backend.info().adapter);
    let sizes = adapter.and_then(|adapter| adapter.subgroup_sizes).expect("it has subgroups");
    writeln!(std::io::stdout(), "subgroups of {} to {}", sizes.0, sizes.1).expect("a pipe");
}

#[test]
fn the_size_of_subgroups_changes_no_result() {
    if std::env::var_os(IS_CHILD).is_some() {
        return one_size_gives_what_the_reference_gives();
    }
    let Some(backend) = common::device() else { return };
    if backend.shader_level() < ShaderLevel::Subgroups {
        return common::not_run("the device has no subgroup operations");
    }
    let is_mesa = backend.info().adapter.contains("llvmpipe");
    for size in [4, 8, 16] {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", "--nocapture"]).env(IS_CHILD, "1");
        child.arg("subgroups::the_size_of_subgroups_changes_no_result");
        let output = child.env("LP_NATIVE_VECTOR_WIDTH", (32 * size).to_string()).output();
        let output = output.expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{size}: {text}{errors}");
        assert!(text.contains("1 passed"), "{size}: {text}");
        let wanted = format!("subgroups of {size} to {size}");
        assert!(!is_mesa || text.contains(&wanted), "not {wanted}: {text}");
    }
}
