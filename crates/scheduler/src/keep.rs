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

use std::sync::Arc;

use longview_core::DType;
use longview_ops::{Backend, ColumnMass, ColumnMassParams, OpResult, View, ViewMut};

use crate::error::SchedulerError;
use crate::held::HeldLists;
use crate::layer::LayerMode;
use crate::observe::Observation;
use crate::policy::{KeepConfig, Policy, Statistic};
use crate::rows::DeviceRows;
use crate::sequence::{Placement, Sequence};
use crate::session_file::KeepRecord;
use crate::shape::KvShape;
use crate::step::LayerTensors;

/// A row that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptRow {
    /// In the host tier.
    pub row: u32,
    /// Among the head's places in the pool.
    pub slot: u32,
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
    lists: HeldLists<B>,
    n_listed: HeldLists<B>,
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
            lists: HeldLists::new(backend, hkv, stride, "observed rows")?,
            n_listed: HeldLists::new(backend, 1, hkv, "observed rows")?,
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
    pub fn pool_row(&self, head: usize, kept: KeptRow) -> usize {
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
    pub async fn record(&self, backend: &B, n_indexed: usize) -> OpResult<KeepRecord> {
        let mut mass = vec![0.0f32; self.host_mass.len()];
        backend.read(View::all(&self.mass), bytemuck::cast_slice_mut(&mut mass)).await?;
        let pair = |kept: &KeptRow| [kept.row, kept.slot];
        Ok(KeepRecord {
            n_indexed,
            capacity: self.capacity.iter().map(|c| *c as u32).collect(),
            rows: self.rows.iter().map(|rows| rows.iter().map(pair).collect()).collect(),
            mass,
        })
    }

    /// What a session file has; `None` if it is not of this shape.
    pub fn from_record(
        backend: &B,
        shape: &KvShape,
        record: KeepRecord,
        ring: usize,
    ) -> OpResult<Option<Self>> {
        let most = record.capacity.iter().copied().max().unwrap_or(0) as usize;
        if record.mass.len() != shape.n_q_heads.saturating_mul(most + ring + 1) {
            return Ok(None);
        }
        let capacity = record.capacity.iter().map(|c| *c as usize).collect();
        let mut kept = Self::new(backend, shape, capacity, ring)?;
        for (rows, saved) in kept.rows.iter_mut().zip(&record.rows) {
            rows.extend(saved.iter().map(|[row, slot]| KeptRow { row: *row, slot: *slot }));
        }
        kept.host_mass = record.mass;
        backend.write(ViewMut::all(&mut kept.mass), bytemuck::cast_slice(&kept.host_mass))?;
        Ok(Some(kept))
    }

    /// Forgets rows from `n` on, and what rows from `n_indexed + pending` on received.
    pub fn truncate(&mut self, backend: &B, n: usize, pending: usize) -> OpResult<()> {
        for rows in &mut self.rows {
            rows.retain(|kept| (kept.row as usize) < n);
        }
        // In the middle of a prompt more is pending than there are places for.
        let from = (self.most() + pending).min(self.stride);
        let zeros = vec![0.0f32; self.stride - from];
        for g in 0..self.host_mass.len() / self.stride {
            let view = ViewMut::part(&mut self.mass, g * self.stride + from, zeros.len());
            backend.write(view, bytemuck::cast_slice(&zeros))?;
        }
        Ok(())
    }
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

/// What a policy that scores by all queries lacks where another one was in force in prefill.
pub(crate) fn no_mass(policy: &Policy) -> SchedulerError {
    let what = "the attention of all queries of the prompt";
    SchedulerError::NoStatistics { policy: policy.preset, what }
}

impl<B: Backend> Sequence<B> {
    fn keep_config(&self) -> KeepConfig {
        self.policy.keep.expect("layers that keep rows have a policy that says which")
    }

    /// At the end of a prompt: chooses what the layer keeps.
    pub(crate) async fn keep_prompt(&mut self, layer: usize) -> Result<(), SchedulerError> {
        let (keep, hkv) = (self.keep_config(), self.shape.n_kv_heads);
        let end = self.n_tokens.saturating_sub(self.policy.recent);
        let mean = self.policy.kept(layer, self.shape.n_layers);
        let scores = match keep.statistic {
            _ if end == 0 => Vec::new(),
            Statistic::LastQueries(queries) => {
                let KeepConfig { kernel, pool, order, .. } = keep;
                let how = Observation { queries, kernel, pool, order };
                self.observe(layer, &how, 0..end).await?
            }
            Statistic::AllQueries => self.recorded_mass(layer, end).await?,
        };
        let capacity = match keep.safeguard {
            // A prompt that fits is kept whole, and says nothing about what decode will need.
            Some(safeguard) if end > mean => head_capacities(&scores, end, mean, safeguard),
            _ => vec![mean.min(self.shape.capacity); hkv],
        };
        let backend = Arc::clone(&self.backend);
        let ring = self.layout.ring;
        let mut kept = Kept::new(&*backend, &self.shape, capacity, ring)?;
        for (head, scores) in scores.chunks_exact(end.max(1)).enumerate() {
            let chosen = best(scores, kept.capacity[head]).into_iter().zip(0..);
            kept.rows[head].extend(chosen.map(|(row, slot)| KeptRow { row, slot }));
        }
        if keep.statistic == Statistic::AllQueries && end > 0 {
            self.carry_mass(layer, end, &mut kept).await?;
        }
        let n_kept: usize = kept.rows.iter().map(Vec::len).sum();
        let state = &mut self.layers[layer];
        let resized = state.kept.as_ref().is_none_or(|old| old.capacity != kept.capacity);
        state.kept = Some(kept);
        (state.n_indexed, state.n_submitted) = (end, end);
        if state.device.is_some() && resized {
            state.device = None;
            state.device = Some(state.alloc_device(&*backend, &self.shape)?);
        }
        self.stats.evictions += (end * hkv - n_kept) as u64;
        Ok(())
    }

    /// The mass of rows `0..end` from all queries of the prompt, as means over groups.
    async fn recorded_mass(&self, layer: usize, end: usize) -> Result<Vec<f32>, SchedulerError> {
        let mass = self.all_mass(layer).await?;
        let (hq, hkv, n) = (self.shape.n_q_heads, self.shape.n_kv_heads, self.shape.capacity);
        let group = hq / hkv;
        let mean = |head: usize, row: usize| {
            let sum: f32 = (head * group..(head + 1) * group).map(|g| mass[g * n + row]).sum();
            sum / group as f32
        };
        Ok((0..hkv).flat_map(|head| (0..end).map(move |row| mean(head, row))).collect())
    }

    /// What every row received from all queries of the prompt, `[Hq, capacity]`.
    async fn all_mass(&self, layer: usize) -> Result<Vec<f32>, SchedulerError> {
        let missing = no_mass(&self.policy);
        let recorded = &self.layers[layer].recorded;
        if recorded.mass_rows < self.layers[layer].positions[0].len().min(self.n_tokens) {
            return Err(missing);
        }
        let mass = recorded.mass.as_ref().ok_or(missing)?;
        let len = self.shape.n_q_heads * self.shape.capacity;
        let mut host = vec![0.0; len];
        let view = View::part(mass, 0, len);
        self.backend.read(view, bytemuck::cast_slice_mut(&mut host)).await?;
        Ok(host)
    }

    /// Starts the sums of decode with those of the prompt.
    async fn carry_mass(
        &self,
        layer: usize,
        end: usize,
        kept: &mut Kept<B>,
    ) -> Result<(), SchedulerError> {
        let mass = self.all_mass(layer).await?;
        let (capacity, group) = (self.shape.capacity, self.shape.n_q_heads / self.shape.n_kv_heads);
        let most = kept.most();
        for (g, sums) in kept.host_mass.chunks_exact_mut(kept.stride).enumerate() {
            let from = &mass[g * capacity..(g + 1) * capacity];
            for row in &kept.rows[g / group] {
                sums[row.slot as usize] = from[row.row as usize];
            }
            for (i, row) in (end..self.n_tokens).enumerate() {
                sums[most + i] = from[row];
            }
        }
        let bytes = bytemuck::cast_slice(&kept.host_mass);
        Ok(self.backend.write(ViewMut::all(&mut kept.mass), bytes)?)
    }

    /// In a decode step: a full window of new tokens is chosen from.
    pub(crate) async fn rechoose(&mut self, layer: usize) -> Result<(), SchedulerError> {
        let keep = self.keep_config();
        let (first, n) = (self.layers[layer].n_indexed, self.n_tokens);
        let recent = self.policy.recent;
        if n < first + recent + keep.window {
            return Ok(());
        }
        let (backend, leaving) = (Arc::clone(&self.backend), first..n - recent);
        let (hq, hkv) = (self.shape.n_q_heads, self.shape.n_kv_heads);
        let group = hq / hkv;
        let state = &mut self.layers[layer];
        let kept = state.kept.as_mut().expect("layers that keep rows know them");
        let out = bytemuck::cast_slice_mut(&mut kept.host_mass);
        backend.read(View::all(&kept.mass), out).await?;
        let (most, stride) = (kept.most(), kept.stride);
        let mut fresh = vec![0.0f32; hq * stride];
        self.mover.clear();
        let in_pool = self.options.placement == Placement::Device;
        let ring_rows = hkv * self.layout.ring;
        for head in 0..hkv {
            let attended = kept.capacity[head].saturating_sub(n - first - recent);
            let n_before = kept.rows[head].len() + leaving.len();
            kept.rows[head].truncate(attended);
            let place = |kept: &KeptRow| kept.slot as usize;
            let news = leaving.clone().map(|row| (row as u32, most + row - first));
            let all: Vec<(u32, usize)> =
                kept.rows[head].iter().map(|k| (k.row, place(k))).chain(news).collect();
            let mass = |at: usize| -> f32 {
                (head * group..(head + 1) * group).map(|g| kept.host_mass[g * stride + at]).sum()
            };
            let scores: Vec<f32> = all.iter().map(|(_, at)| mass(*at)).collect();
            let chosen = best(&scores, kept.capacity[head]);
            let mut free = vec![true; kept.capacity[head]];
            for i in &chosen {
                if all[*i as usize].1 < most {
                    free[all[*i as usize].1] = false;
                }
            }
            let mut free = (0..free.len()).filter(|slot| free[*slot]);
            let mut rows = Vec::with_capacity(kept.rows[head].capacity());
            for i in chosen {
                let (row, at) = all[i as usize];
                let slot = match at < most {
                    true => at,
                    false => free.next().expect("a head keeps as many rows as it has places"),
                };
                let new = KeptRow { row, slot: slot as u32 };
                if at >= most && in_pool {
                    let to = ring_rows + kept.base[head] + slot;
                    self.mover.push(head, row as usize, to);
                }
                for g in head * group..(head + 1) * group {
                    fresh[g * stride + slot] = kept.host_mass[g * stride + at];
                }
                rows.push(new);
            }
            // New rows took the places of some that were kept: these are gone too.
            self.stats.evictions += (n_before - rows.len()) as u64;
            kept.rows[head] = rows;
        }
        match keep.statistic {
            // The next choice is by the queries of the next window.
            Statistic::LastQueries(_) => fresh.fill(0.0),
            Statistic::AllQueries => {
                for g in 0..hq {
                    let old = g * stride + most + leaving.len();
                    let rest = &kept.host_mass[old..old + recent];
                    fresh[g * stride + most..][..recent].copy_from_slice(rest);
                }
            }
        }
        kept.host_mass = fresh;
        backend.write(ViewMut::all(&mut kept.mass), bytemuck::cast_slice(&kept.host_mass))?;
        (state.n_indexed, state.n_submitted) = (leaving.end, leaving.end);
        if in_pool {
            let buffer = state.device.as_mut().expect("device placement has device rows");
            let pool = DeviceRows { buffer, head_stride: 0 };
            self.mover.load(&*backend, &self.shape, &*self.tier, layer, pool)?;
        }
        Ok(())
    }

    /// Lists what a decoded token attends: rows that are not chosen from yet, its own among them,
    /// and the best of those that are kept.
    pub(crate) fn list_kept(&mut self, layer: usize) -> Result<(), SchedulerError> {
        let n_rows = self.n_tokens + 1;
        let in_place = self.options.placement == Placement::InPlace;
        let ring = self.layout.ring;
        let (hkv, recent) = (self.shape.n_kv_heads, self.policy.recent);
        let window = self.window_start(layer, n_rows)..n_rows;
        self.lists.clear();
        let state = &self.layers[layer];
        let kept = state.kept.as_ref().expect("layers that keep rows know them");
        for head in 0..hkv {
            for row in window.clone() {
                let at = if in_place { row } else { head * ring + self.layout.row(row) };
                self.lists.push(head, at);
            }
            let room = (kept.capacity[head] + recent).saturating_sub(window.len());
            for row in kept.rows[head].iter().take(room) {
                let in_pool = hkv * ring + kept.pool_row(head, *row);
                self.lists.push(head, if in_place { row.row as usize } else { in_pool });
            }
        }
        Ok(())
    }

    /// After a layer's attention: adds what the token's query gave to every row that may be chosen.
    pub(crate) fn measure(
        &mut self,
        layer: usize,
        index: usize,
        t: &LayerTensors<'_, B>,
        lse: View<'_, B>,
    ) -> Result<(), SchedulerError> {
        let (hq, hkv, d) = (self.shape.n_q_heads, self.shape.n_kv_heads, self.shape.head_dim);
        let n_rows = self.n_tokens + 1;
        let window = self.window_start(layer, n_rows)..n_rows;
        let in_place = self.options.placement == Placement::InPlace;
        let ring = self.layout.ring;
        let place = |head: usize, row: usize| match in_place {
            true => row,
            false => head * ring + self.layout.row(row),
        };
        let backend = Arc::clone(&self.backend);
        let mut kept = self.layers[layer].kept.take().expect("layers that keep rows know them");
        let most = kept.most();
        for head in 0..hkv {
            // Places without a row measure the token's own, and nobody looks.
            kept.list.clear();
            kept.list.resize(most, place(head, self.n_tokens) as u32);
            for row in &kept.rows[head] {
                let at = match in_place {
                    true => row.row as usize,
                    false => hkv * ring + kept.base[head] + row.slot as usize,
                };
                kept.list[row.slot as usize] = at as u32;
            }
            kept.list.extend(window.clone().map(|row| place(head, row) as u32));
            kept.counts[head] = kept.list.len() as u32;
            kept.lists.put(&*backend, head, &kept.list)?;
        }
        kept.n_listed.put(&*backend, 0, &kept.counts)?;
        let n_tokens = t.q.len / (hq * d);
        let result = backend.column_mass(ColumnMass {
            p: ColumnMassParams {
                n_tokens: n_tokens as u32,
                n_q_heads: hq as u32,
                n_kv_heads: hkv as u32,
                head_dim: d as u32,
                scale: self.shape.scale,
                q_start: index as u32,
                q_len: 1,
                list_stride: kept.stride as u32,
                out_stride: kept.stride as u32,
                diagonal: i32::MAX,
                window: 0,
            },
            q: t.q,
            lse,
            kv: self.attended_rows(layer),
            rows: kept.lists.all(),
            n_rows: kept.n_listed.all(),
            out: ViewMut::all(&mut kept.mass),
        });
        self.layers[layer].kept = Some(kept);
        Ok(result?)
    }

    /// Fills the pool of a layer from the host tier.
    pub(crate) fn load_kept(&mut self, layer: usize) -> Result<(), SchedulerError> {
        let ring_rows = self.shape.n_kv_heads * self.layout.ring;
        let step = self.mover.stride();
        let state = &mut self.layers[layer];
        let kept = state.kept.as_ref().expect("layers that keep rows know them");
        let longest = kept.rows.iter().map(Vec::len).max().unwrap_or(0);
        for first in (0..longest).step_by(step) {
            self.mover.clear();
            for (head, rows) in kept.rows.iter().enumerate() {
                for row in rows.iter().skip(first).take(step) {
                    let to = ring_rows + kept.pool_row(head, *row);
                    self.mover.push(head, row.row as usize, to);
                }
            }
            let buffer = state.device.as_mut().expect("checked by the caller");
            let pool = DeviceRows { buffer, head_stride: 0 };
            self.mover.load(&*self.backend, &self.shape, &*self.tier, layer, pool)?;
        }
        Ok(())
    }

    /// The tokens that each KV head of a layer keeps beside the recent ones, best first.
    pub fn kept_tokens(&self, layer: usize, head: usize) -> impl Iterator<Item = u32> + '_ {
        let kept = self.layers[layer].kept.as_ref();
        kept.into_iter().flat_map(move |kept| kept.rows[head].iter().map(|kept| kept.row))
    }

    /// Whether a layer keeps rows by the attention of all queries, which prefill must record.
    pub(crate) fn records_mass(&self, layer: usize) -> bool {
        let all = |keep: KeepConfig| keep.statistic == Statistic::AllQueries;
        self.layers[layer].mode == LayerMode::Keep && self.policy.keep.is_some_and(all)
    }
}
