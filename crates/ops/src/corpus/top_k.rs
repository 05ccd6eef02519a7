//! Cases of the largest elements of rows.

use std::fmt;

use longview_core::SplitMix64;

use super::case::OpCase;
use super::data::{EDGES, exactly};
use super::plan::{Buffers, Input, OutputPlan, Plan};
use crate::backend::Backend;
use crate::desc::{TopK, TopKParams};
use crate::error::OpResult;
use crate::op::Op;

/// What the rows of a [`TopKCase`] hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopKKind {
    /// Normal numbers.
    Normal,
    /// From 1 up in the smallest steps: only their last bits differ, and many are equal.
    Near,
    /// Small whole numbers: many equal maxima.
    Ties,
    /// One value everywhere.
    Equal,
    /// Some not-a-numbers and infinities.
    Nan,
    /// Minus infinity, but for a number here and there.
    NegInfinite,
    /// Zeros of both signs and the smallest numbers.
    Zeros,
    /// Rising, so that every element is better than all before it.
    Rising,
}

/// A case of [`Op::TopK`].
#[derive(Clone, Debug)]
pub struct TopKCase {
    /// Rows of the input.
    pub rows: u32,
    /// Elements of a row.
    pub width: u32,
    /// Elements taken of each row.
    pub k: u32,
    /// What the rows hold.
    pub kind: TopKKind,
}

impl TopKCase {
    pub(super) fn all() -> Vec<Self> {
        use TopKKind::{Equal, Nan, Near, NegInfinite, Normal, Rising, Ties, Zeros};
        let mut all = Vec::new();
        let mut add = |rows, width, k, kind| all.push(Self { rows, width, k, kind });
        for kind in [Normal, Near, Ties, Equal, Nan, NegInfinite, Zeros, Rising] {
            EDGES.iter().for_each(|width| add(3, *width, 40.min(*width), kind));
            for width in [511, 512, 513, 1025, 2048, 4099] {
                [1, 40, 256].into_iter().for_each(|k| add(2, width, k, kind));
            }
        }
        EDGES.iter().filter(|k| **k <= 256).for_each(|k| add(2, 300, *k, Ties));
        EDGES.iter().filter(|k| **k <= 256).for_each(|k| add(2, *k, *k, Normal));
        EDGES.iter().for_each(|rows| add(*rows, 17, 5, Normal));
        add(0, 9, 3, Normal);
        // The vocabulary of Qwen2.
        [(1, 40, Normal), (3, 256, Normal), (1, 256, Near), (1, 256, Ties), (1, 1, Nan)]
            .into_iter()
            .for_each(|(rows, k, kind)| add(rows, 151_936, k, kind));
        all
    }

    fn element(&self, rng: &mut SplitMix64, i: u32) -> f32 {
        match self.kind {
            TopKKind::Normal => rng.next_normal(),
            TopKKind::Near => f32::from_bits(1.0f32.to_bits() + rng.below(3000) as u32),
            TopKKind::Ties => rng.below(4) as f32 - 2.0,
            TopKKind::Equal => -1.5,
            TopKKind::Nan => match rng.below(20) {
                0 => f32::NAN,
                1 => -f32::NAN,
                2 => f32::INFINITY,
                3 => f32::NEG_INFINITY,
                _ => rng.next_normal(),
            },
            TopKKind::NegInfinite => match rng.below(30) {
                0 => rng.next_normal(),
                _ => f32::NEG_INFINITY,
            },
            TopKKind::Zeros => f32::from_bits(rng.below(3) as u32 | (rng.below(2) as u32) << 31),
            TopKKind::Rising => (i % self.width) as f32,
        }
    }
}

impl fmt::Display for TopKCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, width, k, kind } = self;
        write!(f, "top_k[rows={rows},v={width},k={k},{kind:?}]")
    }
}

impl OpCase for TopKCase {
    fn op(&self) -> Op {
        Op::TopK
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let x = (0..self.rows * self.width).map(|i| self.element(rng, i)).collect();
        let n = (self.rows * self.k) as usize;
        Plan {
            inputs: vec![Input::floats("x", x)],
            weights: Vec::new(),
            outputs: vec![
                OutputPlan::floats("values", n).or_nan(self.kind == TopKKind::Nan),
                OutputPlan::ints("ids", n),
            ],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [values, ids] = exactly(&mut b.outputs);
        backend.top_k(TopK {
            p: TopKParams { n_rows: self.rows, width: self.width, k: self.k },
            x: b.inputs[0].view(),
            values: values.view_mut(),
            ids: ids.view_mut(),
        })
    }
}
