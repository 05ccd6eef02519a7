//! Sink rotation (StreamingLLM): the first tokens are attended at cache positions. Once tokens
//! between the first ones and the recent ones are gone, the first ones move up behind the gap.
//!
//! Attention depends on differences of positions alone. Those between the query and the recent
//! tokens are the same in the text and in the cache; those to the first tokens shrink by the number
//! of tokens that are gone. So the first tokens' keys alone are rotated, by that number, from their
//! rows to a small buffer, and are attended there.

use longview_core::DType;
use longview_ops::{
    AttendList, Backend, KvView, ListSpan, OpResult, RotateRows, RotateRowsParams, View, ViewMut,
};

use crate::layout::{KvShape, LayerTensors, attend_params};
use crate::policy::Policy;

/// The rotated first tokens.
pub(crate) struct SinkRotation<B: Backend> {
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

/// Bytes that [`SinkRotation`] takes.
pub(crate) fn sink_rotation_bytes(shape: &KvShape, policy: &Policy) -> u64 {
    let rows = shape.n_kv_heads * policy.sinks;
    (4 * (2 * shape.inv_freq.len() + rows + shape.n_kv_heads) + rows * shape.row_bytes()) as u64
}

impl<B: Backend> SinkRotation<B> {
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

    /// Adds the first tokens, rotated by the `at.gone` tokens behind them that are gone, to the
    /// attention of the step's token `at.index`.
    pub fn attend(
        &mut self,
        backend: &B,
        shape: &KvShape,
        at: &RotatedSinks<'_, B>,
        t: &mut LayerTensors<'_, B>,
        lse: &mut B::Buffer,
    ) -> OpResult<()> {
        self.set_angles(backend, shape, at.gone)?;
        backend.rotate_rows(RotateRows {
            p: RotateRowsParams {
                n_kv_heads: shape.n_kv_heads as u32,
                head_dim: shape.head_dim as u32,
                rotary_dim: 2 * shape.inv_freq.len() as u32,
                n_rows: self.sinks as u32,
                dst_head_stride: self.sinks as u32,
            },
            src: at.rows,
            table: View::all(&self.table),
            dst: &mut self.rows,
        })?;
        let n_tokens = t.n_tokens(shape);
        backend.attend_list(AttendList {
            p: attend_params(shape, n_tokens, true),
            q: t.q,
            spans: &[ListSpan {
                q_index: at.index as u32,
                kv: KvView::new(&self.rows, self.sinks),
                rows: View::all(&self.list),
                n_rows: View::all(&self.n_rows),
                weights: None,
                list_stride: self.sinks as u32,
            }],
            out: t.out_mut(),
            lse: ViewMut::part(lse, 0, n_tokens * shape.n_q_heads),
        })
    }
}

/// First tokens of a layer that are attended at other positions than those of the text.
pub(crate) struct RotatedSinks<'a, B: Backend> {
    /// The layer's rows.
    pub rows: KvView<'a, B>,
    /// Tokens between the first ones and the recent ones that are not attended.
    pub gone: usize,
    /// The token among the step's.
    pub index: usize,
}
