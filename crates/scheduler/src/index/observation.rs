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
