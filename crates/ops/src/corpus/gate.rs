//! Cases of the comparison of a query with the last one.

use std::fmt;

use longview_core::SplitMix64;

use super::case::OpCase;
use super::data::{EDGES, HEAD_DIMS, HEADS, exactly, normals};
use super::plan::{Buffers, Input, Outcome, OutputPlan, Plan, Values};
use crate::backend::Backend;
use crate::compare::{Comparison, compare_floats, compare_guards};
use crate::desc::{QueryGate, QueryGateParams};
use crate::error::OpResult;
use crate::op::Op;
use crate::tolerance::Tolerance;

/// How the two queries of a [`QueryGateCase`] are related.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateKind {
    /// Not at all.
    Random,
    /// A tenth apart: what decoding sees.
    Near,
    /// Equal.
    Same,
    /// Opposite.
    Opposite,
    /// Every third head is zeros now, every fourth was.
    Zeros,
    /// Of sizes 1,000 and 0.001.
    Sizes,
}

/// A case of [`Op::QueryGate`].
#[derive(Clone, Debug)]
pub struct QueryGateCase {
    /// Query tokens.
    pub t: u32,
    /// Query heads.
    pub hq: u32,
    /// KV heads.
    pub hkv: u32,
    /// Width of a head.
    pub dh: u32,
    /// What the queries are like.
    pub kind: GateKind,
}

impl QueryGateCase {
    pub(super) fn all() -> Vec<Self> {
        use GateKind::*;
        let mut all = Vec::new();
        let mut add = |t, (hq, hkv), dh, kind| all.push(Self { t, hq, hkv, dh, kind });
        EDGES.iter().for_each(|dh| add(1, (6, 2), *dh, Near));
        EDGES.iter().for_each(|t| add(*t, (4, 2), 20, Random));
        for (i, heads) in HEADS.into_iter().chain([(61, 61), (65, 5), (257, 1)]).enumerate() {
            for (j, kind) in [Random, Near, Same, Opposite, Zeros, Sizes].into_iter().enumerate() {
                add(3, heads, HEAD_DIMS[(i + j) % 5], kind);
            }
        }
        all
    }

    /// The token that is meant: neither always the first nor always the last.
    fn q_index(&self) -> u32 {
        self.t / 2
    }

    /// The last query, made from this one.
    fn draw_last(&self, rng: &mut SplitMix64, q: &mut [f32]) -> Vec<f32> {
        let noise = normals(rng, q.len(), 1.0);
        let apart = |far: f32, factor: f32| -> Vec<f32> {
            q.iter().zip(&noise).map(|(q, n)| factor * q + far * n).collect()
        };
        match self.kind {
            GateKind::Random => noise,
            GateKind::Near => apart(0.1, 1.0),
            GateKind::Same => apart(0.0, 1.0),
            GateKind::Opposite => apart(0.0, -1.0),
            GateKind::Zeros => {
                let mut last = apart(1.0, 1.0);
                let width = self.dh as usize;
                q.chunks_exact_mut(width).step_by(3).for_each(|head| head.fill(0.0));
                last.chunks_exact_mut(width).step_by(4).for_each(|head| head.fill(0.0));
                last
            }
            GateKind::Sizes => {
                let last = apart(1.0, 1.0).iter().map(|x| 1e-3 * x).collect();
                q.iter_mut().for_each(|x| *x *= 1e3);
                last
            }
        }
    }
}

impl fmt::Display for QueryGateCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { t, hq, hkv, dh, kind } = self;
        write!(f, "query_gate[t={t},hq={hq},hkv={hkv},dh={dh},{kind:?}]")
    }
}

impl OpCase for QueryGateCase {
    fn op(&self) -> Op {
        Op::QueryGate
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let token = (self.hq * self.dh) as usize;
        let mut q = normals(rng, self.t as usize * token, 1.0);
        let own = &mut q[self.q_index() as usize * token..][..token];
        let last = self.draw_last(rng, own);
        Plan {
            inputs: vec![Input::floats("q", q)],
            weights: Vec::new(),
            outputs: vec![
                OutputPlan::floats("last", token).holding(Values::Floats(last)),
                OutputPlan::floats("cosines", self.hkv as usize),
            ],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [last, cosines] = exactly(&mut b.outputs);
        backend.query_gate(QueryGate {
            p: QueryGateParams {
                n_tokens: self.t,
                n_q_heads: self.hq,
                n_kv_heads: self.hkv,
                head_dim: self.dh,
                q_index: self.q_index(),
            },
            q: b.inputs[0].view(),
            last: last.view_mut(),
            cosines: cosines.view_mut(),
        })
    }

    /// The query is copied, not computed: it must be the same to the bit.
    fn judge(&self, _: &Plan, got: &Outcome, want: &Outcome, tol: &Tolerance) -> Comparison {
        let mut c = Comparison::default();
        got.outputs.iter().for_each(|output| compare_guards(&mut c, output));
        for (name, tol) in [("last", &Tolerance::EXACT), ("cosines", tol)] {
            let (got, want) = (got.output(name), want.output(name));
            compare_floats(&mut c, name, got.values.floats(), want.values.floats(), tol, false);
        }
        c
    }
}
