//! The fused calls against the reference, which makes the single calls: at every level, for all
//! types, row counts, biases and rotations; and the shapes that one launch cannot do.

use longview_ops::fused_case::FusedCase;
use longview_ops::*;
use pollster::block_on;

use crate::common;

const PLAIN: FusedCase = FusedCase::DECODE;

#[test]
fn fused_calls_give_what_the_single_calls_give() {
    for backend in common::levels() {
        for case in FusedCase::all() {
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
