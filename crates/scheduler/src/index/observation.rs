//! Which rows the last queries of a prompt attended: their attention is computed again from the
//! recorded queries and the rows in the host store, in one pass for its log-sum-exp and one for the
//! mass of every row.

use std::ops::Range;

use longview_core::DType;
use longview_ops::{
    AttendChunk, Backend, ChunkSpan, ColumnMass, ColumnMassParams, DeviceBuffer, KvView, OpResult,
    PoolKind, PoolScores, PoolScoresParams, View, ViewMut,
};

use super::recorded::Recorded;
use crate::layout::attend_params;
use crate::policy::PoolOrder;
use crate::store::{DeviceRows, LayerRows, RowReader};

/// Rows whose mass is computed at a time.
const PIECE: usize = 8_192;

/// How attention is observed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    /// Last queries that count.
    pub queries: usize,
    /// Neighbours that are pooled.
    pub kernel: usize,
    /// Their mean or their maximum.
    pub pool: PoolKind,
    /// Whether heads of a group become one before neighbours are pooled, or after.
    pub order: PoolOrder,
}

impl Observation {
    /// The mean of a group's attention as it is.
    pub fn plain(queries: usize) -> Self {
        Self { queries, kernel: 1, pool: PoolKind::Average, order: PoolOrder::GroupFirst }
    }

    /// Scores of query heads to scores of KV heads, `[Hkv, n]`.
    pub fn pool_params(&self, group: usize, hkv: usize, n: usize) -> PoolScoresParams {
        PoolScoresParams {
            n_kv_heads: hkv as u32,
            group: group as u32,
            n: n as u32,
            in_stride: n as u32,
            out_stride: n as u32,
            kernel: self.kernel as u32,
            pool: self.pool as u32,
            group_max: 0,
            pool_first: (self.order == PoolOrder::PoolFirst).into(),
            scale: 1.0,
        }
    }
}

/// Queries whose attention is observed.
pub(crate) struct Observers<'a, B: Backend> {
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// F32 `[T, Hq]`: over all rows that each sees.
    pub lse: View<'a, B>,
    /// Those of T that count.
    pub range: Range<usize>,
    /// The first that counts sees rows up to this one.
    pub diagonal: usize,
}

/// Sums of received attention on the device, `[Hq, stride]`, of rows from `first_row` on. The
/// buffer has `stride` spare elements at its end, because a piece's sums begin at its first row.
struct Sums<'a, B: Backend> {
    buffer: &'a mut B::Buffer,
    stride: usize,
    first_row: usize,
}

/// Queries on the device whose log-sum-exp is wanted.
struct LastQueries<'a, B: Backend> {
    /// F32 `[n, Hq, Dh]`.
    q: &'a B::Buffer,
    n: usize,
    /// The position of the first.
    first: usize,
    /// Rows that there are.
    end: usize,
}

/// Computes what queries attended in one layer, piece by piece: lists of rows and, where kernels do
/// not read the host store, a tile of the rows themselves.
pub(crate) struct Observer<'a, B: Backend> {
    reader: RowReader<'a, B>,
    rows: B::Buffer,
    n_rows: B::Buffer,
    tile: Option<B::Buffer>,
    list: Vec<u32>,
    /// Rows of a piece.
    step: usize,
}

impl<'a, B: Backend> Observer<'a, B> {
    pub fn new(reader: RowReader<'a, B>) -> OpResult<Self> {
        let LayerRows { shape, .. } = reader.rows;
        let is_mapped = reader.rows.kernel_view().is_some();
        let step = if is_mapped { PIECE } else { reader.tile.min(PIECE) };
        let (hkv, d) = (shape.n_kv_heads, shape.head_dim);
        let alloc = |dtype, len| reader.backend.alloc(dtype, len, "observed rows");
        let tile = if is_mapped { None } else { Some(alloc(shape.kv_dtype, hkv * step * 2 * d)?) };
        let (rows, n_rows) = (alloc(DType::U32, hkv * step)?, alloc(DType::U32, hkv)?);
        Ok(Self { reader, rows, n_rows, tile, list: Vec::new(), step })
    }

    /// The attention that rows `rows` received from the last recorded queries, `[Hkv, rows]`: means
    /// over queries and groups, pooled. Rows must be in token order; `n_tokens` are in the
    /// sequence. `None` where no queries were recorded.
    pub async fn observe(
        mut self,
        recorded: &Recorded<B>,
        how: &Observation,
        rows: Range<usize>,
        n_tokens: usize,
    ) -> OpResult<Option<Vec<f32>>> {
        let shape = self.reader.rows.shape;
        let (hq, hkv, d) = (shape.n_q_heads, shape.n_kv_heads, shape.head_dim);
        let n_recorded = recorded.last_queries.len() / (hq * d);
        let (w, last) = (how.queries.min(n_recorded), recorded.last_end);
        if w == 0 {
            return Ok(None);
        }
        let backend = self.reader.backend;
        let alloc = |len| backend.alloc(DType::F32, len, "observed attention");
        let queries = &recorded.last_queries[(n_recorded - w) * hq * d..];
        let mut q = alloc(queries.len())?;
        backend.write(ViewMut::all(&mut q), bytemuck::cast_slice(queries))?;
        // Of a sequence that was cut back since, they see what is left.
        let last_queries = LastQueries { q: &q, n: w, first: last - w, end: last.min(n_tokens) };
        let lse = self.log_sum_exp(&last_queries)?;
        let n = rows.len();
        let mut mass = alloc((hq + 1) * n)?;
        let observers =
            Observers { q: View::all(&q), lse: View::all(&lse), range: 0..w, diagonal: last - w };
        let sums = Sums { buffer: &mut mass, stride: n, first_row: rows.start };
        self.add_mass(&observers, sums, rows)?;
        let mut pooled = alloc(hkv * n)?;
        backend.pool_scores(PoolScores {
            p: PoolScoresParams { scale: 1.0 / w as f32, ..how.pool_params(hq / hkv, hkv, n) },
            x: View::part(&mass, 0, hq * n),
            out: ViewMut::all(&mut pooled),
        })?;
        let mut result = vec![0.0; hkv * n];
        backend.read(View::all(&pooled), bytemuck::cast_slice_mut(&mut result)).await?;
        Ok(Some(result))
    }

    /// In prefill: adds the attention that a chunk of a prompt gave to the `n_rows` rows up to its
    /// end.
    pub fn record_mass(
        mut self,
        recorded: &mut Recorded<B>,
        observers: &Observers<'_, B>,
        n_rows: usize,
    ) -> OpResult<()> {
        let shape = self.reader.rows.shape;
        let (hq, capacity) = (shape.n_q_heads, shape.capacity);
        let mut mass = match recorded.mass.take() {
            Some(mass) => mass,
            None => {
                self.reader.backend.alloc(DType::F32, (hq + 1) * capacity, "received attention")?
            }
        };
        let sums = Sums { buffer: &mut mass, stride: capacity, first_row: 0 };
        let result = self.add_mass(observers, sums, 0..n_rows);
        recorded.mass = Some(mass);
        recorded.mass_rows = n_rows;
        result
    }

    /// Adds what the observers gave to rows `rows`.
    fn add_mass(
        &mut self,
        observers: &Observers<'_, B>,
        sums: Sums<'_, B>,
        rows: Range<usize>,
    ) -> OpResult<()> {
        let (backend, shape) = (self.reader.backend, self.reader.rows.shape);
        let (hq, hkv, d) = (shape.n_q_heads, shape.n_kv_heads, shape.head_dim);
        for start in rows.clone().step_by(self.step) {
            let len = self.step.min(rows.end - start);
            let base = self.load_piece(start, len)?;
            let own = (start - base) as u32..(start - base + len) as u32;
            self.list.clear();
            (0..hkv).for_each(|_| self.list.extend(own.clone()));
            let listed = ViewMut::part(&mut self.rows, 0, hkv * len);
            backend.write(listed, bytemuck::cast_slice(&self.list))?;
            let counts = vec![len as u32; hkv];
            backend.write(ViewMut::all(&mut self.n_rows), bytemuck::cast_slice(&counts))?;
            backend.column_mass(ColumnMass {
                p: ColumnMassParams {
                    n_tokens: (observers.q.len / (hq * d)) as u32,
                    n_q_heads: hq as u32,
                    n_kv_heads: hkv as u32,
                    head_dim: d as u32,
                    scale: shape.scale,
                    q_start: observers.range.start as u32,
                    q_len: observers.range.len() as u32,
                    list_stride: len as u32,
                    out_stride: sums.stride as u32,
                    diagonal: (observers.diagonal as i64 - base as i64) as i32,
                    window: 0,
                },
                q: observers.q,
                lse: observers.lse,
                kv: self.piece(),
                rows: View::part(&self.rows, 0, hkv * len),
                n_rows: View::all(&self.n_rows),
                out: ViewMut::part(sums.buffer, start - sums.first_row, hq * sums.stride),
            })?;
        }
        Ok(())
    }

    /// The log-sum-exp of queries over the rows that each sees, F32 `[n, Hq]`.
    fn log_sum_exp(&mut self, queries: &LastQueries<'_, B>) -> OpResult<B::Buffer> {
        let (backend, shape) = (self.reader.backend, self.reader.rows.shape);
        let LastQueries { q, n, first, end } = *queries;
        let mut out = backend.alloc(DType::F32, q.len(), "observed attention")?;
        let mut lse = backend.alloc(DType::F32, n * shape.n_q_heads, "observed attention")?;
        for start in (0..end).step_by(self.step) {
            let len = self.step.min(end - start);
            let base = self.load_piece(start, len)?;
            backend.attend_chunk(AttendChunk {
                p: attend_params(shape, n, start > 0),
                q: View::all(q),
                spans: &[ChunkSpan {
                    q_start: 0,
                    q_len: n as u32,
                    kv: self.piece(),
                    row_start: (start - base) as u32,
                    n_rows: len as u32,
                    diagonal: (first as i64 - start as i64) as i32,
                    window: ChunkSpan::<B>::ALL,
                    order: None,
                }],
                out: ViewMut::all(&mut out),
                lse: ViewMut::all(&mut lse),
            })?;
        }
        Ok(lse)
    }

    /// Brings rows `start..start + len` where kernels read them; returns the row that is number 0
    /// there.
    fn load_piece(&mut self, start: usize, len: usize) -> OpResult<usize> {
        let Some(tile) = &mut self.tile else { return Ok(0) };
        let device = DeviceRows { buffer: tile, head_stride: self.step };
        self.reader.load(start..start + len, device)?;
        Ok(start)
    }

    /// The rows that were brought.
    fn piece(&self) -> KvView<'_, B> {
        match (&self.tile, self.reader.rows.kernel_view()) {
            (Some(tile), _) => KvView::new(tile, self.step),
            (None, Some(all)) => all,
            (None, None) => unreachable!("a tile is made where kernels do not read the store"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use longview_core::{HeadId, LayerId};
    use longview_ops::View;

    use super::super::testing::{R, fill, shape, store_of, upload};
    use super::*;
    use crate::layout::KvShape;
    use crate::store::{HostStore, MappedStore, RowMover};

    /// Two query heads with a KV head each. Row r weighs `r + 1` under a query of 1 for head 0, and
    /// `8 - r` for head 1.
    fn weights() -> KvShape {
        shape(2, 2, 1)
    }

    fn key(head: HeadId, row: usize) -> Vec<f32> {
        let weight = if head == HeadId(0) { row + 1 } else { 8 - row };
        vec![(weight as f32).ln()]
    }

    fn stores(backend: &Arc<R>, shape: &KvShape) -> [Box<dyn HostStore<R>>; 2] {
        let mut mapped = MappedStore::new(backend, shape).unwrap().unwrap();
        fill(&mut mapped, shape, key);
        [Box::new(mapped), Box::new(store_of(shape, key))]
    }

    /// Queries of 1 at the last positions before `last_end`; one more before them is of no use.
    fn recorded(backend: &R, shape: &KvShape, n: usize, last_end: usize) -> Recorded<R> {
        let mut recorded = Recorded::new(backend, shape).unwrap();
        recorded.last_queries = vec![1.0; n * shape.n_q_heads * shape.head_dim];
        recorded.last_queries[..shape.n_q_heads].fill(50.0);
        recorded.last_end = last_end;
        recorded
    }

    /// What a test does with an observer of either store, in pieces of two rows where rows travel.
    fn with_observers(test: impl Fn(&R, Observer<'_, R>)) {
        let (backend, shape) = (Arc::new(R::new()), weights());
        for store in stores(&backend, &shape) {
            let mapped = store.buffer(LayerId(0)).is_some();
            let mut mover = RowMover::new(&*backend, &shape, 2, mapped).unwrap();
            let rows = LayerRows { shape: &shape, store: &*store, layer: LayerId(0) };
            let reader = RowReader { backend: &backend, rows, mover: &mut mover, tile: 2 };
            test(&backend, Observer::new(reader).unwrap());
        }
    }

    fn observed(
        recorded: &Recorded<R>,
        observer: Observer<'_, R>,
        how: Observation,
        rows: Range<usize>,
        n_tokens: usize,
    ) -> Option<Vec<f32>> {
        pollster::block_on(observer.observe(recorded, &how, rows, n_tokens)).unwrap()
    }

    fn close(got: &[f32], want: &[f32]) {
        let is_near = got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-5);
        assert!(got.len() == want.len() && is_near, "{got:?}, not {want:?}");
    }

    #[test]
    fn rows_get_the_mean_attention_of_the_queries_that_see_them() {
        with_observers(|backend, observer| {
            let recorded = recorded(backend, &weights(), 3, 5);
            let got = observed(&recorded, observer, Observation::plain(2), 1..5, 5).unwrap();
            // Of head 0, position 3 sees weights 1 to 4, 10 in all, and position 4 also 5, 15 in
            // all. Of head 1, 8 + 7 + 6 + 5 = 26, and 4 more: 30.
            let of = |weight: f32, sums: [f32; 2]| (weight / sums[0] + weight / sums[1]) / 2.0;
            let want = [
                of(2.0, [10.0, 15.0]),
                of(3.0, [10.0, 15.0]),
                of(4.0, [10.0, 15.0]),
                5.0 / 15.0 / 2.0,
                of(7.0, [26.0, 30.0]),
                of(6.0, [26.0, 30.0]),
                of(5.0, [26.0, 30.0]),
                4.0 / 30.0 / 2.0,
            ];
            close(&got, &want);
        });
    }

    #[test]
    fn queries_of_a_sequence_that_was_cut_back_see_what_is_left() {
        with_observers(|backend, observer| {
            let recorded = recorded(backend, &weights(), 3, 5);
            let got = observed(&recorded, observer, Observation::plain(2), 0..3, 3).unwrap();
            let all = [1.0 / 6.0, 2.0 / 6.0, 3.0 / 6.0, 8.0 / 21.0, 7.0 / 21.0, 6.0 / 21.0];
            close(&got, &all);
        });
    }

    #[test]
    fn neighbours_are_pooled_inside_a_head() {
        with_observers(|backend, observer| {
            let recorded = recorded(backend, &weights(), 2, 4);
            let how = Observation { kernel: 3, pool: PoolKind::Max, ..Observation::plain(1) };
            let got = observed(&recorded, observer, how, 0..4, 4).unwrap();
            // Position 3 alone: tenths of 1, 2, 3, 4, and 26ths of 8, 7, 6, 5.
            let tenths = [2.0, 3.0, 4.0, 4.0].map(|x| x / 10.0);
            let others = [8.0, 8.0, 7.0, 6.0].map(|x| x / 26.0);
            close(&got, &[tenths, others].concat());
        });
    }

    #[test]
    fn without_recorded_queries_nothing_is_observed() {
        with_observers(|backend, observer| {
            let recorded = Recorded::new(backend, &weights()).unwrap();
            assert_eq!(observed(&recorded, observer, Observation::plain(2), 0..3, 3), None);
        });
    }

    #[test]
    fn prefill_adds_what_every_chunk_gave_to_all_rows_so_far() {
        let (backend, shape) = (Arc::new(R::new()), weights());
        for store in stores(&backend, &shape) {
            let mut recorded = Recorded::new(&*backend, &shape).unwrap();
            let mut mover =
                RowMover::new(&*backend, &shape, 2, store.buffer(LayerId(0)).is_some()).unwrap();
            // Queries of 1 at positions 0 and 1, then one at position 2 behind somebody else's.
            for (n_q, range, diagonal, n_rows) in [(2, 0..2, 0, 2), (2, 1..2, 2, 3)] {
                let rows = LayerRows { shape: &shape, store: &*store, layer: LayerId(0) };
                let reader = RowReader { backend: &backend, rows, mover: &mut mover, tile: 2 };
                let q = upload(&backend, &vec![1.0; n_q * 2]);
                // Sums of weights that each sees: 1 and 3, or 8 and 15; then 6, or 21.
                let lse = if n_rows == 2 { [1.0, 8.0, 3.0, 15.0] } else { [99.0, 99.0, 6.0, 21.0] };
                let lse = upload(&backend, &lse.map(f32::ln));
                let (q, lse) = (View::all(&q), View::all(&lse));
                let observers = Observers { q, lse, range, diagonal };
                let observer = Observer::new(reader).unwrap();
                observer.record_mass(&mut recorded, &observers, n_rows).unwrap();
            }
            let read = |n| pollster::block_on(recorded.read_mass(&backend, &shape, n)).unwrap();
            assert_eq!(read(4), None, "row 3 was seen by nobody");
            let mass = read(3).unwrap();
            let (first, second) = mass.split_at(shape.capacity);
            close(&first[..4], &[1.0 + 1.0 / 3.0 + 1.0 / 6.0, 2.0 / 3.0 + 2.0 / 6.0, 0.5, 0.0]);
            let third = [8.0 / 21.0, 7.0 / 21.0, 6.0 / 21.0];
            close(&second[..3], &[1.0 + 8.0 / 15.0 + third[0], 7.0 / 15.0 + third[1], third[2]]);
        }
    }

    #[test]
    fn scores_are_pooled_as_asked_for() {
        let how =
            Observation { queries: 9, kernel: 5, pool: PoolKind::Max, order: PoolOrder::PoolFirst };
        let p = how.pool_params(3, 2, 40);
        assert_eq!([p.n_kv_heads, p.group, p.n, p.in_stride, p.out_stride], [2, 3, 40, 40, 40]);
        assert_eq!((p.kernel, p.pool, p.group_max, p.pool_first, p.scale), (5, 1, 0, 1, 1.0));
        let p = Observation::plain(9).pool_params(3, 2, 40);
        assert_eq!((p.kernel, p.pool, p.pool_first), (1, 0, 0));
    }
}
