//! Cases of attention and of the merge of attentions.

use std::fmt;
use std::ops::Range;

use longview_core::{DType, SplitMix64};

use super::case::{OpCase, lacks, widened};
use super::data::{EDGES, HEAD_DIMS, HEADS, ROWS, exactly, kv_rows, normals};
use super::kv::padded;
use super::plan::{Buffers, Input, OutputPlan, Plan, Values};
use crate::backend::Backend;
use crate::capability::Capabilities;
use crate::desc::{
    AttendChunk, AttendList, AttendParams, ChunkSpan, ListSpan, LseMerge, LseMergeParams, RowOrder,
};
use crate::error::OpResult;
use crate::op::Op;

/// What the queries are like; keys are standard normal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKind {
    /// Scores of standard deviation 1.
    Normal,
    /// Scores up to about +-100: softmax is nearly one row, and `exp` without the maximum overflows
    /// or leaves nothing.
    Sharp,
    /// Not-a-number in one head of the first token.
    Nan,
}

impl QueryKind {
    fn draw(self, rng: &mut SplitMix64, len: usize) -> Vec<f32> {
        let spread = if self == QueryKind::Sharp { 32.0 } else { 1.0 };
        let mut q = normals(rng, len, spread);
        if self == QueryKind::Nan {
            q[0] = f32::NAN;
        }
        q
    }
}

/// The sizes that attention cases share.
#[derive(Clone, Copy, Debug)]
struct Heads {
    hq: u32,
    hkv: u32,
    dh: u32,
}

impl Heads {
    fn params(self, n_tokens: u32, accumulate: bool) -> AttendParams {
        AttendParams {
            n_tokens,
            n_q_heads: self.hq,
            n_kv_heads: self.hkv,
            head_dim: self.dh,
            scale: 1.0 / (self.dh as f32).sqrt(),
            accumulate: accumulate.into(),
        }
    }

    fn out_len(self, n_tokens: u32) -> usize {
        (n_tokens * self.hq * self.dh) as usize
    }

    /// `out` and `lse`, of which only the tokens in `named` are written.
    fn outputs(
        self,
        rng: &mut SplitMix64,
        n_tokens: u32,
        named: &[Range<u32>],
        accumulate: bool,
        may_be_nan: bool,
    ) -> Vec<OutputPlan> {
        let (rows, width) = ((n_tokens * self.hq) as usize, self.dh as usize);
        let scaled = |by: usize| -> Vec<Range<usize>> {
            let scale = |r: &Range<u32>| r.start as usize * by..r.end as usize * by;
            named.iter().map(scale).collect()
        };
        let mut out = OutputPlan::floats("out", rows * width).or_nan(may_be_nan);
        let mut lse = OutputPlan::floats("lse", rows).or_nan(may_be_nan);
        if accumulate {
            let (o, l) = attended(rng, rows, width);
            out = out.holding(Values::Floats(o));
            lse = lse.holding(Values::Floats(l));
        }
        vec![out.only(scaled(self.hq as usize * width)), lse.only(scaled(self.hq as usize))]
    }
}

/// An attention that happened earlier: `out` and `lse`, every fifth row over no keys at all.
fn attended(rng: &mut SplitMix64, rows: usize, width: usize) -> (Vec<f32>, Vec<f32>) {
    let mut out = normals(rng, rows * width, 1.0);
    let mut lse = normals(rng, rows, 4.0);
    for r in (0..rows).skip(2).step_by(5) {
        out[r * width..(r + 1) * width].fill(0.0);
        lse[r] = f32::NEG_INFINITY;
    }
    (out, lse)
}

/// Which rows a query of an [`AttendChunkCase`] sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkMask {
    /// The run ends with the chunk itself; where it is shorter than the chunk the first queries see
    /// nothing.
    Causal,
    /// A tile of the past: everything.
    Past,
    /// `j <= i + n`.
    Diagonal(i32),
    /// As causal, and each query sees the last so many rows alone.
    Window(u32),
    /// `j <= i + n`, and the last so many of these.
    WindowAt(i32, u32),
}

/// A case of [`Op::AttendChunk`]. Later sequences are shorter, and a token that no span names lies
/// between them.
#[derive(Clone, Debug)]
pub struct AttendChunkCase {
    /// Query tokens of the first sequence.
    pub t: u32,
    /// Rows of its run.
    pub rows: u32,
    /// Query heads.
    pub hq: u32,
    /// KV heads.
    pub hkv: u32,
    /// Width of a head.
    pub dh: u32,
    /// Of the rows.
    pub kv: DType,
    /// Which rows a query sees.
    pub mask: ChunkMask,
    /// Sequences.
    pub seqs: u32,
    /// Whether a list says where rows lie.
    pub ordered: bool,
    /// Whether the result is merged.
    pub accumulate: bool,
    /// What the queries are like.
    pub query: QueryKind,
}

/// The sizes of one span.
struct ChunkSizes {
    q_start: u32,
    q_len: u32,
    row_start: u32,
    n_rows: u32,
    stride: u32,
    diagonal: i32,
    window: u32,
}

impl ChunkSizes {
    /// Lists of each head in which every row is once.
    fn order(&self, rng: &mut SplitMix64, n_heads: u32) -> Vec<u32> {
        (0..n_heads)
            .flat_map(|_| rng.distinct(self.stride as usize, self.stride as usize))
            .collect()
    }
}

impl AttendChunkCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for kv in ROWS {
            Self::add_sweeps(&Self::base(kv), &mut all);
            Self::add_mixed(&Self::base(kv), &mut all);
            Self::add_windows(&Self::base(kv), &mut all);
            Self::add_ordered(&Self { ordered: true, ..Self::base(kv) }, &mut all);
        }
        all
    }

    fn base(kv: DType) -> Self {
        Self {
            t: 5,
            rows: 33,
            hq: 4,
            hkv: 2,
            dh: 20,
            kv,
            mask: ChunkMask::Causal,
            seqs: 1,
            ordered: false,
            accumulate: false,
            query: QueryKind::Normal,
        }
    }

    fn add_sweeps(base: &Self, all: &mut Vec<Self>) {
        use ChunkMask::{Causal, Past};
        for (i, n) in EDGES.into_iter().enumerate() {
            let accumulate = i % 2 == 1;
            all.push(Self { t: n, rows: n + 13, ..base.clone() });
            all.push(Self { t: n, rows: 17, mask: Past, accumulate, ..base.clone() });
            all.push(Self { rows: n, mask: Past, accumulate: !accumulate, ..base.clone() });
            all.push(Self { t: n, rows: n, accumulate, ..base.clone() });
        }
        for dh in HEAD_DIMS {
            for (i, (hq, hkv)) in HEADS.into_iter().enumerate() {
                let mask = if i % 2 == 0 { Causal } else { Past };
                all.push(Self { t: 9, hq, hkv, dh, mask, ..base.clone() });
            }
        }
    }

    fn add_mixed(base: &Self, all: &mut Vec<Self>) {
        use ChunkMask::{Causal, Diagonal, Past};
        for diagonal in [-40, -3, 0, 7, 100, i32::MIN, i32::MAX - 1] {
            all.push(Self { t: 19, mask: Diagonal(diagonal), ..base.clone() });
        }
        for seqs in [2, 3] {
            for accumulate in [false, true] {
                for mask in [Causal, Past] {
                    all.push(Self { t: 17, rows: 65, seqs, accumulate, mask, ..base.clone() });
                }
            }
        }
        all.push(Self { t: 40, rows: 33, ..base.clone() });
        all.push(Self { t: 0, ..base.clone() });
        all.push(Self { rows: 0, ..base.clone() });
        all.push(Self { rows: 0, accumulate: true, ..base.clone() });
        all.push(Self { seqs: 0, ..base.clone() });
        all.push(Self { query: QueryKind::Nan, ..base.clone() });
        for accumulate in [false, true] {
            let sharp = Self { query: QueryKind::Sharp, accumulate, ..base.clone() };
            all.push(Self { t: 33, rows: 129, ..sharp.clone() });
            all.push(Self { t: 3, rows: 3, ..sharp.clone() });
            all.push(Self { t: 9, rows: 300, dh: 128, mask: Past, ..sharp });
        }
        all.push(Self { t: 66, rows: 260, hq: 7, hkv: 1, dh: 64, seqs: 2, ..base.clone() });
        let wide =
            Self { t: 66, rows: 90, hq: 8, hkv: 1, dh: 128, accumulate: true, ..base.clone() };
        all.push(Self { query: QueryKind::Sharp, ..wide.clone() });
        all.push(Self { dh: 80, mask: Past, ..wide.clone() });
        all.push(Self { dh: 256, rows: 40, ..wide });
    }

    /// Windows that end with the chunk, that lie before it, within it and behind the run; few
    /// queries and many, heads of every kernel, runs of several tiles.
    fn add_windows(base: &Self, all: &mut Vec<Self>) {
        use ChunkMask::{Window, WindowAt};
        for (i, window) in [1, 2, 7, 16, 31, 64, 300].into_iter().enumerate() {
            let accumulate = i % 2 == 1;
            let mask = Window(window);
            all.push(Self { t: 1, rows: 40, mask, accumulate, ..base.clone() });
            all.push(Self { t: 3, rows: 130, mask, accumulate, ..base.clone() });
            all.push(Self { t: 70, rows: 290, mask, accumulate: !accumulate, ..base.clone() });
            all.push(Self { t: 66, rows: 66, mask, dh: 64, hq: 14, ..base.clone() });
        }
        // No window is longer than the run; one row before the first; tiles that some queries see.
        for (diagonal, window) in
            [(i32::MAX, 5), (40, 20), (60, 30), (90, 64), (-8, 4), (7, u32::MAX - 1), (i32::MIN, 9)]
        {
            for accumulate in [false, true] {
                let mask = WindowAt(diagonal, window);
                all.push(Self { t: 37, rows: 70, mask, accumulate, ..base.clone() });
            }
        }
        // More queries than the window, more rows than both; few heads, as these are the largest
        // cases and run many times over.
        let many = Self { t: 265, rows: 600, mask: Window(257), hq: 2, hkv: 1, ..base.clone() };
        all.push(Self { dh: 64, seqs: 2, ..many.clone() });
        all.push(Self { dh: 128, accumulate: true, ..many.clone() });
        all.push(Self { dh: 256, ..many });
        let sharp = Self { query: QueryKind::Sharp, mask: Window(20), ..base.clone() };
        all.push(Self { t: 33, rows: 129, dh: 128, ..sharp });
    }

    /// Rows that lie in another order: few queries and many, runs of several parts, heads of every
    /// kernel.
    fn add_ordered(base: &Self, all: &mut Vec<Self>) {
        use ChunkMask::{Past, Window};
        for (i, n) in EDGES.into_iter().enumerate() {
            let accumulate = i % 2 == 1;
            all.push(Self { t: n, rows: n + 13, accumulate, ..base.clone() });
            all.push(Self { t: 3, rows: n, mask: Past, accumulate, ..base.clone() });
        }
        for dh in HEAD_DIMS {
            HEADS
                .into_iter()
                .for_each(|(hq, hkv)| all.push(Self { t: 9, hq, hkv, dh, ..base.clone() }));
        }
        for (t, rows) in [(1, 1_100), (20, 1_100), (70, 600)] {
            all.push(Self { t, rows, seqs: 2, dh: 64, ..base.clone() });
            all.push(Self { t, rows, mask: Window(40), ..base.clone() });
        }
        all.push(Self { rows: 0, ..base.clone() });
        all.push(Self { t: 0, ..base.clone() });
    }

    fn heads(&self) -> Heads {
        Heads { hq: self.hq, hkv: self.hkv, dh: self.dh }
    }

    fn spans(&self) -> Vec<ChunkSizes> {
        let mut q_start = 0;
        let one = |i: u32| {
            let (q_len, n_rows, row_start) = (self.t / (i + 1), self.rows / (2 * i + 1), 3 * i);
            let span = ChunkSizes {
                q_start,
                q_len,
                row_start,
                n_rows,
                stride: row_start + n_rows + 3,
                diagonal: match self.mask {
                    ChunkMask::Causal | ChunkMask::Window(_) => n_rows as i32 - q_len as i32,
                    ChunkMask::Past => i32::MAX,
                    ChunkMask::Diagonal(n) | ChunkMask::WindowAt(n, _) => n,
                },
                window: match self.mask {
                    ChunkMask::Window(n) | ChunkMask::WindowAt(_, n) => n,
                    _ => u32::MAX,
                },
            };
            q_start += q_len + 1;
            span
        };
        (0..self.seqs).map(one).collect()
    }

    /// Tokens of the step: one behind each sequence is named by no span.
    fn n_tokens(&self) -> u32 {
        self.spans().iter().map(|s| s.q_len + 1).sum()
    }
}

impl fmt::Display for AttendChunkCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { t, rows, hq, hkv, dh, kv, mask, seqs, .. } = self;
        write!(f, "attend_chunk[t={t},hq={hq},hkv={hkv},dh={dh},rows={rows},kv={kv},seqs={seqs}")?;
        write!(f, ",{mask:?}")?;
        if self.ordered {
            write!(f, ",ordered")?;
        }
        write_end(f, self.accumulate, self.query)
    }
}

impl OpCase for AttendChunkCase {
    fn op(&self) -> Op {
        Op::AttendChunk
    }

    fn dtype(&self) -> DType {
        self.kv
    }

    fn excused(&self, c: &Capabilities) -> Option<String> {
        lacks(&c.kv_dtypes, self.kv, "KV rows")
    }

    fn elsewhere(&self, c: &Capabilities) -> Option<String> {
        let is_as_it_lies = self.ordered && !c.orders_chunk_rows;
        let order = is_as_it_lies.then(|| "rows of a run are attended where they lie".to_owned());
        order.or_else(|| widened(c, self.kv))
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let (heads, spans, n_tokens) = (self.heads(), self.spans(), self.n_tokens());
        let q = self.query.draw(rng, heads.out_len(n_tokens));
        let mut inputs = vec![Input::floats("q", q)];
        for s in &spans {
            let run = s.row_start..s.row_start + s.n_rows;
            let order = self.ordered.then(|| s.order(rng, self.hkv));
            let is_read = |head: u32, row: u32| match &order {
                Some(order) => {
                    let listed = &order[(head * s.stride) as usize..];
                    run.clone().any(|entry| listed[entry as usize] == row)
                }
                None => run.contains(&row),
            };
            let rows = kv_rows(rng, self.hkv, s.stride, self.dh, is_read);
            inputs.push(Input::kv("kv", self.kv, self.dh as usize, rows));
            inputs.extend(order.map(|order| Input::ints("order", order)));
        }
        let named: Vec<_> = spans.iter().map(|s| s.q_start..s.q_start + s.q_len).collect();
        Plan {
            inputs,
            weights: Vec::new(),
            outputs: heads.outputs(
                rng,
                n_tokens,
                &named,
                self.accumulate,
                self.query == QueryKind::Nan,
            ),
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out, lse] = exactly(&mut b.outputs);
        let of_span = if self.ordered { 2 } else { 1 };
        let rows = b.inputs[1..].chunks_exact(of_span);
        let spans: Vec<_> = rows
            .zip(self.spans())
            .map(|(inputs, s)| ChunkSpan {
                q_start: s.q_start,
                q_len: s.q_len,
                kv: inputs[0].kv(s.stride as usize),
                row_start: s.row_start,
                n_rows: s.n_rows,
                diagonal: s.diagonal,
                window: s.window,
                order: inputs.get(1).map(|order| RowOrder { rows: order.view(), stride: s.stride }),
            })
            .collect();
        backend.attend_chunk(AttendChunk {
            p: self.heads().params(self.n_tokens(), self.accumulate),
            q: b.inputs[0].view(),
            spans: &spans,
            out: out.view_mut(),
            lse: lse.view_mut(),
        })
    }
}

/// A case of [`Op::AttendList`]. Heads and sequences have lists of unequal length; the last token
/// is named by no span.
#[derive(Clone, Debug)]
pub struct AttendListCase {
    /// Rows that the first head of the first sequence lists.
    pub rows: u32,
    /// Query heads.
    pub hq: u32,
    /// KV heads.
    pub hkv: u32,
    /// Width of a head.
    pub dh: u32,
    /// Of the rows.
    pub kv: DType,
    /// Sequences.
    pub seqs: u32,
    /// Whether the result is merged.
    pub accumulate: bool,
    /// Whether rows are listed more than once.
    pub repeats: bool,
    /// Whether all heads share one numbering of rows.
    pub pool: bool,
    /// Whether entries stand for none, one or many keys.
    pub weighted: bool,
    /// What the queries are like.
    pub query: QueryKind,
}

impl AttendListCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for kv in ROWS {
            let base = Self::base(kv);
            for (i, rows) in EDGES.into_iter().chain([300, 1025]).enumerate() {
                let accumulate = i % 2 == 1;
                all.push(Self { rows, accumulate, ..base.clone() });
                all.push(Self { rows, accumulate: !accumulate, seqs: 2, ..base.clone() });
            }
            for dh in HEAD_DIMS {
                HEADS
                    .into_iter()
                    .for_each(|(hq, hkv)| all.push(Self { hq, hkv, dh, ..base.clone() }));
            }
            Self::add_mixed(&base, &mut all);
        }
        all
    }

    fn base(kv: DType) -> Self {
        Self {
            rows: 37,
            hq: 4,
            hkv: 2,
            dh: 20,
            kv,
            seqs: 1,
            accumulate: false,
            repeats: false,
            pool: false,
            weighted: false,
            query: QueryKind::Normal,
        }
    }

    fn add_mixed(base: &Self, all: &mut Vec<Self>) {
        for accumulate in [false, true] {
            all.push(Self { rows: 0, accumulate, ..base.clone() });
            all.push(Self { seqs: 0, accumulate, ..base.clone() });
            all.push(Self { seqs: 3, hkv: 4, hq: 12, accumulate, ..base.clone() });
            let sharp = Self { query: QueryKind::Sharp, accumulate, ..base.clone() };
            for rows in [1, 3, 129] {
                all.push(Self { rows, ..sharp.clone() });
            }
            all.push(Self { rows: 513, dh: 128, hq: 8, hkv: 1, ..sharp });
        }
        all.push(Self { repeats: true, rows: 61, ..base.clone() });
        for (rows, dh, seqs) in [(1, 20, 1), (61, 20, 2), (129, 64, 1), (300, 128, 1)] {
            all.push(Self { pool: true, rows, dh, seqs, hq: 6, hkv: 3, ..base.clone() });
        }
        for (i, rows) in [1, 7, 61, 64, 129, 513, 1025].into_iter().enumerate() {
            let (dh, seqs) = (HEAD_DIMS[i % 5], 1 + i as u32 % 2);
            let weighted = Self { weighted: true, rows, dh, seqs, ..base.clone() };
            all.push(Self { accumulate: true, hq: 6, ..weighted.clone() });
            all.push(Self { hq: 12, hkv: 1, query: QueryKind::Sharp, ..weighted });
        }
        all.push(Self { weighted: true, rows: 300, dh: 256, ..base.clone() });
        all.push(Self { query: QueryKind::Nan, ..base.clone() });
        all.push(Self { rows: 1030, hq: 14, dh: 64, seqs: 2, ..base.clone() });
        all.push(Self { rows: 129, hq: 9, hkv: 1, dh: 160, ..base.clone() });
        all.push(Self { rows: 65, dh: 256, ..base.clone() });
    }

    fn heads(&self) -> Heads {
        Heads { hq: self.hq, hkv: self.hkv, dh: self.dh }
    }

    /// Rows that head h of sequence i lists: fewer for later ones, none for some.
    fn count(&self, seq: u32, head: u32) -> u32 {
        self.rows.saturating_sub(head * (self.rows / 3) + seq * (self.rows / 2))
    }

    fn list_stride(&self) -> u32 {
        self.rows + 5
    }

    fn row_stride(&self) -> u32 {
        2 * self.rows + 7
    }

    /// Spans name tokens backwards, so that a span's number is not its token.
    fn q_index(&self, seq: u32) -> u32 {
        self.seqs - 1 - seq
    }

    fn draw_lists(&self, rng: &mut SplitMix64, seq: u32) -> Vec<Vec<u32>> {
        let limit = self.row_stride() as usize;
        let one = |head: u32| {
            let mut list = rng.distinct(limit, self.count(seq, head) as usize);
            if self.repeats {
                (1..list.len()).step_by(3).for_each(|i| list[i] = list[i - 1]);
            }
            list
        };
        (0..self.hkv).map(one).collect()
    }
}

impl fmt::Display for AttendListCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, hq, hkv, dh, kv, seqs, .. } = self;
        write!(f, "attend_list[rows={rows},hq={hq},hkv={hkv},dh={dh},kv={kv},seqs={seqs}")?;
        f.write_str(if self.repeats { ",repeats" } else { "" })?;
        f.write_str(if self.pool { ",pool" } else { "" })?;
        f.write_str(if self.weighted { ",weighted" } else { "" })?;
        write_end(f, self.accumulate, self.query)
    }
}

impl OpCase for AttendListCase {
    fn op(&self) -> Op {
        Op::AttendList
    }

    fn dtype(&self) -> DType {
        self.kv
    }

    fn excused(&self, c: &Capabilities) -> Option<String> {
        lacks(&c.kv_dtypes, self.kv, "KV rows")
    }

    fn elsewhere(&self, c: &Capabilities) -> Option<String> {
        widened(c, self.kv)
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let (heads, n_tokens) = (self.heads(), self.seqs + 1);
        let q = self.query.draw(rng, heads.out_len(n_tokens));
        let mut inputs = vec![Input::floats("q", q)];
        for seq in 0..self.seqs {
            let lists = self.draw_lists(rng, seq);
            let counts = (0..self.hkv).map(|head| self.count(seq, head)).collect();
            let used = |head: u32, row: u32| {
                if self.pool {
                    lists.iter().any(|list| list.contains(&row))
                } else {
                    lists[head as usize].contains(&row)
                }
            };
            let n_heads = if self.pool { 1 } else { self.hkv };
            let rows = kv_rows(rng, n_heads, self.row_stride(), self.dh, used);
            inputs.push(Input::kv("kv", self.kv, self.dh as usize, rows));
            inputs.push(Input::ints("rows", padded(&lists, self.list_stride())));
            inputs.push(Input::ints("n_rows", counts));
            if self.weighted {
                // A third counts for nothing; the first list's last part as well.
                let len = (self.hkv * self.list_stride()) as usize;
                let weight = |i: usize| if i % 3 == 1 { 0 } else { 1 + rng.below(200) as u32 };
                let mut weights: Vec<u32> = (0..len).map(weight).collect();
                weights[(self.rows / 2) as usize..self.rows as usize].fill(0);
                inputs.push(Input::ints("weights", weights));
            }
        }
        let named: Vec<_> = (0..self.seqs).map(|token| token..token + 1).collect();
        Plan {
            inputs,
            weights: Vec::new(),
            outputs: heads.outputs(
                rng,
                n_tokens,
                &named,
                self.accumulate,
                self.query == QueryKind::Nan,
            ),
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out, lse] = exactly(&mut b.outputs);
        let spans: Vec<_> = b.inputs[1..]
            .chunks_exact(3 + usize::from(self.weighted))
            .zip(0..)
            .map(|(parts, seq)| ListSpan {
                q_index: self.q_index(seq),
                kv: parts[0].kv(if self.pool { 0 } else { self.row_stride() as usize }),
                rows: parts[1].view(),
                n_rows: parts[2].view(),
                weights: parts.get(3).map(|weights| weights.view()),
                list_stride: self.list_stride(),
            })
            .collect();
        backend.attend_list(AttendList {
            p: self.heads().params(self.seqs + 1, self.accumulate),
            q: b.inputs[0].view(),
            spans: &spans,
            out: out.view_mut(),
            lse: lse.view_mut(),
        })
    }
}

/// A case of [`Op::LseMerge`]; some rows are empty on one side, some on both.
#[derive(Clone, Debug)]
pub struct LseMergeCase {
    /// T * Hq.
    pub rows: u32,
    /// Width of a head.
    pub dh: u32,
    /// Added to the log-sum-exp of the first: 100 leaves nothing of the second, -1000 nothing of
    /// the first.
    pub shift: i32,
}

impl LseMergeCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |rows, dh, shift| all.push(Self { rows, dh, shift });
        EDGES.iter().for_each(|rows| add(*rows, 20, 0));
        HEAD_DIMS
            .into_iter()
            .for_each(|dh| [0, 3, 100, -1000].into_iter().for_each(|shift| add(14, dh, shift)));
        [(0, 64), (896, 64), (33, 1)].into_iter().for_each(|(rows, dh)| add(rows, dh, 0));
        all
    }
}

impl fmt::Display for LseMergeCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lse_merge[rows={},dh={},shift={}]", self.rows, self.dh, self.shift)
    }
}

impl OpCase for LseMergeCase {
    fn op(&self) -> Op {
        Op::LseMerge
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let (rows, width) = (self.rows as usize, self.dh as usize);
        let (other_out, mut other_lse) = attended(rng, rows, width);
        let (out, mut lse) = attended(rng, rows, width);
        lse.iter_mut().for_each(|l| *l += self.shift as f32);
        // Rows 2, 7, 12 are empty on both sides; 1, 4, 7 on the other alone, which may hold
        // anything finite.
        other_lse.iter_mut().skip(1).step_by(3).for_each(|l| *l = f32::NEG_INFINITY);
        Plan {
            inputs: vec![
                Input::floats("other_out", other_out),
                Input::floats("other_lse", other_lse),
            ],
            weights: Vec::new(),
            outputs: vec![
                OutputPlan::floats("out", rows * width).holding(Values::Floats(out)),
                OutputPlan::floats("lse", rows).holding(Values::Floats(lse)),
            ],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out, lse] = exactly(&mut b.outputs);
        backend.lse_merge(LseMerge {
            p: LseMergeParams { n_rows: self.rows, head_dim: self.dh },
            other_out: b.inputs[0].view(),
            other_lse: b.inputs[1].view(),
            out: out.view_mut(),
            lse: lse.view_mut(),
        })
    }
}

/// The end of a name: what is not usual about the case.
fn write_end(f: &mut fmt::Formatter<'_>, accumulate: bool, query: QueryKind) -> fmt::Result {
    if accumulate {
        f.write_str(",accumulate")?;
    }
    match query {
        QueryKind::Normal => f.write_str("]"),
        other => write!(f, ",{other:?}]"),
    }
}
