//! Moves KV rows between the host store and device buffers, whichever kind the store is.
//!
//! Where kernels read the store, every move is one gather over row lists; where they do not, rows
//! pass through host memory and a staging buffer. The lists are buffers made once, so a step
//! allocates nothing.

use std::ops::Range;

use longview_core::{DType, HeadId, LayerId};
use longview_ops::{
    Backend, KvGather, KvGatherParams, KvScatter, KvScatterParams, KvScatterTo, KvScatterTwice,
    KvView, OpResult, View, ViewMut,
};
use smallvec::SmallVec;

use super::host_store::HostStore;
use crate::layout::{KvShape, LayerTensors};

/// Row lists of one move, `[Hkv, stride]`, on the host and on the device.
pub(crate) struct RowMover<B: Backend> {
    /// Of the rows that are moved: as they are attended, or codes.
    dtype: DType,
    stride: usize,
    src: Vec<u32>,
    dst: Vec<u32>,
    n: Vec<u32>,
    /// How many rows each head has, then the source rows and the destination rows of all heads.
    lists: B::Buffer,
    packed: Vec<u32>,
    /// `[Hkv, stride]` rows on the device, for stores that kernels do not read.
    staging: Option<B::Buffer>,
    bytes: Vec<u8>,
}

/// A device buffer of KV rows and its stride.
pub(crate) struct DeviceRows<'a, B: Backend> {
    pub buffer: &'a mut B::Buffer,
    pub head_stride: usize,
}

/// Keys and values of some tokens of a step, to be written as rows.
pub(crate) struct NewRows<'a, B: Backend> {
    /// The first token among the step's.
    pub start: usize,
    /// Tokens that are written.
    pub len: usize,
    /// U32 `[len]`: the rows that they become.
    pub row_ids: View<'a, B>,
}

/// Writes tokens' keys and values to rows of `dst`.
pub(crate) fn scatter<B: Backend>(
    backend: &B,
    shape: &KvShape,
    t: &LayerTensors<'_, B>,
    new: &NewRows<'_, B>,
    dst: DeviceRows<'_, B>,
) -> OpResult<()> {
    backend.kv_scatter(scatter_call(shape, t, new, dst))
}

fn scatter_call<'a, B: Backend>(
    shape: &KvShape,
    t: &LayerTensors<'a, B>,
    new: &NewRows<'a, B>,
    dst: DeviceRows<'a, B>,
) -> KvScatter<'a, B> {
    let width = shape.n_kv_heads * shape.head_dim;
    let part = |x: &View<'_, B>| (x.offset + new.start * width, new.len * width);
    let ((k, len), (v, _)) = (part(&t.k), part(&t.v));
    KvScatter {
        p: KvScatterParams {
            n_tokens: new.len as u32,
            n_kv_heads: shape.n_kv_heads as u32,
            head_dim: shape.head_dim as u32,
            dst_head_stride: dst.head_stride as u32,
        },
        k: View::part(t.k.buffer, k, len),
        v: View::part(t.v.buffer, v, len),
        rows: new.row_ids,
        dst: dst.buffer,
    }
}

/// As [`scatter`], into rows of two buffers; the tokens are those of the first.
pub(crate) fn scatter_twice<B: Backend>(
    backend: &B,
    shape: &KvShape,
    t: &LayerTensors<'_, B>,
    [first, second]: [(NewRows<'_, B>, DeviceRows<'_, B>); 2],
) -> OpResult<()> {
    let second = KvScatterTo {
        rows: second.0.row_ids,
        head_stride: second.1.head_stride as u32,
        dst: second.1.buffer,
    };
    let first = scatter_call(shape, t, &first.0, first.1);
    backend.kv_scatter_twice(KvScatterTwice { first, second })
}

/// Rows that follow each other on both sides.
struct RowRun {
    src: usize,
    dst: usize,
    len: usize,
}

/// The runs of two lists of one length.
fn runs<'a>(src: &'a [u32], dst: &'a [u32]) -> impl Iterator<Item = RowRun> + 'a {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at;
        let follows = |i: usize| src[i] == src[i - 1] + 1 && dst[i] == dst[i - 1] + 1;
        at += usize::from(at < src.len());
        while at < src.len() && follows(at) {
            at += 1;
        }
        let run = || RowRun { src: src[start] as usize, dst: dst[start] as usize, len: at - start };
        (at > start).then(run)
    })
}

impl<B: Backend> RowMover<B> {
    /// Lists for at most `stride` rows a head; `mapped` says whether kernels read the store.
    pub fn new(backend: &B, shape: &KvShape, stride: usize, mapped: bool) -> OpResult<Self> {
        Self::of(backend, shape, stride, (shape.kv_dtype, mapped))
    }

    /// Lists for at most `stride` rows a head of a store of rows of 8 bits, which go to the device
    /// as such; `mapped` says whether kernels read its codes.
    pub fn of_codes(backend: &B, shape: &KvShape, stride: usize, mapped: bool) -> OpResult<Self> {
        Self::of(backend, shape, stride, (DType::Q8, mapped))
    }

    fn of(
        backend: &B,
        shape: &KvShape,
        stride: usize,
        (dtype, mapped): (DType, bool),
    ) -> OpResult<Self> {
        let (h, stride) = (shape.n_kv_heads, stride.max(1));
        let row_len = dtype.kv_row_len(shape.head_dim);
        Ok(Self {
            dtype,
            stride,
            src: vec![0; h * stride],
            dst: vec![0; h * stride],
            n: vec![0; h],
            lists: backend.alloc(DType::U32, h + 2 * h * stride, "row lists")?,
            packed: Vec::with_capacity(h + 2 * h * stride),
            staging: if mapped {
                None
            } else {
                Some(backend.alloc(dtype, h * stride * row_len, "row staging")?)
            },
            bytes: Vec::with_capacity(if mapped { 0 } else { stride * row_len * dtype.size() }),
        })
    }

    /// Most rows a head in one move.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Starts a new list.
    pub fn clear(&mut self) {
        self.n.fill(0);
    }

    /// Adds one row of `head` to the list.
    pub fn push(&mut self, head: HeadId, src: usize, dst: usize) {
        let at = head.index() * self.stride + self.n[head] as usize;
        assert!((self.n[head] as usize) < self.stride, "a move of more than {} rows", self.stride);
        self.src[at] = src as u32;
        self.dst[at] = dst as u32;
        self.n[head] += 1;
    }

    /// The longest list: what the lists on the device are laid out by, so that a small move is a
    /// small launch.
    fn width(&self) -> usize {
        self.n.iter().copied().max().unwrap_or(0) as usize
    }

    /// Rows in the list over all heads.
    pub fn len(&self) -> usize {
        self.n.iter().map(|n| *n as usize).sum()
    }

    /// Carries the listed rows of the store of `layer` to the listed device rows.
    pub fn load(
        &mut self,
        backend: &B,
        shape: &KvShape,
        store: &dyn HostStore<B>,
        layer: LayerId,
        device: DeviceRows<'_, B>,
    ) -> OpResult<()> {
        if self.len() == 0 {
            return Ok(());
        }
        let buffer = match self.dtype {
            DType::Q8 => store.two_forms(layer).map(|forms| forms.rounded),
            _ => store.buffer(layer),
        };
        if let Some(buffer) = buffer {
            self.upload_lists(backend)?;
            return self.gather(backend, shape, KvView::new(buffer, shape.capacity), device);
        }
        self.stage(backend, shape, store, layer)?;
        self.upload_lists(backend)?;
        let staging = self.staging.take().expect("made for stores that kernels do not read");
        let result = self.gather(backend, shape, KvView::new(&staging, self.width()), device);
        self.staging = Some(staging);
        result
    }

    /// Carries the listed device rows to the listed rows of the store of `layer`, which per head
    /// are one run.
    pub async fn store(
        &mut self,
        backend: &B,
        shape: &KvShape,
        store: &mut dyn HostStore<B>,
        layer: LayerId,
        device: KvView<'_, B>,
    ) -> OpResult<()> {
        if self.len() == 0 {
            return Ok(());
        }
        if let Some(buffer) = store.buffer_mut(layer, self.destinations(shape)) {
            self.upload_lists(backend)?;
            let rows = DeviceRows { buffer, head_stride: shape.capacity };
            return self.gather(backend, shape, device, rows);
        }
        self.download(backend, shape, device).await?;
        let mut rest = self.bytes.as_slice();
        for head in shape.heads() {
            for run in runs(self.list(&self.src, head), self.list(&self.dst, head)) {
                let (bytes, next) = rest.split_at(run.len * shape.row_bytes());
                store.write_rows(layer, head, run.dst, bytes);
                rest = next;
            }
        }
        Ok(())
    }

    /// From the first row that a move writes to behind the last.
    fn destinations(&self, shape: &KvShape) -> Range<usize> {
        let all = || shape.heads().flat_map(|head| self.list(&self.dst, head));
        let first = all().min().map_or(0, |row| *row as usize);
        first..all().max().map_or(0, |row| *row as usize + 1)
    }

    /// Reads the listed device rows into `self.bytes`, one after the other, with one wait.
    async fn download(
        &mut self,
        backend: &B,
        shape: &KvShape,
        device: KvView<'_, B>,
    ) -> OpResult<()> {
        let width = 2 * shape.head_dim;
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.resize(self.len() * shape.row_bytes(), 0);
        let mut parts = SmallVec::<[_; 16]>::new();
        let mut rest = bytes.as_mut_slice();
        for head in shape.heads() {
            for run in runs(self.list(&self.src, head), self.list(&self.dst, head)) {
                let row = device.offset + (head.index() * device.head_stride + run.src) * width;
                let (out, next) = rest.split_at_mut(run.len * shape.row_bytes());
                parts.push((View::part(device.buffer, row, run.len * width), out));
                rest = next;
            }
        }
        let result = backend.read_all(&mut parts).await;
        drop(parts);
        self.bytes = bytes;
        result
    }

    fn list<'a>(&self, lists: &'a [u32], head: HeadId) -> &'a [u32] {
        &lists[head.index() * self.stride..][..self.n[head] as usize]
    }

    /// Copies listed rows of the store to the staging buffer and points the source list there.
    fn stage(
        &mut self,
        backend: &B,
        shape: &KvShape,
        store: &dyn HostStore<B>,
        layer: LayerId,
    ) -> OpResult<()> {
        let (row, width) = (self.dtype.kv_row_len(shape.head_dim), self.width());
        let row_bytes = row * self.dtype.size();
        let codes = store.rounded().filter(|_| self.dtype == DType::Q8);
        for head in shape.heads() {
            let (first, n) = (head.index() * self.stride, self.n[head] as usize);
            if n == 0 {
                continue;
            }
            self.bytes.resize(n * row_bytes, 0);
            // Staged rows lie in the order of the list, so only the source changes.
            let mut rest = self.bytes.as_mut_slice();
            let list = self.src[first..first + n].chunk_by(|a, b| a + 1 == *b);
            for run in list {
                let (out, next) = rest.split_at_mut(run.len() * row_bytes);
                let rows = run[0] as usize..run[0] as usize + run.len();
                match codes {
                    Some(codes) => codes.read_codes(layer, head, rows, out),
                    None => store.read_rows(layer, head, rows, out),
                }
                rest = next;
            }
            for (i, row) in self.src[first..first + n].iter_mut().enumerate() {
                *row = i as u32;
            }
            let staging = self.staging.as_mut().expect("made for stores that kernels do not read");
            let rows = ViewMut::part(staging, head.index() * width * row, n * row);
            backend.write(rows, &self.bytes)?;
        }
        Ok(())
    }

    fn upload_lists(&mut self, backend: &B) -> OpResult<()> {
        let width = self.width();
        self.packed.clear();
        self.packed.extend_from_slice(&self.n);
        for list in [&self.src, &self.dst] {
            let heads = list.chunks(self.stride).map(|head| &head[..width]);
            heads.for_each(|head| self.packed.extend_from_slice(head));
        }
        let view = ViewMut::part(&mut self.lists, 0, self.packed.len());
        backend.write(view, bytemuck::cast_slice(&self.packed))
    }

    fn gather(
        &self,
        backend: &B,
        shape: &KvShape,
        src: KvView<'_, B>,
        dst: DeviceRows<'_, B>,
    ) -> OpResult<()> {
        let (h, n_listed) = (shape.n_kv_heads, shape.n_kv_heads * self.width());
        backend.kv_gather(KvGather {
            p: KvGatherParams {
                n_kv_heads: h as u32,
                head_dim: shape.head_dim as u32,
                list_stride: self.width() as u32,
                dst_head_stride: dst.head_stride as u32,
            },
            src,
            src_rows: View::part(&self.lists, h, n_listed),
            dst_rows: View::part(&self.lists, h + n_listed, n_listed),
            n_rows: View::part(&self.lists, 0, h),
            dst: dst.buffer,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use longview_ops::ReferenceBackend;

    use super::super::fixture::{
        empty_stores, floats, full_stores, read_floats, row, shape, stored, words,
    };
    use super::*;

    fn mover(
        backend: &ReferenceBackend,
        stride: usize,
        mapped: bool,
    ) -> RowMover<ReferenceBackend> {
        RowMover::new(backend, &shape(), stride, mapped).unwrap()
    }

    /// Two heads of four rows: each says what lies there.
    fn laid_out(rows: [[Option<[f32; 8]>; 4]; 2]) -> Vec<f32> {
        rows.concat().into_iter().flat_map(|row| row.unwrap_or([0.0; 8])).collect()
    }

    /// Head 0 moves three rows, two of which follow each other, head 1 one.
    #[test]
    fn listed_rows_of_each_head_go_to_the_device_from_either_store() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        for (store, mapped) in full_stores(&backend, &shape).iter().zip([true, false]) {
            let mut mover = mover(&backend, 4, mapped);
            // A list before must leave nothing behind.
            (0..4).for_each(|r| mover.push(HeadId(1), r, r));
            mover.clear();
            assert_eq!(mover.len(), 0);
            for (head, src, dst) in [(0, 4, 1), (0, 5, 2), (1, 7, 3), (0, 1, 0)] {
                mover.push(HeadId(head), src, dst);
            }
            assert_eq!(mover.len(), 4);
            let mut buffer = floats(&backend, &[0.0; 64]);
            let device = DeviceRows { buffer: &mut buffer, head_stride: 4 };
            mover.load(&*backend, &shape, &**store, LayerId(1), device).unwrap();
            let head_0 = [
                Some(row(LayerId(1), HeadId(0), 1)),
                Some(row(LayerId(1), HeadId(0), 4)),
                Some(row(LayerId(1), HeadId(0), 5)),
                None,
            ];
            let want = laid_out([head_0, [None, None, None, Some(row(LayerId(1), HeadId(1), 7))]]);
            assert_eq!(read_floats(&backend, &buffer), want, "mapped: {mapped}");
        }
    }

    #[test]
    fn a_move_of_nothing_leaves_the_device_alone() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        for (store, mapped) in full_stores(&backend, &shape).iter().zip([true, false]) {
            let mut mover = mover(&backend, 2, mapped);
            mover.push(HeadId(0), 1, 1);
            mover.clear();
            let mut buffer = floats(&backend, &[5.0; 64]);
            let device = DeviceRows { buffer: &mut buffer, head_stride: 4 };
            mover.load(&*backend, &shape, &**store, LayerId(0), device).unwrap();
            assert_eq!(read_floats(&backend, &buffer), [5.0; 64]);
        }
    }

    /// With a head stride of 0 all heads share one numbering of rows.
    #[test]
    fn heads_may_share_a_pool() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        for (store, mapped) in full_stores(&backend, &shape).iter().zip([true, false]) {
            let mut mover = mover(&backend, 4, mapped);
            for (head, src, dst) in [(0, 2, 7), (1, 2, 0), (1, 6, 5)] {
                mover.push(HeadId(head), src, dst);
            }
            let mut buffer = floats(&backend, &[0.0; 64]);
            let pool = DeviceRows { buffer: &mut buffer, head_stride: 0 };
            mover.load(&*backend, &shape, &**store, LayerId(0), pool).unwrap();
            let first = [Some(row(LayerId(0), HeadId(1), 2)), None, None, None];
            let want = laid_out([
                first,
                [
                    None,
                    Some(row(LayerId(0), HeadId(1), 6)),
                    None,
                    Some(row(LayerId(0), HeadId(0), 2)),
                ],
            ]);
            assert_eq!(read_floats(&backend, &buffer), want, "mapped: {mapped}");
        }
    }

    /// Device rows of head h are those of layer 0; they become rows of layer 1. Head 0's source
    /// rows do not follow each other, head 1's do.
    #[test]
    fn listed_device_rows_go_to_either_store() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        let device: Vec<f32> =
            shape.heads().flat_map(|h| (0..4).flat_map(move |r| row(LayerId(0), h, r))).collect();
        // One row before the first, as a part of a larger buffer has it.
        let buffer = floats(&backend, &[vec![3.0; 8], device].concat());
        for (mut store, mapped) in empty_stores(&backend, &shape).into_iter().zip([true, false]) {
            let mut mover = mover(&backend, 4, mapped);
            for (head, src, dst) in [(0, 3, 5), (0, 1, 6), (1, 2, 0), (1, 3, 1)] {
                mover.push(HeadId(head), src, dst);
            }
            // The gather of a mapped store begins at its view's row 0 likewise.
            let view = KvView { buffer: &buffer, offset: 8, head_stride: 4 };
            let moved = mover.store(&*backend, &shape, &mut *store, LayerId(1), view);
            pollster::block_on(moved).unwrap();
            let (mut head_0, mut head_1) = (vec![0.0; 64], vec![0.0; 64]);
            head_0[40..48].copy_from_slice(&row(LayerId(0), HeadId(0), 3));
            head_0[48..56].copy_from_slice(&row(LayerId(0), HeadId(0), 1));
            head_1[..8].copy_from_slice(&row(LayerId(0), HeadId(1), 2));
            head_1[8..16].copy_from_slice(&row(LayerId(0), HeadId(1), 3));
            assert_eq!(stored(&*store, &shape, LayerId(1), HeadId(0)), head_0, "mapped: {mapped}");
            assert_eq!(stored(&*store, &shape, LayerId(1), HeadId(1)), head_1, "mapped: {mapped}");
            assert_eq!(stored(&*store, &shape, LayerId(0), HeadId(0)), [0.0; 64], "another layer");
        }
    }

    #[test]
    fn a_run_ends_where_either_side_leaps() {
        let of = |src: &[u32], dst: &[u32]| -> Vec<[usize; 3]> {
            runs(src, dst).map(|run| [run.src, run.dst, run.len]).collect()
        };
        assert_eq!(of(&[], &[]), [[0; 3]; 0]);
        assert_eq!(of(&[4], &[9]), [[4, 9, 1]]);
        assert_eq!(of(&[1, 2, 3], &[5, 6, 7]), [[1, 5, 3]]);
        assert_eq!(of(&[1, 2, 3], &[5, 6, 8]), [[1, 5, 2], [3, 8, 1]]);
        assert_eq!(of(&[1, 3, 4], &[5, 6, 7]), [[1, 5, 1], [3, 6, 2]]);
        assert_eq!(of(&[2, 2], &[0, 1]), [[2, 0, 1], [2, 1, 1]], "one row twice");
    }

    /// The second and third of three tokens become rows 3 and 0.
    #[test]
    fn keys_and_values_of_tokens_become_rows_of_each_head() {
        let (backend, shape) = (ReferenceBackend::new(), shape());
        let token = |t: usize, part: std::ops::Range<usize>| {
            [
                row(LayerId(0), HeadId(0), t)[part.clone()].to_vec(),
                row(LayerId(0), HeadId(1), t)[part].to_vec(),
            ]
            .concat()
        };
        // One number before the first token, as views into larger tensors have it.
        let all = |part: std::ops::Range<usize>| {
            let tokens = (0..3).flat_map(|t| token(t, part.clone()));
            std::iter::once(7.0).chain(tokens).collect::<Vec<f32>>()
        };
        let (k, v) = (floats(&backend, &all(0..4)), floats(&backend, &all(4..8)));
        let (q, mut out) = (floats(&backend, &[0.0; 48]), floats(&backend, &[0.0; 48]));
        let t = LayerTensors {
            q: View::all(&q),
            k: View::part(&k, 1, 24),
            v: View::part(&v, 1, 24),
            out: ViewMut::all(&mut out),
        };
        let ids = words(&backend, &[3, 0]);
        let new = NewRows { start: 1, len: 2, row_ids: View::all(&ids) };
        let mut buffer = floats(&backend, &[0.0; 64]);
        let device = DeviceRows { buffer: &mut buffer, head_stride: 4 };
        scatter(&backend, &shape, &t, &new, device).unwrap();
        let head = |h| [Some(row(LayerId(0), h, 2)), None, None, Some(row(LayerId(0), h, 1))];
        assert_eq!(read_floats(&backend, &buffer), laid_out([head(HeadId(0)), head(HeadId(1))]));
    }

    #[test]
    #[should_panic(expected = "a move of more than 2 rows")]
    fn a_full_list_does_not_run_into_the_next_heads() {
        let mut mover = mover(&ReferenceBackend::new(), 2, true);
        (0..3).for_each(|r| mover.push(HeadId(0), r, r));
    }
}
