//! The fused calls against the reference, which makes the single calls: at every level, for all
//! types, row counts, biases and rotations; and the shapes that one launch cannot do.

use longview_core::DType;
use longview_ops::fused_case::FusedCase;
use longview_ops::*;
use pollster::block_on;

use crate::common;

const PLAIN: FusedCase = FusedCase::DECODE;

fn cases() -> Vec<FusedCase> {
    let mut cases = vec![];
    for weights in [DType::F32, DType::F16, DType::BF16] {
        for n_rows in [1, 2, 3, 5, 8] {
            cases.push(FusedCase { n_rows, weights, is_biased: n_rows % 2 == 1, ..PLAIN });
        }
    }
    // With x rounded to bf16.
    let activations = Activations::Bf16;
    for n_rows in [1, 2, 3, 5, 8] {
        cases.push(FusedCase { n_rows, activations, ..PLAIN });
    }
    cases.extend([
        FusedCase { width: 36, inner: 7, is_biased: true, activations, ..PLAIN },
        FusedCase { width: 1028, n_rows: 8, inner: 513, activations, ..PLAIN },
        FusedCase { width: 30, activations, ..PLAIN },
        // A part of each head turns; nothing does.
        FusedCase { head_dim: 24, rotary_dim: 8, ..PLAIN },
        FusedCase { rotary_dim: 0, ..PLAIN },
        // Rows that are no whole units of halves, and many of them.
        FusedCase { width: 36, inner: 7, is_biased: true, ..PLAIN },
        FusedCase { width: 1028, n_rows: 8, inner: 513, ..PLAIN },
        // Single calls: norms of heads, odd widths, more rows than a launch takes.
        FusedCase { has_head_norms: true, ..PLAIN },
        FusedCase { width: 30, ..PLAIN },
        FusedCase { head_dim: 18, rotary_dim: 18, ..PLAIN },
        FusedCase { n_rows: 9, ..PLAIN },
    ]);
    cases
}

#[test]
fn fused_calls_give_what_the_single_calls_give() {
    for backend in common::levels() {
        for case in cases() {
            for activation in [Activation::Silu, Activation::GeluTanh] {
                let error = block_on(case.error_of(&backend, activation)).unwrap();
                let worst = [error.project, error.gated];
                let passed = worst.iter().all(|error| *error <= case.most());
                assert!(passed, "{}, {case:?}: NMSE {worst:?}", backend.shader_level());
            }
        }
    }
}

#[test]
fn a_call_of_few_rows_is_one_dispatch() {
    for backend in common::levels() {
        for n_rows in [1, 8] {
            let case = FusedCase { n_rows, ..PLAIN };
            let before = backend.counters().device.dispatches;
            block_on(case.project(&backend)).unwrap();
            block_on(case.gated(&backend, Activation::Silu)).unwrap();
            block_on(case.gated(&backend, Activation::GeluTanh)).unwrap();
            assert_eq!(
                backend.counters().device.dispatches - before,
                3,
                "{}",
                backend.shader_level()
            );
        }
    }
}
