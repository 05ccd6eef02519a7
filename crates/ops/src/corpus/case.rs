//! What every case of the corpus knows.

use std::fmt::Display;

use longview_core::{DType, SplitMix64};

use super::plan::{Buffers, Outcome, Plan};
use crate::backend::Backend;
use crate::capability::Capabilities;
use crate::compare::{Comparison, compare_outcomes};
use crate::error::OpResult;
use crate::op::Op;
use crate::tolerance::Tolerance;

/// What a case of one op knows. `Display` is its whole name.
pub trait OpCase: Display {
    /// The op that a case calls.
    fn op(&self) -> Op;

    /// The data type that the tolerance goes by.
    fn dtype(&self) -> DType {
        DType::F32
    }

    /// The data, drawn from a generator that is seeded by the name.
    fn draw(&self, rng: &mut SplitMix64) -> Plan;

    /// Calls the op once.
    fn launch<B: Backend>(&self, backend: &B, buffers: &mut Buffers<B>) -> OpResult<()>;

    /// Why a backend need not run this; `None` where it must.
    fn excused(&self, _capabilities: &Capabilities) -> Option<String> {
        None
    }

    /// Why this says nothing about a backend: it asks for what the contract leaves to it. `None`
    /// as a rule.
    fn elsewhere(&self, _capabilities: &Capabilities) -> Option<String> {
        None
    }

    /// Whether `got` is as right as `want`.
    fn judge(&self, plan: &Plan, got: &Outcome, want: &Outcome, tol: &Tolerance) -> Comparison {
        compare_outcomes(plan, got, want, tol)
    }
}

/// The excuse of a backend that does not have `dtype` among `known`.
pub(super) fn lacks(known: &[DType], dtype: DType, what: &str) -> Option<String> {
    (!known.contains(&dtype)).then(|| format!("no {dtype} {what}"))
}

/// Without attention over KV rows of 8 bits a backend gets rows that the host has widened.
pub(super) fn widened(capabilities: &Capabilities, dtype: DType) -> Option<String> {
    let is_widened = dtype == DType::Q8 && !capabilities.kv_dtypes.contains(&dtype);
    is_widened.then(|| "KV rows of 8 bits are widened for this device".to_owned())
}
