//! The comparator must find what is wrong and accept what is right, or every green parity run means
//! nothing.

use longview_ops::compare::*;
use longview_ops::corpus::{Outcome, Output, Overwrite, Values, corpus};
use longview_ops::tolerance::Tolerance;
use longview_ops::{Op, ReferenceBackend};

const TOL: Tolerance = Tolerance { atol: 1e-4, rtol: 1e-4, nmse: 1e-7 };

fn floats(got: &[f32], want: &[f32]) -> Comparison {
    let mut c = Comparison::default();
    compare_floats(&mut c, "out", got, want, &TOL, false);
    c
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| 1.0 + i as f32 / n as f32).collect()
}

#[test]
fn equal_numbers_pass_and_small_errors_are_measured() {
    let want = ramp(1000);
    assert!(floats(&want, &want).passed());
    let got: Vec<f32> = want.iter().map(|v| v + 1e-4).collect();
    let c = floats(&got, &want);
    assert!(c.passed() && c.worst > 0.3 && c.worst < 0.6 && c.nmse > 0.0, "{c:?}");
}

#[test]
fn a_wrong_length_fails_before_anything_else() {
    let c = floats(&ramp(9), &ramp(10));
    assert_eq!(c.messages, ["out: 9 elements, expected 10"]);
    assert!(!floats(&[], &ramp(1)).passed());
}

#[test]
fn not_a_number_fails_unless_it_is_declared_and_expected() {
    let (nan, number) = ([f32::NAN], [1.0]);
    for (got, want) in [(&nan, &number), (&number, &nan), (&nan, &nan)] {
        assert!(!floats(got, want).passed(), "{got:?} for {want:?}");
        let mut c = Comparison::default();
        compare_floats(&mut c, "out", got, want, &TOL, true);
        assert_eq!(c.passed(), got[0].is_nan() && want[0].is_nan(), "{got:?} for {want:?}");
    }
}

#[test]
fn one_wrong_element_of_a_million_is_found_with_its_index() {
    let want = ramp(1_000_000);
    let mut got = want.clone();
    got[765_432] += 1e-3;
    let c = floats(&got, &want);
    assert_eq!(c.mismatched, 1, "{c}");
    assert!(c.messages[0].starts_with("out[765432]: got "), "{c}");
}

#[test]
fn swapped_elements_are_found() {
    let want = ramp(100);
    let mut got = want.clone();
    got.swap(10, 11);
    assert!(!floats(&got, &want).passed());
}

#[test]
fn infinities_agree_in_sign_or_fail() {
    let (plus, minus) = ([f32::INFINITY], [f32::NEG_INFINITY]);
    assert!(floats(&plus, &plus).passed() && floats(&minus, &minus).passed());
    assert!(!floats(&plus, &minus).passed() && !floats(&minus, &plus).passed());
    assert!(!floats(&[f32::MAX], &plus).passed() && !floats(&minus, &[0.0]).passed());
}

#[test]
fn an_error_that_is_a_little_everywhere_fails_by_its_mean_square() {
    let want = vec![0.05f32; 1000];
    let got = vec![0.05f32 + 9e-5; 1000];
    let c = floats(&got, &want);
    assert!(c.worst < 1.0 && !c.passed(), "{c:?}");
    assert!(c.messages[0].starts_with("out: NMSE 3.2e-6 above"), "{c}");
}

#[test]
fn with_an_exact_tolerance_one_ulp_fails() {
    let mut c = Comparison::default();
    compare_floats(&mut c, "out", &[1.0], &[1.0 + f32::EPSILON], &Tolerance::EXACT, false);
    assert!(!c.passed());
}

#[test]
fn an_overwritten_guard_fails_with_its_place() {
    let overwritten = vec![Overwrite { index: -1, bits: 7 }];
    let values = Values::Ints(vec![1]);
    let dtype = longview_core::DType::U32;
    let mut c = Comparison::default();
    compare_guards(&mut c, &Output { name: "out", dtype, values, overwritten });
    assert_eq!(c.messages, ["out[-1]: written outside (0x7)"]);
}

#[test]
fn a_write_past_the_end_of_a_real_output_is_seen() {
    let case = &longview_ops::corpus::cases_of(Op::SiluMul)[6];
    let (backend, plan) = (ReferenceBackend::new(), case.plan());
    let mut buffers = plan.upload(&backend).unwrap();
    let want = case.execute_blocking(&backend).unwrap();
    case.launch(&backend, &mut buffers).unwrap();
    let out = &mut buffers.outputs[0];
    let end = longview_ops::ViewMut::part(&mut out.buffer, out.offset + out.len, 1);
    longview_ops::Backend::write(&backend, end, &0f32.to_le_bytes()).unwrap();
    let got = pollster::block_on(plan.read_back(&backend, &buffers)).unwrap();
    let c = case.compare(&got, &want);
    assert_eq!(c.messages, [format!("out[{}]: written outside (0x0)", plan.outputs[0].len)]);
}

fn ranked(got: u32, tol: &Tolerance) -> Comparison {
    let scores = [1.0, 5.0, 5.0001, 5.0001];
    let mut c = Comparison::default();
    compare_ranked(&mut c, "label", &[got], &[2], tol, |_, i| scores.get(i).copied());
    c
}

#[test]
fn an_index_within_the_tolerance_is_a_tie_and_another_is_wrong() {
    assert_eq!((ranked(2, &TOL).passed(), ranked(2, &TOL).ties), (true, 0));
    assert_eq!((ranked(1, &TOL).passed(), ranked(1, &TOL).ties), (true, 1));
    assert!(!ranked(0, &TOL).passed());
    assert_eq!(
        ranked(0, &TOL).messages,
        ["label[0]: got 0 (score 1e0), expected 2 (score 5.0001e0)"]
    );
    assert!(!ranked(4, &TOL).passed(), "an index outside");
}

#[test]
fn where_ranking_is_exact_equal_scores_are_no_excuse() {
    assert!(ranked(2, &Tolerance::EXACT).passed());
    assert!(!ranked(3, &Tolerance::EXACT).passed());
}

fn selected(clusters: &[u32], takes: &[u32], tol: &Tolerance) -> Comparison {
    let from = Ranking {
        scores: &[0.1, 0.5, 0.50001, 0.9, 0.4, 0.3],
        sizes: &[10, 4, 6, 3, 0, 8],
        budget: 12,
    };
    let want = Picked { clusters: &[3, 2, 1], takes: &[3, 6, 3] };
    let mut c = Comparison::default();
    compare_selection(&mut c, "head", Picked { clusters, takes }, want, &from, tol);
    c
}

#[test]
fn a_selection_may_differ_only_where_scores_are_within_the_tolerance() {
    let same = selected(&[3, 2, 1], &[3, 6, 3], &Tolerance::EXACT);
    assert!(same.passed() && same.ties == 0);
    let swapped = selected(&[3, 1, 2], &[3, 4, 5], &TOL);
    assert!(swapped.passed() && swapped.ties == 2, "{swapped:?}");
    assert!(!selected(&[3, 1, 2], &[3, 4, 5], &Tolerance::EXACT).passed());
}

#[test]
fn an_unsound_selection_is_told_what_is_wrong() {
    let why = |clusters: &[u32], takes: &[u32]| {
        let c = selected(clusters, takes, &TOL);
        assert!(!c.passed(), "{clusters:?} {takes:?}");
        c.messages[0].clone()
    };
    assert!(why(&[2, 3, 1], &[6, 3, 3]).contains("scores rise at 1"));
    assert!(why(&[3, 2, 5], &[3, 6, 3]).contains("passes over cluster 1"));
    assert!(why(&[3, 2], &[3, 6]).contains("passes over cluster 0"));
    assert!(why(&[3, 2, 1], &[3, 6, 4]).contains("takes 4 tokens of cluster 1 at 2, not 3"));
    assert!(why(&[3, 3, 1], &[3, 3, 4]).contains("taken twice"));
    assert!(why(&[9], &[3]).contains("does not exist"));
    assert!(why(&[3, 2, 1, 5], &[3, 6, 3, 0]).contains("takes 0 tokens"));
    assert!(why(&[3, 2, 4], &[3, 6, 0]).contains("takes 0 tokens of cluster 4"));
}

/// A value that no tolerance covers.
fn spoil(values: &mut Values, at: usize) {
    match values {
        Values::Floats(v) if v[at].is_finite() => v[at] += 0.1 + v[at].abs() * 0.1,
        Values::Floats(v) => v[at] = 0.0,
        Values::Ints(v) => v[at] = v[at].wrapping_add(100_000),
    }
}

/// Places of an output that mean something: behind `n_selected`, entries of a selection do not, and
/// the largest part of a cache's state is scratch.
fn places(outcome: &Outcome, output: usize) -> Vec<usize> {
    let n = outcome.outputs[output].values.len();
    let used = match outcome.outputs[output].name {
        "clusters" | "takes" if n > 0 => outcome.output("n_selected").values.ints()[0] as usize,
        "state" => n.min(1),
        _ => n,
    };
    let mut places = vec![0, used / 2, used.saturating_sub(1)];
    places.dedup();
    places.retain(|i| *i < used);
    places
}

#[test]
fn in_every_case_a_single_wrong_element_of_any_output_is_found() {
    let backend = ReferenceBackend::new();
    for case in corpus() {
        let plan = case.plan();
        let want = pollster::block_on(case.execute_plan(&plan, &backend)).unwrap();
        assert!(case.compare_plan(&plan, &want, &want).passed(), "{}", case.name());
        for output in 0..want.outputs.len() {
            for at in places(&want, output) {
                let mut got = want.clone();
                spoil(&mut got.outputs[output].values, at);
                let name = want.outputs[output].name;
                let compared = case.compare_plan(&plan, &got, &want);
                assert!(!compared.passed(), "{}: {name}[{at}]", case.name());
            }
        }
    }
}
