//! Every op against the reference, with every instruction set that this machine has, with one and
//! with several threads.

use longview_cpu::{CpuBackend, CpuOptions, Isa};
use longview_ops::parity::{ParitySummary, format_parity, run_parity};

fn check(isa: Isa, threads: usize) {
    if !isa.is_available() {
        return;
    }
    let backend = CpuBackend::new(CpuOptions { threads, isa: Some(isa) }).unwrap();
    let rows = run_parity(&backend, None);
    let summary = ParitySummary::of(&rows);
    let report = format_parity(&rows);
    assert!(summary.failed == 0 && summary.not_run == 0, "{isa}, {threads} threads\n{report}");
    assert!(summary.passed > 0);
}

#[test]
fn portable() {
    check(Isa::Portable, 1);
    check(Isa::Portable, 3);
}

#[test]
fn neon() {
    check(Isa::Neon, 2);
}

#[test]
fn avx2() {
    check(Isa::Avx2, 2);
}

#[test]
fn avx512() {
    check(Isa::Avx512, 1);
    check(Isa::Avx512, 3);
}

#[test]
fn a_tier_that_the_machine_lacks_is_named() {
    let missing = Isa::ALL.iter().copied().find(|isa| !isa.is_available()).unwrap();
    let error = CpuBackend::new(CpuOptions { threads: 1, isa: Some(missing) }).err().unwrap();
    assert!(error.to_string().contains(missing.name()), "{error}");
}
