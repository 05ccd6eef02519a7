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
    /// Tokens that are gone, as the table has it; `None` before it was written.
    gone: Option<usize>,
    /// `[Hkv, sinks, 2, Dh]`.
    rows: B::Buffer,
    /// U32 `[Hkv, sinks]`: 0, 1, 2 .., and `[Hkv]`: how many.
    list: B::Buffer,
    n_rows: B::Buffer,
    sinks: usize,
}

/// Bytes that [`SinkRotation`] takes.
pub(crate) fn sink_rotation_bytes(shape: &KvShape, policy: &Policy) -> u64 {
    let rows = shape.n_kv_heads * policy.device_layout(shape.capacity).sinks;
    (4 * (2 * shape.inv_freq.len() + rows + shape.n_kv_heads) + rows * shape.row_bytes()) as u64
}

impl<B: Backend> SinkRotation<B> {
    /// For the first tokens that `policy` keeps.
    pub fn new(backend: &B, shape: &KvShape, policy: &Policy) -> OpResult<Self> {
        let sinks = policy.device_layout(shape.capacity).sinks;
        let (h, pairs) = (shape.n_kv_heads, shape.inv_freq.len());
        let len = h * sinks * 2 * shape.head_dim;
        let mut list = backend.alloc(DType::U32, h * sinks, "first tokens")?;
        let mut n_rows = backend.alloc(DType::U32, h, "first tokens")?;
        let numbers: Vec<u32> = (0..h * sinks).map(|i| (i % sinks) as u32).collect();
        backend.write(ViewMut::all(&mut list), bytemuck::cast_slice(&numbers))?;
        backend.write(ViewMut::all(&mut n_rows), bytemuck::cast_slice(&vec![sinks as u32; h]))?;
        Ok(Self {
            table: backend.alloc(DType::F32, 2 * pairs, "angles")?,
            host_table: vec![0.0; 2 * pairs],
            gone: None,
            rows: backend.alloc(shape.kv_dtype, len, "first tokens")?,
            list,
            n_rows,
            sinks,
        })
    }

    /// Angles of `gone` positions, in f64 until they are cosines and sines.
    fn set_angles(&mut self, backend: &B, shape: &KvShape, gone: usize) -> OpResult<()> {
        if self.gone == Some(gone) {
            return Ok(());
        }
        let (cosines, sines) = self.host_table.split_at_mut(shape.inv_freq.len());
        for ((cosine, sine), freq) in cosines.iter_mut().zip(sines).zip(&*shape.inv_freq) {
            let (s, c) = (gone as f64 * freq).sin_cos();
            (*cosine, *sine) = (c as f32, s as f32);
        }
        self.gone = Some(gone);
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

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;
    use std::sync::Arc;

    use longview_core::{HeadId, LayerId};
    use longview_ops::ReferenceBackend;

    use super::*;
    use crate::policy::{PolicyOptions, Preset};
    use crate::store::fixture::{self, Buffer, floats, read_floats};

    /// The first pair of elements (0 and 2) turns by a quarter from one position to the next, the
    /// second (1 and 3) by a half.
    fn shape() -> KvShape {
        KvShape { inv_freq: Arc::from([PI / 2.0, PI]), ..fixture::shape() }
    }

    fn policy() -> Policy {
        let mut options = PolicyOptions::new(Preset::StreamingLlm).with_budget(4);
        options.sinks = Some(2);
        Policy::resolve(&options, 8).unwrap()
    }

    /// Keys and values of the two first tokens of each KV head.
    const ROWS: [[[f32; 8]; 2]; 2] = [
        [[1.0, 2.0, 3.0, 4.0, 1.0, 0.0, 0.0, 0.0], [0.5, -1.0, 2.0, 0.25, 0.0, 1.0, 0.0, 0.0]],
        [[-2.0, 1.0, 0.0, 1.5, 0.0, 0.0, 1.0, 0.0], [3.0, 0.5, -1.0, 2.0, 0.0, 0.0, 0.0, 1.0]],
    ];

    /// The same when one token is gone, (a, b, c, d) being (-c, -b, a, -d) then.
    const ONE_GONE: [[[f32; 8]; 2]; 2] = [
        [[-3.0, -2.0, 1.0, -4.0, 1.0, 0.0, 0.0, 0.0], [-2.0, 1.0, 0.5, -0.25, 0.0, 1.0, 0.0, 0.0]],
        [[0.0, -1.0, -2.0, -1.5, 0.0, 0.0, 1.0, 0.0], [1.0, -0.5, 3.0, -2.0, 0.0, 0.0, 0.0, 1.0]],
    ];

    /// The same when two tokens are gone, (a, b, c, d) being (-a, b, -c, d) then.
    const TWO_GONE: [[[f32; 8]; 2]; 2] = [
        [[-1.0, 2.0, -3.0, 4.0, 1.0, 0.0, 0.0, 0.0], [-0.5, -1.0, -2.0, 0.25, 0.0, 1.0, 0.0, 0.0]],
        [[2.0, 1.0, 0.0, 1.5, 0.0, 0.0, 1.0, 0.0], [-3.0, 0.5, 1.0, 2.0, 0.0, 0.0, 0.0, 1.0]],
    ];

    /// Query of each query head.
    const QUERIES: [[f32; 4]; 4] = [
        [1.0, 0.0, 0.5, 0.25],
        [0.0, -1.0, 1.0, 0.0],
        [0.5, 0.5, -0.5, 0.0],
        [-1.0, 0.25, 0.0, 0.75],
    ];

    /// Attention of a query over rows of a key and a value, and its log-sum-exp.
    fn attention(q: &[f32], rows: &[[f32; 8]]) -> ([f32; 4], f32) {
        let dot = |row: &[f32; 8]| q.iter().zip(row).map(|(a, b)| a * b).sum::<f32>();
        let weights: Vec<f32> = rows.iter().map(|row| (0.5 * dot(row)).exp()).collect();
        let sum: f32 = weights.iter().sum();
        let value =
            |i: usize| rows.iter().zip(&weights).map(|(row, w)| w * row[4 + i]).sum::<f32>() / sum;
        (std::array::from_fn(value), sum.ln())
    }

    /// A layer's rows in the host store: the two first tokens, and others.
    fn layer_rows(backend: &ReferenceBackend) -> Buffer {
        let head = |h: HeadId| {
            let first = ROWS[h].concat();
            first.into_iter().chain((2..8).flat_map(move |r| fixture::row(LayerId(0), h, r)))
        };
        floats(backend, &fixture::shape().heads().flat_map(head).collect::<Vec<_>>())
    }

    /// Two tokens, of which the second is to be attended: `before` is its attention so far.
    struct StepOutput {
        out: Buffer,
        lse: Buffer,
    }

    impl StepOutput {
        fn new(backend: &ReferenceBackend, before: [([f32; 4], f32); 4]) -> Self {
            let out = before.iter().flat_map(|(out, _)| *out);
            let lse = before.iter().map(|(_, lse)| *lse);
            let first = std::iter::repeat_n(7.0, 16);
            Self {
                out: floats(backend, &first.chain(out).collect::<Vec<_>>()),
                lse: floats(backend, &[0.5; 4].into_iter().chain(lse).collect::<Vec<_>>()),
            }
        }

        /// Adds the first tokens when `gone` others are gone.
        fn attend(
            &mut self,
            backend: &ReferenceBackend,
            rotation: &mut SinkRotation<ReferenceBackend>,
            gone: usize,
        ) {
            let rows = layer_rows(backend);
            let queries = [[9.0; 16].to_vec(), QUERIES.concat()].concat();
            let (q, kv) = (floats(backend, &queries), floats(backend, &[0.0; 16]));
            let mut t = LayerTensors {
                q: View::all(&q),
                k: View::all(&kv),
                v: View::all(&kv),
                out: ViewMut::all(&mut self.out),
            };
            let at = RotatedSinks { rows: KvView::new(&rows, 8), gone, index: 1 };
            rotation.attend(backend, &shape(), &at, &mut t, &mut self.lse).unwrap();
        }

        /// Compares the second token's attention with that over `rows`.
        #[track_caller]
        fn check(&self, backend: &ReferenceBackend, rows: impl Fn(usize) -> Vec<[f32; 8]>) {
            let (out, lse) = (read_floats(backend, &self.out), read_floats(backend, &self.lse));
            assert_eq!((&out[..16], &lse[..4]), (&[7.0; 16][..], &[0.5; 4][..]), "the first token");
            for g in 0..4 {
                let (want, want_lse) = attention(&QUERIES[g], &rows(g));
                for (x, y) in out[16 + 4 * g..][..4].iter().zip(want) {
                    assert!((x - y).abs() < 1e-5, "head {g}: {x}, not {y}");
                }
                assert!((lse[4 + g] - want_lse).abs() < 1e-5, "head {g}: {}", lse[4 + g]);
            }
        }
    }

    const NOTHING: ([f32; 4], f32) = ([0.0; 4], f32::NEG_INFINITY);

    #[test]
    fn first_tokens_are_attended_as_far_ahead_as_others_are_gone() {
        let backend = ReferenceBackend::new();
        let mut rotation = SinkRotation::new(&backend, &shape(), &policy()).unwrap();
        // Again and again, as the layers of a step do, and as steps follow each other.
        for (gone, want) in [(1, &ONE_GONE), (1, &ONE_GONE), (2, &TWO_GONE), (1, &ONE_GONE)] {
            let mut step = StepOutput::new(&backend, [NOTHING; 4]);
            step.attend(&backend, &mut rotation, gone);
            step.check(&backend, |g| want[g / 2].to_vec());
        }
    }

    #[test]
    fn their_attention_is_merged_with_that_of_the_other_rows() {
        let backend = ReferenceBackend::new();
        let mut rotation = SinkRotation::new(&backend, &shape(), &policy()).unwrap();
        let recent = [0.5, 1.0, -0.5, 0.25, 2.0, 3.0, 4.0, 5.0];
        let before = QUERIES.map(|q| attention(&q, &[recent]));
        let mut step = StepOutput::new(&backend, before);
        step.attend(&backend, &mut rotation, 2);
        step.check(&backend, |g| [&[recent], &TWO_GONE[g / 2][..]].concat());
    }

    #[test]
    fn keys_stay_as_they_are_where_nothing_is_gone() {
        let backend = ReferenceBackend::new();
        let mut rotation = SinkRotation::new(&backend, &shape(), &policy()).unwrap();
        let mut step = StepOutput::new(&backend, [NOTHING; 4]);
        step.attend(&backend, &mut rotation, 0);
        step.check(&backend, |g| ROWS[g / 2].to_vec());
    }

    #[test]
    fn its_bytes_are_those_of_its_buffers() {
        // Four words of angles, four row numbers and two counts; four rows of eight numbers.
        assert_eq!(sink_rotation_bytes(&shape(), &policy()), 4 * (4 + 4 + 2) + 4 * 8 * 4);
    }
}
