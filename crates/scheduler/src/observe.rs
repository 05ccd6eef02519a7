//! Which rows the last queries of a prompt attended: their attention is computed again from the
//! recorded queries and the rows in the host tier, in one pass for its log-sum-exp and one for the
//! mass of every row.

use std::ops::Range;
use std::sync::Arc;

use longview_core::DType;
use longview_ops::{
    AttendChunk, Backend, ChunkSpan, ColumnMass, ColumnMassParams, DeviceBuffer, KvView, PoolKind,
    PoolScores, PoolScoresParams, View, ViewMut,
};

use crate::error::SchedulerError;
use crate::policy::PoolOrder;
use crate::rows::DeviceRows;
use crate::sequence::Sequence;
use crate::step::attend_params;

/// Rows whose mass is computed at a time.
const PIECE: usize = 8_192;

/// How attention is observed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    /// Last queries that count.
    pub queries: usize,
    /// Neighbours that are pooled.
    pub kernel: usize,
    /// To what.
    pub pool: PoolKind,
    /// In which order.
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

/// Where rows and their numbers are while they are observed.
pub(crate) struct Pieces<B: Backend> {
    rows: B::Buffer,
    n_rows: B::Buffer,
    /// Where the host tier cannot be read by kernels.
    tile: Option<B::Buffer>,
    list: Vec<u32>,
}

/// Queries whose attention is observed.
pub(crate) struct Observers<'a, B: Backend> {
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// F32 `[T, Hq]`: over all rows that each sees.
    pub lse: View<'a, B>,
    /// The first that counts, and how many do.
    pub range: (usize, usize),
    /// The first sees rows up to this one.
    pub diagonal: usize,
}

/// Sums of received attention on the device, `[Hq, stride]`, of rows from `first_row` on. The
/// buffer has `stride` spare elements at its end, because a piece's sums begin at its first row.
pub(crate) struct Sums<'a, B: Backend> {
    pub buffer: &'a mut B::Buffer,
    pub stride: usize,
    pub first_row: usize,
}

impl<B: Backend> Sequence<B> {
    /// The attention that rows `rows` of a layer received from the last recorded queries, `[Hkv,
    /// rows]`: means over queries and groups, pooled. Rows must be in token order.
    pub(crate) async fn observe(
        &mut self,
        layer: usize,
        how: &Observation,
        rows: Range<usize>,
    ) -> Result<Vec<f32>, SchedulerError> {
        let (hq, hkv, d) = (self.shape.n_q_heads, self.shape.n_kv_heads, self.shape.head_dim);
        let recorded = &self.layers[layer].recorded;
        let n_recorded = recorded.last_queries.len() / (hq * d);
        let (w, last) = (how.queries.min(n_recorded), recorded.last_end);
        // Of a sequence that was cut back since, they see what is left.
        let end = last.min(self.n_tokens);
        if w == 0 {
            return Err(SchedulerError::NoStatistics {
                policy: self.policy.preset,
                what: "the last queries of a prompt",
            });
        }
        let backend = Arc::clone(&self.backend);
        let alloc = |len| backend.alloc(DType::F32, len, "observed attention");
        let queries = &recorded.last_queries[(n_recorded - w) * hq * d..];
        let mut q = alloc(queries.len())?;
        backend.write(ViewMut::all(&mut q), bytemuck::cast_slice(queries))?;
        let mut pieces = self.pieces()?;
        let lse = self.observe_lse(layer, &q, (w, last - w, end), &mut pieces)?;
        let n = rows.len();
        let mut mass = alloc((hq + 1) * n)?;
        let observers =
            Observers { q: View::all(&q), lse: View::all(&lse), range: (0, w), diagonal: last - w };
        let sums = Sums { buffer: &mut mass, stride: n, first_row: rows.start };
        self.add_mass(layer, &mut pieces, &observers, sums, rows)?;
        let mut pooled = alloc(hkv * n)?;
        backend.pool_scores(PoolScores {
            p: PoolScoresParams { scale: 1.0 / w as f32, ..how.pool_params(hq / hkv, hkv, n) },
            x: View::part(&mass, 0, hq * n),
            out: ViewMut::all(&mut pooled),
        })?;
        let mut result = vec![0.0; hkv * n];
        backend.read(View::all(&pooled), bytemuck::cast_slice_mut(&mut result)).await?;
        Ok(result)
    }

    /// In prefill: adds the attention that a chunk of `len` tokens gave to every row so far.
    pub(crate) fn record_mass(
        &mut self,
        layer: usize,
        q: View<'_, B>,
        lse: View<'_, B>,
        (start, len): (usize, usize),
    ) -> Result<(), SchedulerError> {
        let (hq, capacity) = (self.shape.n_q_heads, self.shape.capacity);
        let n = self.n_tokens;
        // Made before the sums are taken: if it fails, they stay.
        let mut pieces = self.pieces()?;
        let mut mass = match self.layers[layer].recorded.mass.take() {
            Some(mass) => mass,
            None => self.backend.alloc(DType::F32, (hq + 1) * capacity, "received attention")?,
        };
        let observers = Observers { q, lse, range: (start, len), diagonal: n };
        let sums = Sums { buffer: &mut mass, stride: capacity, first_row: 0 };
        let result = self.add_mass(layer, &mut pieces, &observers, sums, 0..n + len);
        let recorded = &mut self.layers[layer].recorded;
        recorded.mass = Some(mass);
        recorded.mass_rows = n + len;
        result
    }

    /// Adds what the observers gave to rows `rows`.
    fn add_mass(
        &mut self,
        layer: usize,
        pieces: &mut Pieces<B>,
        observers: &Observers<'_, B>,
        sums: Sums<'_, B>,
        rows: Range<usize>,
    ) -> Result<(), SchedulerError> {
        let (hq, hkv, d) = (self.shape.n_q_heads, self.shape.n_kv_heads, self.shape.head_dim);
        let (backend, step) = (Arc::clone(&self.backend), self.piece());
        let counts = |len: usize| vec![len as u32; hkv];
        for start in rows.clone().step_by(step) {
            let len = step.min(rows.end - start);
            let base = self.load_piece(layer, start, len, pieces)?;
            let own = (start - base) as u32..(start - base + len) as u32;
            pieces.list.clear();
            (0..hkv).for_each(|_| pieces.list.extend(own.clone()));
            let listed = ViewMut::part(&mut pieces.rows, 0, hkv * len);
            backend.write(listed, bytemuck::cast_slice(&pieces.list))?;
            backend.write(ViewMut::all(&mut pieces.n_rows), bytemuck::cast_slice(&counts(len)))?;
            backend.column_mass(ColumnMass {
                p: ColumnMassParams {
                    n_tokens: (observers.q.len / (hq * d)) as u32,
                    n_q_heads: hq as u32,
                    n_kv_heads: hkv as u32,
                    head_dim: d as u32,
                    scale: self.shape.scale,
                    q_start: observers.range.0 as u32,
                    q_len: observers.range.1 as u32,
                    list_stride: len as u32,
                    out_stride: sums.stride as u32,
                    diagonal: (observers.diagonal as i64 - base as i64) as i32,
                    window: 0,
                },
                q: observers.q,
                lse: observers.lse,
                kv: self.piece_view(layer, pieces),
                rows: View::part(&pieces.rows, 0, hkv * len),
                n_rows: View::all(&pieces.n_rows),
                out: ViewMut::part(sums.buffer, start - sums.first_row, hq * sums.stride),
            })?;
        }
        Ok(())
    }

    fn piece(&self) -> usize {
        match self.tier.buffer(0) {
            Some(_) => PIECE,
            None => self.options.tile.min(PIECE),
        }
    }

    fn pieces(&self) -> Result<Pieces<B>, SchedulerError> {
        let (hkv, piece) = (self.shape.n_kv_heads, self.piece());
        let alloc = |dtype, len| self.backend.alloc(dtype, len, "observed rows");
        let tile = match self.tier.buffer(0) {
            Some(_) => None,
            None => Some(alloc(self.shape.kv_dtype, hkv * piece * 2 * self.shape.head_dim)?),
        };
        Ok(Pieces {
            rows: alloc(DType::U32, hkv * piece)?,
            n_rows: alloc(DType::U32, hkv)?,
            tile,
            list: Vec::new(),
        })
    }

    /// The log-sum-exp of w queries, the first at position `first`, over those of `end` rows that
    /// each sees.
    fn observe_lse(
        &mut self,
        layer: usize,
        q: &B::Buffer,
        (w, first, end): (usize, usize, usize),
        pieces: &mut Pieces<B>,
    ) -> Result<B::Buffer, SchedulerError> {
        let (backend, step) = (Arc::clone(&self.backend), self.piece());
        let mut out = backend.alloc(DType::F32, q.len(), "observed attention")?;
        let len = w * self.shape.n_q_heads;
        let mut lse = backend.alloc(DType::F32, len, "observed attention")?;
        for start in (0..end).step_by(step) {
            let len = step.min(end - start);
            let base = self.load_piece(layer, start, len, pieces)?;
            backend.attend_chunk(AttendChunk {
                p: attend_params(&self.shape, w, start > 0),
                q: View::all(q),
                spans: &[ChunkSpan {
                    q_start: 0,
                    q_len: w as u32,
                    kv: self.piece_view(layer, pieces),
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
    fn load_piece(
        &mut self,
        layer: usize,
        start: usize,
        len: usize,
        pieces: &mut Pieces<B>,
    ) -> Result<usize, SchedulerError> {
        let step = self.piece();
        let Some(tile) = &mut pieces.tile else { return Ok(0) };
        self.mover.clear();
        for head in 0..self.shape.n_kv_heads {
            (0..len).for_each(|to| self.mover.push(head, start + to, to));
        }
        let dst = DeviceRows { buffer: tile, head_stride: step };
        self.mover.load(&*self.backend, &self.shape, &*self.tier, layer, dst)?;
        Ok(start)
    }

    fn piece_view<'a>(&'a self, layer: usize, pieces: &'a Pieces<B>) -> KvView<'a, B> {
        match &pieces.tile {
            Some(tile) => KvView::new(tile, self.piece()),
            None => {
                let rows = self.tier.buffer(layer).expect("kernels read the tier");
                KvView::new(rows, self.shape.capacity)
            }
        }
    }
}
