//! Policies that keep some tokens and let go of the others: SnapKV, PyramidKV, their Ada-KV forms,
//! H2O.
//!
//! At the end of a prompt each KV head keeps the rows that received most attention, as many as its
//! budget leaves beside the recent ones. In decode every new token takes the place of the row that
//! was kept last; after a window of new tokens the choice is made again, among the rows that are
//! left and those that leave the recent window, by the attention that all received since. So a step
//! attends exactly B rows, a row that was let go never comes back, and the device holds no more.
//!
//! Rows of all heads lie in one pool, so that heads may keep unequal numbers without padding, and a
//! change of the choice moves only what is new: nothing is copied per token.

use std::ops::Range;

use longview_core::{DType, HeadId};
use longview_ops::{Backend, ColumnMass, ColumnMassParams, KvView, OpResult, View, ViewMut};

use crate::layout::{DeviceLayout, KvShape, LayerTensors};
use crate::policy::{KeptConfig, Statistic};
use crate::store::{DeviceRows, LayerRows, RowLists, RowMover, UploadCache};

/// What a session file holds of a layer that keeps rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeptRecord {
    /// Rows below this were chosen from.
    pub n_indexed: usize,
    /// Rows that each head may keep.
    pub capacity: Vec<u32>,
    /// Row and place of what each head keeps, best first.
    pub rows: Vec<Vec<[u32; 2]>>,
    /// Attention received, `[Hq, n]`.
    pub mass: Vec<f32>,
}

/// A row that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptRow {
    /// In the host store.
    pub row: u32,
    /// Among the head's places in the pool.
    pub slot: u32,
}

/// Where the rows of a layer lie that attention reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptPlaces {
    /// Whether they are attended in the host store itself.
    pub in_place: bool,
    /// Rows of a head on the device: a ring, and behind the rings of all heads the pool.
    pub layout: DeviceLayout,
    pub n_kv_heads: usize,
}

impl KeptPlaces {
    /// The place of a row that is not chosen from yet.
    fn pending(&self, head: HeadId, row: usize) -> usize {
        if self.in_place { row } else { head.index() * self.layout.ring + self.layout.row(row) }
    }

    /// The first place of the pool.
    fn pool(&self) -> usize {
        self.n_kv_heads * self.layout.ring
    }
}

/// What one layer keeps.
pub(crate) struct Kept<B: Backend> {
    /// Rows that each head may keep.
    pub capacity: Vec<usize>,
    /// The first place of each head in the pool.
    base: Vec<usize>,
    /// What each head keeps, best first.
    pub rows: Vec<Vec<KeptRow>>,
    /// Attention received, F32 `[Hq, stride]`: places of the pool first, then rows that are not
    /// chosen from yet.
    mass: B::Buffer,
    /// The places and rows that `mass` is of, for each KV head.
    lists: UploadCache<B>,
    n_listed: UploadCache<B>,
    stride: usize,
    list: Vec<u32>,
    counts: Vec<u32>,
    host_mass: Vec<f32>,
}

impl<B: Backend> Kept<B> {
    /// Places for `capacity` rows of each head, with `ring` rows beside them.
    pub fn new(backend: &B, shape: &KvShape, capacity: Vec<usize>, ring: usize) -> OpResult<Self> {
        let (hq, hkv) = (shape.n_q_heads, shape.n_kv_heads);
        let most = capacity.iter().copied().max().unwrap_or(0);
        let stride = most + ring + 1;
        let base =
            capacity.iter().scan(0, |sum, c| Some(std::mem::replace(sum, *sum + c))).collect();
        Ok(Self {
            rows: capacity.iter().map(|c| Vec::with_capacity(c + ring + 1)).collect(),
            base,
            capacity,
            mass: backend.alloc(DType::F32, hq * stride, "received attention")?,
            lists: UploadCache::new(backend, hkv, stride, "observed rows")?,
            n_listed: UploadCache::new(backend, 1, hkv, "observed rows")?,
            stride,
            list: Vec::with_capacity(stride),
            counts: vec![0; hkv],
            host_mass: vec![0.0; hq * stride],
        })
    }

    /// Places in the pool.
    pub fn n_pool_rows(&self) -> usize {
        self.capacity.iter().sum()
    }

    /// Places of the mass before those of rows that are not chosen from yet.
    fn most(&self) -> usize {
        self.capacity.iter().copied().max().unwrap_or(0)
    }

    /// The place of a kept row in the pool.
    pub fn pool_row(&self, head: HeadId, kept: KeptRow) -> usize {
        self.base[head] + kept.slot as usize
    }

    /// The same buffers on a fresh device.
    pub fn restore(&mut self, backend: &B, shape: &KvShape, ring: usize) -> OpResult<()> {
        let mut fresh = Self::new(backend, shape, self.capacity.clone(), ring)?;
        std::mem::swap(&mut fresh.rows, &mut self.rows);
        fresh.host_mass.clone_from(&self.host_mass);
        backend.write(ViewMut::all(&mut fresh.mass), bytemuck::cast_slice(&fresh.host_mass))?;
        *self = fresh;
        Ok(())
    }

    /// As a session file has it, when rows below `n_indexed` were chosen from.
    pub async fn record(&self, backend: &B, n_indexed: usize) -> OpResult<KeptRecord> {
        let mut mass = vec![0.0f32; self.host_mass.len()];
        backend.read(View::all(&self.mass), bytemuck::cast_slice_mut(&mut mass)).await?;
        let pair = |kept: &KeptRow| [kept.row, kept.slot];
        Ok(KeptRecord {
            n_indexed,
            capacity: self.capacity.iter().map(|c| *c as u32).collect(),
            rows: self.rows.iter().map(|rows| rows.iter().map(pair).collect()).collect(),
            mass,
        })
    }

    /// What a session file has; `None` if it is not of this shape, or lacks the mass of one of the
    /// `pending` rows that are not chosen from yet. A ring has no more rows than the context, so
    /// that its length may be another one than when the file was written.
    pub fn from_record(
        backend: &B,
        shape: &KvShape,
        record: KeptRecord,
        ring: usize,
        pending: usize,
    ) -> OpResult<Option<Self>> {
        let most = record.capacity.iter().copied().max().unwrap_or(0) as usize;
        let (saved, rest) =
            (record.mass.len() / shape.n_q_heads, record.mass.len() % shape.n_q_heads);
        if rest > 0 || saved <= most + pending || pending > ring {
            return Ok(None);
        }
        let capacity = record.capacity.iter().map(|c| *c as usize).collect();
        let mut kept = Self::new(backend, shape, capacity, ring)?;
        for (rows, saved) in kept.rows.iter_mut().zip(&record.rows) {
            rows.extend(saved.iter().map(|[row, slot]| KeptRow { row: *row, slot: *slot }));
        }
        let common = saved.min(kept.stride);
        let sums = kept.host_mass.chunks_exact_mut(kept.stride);
        for (to, from) in sums.zip(record.mass.chunks_exact(saved)) {
            to[..common].copy_from_slice(&from[..common]);
        }
        backend.write(ViewMut::all(&mut kept.mass), bytemuck::cast_slice(&kept.host_mass))?;
        Ok(Some(kept))
    }

    /// Keeps the best rows of a prompt: `scores` are `[Hkv, n]`.
    pub fn choose(&mut self, scores: &[f32], n: usize) {
        for (head, scores) in scores.chunks_exact(n.max(1)).enumerate() {
            let chosen = best(scores, self.capacity[head]).into_iter().zip(0..);
            self.rows[head].extend(chosen.map(|(row, slot)| KeptRow { row, slot }));
        }
    }

    /// Rows that all heads keep.
    pub fn n_kept(&self) -> usize {
        self.rows.iter().map(Vec::len).sum()
    }

    /// Starts the sums of decode with those of the prompt, `[Hq, capacity]`: of what is kept, and
    /// of the rows `pending` behind it.
    pub fn carry_mass(
        &mut self,
        backend: &B,
        shape: &KvShape,
        mass: &[f32],
        pending: Range<usize>,
    ) -> OpResult<()> {
        let (capacity, group) = (shape.capacity, shape.n_q_heads / shape.n_kv_heads);
        let most = self.most();
        for (g, sums) in self.host_mass.chunks_exact_mut(self.stride).enumerate() {
            let from = &mass[g * capacity..(g + 1) * capacity];
            for row in &self.rows[g / group] {
                sums[row.slot as usize] = from[row.row as usize];
            }
            for (i, row) in pending.clone().enumerate() {
                sums[most + i] = from[row];
            }
        }
        backend.write(ViewMut::all(&mut self.mass), bytemuck::cast_slice(&self.host_mass))
    }

    /// In a decode step: chooses again, among what a step still attends and the rows `leaving`
    /// that leave the recent window. Returns how many rows were let go of.
    ///
    /// New rows of the pool go to `mover`'s list, to be loaded into the pool.
    pub async fn rechoose(
        &mut self,
        backend: &B,
        config: &KeptConfig,
        places: &KeptPlaces,
        window: &RechooseWindow,
        mover: &mut RowMover<B>,
    ) -> OpResult<usize> {
        let out = bytemuck::cast_slice_mut(&mut self.host_mass);
        backend.read(View::all(&self.mass), out).await?;
        let (most, stride) = (self.most(), self.stride);
        let hq = self.host_mass.len() / stride;
        let group = hq / self.rows.len();
        let mut fresh = vec![0.0f32; self.host_mass.len()];
        mover.clear();
        let mut evicted = 0;
        for head in heads(&self.rows) {
            let n_before = self.rows[head].len() + window.leaving.len();
            let chosen = self.rechoose_head(head, window);
            for Rechosen { kept, from } in &chosen {
                if *from >= most && !places.in_place {
                    let to = places.pool() + self.pool_row(head, *kept);
                    mover.push(head, kept.row as usize, to);
                }
                for g in query_heads(head, group) {
                    fresh[g * stride + kept.slot as usize] = self.host_mass[g * stride + from];
                }
            }
            // New rows took the places of some that were kept: these are gone too.
            evicted += n_before - chosen.len();
            self.rows[head].clear();
            self.rows[head].extend(chosen.iter().map(|chosen| chosen.kept));
        }
        match config.statistic {
            // The next choice is by the queries of the next window.
            Statistic::LastQueries(_) => fresh.fill(0.0),
            Statistic::AllQueries => {
                for g in 0..hq {
                    let old = g * stride + most + window.leaving.len();
                    let rest = &self.host_mass[old..old + window.recent];
                    fresh[g * stride + most..][..window.recent].copy_from_slice(rest);
                }
            }
        }
        self.host_mass = fresh;
        backend.write(ViewMut::all(&mut self.mass), bytemuck::cast_slice(&self.host_mass))?;
        Ok(evicted)
    }

    /// What a head keeps of the rows that a step still attends and of those that leave the recent
    /// window, best first. Rows that stay keep their places.
    fn rechoose_head(&self, head: HeadId, window: &RechooseWindow) -> Vec<Rechosen> {
        let (most, stride, capacity) = (self.most(), self.stride, self.capacity[head]);
        let group = self.host_mass.len() / stride / self.rows.len();
        let leaving = &window.leaving;
        // Every new row took the place of the one that was kept last.
        let attended = capacity.saturating_sub(leaving.len());
        let old = self.rows[head].iter().take(attended);
        let old = old.map(|k| Candidate { row: k.row, from: k.slot as usize });
        let new = leaving.clone();
        let new = new.map(|row| Candidate { row: row as u32, from: most + row - leaving.start });
        let all: Vec<Candidate> = old.chain(new).collect();
        let mass = |at: usize| -> f32 {
            query_heads(head, group).map(|g| self.host_mass[g * stride + at]).sum()
        };
        let scores: Vec<f32> = all.iter().map(|candidate| mass(candidate.from)).collect();
        let chosen: Vec<Candidate> =
            best(&scores, capacity).into_iter().map(|i| all[i as usize]).collect();
        let mut is_free = vec![true; capacity];
        chosen.iter().filter(|c| c.from < most).for_each(|c| is_free[c.from] = false);
        let mut free = (0..capacity).filter(|slot| is_free[*slot]);
        let place = |chosen: Candidate| {
            let slot = if chosen.from < most { Some(chosen.from) } else { free.next() };
            let slot = slot.expect("a head keeps at most as many rows as it has places") as u32;
            Rechosen { kept: KeptRow { row: chosen.row, slot }, from: chosen.from }
        };
        chosen.into_iter().map(place).collect()
    }

    /// Lists what a decoded token attends: the rows `pending` that are not chosen from yet, its own
    /// among them, and the best of those that are kept.
    pub fn list(
        &self,
        places: &KeptPlaces,
        pending: &Range<usize>,
        recent: usize,
        lists: &mut RowLists<B>,
    ) {
        lists.clear();
        for (head, rows) in heads(&self.rows).zip(&self.rows) {
            for row in pending.clone() {
                lists.push(head, places.pending(head, row));
            }
            let room = (self.capacity[head] + recent).saturating_sub(pending.len());
            for kept in rows.iter().take(room) {
                lists.push(head, self.place(places, head, *kept));
            }
        }
    }

    /// Where attention reads a row that is kept.
    fn place(&self, places: &KeptPlaces, head: HeadId, kept: KeptRow) -> usize {
        if places.in_place { kept.row as usize } else { places.pool() + self.pool_row(head, kept) }
    }

    /// After a layer's attention: adds what the query of the step's token `observed.index` gave to
    /// every row that may be chosen. `pending` are the rows that are not chosen from yet, the
    /// token's own the last of them.
    pub fn measure(
        &mut self,
        backend: &B,
        shape: &KvShape,
        places: &KeptPlaces,
        pending: &Range<usize>,
        observed: &ObservedToken<'_, '_, B>,
    ) -> OpResult<()> {
        let most = self.most();
        for head in heads(&self.rows) {
            // Places without a row measure the token's own, and nobody looks.
            let own = places.pending(head, pending.end - 1) as u32;
            self.list.clear();
            self.list.resize(most, own);
            for kept in &self.rows[head] {
                self.list[kept.slot as usize] = self.place(places, head, *kept) as u32;
            }
            self.list.extend(pending.clone().map(|row| places.pending(head, row) as u32));
            self.counts[head] = self.list.len() as u32;
            self.lists.put(backend, head.index(), &self.list)?;
        }
        self.n_listed.put(backend, 0, &self.counts)?;
        backend.column_mass(ColumnMass {
            p: ColumnMassParams {
                n_tokens: observed.t.n_tokens(shape) as u32,
                n_q_heads: shape.n_q_heads as u32,
                n_kv_heads: shape.n_kv_heads as u32,
                head_dim: shape.head_dim as u32,
                scale: shape.scale,
                q_start: observed.index as u32,
                q_len: 1,
                list_stride: self.stride as u32,
                out_stride: self.stride as u32,
                diagonal: i32::MAX,
                window: 0,
            },
            q: observed.t.q,
            lse: observed.lse,
            kv: observed.rows,
            rows: self.lists.all(),
            n_rows: self.n_listed.all(),
            out: ViewMut::all(&mut self.mass),
        })
    }

    /// Fills the pool of a layer's device buffer from the host store.
    pub fn load(
        &self,
        backend: &B,
        rows: LayerRows<'_, B>,
        places: &KeptPlaces,
        mover: &mut RowMover<B>,
        device: &mut B::Buffer,
    ) -> OpResult<()> {
        let LayerRows { shape, store, layer } = rows;
        let step = mover.stride();
        let longest = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        for first in (0..longest).step_by(step) {
            mover.clear();
            for (head, rows) in shape.heads().zip(&self.rows) {
                for kept in rows.iter().skip(first).take(step) {
                    let to = places.pool() + self.pool_row(head, *kept);
                    mover.push(head, kept.row as usize, to);
                }
            }
            let pool = DeviceRows { buffer: &mut *device, head_stride: 0 };
            mover.load(backend, shape, store, layer, pool)?;
        }
        Ok(())
    }

    /// Forgets rows from `n` on, and what rows from `n_indexed + pending` on received.
    pub fn truncate(&mut self, backend: &B, n: usize, pending: usize) -> OpResult<()> {
        for rows in &mut self.rows {
            rows.retain(|kept| (kept.row as usize) < n);
        }
        // In the middle of a prompt more is pending than there are places for.
        let from = (self.most() + pending).min(self.stride);
        for (g, sums) in self.host_mass.chunks_exact_mut(self.stride).enumerate() {
            // The host's copy forgets them too: a lost device is filled from it.
            let zeros = &mut sums[from..];
            zeros.fill(0.0);
            let view = ViewMut::part(&mut self.mass, g * self.stride + from, zeros.len());
            backend.write(view, bytemuck::cast_slice(zeros))?;
        }
        Ok(())
    }
}

/// The KV heads that have a list of rows each.
fn heads(rows: &[Vec<KeptRow>]) -> impl Iterator<Item = HeadId> + use<> {
    (0..rows.len()).map(HeadId::new)
}

/// The query heads of a KV head.
fn query_heads(head: HeadId, group: usize) -> Range<usize> {
    head.index() * group..(head.index() + 1) * group
}

/// A full window of new tokens that is chosen from.
#[derive(Clone, Debug)]
pub(crate) struct RechooseWindow {
    /// The rows that leave the recent window.
    pub leaving: Range<usize>,
    /// Rows that stay in it.
    pub recent: usize,
}

/// A row that may be kept.
#[derive(Clone, Copy)]
struct Candidate {
    /// In the host store.
    row: u32,
    /// Where its mass is among the sums of a query head: its place in the pool, or behind all
    /// places if it leaves the recent window.
    from: usize,
}

/// A row that is kept after a choice.
struct Rechosen {
    kept: KeptRow,
    /// Where its mass was before.
    from: usize,
}

/// A token of a step, as far as its attention is measured.
pub(crate) struct ObservedToken<'a, 't, B: Backend> {
    pub t: &'a LayerTensors<'t, B>,
    /// The token among the step's.
    pub index: usize,
    /// F32 `[T, Hq]`.
    pub lse: View<'a, B>,
    /// The rows that attention reads.
    pub rows: KvView<'a, B>,
}

/// Mass `[Hq, capacity]` of rows `0..n` as means over groups, `[Hkv, n]`.
pub(crate) fn group_means(shape: &KvShape, mass: &[f32], n: usize) -> Vec<f32> {
    let (group, capacity) = (shape.n_q_heads / shape.n_kv_heads, shape.capacity);
    let mean = |head: HeadId, row: usize| {
        let sum: f32 = shape.query_heads(head).map(|g| mass[g * capacity + row]).sum();
        sum / group as f32
    };
    shape.heads().flat_map(|head| (0..n).map(move |row| mean(head, row))).collect()
}

/// The rows of `scores` that are chosen, best first: the largest, the lowest row among equals.
pub(crate) fn best(scores: &[f32], count: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    let by_score =
        |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
    if count < order.len() {
        order.select_nth_unstable_by(count, by_score);
        order.truncate(count);
    }
    order.sort_unstable_by(by_score);
    order
}

/// How many rows each head keeps (Ada-KV, algorithm 1 with the released code's safeguard): of the
/// best `heads * mean` rows over all heads a head gets a share by how many are its own, and the
/// share `safeguard` of the mean whatever they are.
pub fn head_capacities(scores: &[f32], n: usize, mean: usize, safeguard: f32) -> Vec<usize> {
    let heads = scores.len() / n.max(1);
    let mut counts = vec![0usize; heads];
    best(scores, heads * mean).iter().for_each(|i| counts[*i as usize / n] += 1);
    let least = (mean as f32 * safeguard) as usize;
    let capacity = |own: usize| ((1.0 - safeguard) * own as f32 + least as f32).round() as usize;
    counts.into_iter().map(|own| capacity(own).min(n)).collect()
}

#[cfg(test)]
mod tests;
