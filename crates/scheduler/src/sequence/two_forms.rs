//! Attention in place to rows of which the host store has two forms: all rounded to 8 bits, and the
//! first and the most recent ones as they were written.
//!
//! A query attends to first rows, and to the last [`ExactRows::recent`] before it, as they were
//! written, to all others as they were rounded. So what a row sees depends on its position alone,
//! not on how a prompt is cut into chunks. Parts are attended one after the other and merged by
//! log-sum-exp.

use std::ops::Range;

use longview_core::LayerId;
use longview_ops::{Backend, ChunkSpan, KvView, ListSpan, OpResult};

use super::exact_rows::{ExactRows, exact_layout, recent_rows};
use super::kv_sequence::Sequence;
use super::prefill::{Chunk, Run};
use super::scratch::TokenScratch;
use super::sparse::{BlockRun, Blocks};
use crate::error::SchedulerError;
use crate::layout::{DeviceLayout, KvShape, LayerTensors};
use crate::store::{DeviceRows, HostStore, NewRows, RowLists, scatter, scatter_twice};

/// One part of what a chunk attends to.
struct Part {
    /// Whether its rows are those as they were written.
    is_exact: bool,
    /// Rows of the sequence; exact ones follow each other where they lie.
    rows: Range<usize>,
    /// A query sees those that are this many rows before it, or more.
    behind: usize,
    /// And fewer than so many.
    window: Option<usize>,
}

impl Part {
    fn run<'a, B: Backend>(&self, forms: Forms<'a, B>, n: usize, is_first: bool) -> Run<'a, B> {
        let (kv, start) = if self.is_exact {
            (forms.exact, forms.layout.row(self.rows.start))
        } else {
            (forms.rounded, self.rows.start)
        };
        Run {
            kv,
            rows: start..start + self.rows.len(),
            // Query i is token n + i and sees row `start + j` up to `n + i - behind`.
            diagonal: (n as i64 - self.rows.start as i64 - self.behind as i64) as i32,
            window: self.window.map(|window| window - self.behind),
            accumulate: !is_first,
            order: None,
        }
    }
}

/// The two forms of a layer's rows as kernels take them.
struct Forms<'a, B: Backend> {
    rounded: KvView<'a, B>,
    exact: KvView<'a, B>,
    layout: DeviceLayout,
}

impl<B: Backend> Clone for Forms<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Forms<'_, B> {}

/// What a chunk of `len` tokens behind `n` others attends to. Exact rows from `first_exact` on are
/// there; `window` is that of the layer.
fn parts(
    layout: &DeviceLayout,
    chunk: Range<usize>,
    (recent, first_exact): (usize, usize),
    window: Option<usize>,
) -> Vec<Part> {
    let (n, end) = (chunk.start, chunk.end);
    // The first row that the first query sees.
    let visible = window.map_or(0, |window| (n + 1).saturating_sub(window));
    let sinks = layout.sinks;
    let first_exact = first_exact.max(sinks);
    let recent_start = first_exact.max((n + 1).saturating_sub(recent)).max(visible);
    let nearest = |own: Option<usize>| Some(own.map_or(recent, |own| own.min(recent)));
    let mut parts = Vec::with_capacity(5);
    let mut add = |is_exact: bool, rows: Range<usize>, behind: usize, window: Option<usize>| {
        if !rows.is_empty() {
            parts.push(Part { is_exact, rows, behind, window });
        }
    };
    if end <= recent && first_exact == sinks && end <= sinks + layout.ring {
        // First and recent rows are one run, and all there is.
        add(true, visible..end, 0, window);
        return parts;
    }
    add(true, visible..sinks.min(end), 0, window);
    // Once round the ring, the rest lies before.
    let wrap = sinks + ((recent_start - sinks) / layout.ring + 1) * layout.ring;
    add(true, recent_start..end.min(wrap), 0, nearest(window));
    add(true, wrap..end, 0, nearest(window));
    add(false, sinks.max(visible)..first_exact.min(end), 0, window);
    if window.is_none_or(|window| window > recent) {
        let start = first_exact.max(visible);
        add(false, start..end.saturating_sub(recent), recent, window);
    }
    parts
}

/// Where new rows go that are stored in two forms.
pub(super) struct TwoFormRows<'a, B: Backend> {
    /// The layer, and the first row.
    pub at: (LayerId, usize),
    /// [`NewRows::row_ids`] are numbers of rows in the store.
    pub rounded: NewRows<'a, B>,
    /// Numbers of rows in its layout of exact ones.
    pub exact: NewRows<'a, B>,
    /// The layer's rows on the device, where it has some besides.
    pub own: Option<(NewRows<'a, B>, DeviceRows<'a, B>)>,
}

impl<B: Backend> TwoFormRows<'_, B> {
    /// Lets kernels write them.
    pub fn scatter(
        self,
        backend: &B,
        shape: &KvShape,
        store: &mut dyn HostStore<B>,
        t: &LayerTensors<'_, B>,
    ) -> OpResult<()> {
        let Self { at: (layer, first), rounded, exact, own } = self;
        let rows = first..first + rounded.len;
        let Some(forms) = store.two_forms_mut(layer, rows.clone()) else { return Ok(()) };
        let all = DeviceRows { buffer: forms.rounded, head_stride: shape.capacity };
        scatter(backend, shape, t, &rounded, all)?;
        let kept = DeviceRows { buffer: forms.exact, head_stride: forms.layout.rows() };
        match own {
            Some(own) => scatter_twice(backend, shape, t, [own, (exact, kept)])?,
            None => scatter(backend, shape, t, &exact, kept)?,
        }
        store.note_written(layer, rows);
        Ok(())
    }
}

impl<B: Backend> Sequence<B> {
    /// Rows that are attended as they were written, where that is in place.
    pub(super) fn make_exact_rows(&mut self) -> Result<(), SchedulerError> {
        self.exact = None;
        let layout = exact_layout(&self.shape, &self.policy, &self.options);
        self.store.keep(layout)?;
        if self.in_place() && self.store.two_forms(LayerId(0)).is_some() {
            let recent = recent_rows(&self.shape, &self.policy, self.options.prefill);
            let stride = layout.rows().min(self.shape.capacity);
            let lists = RowLists::new(&*self.backend, self.shape.n_kv_heads, stride, false)?;
            self.exact = Some(ExactRows { recent, lists });
        }
        Ok(())
    }

    /// Whether kernels write new rows to the host store in both forms.
    pub(super) fn kernels_write_two_forms(&self) -> bool {
        self.store.two_forms(LayerId(0)).is_some()
    }

    /// The two forms, where a step attends to them in place.
    fn forms(&self, layer: LayerId) -> Option<(Forms<'_, B>, usize)> {
        self.exact.as_ref()?;
        let forms = self.store.two_forms(layer)?;
        let layout = forms.layout;
        let rounded = KvView::new(forms.rounded, self.shape.capacity);
        let exact = KvView::new(forms.exact, layout.rows());
        Some((Forms { rounded, exact, layout }, forms.first_exact))
    }

    /// First and recent rows of a layer as they were written.
    pub(super) fn exact_rows(&self, layer: LayerId) -> Option<KvView<'_, B>> {
        self.forms(layer).map(|(forms, _)| forms.exact)
    }

    /// All rows of a layer, rounded.
    pub(super) fn rounded_rows(&self, layer: LayerId) -> Option<KvView<'_, B>> {
        self.forms(layer).map(|(forms, _)| forms.rounded)
    }

    /// Lists the rows of a decoded token that are always attended, in whichever form they are.
    pub(super) fn list_two_forms(
        &mut self,
        layer: LayerId,
        sinks: Range<usize>,
        window: Range<usize>,
    ) {
        let (Some(forms), Some(exact)) = (self.store.two_forms(layer), &mut self.exact) else {
            return;
        };
        exact.lists.clear();
        for head in self.shape.heads() {
            for row in sinks.clone().chain(window.clone()) {
                if row < forms.layout.sinks || row >= forms.first_exact {
                    exact.lists.push(head, forms.layout.row(row));
                } else {
                    self.lists.push(head, row);
                }
            }
        }
    }

    /// In a decode step of a layer that attends to all that it sees: lists what it attends to as it
    /// was written.
    pub(super) fn list_exact(&mut self, layer: LayerId) -> Result<(), SchedulerError> {
        let n_rows = self.n_tokens + 1;
        let visible = self.first_visible(layer, n_rows);
        let start = self.rounded_run(layer).end;
        let (Some(forms), Some(exact)) = (self.store.two_forms(layer), &mut self.exact) else {
            return Ok(());
        };
        exact.lists.clear();
        for head in self.shape.heads() {
            for row in (visible..forms.layout.sinks.min(n_rows)).chain(start..n_rows) {
                exact.lists.push(head, forms.layout.row(row));
            }
        }
        Ok(exact.lists.upload(&*self.backend)?)
    }

    /// The rounded rows that a layer attends to in a decode step beside those that are listed.
    fn rounded_run(&self, layer: LayerId) -> Range<usize> {
        let n_rows = self.n_tokens + 1;
        let visible = self.first_visible(layer, n_rows);
        let (Some(forms), Some(exact)) = (self.store.two_forms(layer), &self.exact) else {
            return 0..0;
        };
        let start = forms.layout.sinks.min(n_rows).max(visible);
        start..start.max(forms.first_exact).max(n_rows.saturating_sub(exact.recent))
    }

    /// What a query attends to as it was written.
    pub(super) fn exact_list(&self, layer: LayerId, q_index: usize) -> Option<ListSpan<'_, B>> {
        let rows = self.exact_rows(layer)?;
        Some(self.exact.as_ref()?.lists.first(rows, q_index))
    }

    /// A query over a run of rounded rows.
    pub(super) fn rounded_span(&self, layer: LayerId, q_start: usize) -> Option<ChunkSpan<'_, B>> {
        let rows = self.rounded_run(layer);
        Some(ChunkSpan {
            q_start: q_start as u32,
            q_len: 1,
            kv: self.rounded_rows(layer).filter(|_| !rows.is_empty())?,
            row_start: rows.start as u32,
            n_rows: rows.len() as u32,
            diagonal: i32::MAX,
            window: ChunkSpan::<B>::ALL,
            order: None,
        })
    }
}

impl Chunk {
    /// The rows are stored in both forms and attended where they are.
    pub(super) async fn attend_two_forms<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut TokenScratch<B>,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        self.store_two_forms(sequence, scratch, t)?;
        if !self.attends {
            return Ok(());
        }
        // The first tokens see no rounded row, so there is no block for them.
        let recent = sequence.exact.as_ref().map_or(0, |exact| exact.recent);
        let n_sparse = self.n_sparse(sequence);
        let first = recent.saturating_sub(sequence.n_tokens).min(n_sparse);
        self.part(0..first).attend_forms(sequence, (scratch, t), None)?;
        if first < n_sparse {
            self.part(first..n_sparse).attend_sparsely(sequence, scratch, t, None).await?;
        }
        Ok(self.part(n_sparse..self.len).attend_forms(sequence, (scratch, t), None)?)
    }

    /// Attention over both forms; over the blocks of rounded rows that count, where there are
    /// `blocks`.
    pub(super) fn attend_forms<B: Backend>(
        &self,
        sequence: &Sequence<B>,
        (scratch, t): (&mut TokenScratch<B>, &mut LayerTensors<'_, B>),
        blocks: Option<&Blocks<'_, B>>,
    ) -> OpResult<()> {
        let (Some((forms, first_exact)), Some(exact)) =
            (sequence.forms(self.layer), &sequence.exact)
        else {
            return Ok(());
        };
        if self.len == 0 {
            return Ok(());
        }
        let (backend, shape) = (&*sequence.backend, &sequence.shape);
        let first = self.position(sequence);
        let rows = first..first + self.len;
        let window = shape.window(self.layer);
        let parts = parts(&forms.layout, rows, (exact.recent, first_exact), window);
        for (i, part) in parts.iter().enumerate() {
            match blocks {
                Some(blocks) if !part.is_exact => {
                    let run = BlockRun {
                        kv: forms.rounded,
                        row_start: part.rows.start,
                        rows: part.rows.clone(),
                        behind: part.behind,
                        accumulate: i > 0,
                    };
                    blocks.attend(backend, shape, (&mut scratch.lse, t), run)?;
                }
                _ => {
                    let run = part.run(forms, first, i == 0);
                    self.attend_run(backend, shape, &mut scratch.lse, t, run)?;
                }
            }
        }
        Ok(())
    }

    fn store_two_forms<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut TokenScratch<B>,
        t: &LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let rows = sequence.n_tokens..sequence.n_tokens + self.len;
        let Some(forms) = sequence.store.two_forms(self.layer) else { return Ok(()) };
        let exact = rows.clone().map(|row| forms.layout.row(row));
        scratch.set_rows(&*sequence.backend, rows.clone().chain(exact))?;
        let new = |ids| NewRows { start: self.start, len: self.len, row_ids: ids };
        let [rounded, exact] = [0, self.len].map(|first| new(scratch.rows(first, self.len)));
        let new = TwoFormRows { at: (self.layer, rows.start), rounded, exact, own: None };
        let Sequence { backend, shape, store, .. } = sequence;
        Ok(new.scatter(&**backend, shape, &mut **store, t)?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The rows that each query of a chunk sees, and whether as they were written: from the parts'
    /// own words.
    fn seen(
        parts: &[Part],
        layout: &DeviceLayout,
        chunk: Range<usize>,
    ) -> Vec<BTreeMap<usize, bool>> {
        let mut seen = vec![BTreeMap::new(); chunk.len()];
        for part in parts {
            let places: Vec<usize> = part.rows.clone().map(|row| layout.row(row)).collect();
            let run = |rows: &[usize]| rows.windows(2).all(|pair| pair[0] + 1 == pair[1]);
            assert!(!part.is_exact || run(&places), "{places:?} follow each other");
            for (token, seen) in chunk.clone().zip(&mut seen) {
                let last = token as i64 - part.behind as i64;
                let first = part.window.map_or(0, |window| token as i64 + 1 - window as i64);
                for row in part.rows.clone().filter(|row| (first..=last).contains(&(*row as i64))) {
                    assert_eq!(seen.insert(row, part.is_exact), None, "row {row} twice");
                }
            }
        }
        seen
    }

    /// Every length before a chunk, of the chunk, and of a window; rows that lost their full form
    /// up to any place.
    #[test]
    fn every_query_sees_every_row_once_in_the_form_that_its_distance_says() {
        let recent = 5;
        for sinks in [0, 2] {
            let layout = DeviceLayout { sinks, ring: recent + 4, slots: 0 };
            for (n, len) in (0..30usize).flat_map(|n| (1..=4).map(move |len| (n, len))) {
                for window in [None, Some(1), Some(3), Some(5), Some(6), Some(12)] {
                    let oldest = (n + len).saturating_sub(layout.ring);
                    for first_exact in oldest..=n {
                        let parts = parts(&layout, n..n + len, (recent, first_exact), window);
                        for (token, seen) in (n..).zip(seen(&parts, &layout, n..n + len)) {
                            let visible =
                                window.map_or(0, |window| (token + 1).saturating_sub(window));
                            let is_exact = |row: usize| {
                                row < sinks || (row >= first_exact && row + recent > token)
                            };
                            let want: BTreeMap<usize, bool> =
                                (visible..=token).map(|row| (row, is_exact(row))).collect();
                            assert_eq!(seen, want, "token {token} of {n}..{}, {window:?}", n + len);
                        }
                    }
                }
            }
        }
    }
}
