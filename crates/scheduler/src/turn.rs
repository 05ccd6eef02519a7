//! First tokens at cache positions (StreamingLLM): once tokens between the first ones and the
//! recent ones are gone, the first ones move up behind the gap.
//!
//! Attention depends on differences of positions alone. Those between the query and the recent
//! tokens are the same in the text and in the cache; those to the first tokens shrink by the number
//! of tokens that are gone. So the first tokens' keys alone are turned, by that number, from their
//! rows to a small buffer, and are attended there.

use longview_core::DType;
use longview_ops::{
    AttendList, Backend, KvView, ListSpan, OpResult, RotateRows, RotateRowsParams, View, ViewMut,
};

use crate::layer::LayerMode;
use crate::policy::{Policy, Positions};
use crate::sequence::Sequence;
use crate::shape::KvShape;
use crate::step::{LayerTensors, attend_params, reborrow};

/// The first tokens, turned.
pub(crate) struct Turned<B: Backend> {
    /// F32 `[2 * pairs]`: cosines and sines of the angles.
    table: B::Buffer,
    host_table: Vec<f32>,
    /// Tokens that are gone, as the table has it.
    gone: usize,
    /// `[Hkv, sinks, 2, Dh]`.
    rows: B::Buffer,
    /// U32 `[Hkv, sinks]`: 0, 1, 2 .., and `[Hkv]`: how many.
    list: B::Buffer,
    n_rows: B::Buffer,
    sinks: usize,
}

/// Whether first tokens are attended at cache positions.
pub(crate) fn turns(shape: &KvShape, policy: &Policy) -> bool {
    policy.positions == Positions::Cache && policy.sinks > 0 && !shape.inv_freq.is_empty()
}

/// Bytes that [`Turned`] takes.
pub(crate) fn turned_bytes(shape: &KvShape, policy: &Policy) -> u64 {
    let rows = shape.n_kv_heads * policy.sinks;
    (4 * (2 * shape.inv_freq.len() + rows + shape.n_kv_heads) + rows * shape.row_bytes()) as u64
}

impl<B: Backend> Turned<B> {
    /// For the first tokens that `policy` keeps.
    pub fn new(backend: &B, shape: &KvShape, policy: &Policy) -> OpResult<Self> {
        let (h, sinks, pairs) = (shape.n_kv_heads, policy.sinks, shape.inv_freq.len());
        let len = h * sinks * 2 * shape.head_dim;
        let mut list = backend.alloc(DType::U32, h * sinks, "first tokens")?;
        let mut n_rows = backend.alloc(DType::U32, h, "first tokens")?;
        let numbers: Vec<u32> = (0..h * sinks).map(|i| (i % sinks) as u32).collect();
        backend.write(ViewMut::all(&mut list), bytemuck::cast_slice(&numbers))?;
        backend.write(ViewMut::all(&mut n_rows), bytemuck::cast_slice(&vec![sinks as u32; h]))?;
        Ok(Self {
            table: backend.alloc(DType::F32, 2 * pairs, "angles")?,
            host_table: vec![0.0; 2 * pairs],
            gone: 0,
            rows: backend.alloc(shape.kv_dtype, len, "first tokens")?,
            list,
            n_rows,
            sinks,
        })
    }

    /// Angles of `gone` positions, in f64 until they are cosines and sines.
    fn set_angles(&mut self, backend: &B, shape: &KvShape, gone: usize) -> OpResult<()> {
        if self.gone == gone {
            return Ok(());
        }
        let (cosines, sines) = self.host_table.split_at_mut(shape.inv_freq.len());
        for ((cosine, sine), freq) in cosines.iter_mut().zip(sines).zip(&*shape.inv_freq) {
            let (s, c) = (gone as f64 * freq).sin_cos();
            (*cosine, *sine) = (c as f32, s as f32);
        }
        self.gone = gone;
        backend.write(ViewMut::all(&mut self.table), bytemuck::cast_slice(&self.host_table))
    }
}

impl<B: Backend> Sequence<B> {
    /// Tokens between the first ones and the recent ones that the step in progress does not attend,
    /// where that moves the first ones.
    pub(crate) fn gone(&self, layer: usize) -> Option<usize> {
        let is_window = self.layers[layer].mode == LayerMode::Window;
        self.turned.as_ref().filter(|_| is_window)?;
        let gone = self.window_start(layer, self.n_tokens + 1) - self.layout.sinks;
        (gone > 0).then_some(gone)
    }

    /// Adds the first tokens, where they were left out because they are to be turned, to the
    /// attention of the step's token `index`.
    pub(crate) fn attend_turned(
        &mut self,
        layer: usize,
        index: usize,
        t: &mut LayerTensors<'_, B>,
        lse: &mut B::Buffer,
    ) -> OpResult<()> {
        let Some(gone) = self.gone(layer) else { return Ok(()) };
        let mut turned = self.turned.take().expect("something is gone");
        let result = self.attend_first(&mut turned, (layer, gone), index, t, lse);
        self.turned = Some(turned);
        result
    }

    fn attend_first(
        &self,
        turned: &mut Turned<B>,
        (layer, gone): (usize, usize),
        index: usize,
        t: &mut LayerTensors<'_, B>,
        lse: &mut B::Buffer,
    ) -> OpResult<()> {
        let (backend, shape) = (&*self.backend, &self.shape);
        turned.set_angles(backend, shape, gone)?;
        backend.rotate_rows(RotateRows {
            p: RotateRowsParams {
                n_kv_heads: shape.n_kv_heads as u32,
                head_dim: shape.head_dim as u32,
                rotary_dim: 2 * shape.inv_freq.len() as u32,
                n_rows: turned.sinks as u32,
                dst_head_stride: turned.sinks as u32,
            },
            src: self.attended_rows(layer),
            table: View::all(&turned.table),
            dst: &mut turned.rows,
        })?;
        let n_tokens = t.q.len / (shape.n_q_heads * shape.head_dim);
        backend.attend_list(AttendList {
            p: attend_params(shape, n_tokens, true),
            q: t.q,
            spans: &[ListSpan {
                q_index: index as u32,
                kv: KvView::new(&turned.rows, turned.sinks),
                rows: View::all(&turned.list),
                n_rows: View::all(&turned.n_rows),
                weights: None,
                list_stride: turned.sinks as u32,
            }],
            out: reborrow(&mut t.out),
            lse: ViewMut::part(lse, 0, n_tokens * shape.n_q_heads),
        })
    }
}
