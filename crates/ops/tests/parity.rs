//! The parity run itself: what it counts, what it prints, and what it does with absence.

use longview_core::DType;
use longview_ops::parity::*;
use longview_ops::{Backend, Op, ReferenceBackend};

fn row(op: Op, backend: &str, status: ParityStatus) -> ParityRow {
    ParityRow { op: Some(op), backend: backend.into(), status }
}

fn rows() -> Vec<ParityRow> {
    let passed = ParityStatus::Passed { cases: 12, worst: 0.25, nmse: 3e-14, ties: 2 };
    let messages = vec!["rope[t=1]: out[3]: got 1, expected 2".into()];
    let failed = ParityStatus::Failed { passed: 5, failed: 1, messages };
    let not_run = ParityStatus::NotRun { cases: 40, reason: "needs subgroups".into() };
    vec![
        row(Op::Embed, "wgpu", passed),
        row(Op::Rope, "wgpu", failed),
        row(Op::Gram, "wgpu", not_run),
        ParityRow::absent("cuda", "no device"),
    ]
}

#[test]
fn the_reference_agrees_with_itself_in_every_op() {
    let rows = run_parity(&ReferenceBackend::new(), None);
    assert_eq!(rows.len(), Op::ALL.len());
    let table = format_parity(&rows);
    assert!(rows.iter().all(|r| matches!(r.status, ParityStatus::Passed { .. })), "{table}");
    assert!(table.ends_with(" passed, 0 failed, 0 not run\n"), "{table}");
}

#[test]
fn a_filter_leaves_one_op() {
    let rows = run_parity(&ReferenceBackend::new(), Some(Op::SiluMul));
    assert_eq!(rows.iter().map(|r| r.op).collect::<Vec<_>>(), [Some(Op::SiluMul)]);
}

#[test]
fn the_table_shows_every_row_and_counts_cases_and_rows() {
    let expected = "\
op               backend        status
embed            wgpu           passed 12 cases, worst 0.25 of tolerance, NMSE 3e-14, 2 ties
rope             wgpu           FAILED 1 of 6 cases
    rope[t=1]: out[3]: got 1, expected 2
gram             wgpu           NOT RUN 40 cases: needs subgroups
(all)            cuda           NOT RUN: no device
17 passed, 1 failed, 2 not run
";
    assert_eq!(format_parity(&rows()), expected);
}

#[test]
fn a_required_backend_that_is_not_there_is_named() {
    assert!(missing_required(&rows(), &[]).is_empty());
    assert!(missing_required(&rows(), &["wgpu"]).is_empty());
    assert_eq!(
        missing_required(&rows(), &["wgpu", "cuda", "cpu"]),
        ["required backend cuda was not run: no device", "required backend cpu was not asked for"]
    );
}

/// The reasons of the rows of one op that were not run.
fn reasons(backend: &ReferenceBackend, op: Op) -> Vec<String> {
    let reason = |row: ParityRow| match row.status {
        ParityStatus::NotRun { cases, reason } => Some(format!("{} cases: {reason}", cases > 0)),
        _ => None,
    };
    run_parity(backend, Some(op)).into_iter().filter_map(reason).collect()
}

#[test]
fn what_a_backend_lacks_is_a_row_with_its_reason() {
    let mut capabilities = ReferenceBackend::new().capabilities().clone();
    capabilities.missing_ops = vec![(Op::Gram, "not written yet".into())];
    capabilities.kv_dtypes = vec![DType::F32, DType::F16];
    capabilities.reads_host_memory = false;
    capabilities.matvec_max_rows = 4;
    let backend = ReferenceBackend::with_capabilities(capabilities);
    assert_eq!(run_parity(&backend, Some(Op::Gram)).len(), 1);
    assert_eq!(reasons(&backend, Op::Gram), ["true cases: not written yet"]);
    assert_eq!(
        reasons(&backend, Op::KvGather),
        ["true cases: kernels do not read host memory", "true cases: no bf16 KV rows"]
    );
    assert_eq!(reasons(&backend, Op::Matvec), ["true cases: matvec takes up to 4 rows"]);
    // One row for what ran, two for what did not, and one for rows of 8 bits, which no device that
    // lacks them is given.
    let rows = run_parity(&backend, Some(Op::KvGather));
    assert_eq!(rows.len(), 4);
    let is_left_out = |row: &ParityRow| matches!(row.status, ParityStatus::LeftOut { .. });
    assert_eq!(rows.iter().filter(|row| is_left_out(row)).count(), 1);
    assert!(reasons(&backend, Op::Embed).is_empty());
}
