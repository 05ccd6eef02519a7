//! Every op against the reference, with every instruction set that this machine has, with one and
//! with several threads.

use longview_cpu::{CpuBackend, CpuOptions, Isa};
use longview_ops::corpus::cases_of;
use longview_ops::parity::{ParitySummary, format_parity, parity_of_each};
use longview_ops::{Backend, Op};

const THREADS: [usize; 2] = [1, 3];

fn sets() -> Vec<Isa> {
    Isa::ALL.iter().copied().filter(|isa| isa.is_available()).collect()
}

/// Which share of the corpus is run: every case, or every N-th with `LONGVIEW_EVERY_NTH_CASE=N`,
/// for emulated processors, which take minutes for what takes others seconds.
fn every() -> usize {
    let Ok(text) = std::env::var("LONGVIEW_EVERY_NTH_CASE") else { return 1 };
    let n = text.parse().ok().filter(|n| *n > 0);
    n.unwrap_or_else(|| panic!("LONGVIEW_EVERY_NTH_CASE is {text}, not a number from 1 on"))
}

/// All of them at once, as the reference takes longer than any of them; `ops` of two tests, so that
/// two cores have something to do.
#[expect(clippy::print_stdout, reason = "says which share of the corpus was run")]
fn check(ops: &[Op]) {
    let sets = sets();
    assert!(sets.contains(&Isa::Portable));
    let all = sets.iter().flat_map(|isa| THREADS.map(|threads| (*isa, threads)));
    let opened = all.map(|(isa, threads)| {
        let backend = CpuBackend::new(CpuOptions { threads, isa: Some(isa) }).unwrap();
        (format!("{isa}, {threads} threads"), backend)
    });
    let opened: Vec<(String, CpuBackend)> = opened.collect();
    let backends: Vec<_> = opened.iter().map(|(_, backend)| backend).collect();
    let every = every();
    let (mut passed, mut all) = (vec![0; opened.len()], 0);
    for op in ops {
        let n_cases = cases_of(*op).len();
        all += n_cases;
        let rows = pollster::block_on(parity_of_each(&backends, *op, every));
        for (((name, _), rows), passed) in opened.iter().zip(rows).zip(&mut passed) {
            let (summary, report) = (ParitySummary::of(&rows), format_parity(&rows));
            assert!(summary.failed == 0 && summary.not_run == 0, "{name}\n{report}");
            assert!(summary.passed > usize::from(n_cases > every), "{name}\n{report}");
            *passed += summary.passed;
        }
    }
    for ((_, backend), passed) in opened.iter().zip(passed) {
        println!("parity: {passed} of {all} cases on {}", backend.capabilities().device);
    }
}

/// Every other op: what takes long is spread over both.
fn half(first: usize) -> Vec<Op> {
    Op::ALL.iter().copied().skip(first).step_by(2).collect()
}

#[test]
fn one_half_of_the_ops_passes_on_every_instruction_set_of_this_machine() {
    check(&half(0));
}

#[test]
fn the_other_half_passes_on_every_instruction_set_of_this_machine() {
    check(&half(1));
}

#[test]
fn a_tier_that_the_machine_lacks_is_named() {
    let missing = Isa::ALL.iter().copied().find(|isa| !isa.is_available()).unwrap();
    let error = CpuBackend::new(CpuOptions { threads: 1, isa: Some(missing) }).err().unwrap();
    assert!(error.to_string().contains(missing.name()), "{error}");
}
