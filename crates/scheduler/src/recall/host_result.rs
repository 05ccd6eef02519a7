//! Attention that the host computes beside the device's: one row after the other taken in by a
//! running softmax, and the result merged with what the device attended, by log-sum-exp.

use longview_core::DType;
use longview_ops::{Backend, LseMerge, LseMergeParams, OpResult, View, ViewMut};

use crate::layout::{KvShape, LayerTensors};

/// What all query heads of one token attended on the host.
pub(super) struct HostResult<B: Backend> {
    /// `[Hq, Dh]`: the mean so far.
    pub out: Vec<f32>,
    /// `[Hq]`: the running logarithm of the sum.
    pub lse: Vec<f32>,
    device_out: B::Buffer,
    device_lse: B::Buffer,
}

impl<B: Backend> HostResult<B> {
    pub fn new(backend: &B, shape: &KvShape, label: &str) -> OpResult<Self> {
        let (hq, d) = (shape.n_q_heads, shape.head_dim);
        Ok(Self {
            out: vec![0.0; hq * d],
            lse: vec![0.0; hq],
            device_out: backend.alloc(DType::F32, hq * d, label)?,
            device_lse: backend.alloc(DType::F32, hq, label)?,
        })
    }

    /// What it takes on the device.
    #[cfg(test)]
    pub fn buffers(&self) -> [&B::Buffer; 2] {
        [&self.device_out, &self.device_lse]
    }

    /// Nothing is attended yet.
    pub fn clear(&mut self) {
        self.out.fill(0.0);
        self.lse.fill(f32::NEG_INFINITY);
    }

    /// Merges it with the device's attention of the step's token `index`, whose log-sum-exps are in
    /// `lse`.
    pub fn merge(
        &mut self,
        backend: &B,
        shape: &KvShape,
        index: usize,
        t: &mut LayerTensors<'_, B>,
        lse: &mut B::Buffer,
    ) -> OpResult<()> {
        let (hq, d) = (shape.n_q_heads, shape.head_dim);
        backend.write(ViewMut::all(&mut self.device_out), bytemuck::cast_slice(&self.out))?;
        backend.write(ViewMut::all(&mut self.device_lse), bytemuck::cast_slice(&self.lse))?;
        let at = t.out.offset + index * hq * d;
        backend.lse_merge(LseMerge {
            p: LseMergeParams { n_rows: hq as u32, head_dim: d as u32 },
            other_out: View::all(&self.device_out),
            other_lse: View::all(&self.device_lse),
            out: ViewMut::part(t.out.buffer, at, hq * d),
            lse: ViewMut::part(lse, index * hq, hq),
        })
    }
}

/// Takes a row of this score in: `out` is the mean of values so far, `lse` the logarithm of the sum
/// of their weights.
pub(super) fn take_row(score: f32, value: &[f32], out: &mut [f32], lse: &mut f32) {
    let (low, high) = if score < *lse { (score, *lse) } else { (*lse, score) };
    *lse = high + (low - high).exp().ln_1p();
    let share = (score - *lse).exp();
    out.iter_mut().zip(value).for_each(|(o, v)| *o += share * (v - *o));
}
