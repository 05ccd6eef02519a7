//! Cases of the ops that move KV rows. Rows that no token or list names are the guards.

use std::fmt;
use std::ops::Range;

use longview_core::{DType, SplitMix64};

use super::case::{OpCase, lacks, widened};
use super::data::{EDGES, FLOATS, HEAD_DIMS, ROWS, exactly, kv_rows, normals};
use super::plan::{Buffers, Input, OutputPlan, Plan};
use crate::backend::Backend;
use crate::capability::Capabilities;
use crate::desc::{
    KvGather, KvGatherParams, KvKeys, KvKeysParams, KvScatter, KvScatterParams, KvScatterTo,
    KvScatterTwice, RotateRows, RotateRowsParams,
};
use crate::error::OpResult;
use crate::op::Op;

/// A case of [`Op::KvScatter`].
#[derive(Clone, Debug)]
pub struct KvScatterCase {
    /// Query tokens.
    pub t: u32,
    /// KV heads.
    pub heads: u32,
    /// Width of a head.
    pub dh: u32,
    /// Rows of a head.
    pub stride: u32,
    /// Of the rows.
    pub kv: DType,
    /// Whether they go to a second buffer as well, of more rows a head.
    pub twice: bool,
}

impl KvScatterCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for kv in ROWS {
            let mut put =
                |t, heads, dh, stride, twice| all.push(Self { t, heads, dh, stride, kv, twice });
            for (t, heads, dh) in [(1, 8, 128), (1, 1, 1), (9, 2, 20), (33, 3, 64), (0, 2, 40)] {
                put(t, heads, dh, t + 3, true);
            }
            let mut add = |t, heads, dh, stride| put(t, heads, dh, stride, false);
            EDGES.iter().for_each(|t| add(*t, 2, 20, t + 11));
            for dh in HEAD_DIMS {
                [1, 2, 8].into_iter().for_each(|heads| add(9, heads, dh, 31));
            }
            [(1, 1, 1, 1), (13, 3, 7, 13), (0, 2, 64, 5)]
                .into_iter()
                .for_each(|(t, h, dh, s)| add(t, h, dh, s));
        }
        all
    }

    /// Rows of a head of the second buffer.
    fn more_rows(&self) -> u32 {
        self.stride + 5
    }
}

impl fmt::Display for KvScatterCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { t, heads, dh, stride, kv, twice } = self;
        let twice = if *twice { ",twice" } else { "" };
        write!(f, "kv_scatter[t={t},hkv={heads},dh={dh},rows={stride},kv={kv}{twice}]")
    }
}

impl OpCase for KvScatterCase {
    fn op(&self) -> Op {
        Op::KvScatter
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
        let rows = rng.distinct(self.stride as usize, self.t as usize);
        let len = (self.t * self.heads * self.dh) as usize;
        let named = vec![rows.clone(); self.heads as usize];
        let mut plan = Plan {
            inputs: vec![
                Input::floats("k", normals(rng, len, 3.0)),
                Input::floats("v", normals(rng, len, 1.0)),
                Input::ints("rows", rows),
            ],
            weights: Vec::new(),
            outputs: vec![rows_written("dst", self.kv, self.stride, self.dh, &named)],
        };
        if self.twice {
            let rows = rng.distinct(self.more_rows() as usize, self.t as usize);
            let named = vec![rows.clone(); self.heads as usize];
            plan.inputs.push(Input::ints("more rows", rows));
            let more = rows_written("more dst", self.kv, self.more_rows(), self.dh, &named);
            plan.outputs.push(more);
        }
        plan
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let Self { t: n_tokens, heads: n_kv_heads, dh: head_dim, stride, .. } = *self;
        let (dst, more) = b.outputs.split_at_mut(1);
        let [dst] = exactly(dst);
        let first = KvScatter {
            p: KvScatterParams { n_tokens, n_kv_heads, head_dim, dst_head_stride: stride },
            k: b.inputs[0].view(),
            v: b.inputs[1].view(),
            rows: b.inputs[2].view(),
            dst: &mut dst.buffer,
        };
        if !self.twice {
            return backend.kv_scatter(first);
        }
        let [more] = exactly(more);
        let (rows, dst) = (b.inputs[3].view(), &mut more.buffer);
        let second = KvScatterTo { rows, dst, head_stride: self.more_rows() };
        backend.kv_scatter_twice(KvScatterTwice { first, second })
    }
}

/// A case of [`Op::KvGather`]. Head h moves `rows - h % 3 * rows / 3` rows.
#[derive(Clone, Debug)]
pub struct KvGatherCase {
    /// Rows that the first head moves.
    pub rows: u32,
    /// KV heads.
    pub heads: u32,
    /// Width of a head.
    pub dh: u32,
    /// Of both sides.
    pub kv: DType,
    /// Whether the rows come from host memory.
    pub from_host: bool,
    /// Whether all heads share one numbering of rows, on both sides.
    pub pool: bool,
}

impl KvGatherCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for kv in ROWS {
            let mut add = |rows, heads, dh, from_host| {
                all.push(Self { rows, heads, dh, kv, from_host, pool: false });
            };
            EDGES.iter().for_each(|rows| add(*rows, 2, 20, false));
            for dh in HEAD_DIMS {
                [1, 2, 8].into_iter().for_each(|heads| add(17, heads, dh, heads == 2));
            }
            [(65, 4, 64), (0, 2, 40), (1, 1, 1)]
                .into_iter()
                .for_each(|(rows, heads, dh)| add(rows, heads, dh, true));
            add(0, 3, 20, false);
            for (rows, heads, dh) in [(1, 1, 20), (17, 3, 20), (65, 2, 64), (40, 8, 128)] {
                all.push(Self { rows, heads, dh, kv, from_host: false, pool: true });
            }
        }
        all
    }

    /// Rows that each head moves.
    fn counts(&self) -> Vec<u32> {
        (0..self.heads).map(|h| self.rows - h % 3 * self.rows / 3).collect()
    }

    fn src_stride(&self) -> u32 {
        self.rows + 19
    }

    fn dst_stride(&self) -> u32 {
        self.rows + 5
    }

    fn list_stride(&self) -> u32 {
        self.rows + 3
    }

    /// Heads whose rows are numbered apart.
    fn parts(&self) -> u32 {
        if self.pool { 1 } else { self.heads }
    }

    /// One list per head, `limit` rows to choose from; repeats only where `distinct` is false. In a
    /// pool, head h is given rows h, h + Hkv, ..
    fn lists(&self, rng: &mut SplitMix64, limit: u32, distinct: bool) -> Vec<Vec<u32>> {
        if self.pool {
            let mut lists = Self { pool: false, ..self.clone() }.lists(rng, limit, distinct);
            for (list, head) in lists.iter_mut().zip(0..) {
                list.iter_mut().for_each(|row| *row = *row * self.heads + head);
            }
            return lists;
        }
        let mut one = |n: u32| {
            if distinct {
                rng.distinct(limit as usize, n as usize)
            } else {
                (0..n).map(|_| rng.below(limit as usize) as u32).collect()
            }
        };
        self.counts().into_iter().map(&mut one).collect()
    }
}

impl fmt::Display for KvGatherCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, heads, dh, kv, from_host, pool } = self;
        let host = if *from_host { ",host" } else { "" };
        let pool = if *pool { ",pool" } else { "" };
        write!(f, "kv_gather[rows={rows},hkv={heads},dh={dh},kv={kv}{host}{pool}]")
    }
}

impl OpCase for KvGatherCase {
    fn op(&self) -> Op {
        Op::KvGather
    }

    fn dtype(&self) -> DType {
        self.kv
    }

    fn excused(&self, c: &Capabilities) -> Option<String> {
        lacks_rows(c, self.kv, self.from_host)
    }

    fn elsewhere(&self, c: &Capabilities) -> Option<String> {
        widened(c, self.kv)
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let src_lists = self.lists(rng, self.src_stride(), false);
        let dst_lists = self.lists(rng, self.dst_stride(), true);
        let used = |head: u32, row: u32| {
            if self.pool {
                src_lists.iter().any(|list| list.contains(&row))
            } else {
                src_lists[head as usize].contains(&row)
            }
        };
        let share = self.heads / self.parts();
        let rows = kv_rows(rng, self.parts(), share * self.src_stride(), self.dh, used);
        let src = Input::kv("src", self.kv, self.dh as usize, rows);
        let stride = share * self.dst_stride();
        let written = if self.pool { vec![dst_lists.concat()] } else { dst_lists.clone() };
        Plan {
            inputs: vec![
                Input { on_host: self.from_host, ..src },
                Input::ints("src_rows", padded(&src_lists, self.list_stride())),
                Input::ints("dst_rows", padded(&dst_lists, self.list_stride())),
                Input::ints("n_rows", self.counts()),
            ],
            weights: Vec::new(),
            outputs: vec![rows_written("dst", self.kv, stride, self.dh, &written)],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [dst] = exactly(&mut b.outputs);
        let stride = |rows: u32| if self.pool { 0 } else { rows };
        backend.kv_gather(KvGather {
            p: KvGatherParams {
                n_kv_heads: self.heads,
                head_dim: self.dh,
                list_stride: self.list_stride(),
                dst_head_stride: stride(self.dst_stride()),
            },
            src: b.inputs[0].kv(stride(self.src_stride()) as usize),
            src_rows: b.inputs[1].view(),
            dst_rows: b.inputs[2].view(),
            n_rows: b.inputs[3].view(),
            dst: &mut dst.buffer,
        })
    }
}

/// A case of [`Op::KvKeys`].
#[derive(Clone, Debug)]
pub struct KvKeysCase {
    /// Points.
    pub rows: u32,
    /// KV heads.
    pub heads: u32,
    /// Width of a head.
    pub dh: u32,
    /// Of the rows.
    pub kv: DType,
    /// Whether they are in host memory.
    pub from_host: bool,
}

impl KvKeysCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for kv in FLOATS {
            let mut add =
                |rows, heads, dh, from_host| all.push(Self { rows, heads, dh, kv, from_host });
            EDGES.iter().for_each(|rows| add(*rows, 2, 20, false));
            for dh in HEAD_DIMS {
                [1, 2, 8].into_iter().for_each(|heads| add(9, heads, dh, heads == 2));
            }
            [(65, 4, 64), (1, 1, 1), (13, 3, 7)]
                .into_iter()
                .for_each(|(rows, heads, dh)| add(rows, heads, dh, true));
        }
        all
    }

    fn stride(&self) -> u32 {
        self.rows + 19
    }
}

impl fmt::Display for KvKeysCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, heads, dh, kv, from_host } = self;
        let host = if *from_host { ",host" } else { "" };
        write!(f, "kv_keys[rows={rows},hkv={heads},dh={dh},kv={kv}{host}]")
    }
}

impl OpCase for KvKeysCase {
    fn op(&self) -> Op {
        Op::KvKeys
    }

    fn dtype(&self) -> DType {
        self.kv
    }

    fn excused(&self, c: &Capabilities) -> Option<String> {
        lacks_rows(c, self.kv, self.from_host)
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let (stride, n) = (self.stride(), self.rows as usize);
        let list: Vec<u32> =
            (0..self.heads as usize * n).map(|_| rng.below(stride as usize) as u32).collect();
        let used = |head: u32, row: u32| list[head as usize * n..][..n].contains(&row);
        let rows = kv_rows(rng, self.heads, stride, self.dh, used);
        let src = Input::kv("src", self.kv, self.dh as usize, rows);
        Plan {
            inputs: vec![Input { on_host: self.from_host, ..src }, Input::ints("rows", list)],
            weights: Vec::new(),
            outputs: vec![OutputPlan::floats("out", self.heads as usize * n * self.dh as usize)],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        let Self { rows: n_rows, heads: n_kv_heads, dh: head_dim, .. } = *self;
        backend.kv_keys(KvKeys {
            p: KvKeysParams { n_kv_heads, head_dim, n_rows },
            src: b.inputs[0].kv(self.stride() as usize),
            rows: b.inputs[1].view(),
            out: out.view_mut(),
        })
    }
}

/// A case of [`Op::RotateRows`]. Rows of `src` beyond the first are not numbers.
#[derive(Clone, Debug)]
pub struct RotateRowsCase {
    /// Rows of each head.
    pub rows: u32,
    /// KV heads.
    pub heads: u32,
    /// Width of a head.
    pub dh: u32,
    /// Elements that rotate.
    pub rotary: u32,
    /// Of both sides.
    pub kv: DType,
}

impl RotateRowsCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for kv in FLOATS {
            let mut add = |rows, heads, dh, rotary| all.push(Self { rows, heads, dh, rotary, kv });
            EDGES.iter().for_each(|rows| add(*rows, 2, 20, 20));
            for dh in HEAD_DIMS {
                [1, 2, 8].into_iter().for_each(|heads| add(4, heads, dh, dh));
                [0, 2, dh / 2].into_iter().for_each(|rotary| add(5, 3, dh, rotary));
            }
            [(0, 2, 64, 64), (1, 1, 2, 2), (3, 2, 7, 6), (16, 2, 256, 128)]
                .into_iter()
                .for_each(|(rows, heads, dh, rotary)| add(rows, heads, dh, rotary));
        }
        all
    }

    fn strides(&self) -> (u32, u32) {
        (self.rows + 19, self.rows + 3)
    }
}

impl fmt::Display for RotateRowsCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, heads, dh, rotary, kv } = self;
        write!(f, "rotate_rows[rows={rows},hkv={heads},dh={dh},rotary={rotary},kv={kv}]")
    }
}

impl OpCase for RotateRowsCase {
    fn op(&self) -> Op {
        Op::RotateRows
    }

    fn dtype(&self) -> DType {
        self.kv
    }

    fn excused(&self, c: &Capabilities) -> Option<String> {
        lacks(&c.kv_dtypes, self.kv, "KV rows")
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let (from, to) = self.strides();
        let rows = kv_rows(rng, self.heads, from, self.dh, |_, row| row < self.rows);
        let angles: Vec<f32> = (0..self.rotary / 2).map(|_| 7.0 * rng.next_f32()).collect();
        let cosines = angles.iter().map(|a| a.cos());
        let table = cosines.chain(angles.iter().map(|a| a.sin())).collect();
        let named = vec![(0..self.rows).collect::<Vec<_>>(); self.heads as usize];
        Plan {
            inputs: vec![
                Input::kv("src", self.kv, self.dh as usize, rows),
                Input::floats("table", table),
            ],
            weights: Vec::new(),
            outputs: vec![rows_written("dst", self.kv, to, self.dh, &named)],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [dst] = exactly(&mut b.outputs);
        let (from, to) = self.strides();
        backend.rotate_rows(RotateRows {
            p: RotateRowsParams {
                n_kv_heads: self.heads,
                head_dim: self.dh,
                rotary_dim: self.rotary,
                n_rows: self.rows,
                dst_head_stride: to,
            },
            src: b.inputs[0].kv(from as usize),
            table: b.inputs[1].view(),
            dst: &mut dst.buffer,
        })
    }
}

/// Why rows of that type, in host memory or not, are none for a backend.
fn lacks_rows(c: &Capabilities, kv: DType, from_host: bool) -> Option<String> {
    let no_host = from_host && !c.reads_host_memory;
    let host = no_host.then(|| "kernels do not read host memory".to_owned());
    host.or_else(|| lacks(&c.kv_dtypes, kv, "KV rows"))
}

/// Lists side by side, `stride` entries each; entries not in use point far outside.
pub(super) fn padded(lists: &[Vec<u32>], stride: u32) -> Vec<u32> {
    let pad = |list: &Vec<u32>| {
        let mut list = list.clone();
        list.resize(stride as usize, u32::MAX);
        list
    };
    lists.iter().flat_map(pad).collect()
}

/// KV rows of which those listed for each head are written.
fn rows_written(
    name: &'static str,
    kv: DType,
    stride: u32,
    head_dim: u32,
    lists: &[Vec<u32>],
) -> OutputPlan {
    let (stride, width) = (stride as usize, kv.kv_row_len(head_dim as usize));
    let row_range = |head: usize, row: u32| -> Range<usize> {
        let start = (head * stride + row as usize) * width;
        start..start + width
    };
    let heads = lists.iter().enumerate();
    let written = heads.flat_map(|(h, rows)| rows.iter().map(move |r| row_range(h, *r))).collect();
    OutputPlan::kv(name, kv, lists.len() * stride * width, written)
}
