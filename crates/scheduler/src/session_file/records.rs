//! One layer of a session as plain data: how it is written, and how it is read and checked.
//!
//! Everything that a sequence will index with is checked here, so that a file that somebody made
//! on purpose is refused and never a panic.

use std::borrow::Cow;

use super::fields::{FieldWriter, Fields, SliceFields};
use super::header::SessionHeader;
use crate::error::SessionFileError;
use crate::eviction::KeptRecord;
use crate::index::{ClustersRecord, IndexRecord, LowRankRecord, ProjectionRecord, QueriesRecord};
use crate::layout::LAST_QUERIES;
use crate::sequence::{
    LayerStateRecord, PlacesRecord, RecallRecord, RecordedRecord, SelectionRecord,
};

/// An error of a layer.
fn wrong<T>(what: &'static str) -> Result<T, SessionFileError> {
    Err(SessionFileError::Inconsistent(what))
}

/// What a reader must know of the sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dimensions {
    pub hq: usize,
    pub hkv: usize,
    pub d: usize,
    pub element_bytes: usize,
    pub n_tokens: usize,
    pub context: usize,
}

impl Dimensions {
    pub fn of(header: &SessionHeader) -> Self {
        Self {
            hq: header.n_q_heads,
            hkv: header.n_kv_heads,
            d: header.head_dim,
            element_bytes: header.kv_dtype.size(),
            n_tokens: header.n_tokens,
            context: header.context,
        }
    }
}

/// Which rows a record holds: those from `from` to `to`, of every KV head.
pub(super) type RowSpan = std::ops::Range<usize>;

/// Writes the tokens of these rows: u32 `[Hkv, rows]`.
pub(super) fn write_places(places: &PlacesRecord, rows: RowSpan, out: &mut FieldWriter) {
    places.positions.iter().for_each(|head| out.u32s(&head[rows.clone()]));
}

impl PlacesRecord {
    /// Fails unless each token has one row in every head.
    pub fn check(&self) -> Result<(), SessionFileError> {
        for head in &self.positions {
            let mut seen = vec![false; self.permuted_to];
            for position in head {
                match seen.get_mut(*position as usize) {
                    Some(seen) if !*seen => *seen = true,
                    _ => return wrong("a token has no row, or two"),
                }
            }
        }
        Ok(())
    }
}

impl RecordedRecord {
    pub fn write(&self, out: &mut FieldWriter) {
        out.f32s(&self.gram_q);
        out.f32s(&self.gram_k);
        out.u64(self.last_end);
        out.u64(self.last_queries.len());
        out.f32s(&self.last_queries);
        out.u64(self.mass_rows);
        out.f32s(&self.mass);
        out.flag(self.queries.is_some());
        if let Some(queries) = &self.queries {
            queries.write(out);
        }
    }

    pub fn read(file: &mut impl Fields, dim: &Dimensions) -> Result<Self, SessionFileError> {
        let gram = dim.hkv * dim.d * dim.d;
        let (gram_q, gram_k) = (file.f32s(gram)?, file.f32s(gram)?);
        let last_end = file.number(dim.context, "the place of its last queries")?;
        let token = dim.hq * dim.d;
        let n = file.number(LAST_QUERIES * token, "its number of last queries")?;
        if !n.is_multiple_of(token) || n / token > last_end {
            return wrong("its number of last queries");
        }
        let last_queries = file.f32s(n)?;
        let mass_rows = file.number(dim.context, "the rows of received attention")?;
        let mass = file.f32s(dim.hq.saturating_mul(mass_rows))?;
        let queries = if file.flag()? { Some(QueriesRecord::read(file, dim)?) } else { None };
        Ok(Self { gram_q, gram_k, last_queries, last_end, mass, mass_rows, queries })
    }
}

impl QueriesRecord {
    fn write(&self, out: &mut FieldWriter) {
        out.u64(self.window);
        out.u64(self.covered);
        out.u64(self.sums.len());
        out.f32s(&self.sums);
        out.u64(self.saved_tokens);
        out.u64(self.saved.len());
        out.f32s(&self.saved);
        out.flag(self.pending_row.is_some());
        let Some(row) = self.pending_row else { return };
        out.u64(row);
        out.u64(self.pending.len());
        out.f32s(&self.pending);
    }

    fn read(file: &mut impl Fields, dim: &Dimensions) -> Result<Self, SessionFileError> {
        const SUMS: &str = "its sums of queries";
        let whole = |n: usize| n.is_multiple_of(dim.hkv * dim.d);
        let most = (dim.hkv * dim.d).saturating_mul(dim.context + 1);
        let window = file.number(dim.context, SUMS)?;
        let covered = file.number(dim.n_tokens, SUMS)?;
        let n = file.number(most, SUMS)?;
        let sums = file.f32s(n)?;
        let saved_tokens = file.number(covered, SUMS)?;
        let n = file.number(most, SUMS)?;
        let saved = file.f32s(n)?;
        let (mut pending_row, mut pending) = (None, Vec::new());
        if file.flag()? {
            pending_row = Some(file.number(dim.n_tokens, SUMS)?);
            let n = file.number(most, SUMS)?;
            pending = file.f32s(n)?;
        }
        if window == 0 || !whole(sums.len()) || !whole(saved.len()) || !whole(pending.len()) {
            return wrong(SUMS);
        }
        Ok(Self { window, covered, sums, saved_tokens, saved, pending_row, pending })
    }
}

/// Writes what a layer has of its policy, but for the units of its indexes.
pub(super) fn write_state(state: &LayerStateRecord<'_>, out: &mut FieldWriter) {
    match state {
        LayerStateRecord::Plain => out.u8(0),
        LayerStateRecord::Recall(recall) => {
            out.u8(1);
            recall.write(out);
        }
        LayerStateRecord::Kept(kept) => {
            out.u8(2);
            kept.write(out);
        }
    }
}

/// Reads what [`write_state`] wrote; indexes have their widths, and no units yet.
pub(super) fn read_state(
    file: &mut impl Fields,
    dim: &Dimensions,
) -> Result<LayerStateRecord<'static>, SessionFileError> {
    match file.u8()? {
        0 => Ok(LayerStateRecord::Plain),
        1 => Ok(LayerStateRecord::Recall(Box::new(RecallRecord::read(file, dim)?))),
        2 => Ok(LayerStateRecord::Kept(KeptRecord::read(file, dim)?)),
        _ => wrong("a layer is in no state that there is"),
    }
}

impl RecallRecord<'_> {
    fn write(&self, out: &mut FieldWriter) {
        out.u64(self.n_indexed);
        out.flag(self.is_submitted);
        out.flag(self.budgets.is_some());
        out.u32s(self.budgets.as_deref().unwrap_or_default());
        out.flag(self.projection.is_some());
        if let Some(projection) = &self.projection {
            out.u64(projection.rank);
            out.f32s(&projection.w_q);
            out.f32s(&projection.w_k);
        }
        out.flag(self.low_rank.is_some());
        if let Some(low_rank) = &self.low_rank {
            low_rank.write(out);
        }
        write_index_head(&self.index, out);
        out.flag(self.tokens.is_some());
        if let Some(tokens) = &self.tokens {
            write_index_head(tokens, out);
        }
        out.flag(self.selection.is_some());
        if let Some(selection) = &self.selection {
            selection.write(out);
        }
    }
}

impl RecallRecord<'static> {
    fn read(file: &mut impl Fields, dim: &Dimensions) -> Result<Self, SessionFileError> {
        let start = RecallStart::read(file, dim)?;
        let index = read_index_head(file, dim)?;
        let tokens = if file.flag()? { Some(read_index_head(file, dim)?) } else { None };
        Ok(start.with(index, tokens, SelectionRecord::read(file, dim)?))
    }
}

/// What stands before the indexes of a layer that recalls.
pub(super) struct RecallStart {
    n_indexed: usize,
    is_submitted: bool,
    budgets: Option<Vec<u32>>,
    projection: Option<ProjectionRecord>,
    low_rank: Option<LowRankRecord>,
}

impl RecallStart {
    pub fn read(file: &mut impl Fields, dim: &Dimensions) -> Result<Self, SessionFileError> {
        let n_indexed = file.number(dim.context, "more rows indexed than there can be")?;
        let is_submitted = file.flag()?;
        let budgets = if file.flag()? { Some(file.u32s(dim.hkv)?) } else { None };
        let projection = if file.flag()? {
            let rank = file.number(dim.d, "the rank of a projection")?;
            let len = dim.hkv * dim.d * rank;
            Some(ProjectionRecord { rank, w_q: file.f32s(len)?, w_k: file.f32s(len)? })
        } else {
            None
        };
        let low_rank = if file.flag()? { Some(LowRankRecord::read(file, dim)?) } else { None };
        Ok(Self { n_indexed, is_submitted, budgets, projection, low_rank })
    }

    pub fn with<'a>(
        self,
        index: IndexRecord<'a>,
        tokens: Option<IndexRecord<'a>>,
        selection: Option<SelectionRecord>,
    ) -> RecallRecord<'a> {
        let Self { n_indexed, is_submitted, budgets, projection, low_rank } = self;
        RecallRecord {
            n_indexed,
            is_submitted,
            budgets,
            projection,
            low_rank,
            index,
            tokens,
            selection,
        }
    }
}

impl SelectionRecord {
    fn write(&self, out: &mut FieldWriter) {
        out.u64(self.n_tokens);
        out.u64(self.n_indexed);
        self.heads.iter().for_each(|head| write_pairs(out, head));
    }

    pub fn read(
        file: &mut impl Fields,
        dim: &Dimensions,
    ) -> Result<Option<Self>, SessionFileError> {
        if !file.flag()? {
            return Ok(None);
        }
        let n_tokens = file.number(dim.context, "when a choice was made")?;
        let n_indexed = file.number(dim.context, "when a choice was made")?;
        let heads = (0..dim.hkv).map(|_| read_pairs(file, dim.context));
        let heads = heads.collect::<Result<_, _>>()?;
        Ok(Some(Self { n_tokens, n_indexed, heads }))
    }
}

impl LowRankRecord {
    fn write(&self, out: &mut FieldWriter) {
        out.u64(self.rank);
        out.u64(self.first);
        for [b_q, b_k, w_k, pending] in &self.heads {
            [b_q, b_k, w_k].into_iter().for_each(|matrix| out.f64s(matrix));
            out.u64(pending.len() / self.rank.max(1));
            out.f64s(pending);
        }
    }

    fn read(file: &mut impl Fields, dim: &Dimensions) -> Result<Self, SessionFileError> {
        const BASES: &str = "the bases of a layer";
        let rank = file.number(dim.d, BASES)?;
        let first = file.number(dim.context, BASES)?;
        let mut heads = Vec::with_capacity(dim.hkv);
        for _ in 0..dim.hkv {
            let mut matrix = || file.f64s(rank * dim.d);
            let (b_q, b_k, w_k) = (matrix()?, matrix()?, matrix()?);
            let pending = file.number(dim.n_tokens.saturating_sub(first), BASES)?;
            heads.push([b_q, b_k, w_k, file.f64s(pending * rank)?]);
        }
        match rank {
            0 => wrong(BASES),
            _ => Ok(Self { rank, first, heads }),
        }
    }
}

/// What an index has beside its units: the width of a landmark, and which of the first units steps
/// may choose.
fn write_index_head(index: &IndexRecord<'_>, out: &mut FieldWriter) {
    out.u64(index.width);
    for head in &index.heads {
        out.u64(head.open.len());
        head.open.iter().for_each(|is_open| out.flag(*is_open));
    }
}

fn read_index_head(
    file: &mut impl Fields,
    dim: &Dimensions,
) -> Result<IndexRecord<'static>, SessionFileError> {
    let width = file.number(2 * dim.d, "the width of an index")?;
    let mut heads = Vec::with_capacity(dim.hkv);
    for _ in 0..dim.hkv {
        let n_open = file.number(dim.n_tokens, COUNT)?;
        let open = (0..n_open).map(|_| file.flag()).collect::<Result<_, _>>()?;
        heads.push(ClustersRecord { open, ..ClustersRecord::default() });
    }
    Ok(IndexRecord { width, is_coded: false, batches: Vec::new(), heads })
}

/// Says more units than tokens.
pub(super) const COUNT: &str = "more clusters than tokens";

/// Batches of an index, by their numbers.
pub(super) type BatchSpan = std::ops::Range<usize>;

impl<'a> IndexRecord<'a> {
    /// The rows behind a batch.
    pub fn end_of(&self, batch: usize) -> usize {
        self.batches[batch].0
    }

    fn units_before(&self, batch: usize, head: usize) -> usize {
        batch.checked_sub(1).map_or(0, |last| self.batches[last].1[head] as usize)
    }

    /// Writes some batches with their units. `row_bytes` are those of a landmark.
    pub fn write_batches(&self, span: BatchSpan, row_bytes: usize, out: &mut FieldWriter) {
        out.u64(span.len());
        for (end, counts) in &self.batches[span.clone()] {
            out.u64(*end);
            out.u32s(counts);
        }
        for (h, head) in self.heads.iter().enumerate() {
            let units = self.units_before(span.start, h)..self.units_before(span.end, h);
            out.u32s(&head.sizes[units.clone()]);
            out.flag(!head.radius.is_empty());
            if !head.radius.is_empty() {
                out.f32s(&head.radius[units.clone()]);
            }
            out.bytes(&head.centroids[units.start * row_bytes..units.end * row_bytes]);
            out.flag(!head.pairs.is_empty());
            if !head.pairs.is_empty() {
                out.bytes(&head.pairs[2 * units.start * row_bytes..2 * units.end * row_bytes]);
            }
        }
    }

    /// Adds the batches of a record behind those that are there, whose vectors stay where they lie
    /// if there are no others.
    pub(super) fn read_batches(
        &mut self,
        file: &mut SliceFields<'a>,
        dim: &Dimensions,
    ) -> Result<(), SessionFileError> {
        let first = self.batches.len();
        for _ in 0..file.number(dim.n_tokens, COUNT)? {
            let end = file.number(dim.n_tokens, "more rows indexed than tokens")?;
            self.batches.push((end, file.u32s(dim.hkv)?));
        }
        let row_bytes = self.width * if self.is_coded { 1 } else { dim.element_bytes };
        let last = self.batches.len();
        for h in 0..dim.hkv {
            let [before, after] = [first, last].map(|batch| self.units_before(batch, h));
            let n = after.checked_sub(before).filter(|_| after <= dim.n_tokens);
            let n = n.ok_or(SessionFileError::Inconsistent(COUNT))?;
            let head = &mut self.heads[h];
            head.sizes.extend(file.u32s(n)?);
            if file.flag()? {
                head.radius.extend(file.f32s(n)?);
            }
            add(&mut head.centroids, file.slice(n.saturating_mul(row_bytes))?);
            if file.flag()? {
                add(&mut head.pairs, file.slice(n.saturating_mul(2 * row_bytes))?);
            }
        }
        Ok(())
    }

    /// Fails unless each part has as many numbers as there are units.
    pub fn check(&self) -> Result<(), SessionFileError> {
        let is_whole = |part: usize, whole: usize| part == 0 || part == whole;
        let mut heads = self.heads.iter();
        let row = |head: &ClustersRecord<'_>| head.centroids.len();
        let sound = |head: &ClustersRecord<'_>| {
            is_whole(head.radius.len(), head.sizes.len())
                && is_whole(head.pairs.len(), 2 * row(head))
                && head.open.len() <= head.sizes.len()
        };
        if heads.all(sound) { Ok(()) } else { wrong(COUNT) }
    }
}

fn add<'a>(to: &mut Cow<'a, [u8]>, bytes: &'a [u8]) {
    if to.is_empty() {
        *to = Cow::Borrowed(bytes);
    } else {
        to.to_mut().extend_from_slice(bytes);
    }
}

impl KeptRecord {
    pub fn write(&self, out: &mut FieldWriter) {
        out.u64(self.n_indexed);
        out.u32s(&self.capacity);
        self.rows.iter().for_each(|head| write_pairs(out, head));
        out.u64(self.mass.len());
        out.f32s(&self.mass);
    }

    pub fn read(file: &mut impl Fields, dim: &Dimensions) -> Result<Self, SessionFileError> {
        const KEPT: &str = "the rows that a layer keeps";
        let n_indexed = file.number(dim.n_tokens, KEPT)?;
        let capacity = file.u32s(dim.hkv)?;
        let rows = (0..dim.hkv).map(|_| read_pairs(file, dim.n_tokens));
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        let n = file.number(usize::MAX, KEPT)?;
        let mass = file.f32s(n)?;
        for (rows, capacity) in rows.iter().zip(&capacity) {
            let is_place = |[row, slot]: &[u32; 2]| (*row as usize) < n_indexed && slot < capacity;
            if rows.len() > *capacity as usize || !rows.iter().all(is_place) {
                return wrong(KEPT);
            }
            // Two rows in one place, or one row in two, would be attended in each other's stead.
            for part in [0, 1] {
                let mut numbers: Vec<u32> = rows.iter().map(|pair| pair[part]).collect();
                numbers.sort_unstable();
                if numbers.windows(2).any(|two| two[0] == two[1]) {
                    return wrong(KEPT);
                }
            }
        }
        Ok(Self { n_indexed, capacity, rows, mass })
    }
}

fn write_pairs(out: &mut FieldWriter, pairs: &[[u32; 2]]) {
    out.u64(pairs.len());
    out.u32s(pairs.as_flattened());
}

fn read_pairs(file: &mut impl Fields, most: usize) -> Result<Vec<[u32; 2]>, SessionFileError> {
    let n = file.number(most, "a list of rows")?;
    let words = file.u32s(2 * n)?;
    Ok(words.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect())
}

#[cfg(test)]
mod tests {
    use super::super::header::tests::header;
    use super::super::record_reader::all_of;
    use super::*;

    /// Two KV heads of two query heads, width 4, five tokens of eight.
    fn dim() -> Dimensions {
        Dimensions::of(&header())
    }

    /// What a reader takes of what a writer wrote, and whether that is all of it.
    fn round_trip<T>(
        write: impl FnOnce(&mut FieldWriter),
        read: impl FnOnce(&mut SliceFields<'_>) -> Result<T, SessionFileError>,
    ) -> Result<T, SessionFileError> {
        let mut out = FieldWriter::default();
        write(&mut out);
        let bytes = out.into_bytes();
        let mut file = SliceFields(&bytes);
        let record = read(&mut file)?;
        file.end()?;
        Ok(record)
    }

    #[test]
    fn every_token_has_one_row_in_every_head() {
        let check = |positions: [&[u32]; 2]| {
            let permuted_to = positions[0].len();
            let positions = positions.map(<[u32]>::to_vec).to_vec();
            PlacesRecord { permuted_to, positions }.check()
        };
        check([&[2, 0, 1], &[0, 2, 1]]).unwrap();
        assert!(check([&[0, 1, 2], &[0, 2, 2]]).is_err(), "a token twice");
        assert!(check([&[0, 1, 3], &[0, 2, 1]]).is_err(), "a token behind them");
        check([&[0, 1, 2, 3, 4]; 2]).unwrap();
    }

    fn recorded(change: impl FnOnce(&mut RecordedRecord)) -> Result<(), SessionFileError> {
        let queries = QueriesRecord {
            window: 2,
            covered: 4,
            sums: vec![1.0; 16],
            saved_tokens: 3,
            saved: vec![2.0; 8],
            pending_row: Some(2),
            pending: vec![3.0; 8],
        };
        let mut record = RecordedRecord {
            gram_q: (0..32).map(|i| i as f32).collect(),
            gram_k: vec![0.5; 32],
            last_queries: vec![4.0; 2 * 16],
            last_end: 5,
            mass: vec![6.0; 4 * 3],
            mass_rows: 3,
            queries: Some(queries),
        };
        change(&mut record);
        let read = round_trip(|out| record.write(out), |f| RecordedRecord::read(f, &dim()))?;
        assert_eq!(read, record);
        Ok(())
    }

    #[test]
    fn what_prefill_recorded_comes_back() {
        recorded(|_| {}).unwrap();
        recorded(|r| r.queries = None).unwrap();
        recorded(|r| {
            let queries = r.queries.as_mut().unwrap();
            (queries.pending_row, queries.pending) = (None, Vec::new());
        })
        .unwrap();
    }

    #[test]
    fn records_that_are_of_no_such_sequence_are_refused() {
        assert!(recorded(|r| r.last_queries = vec![0.0; 17]).is_err(), "a part of a token");
        assert!(recorded(|r| r.last_end = 1).is_err(), "two queries before the second token");
        assert!(recorded(|r| r.last_end = 9).is_err(), "behind the context");
        let queries = |change: fn(&mut QueriesRecord)| {
            recorded(|r| change(r.queries.as_mut().unwrap())).is_err()
        };
        assert!(queries(|q| q.window = 0));
        assert!(queries(|q| q.covered = 6), "more than the tokens");
        assert!(queries(|q| q.saved_tokens = 5), "more than are covered");
        assert!(queries(|q| q.sums = vec![0.0; 12]), "a part of a block");
        assert!(queries(|q| q.pending = vec![0.0; 9]));
    }

    fn kept(rows: [&[[u32; 2]]; 2]) -> Result<LayerStateRecord<'static>, SessionFileError> {
        let rows = rows.map(<[[u32; 2]]>::to_vec).to_vec();
        let record = KeptRecord { n_indexed: 4, capacity: vec![2, 3], rows, mass: vec![1.5; 7] };
        let state = LayerStateRecord::Kept(record);
        let read = round_trip(|out| write_state(&state, out), |f| read_state(f, &dim()))?;
        assert_eq!(read, state);
        Ok(read)
    }

    #[test]
    fn rows_that_are_kept_have_a_place_each() {
        kept([&[[3, 1], [0, 0]], &[[1, 2]]]).unwrap();
        kept([&[], &[]]).unwrap();
        assert!(kept([&[[4, 0]], &[]]).is_err(), "a row that was not chosen from");
        assert!(kept([&[[0, 2]], &[]]).is_err(), "a place of the next head");
        assert!(kept([&[[0, 0], [1, 1], [2, 0]], &[]]).is_err(), "more rows than places");
        assert!(kept([&[], &[[0, 1], [2, 1]]]).is_err(), "two rows in one place");
        assert!(kept([&[], &[[2, 0], [2, 1]]]).is_err(), "one row in two places");
    }

    /// Every part that there may be, but for units.
    fn recall() -> RecallRecord<'static> {
        let head = ClustersRecord { open: vec![true, false], ..ClustersRecord::default() };
        let index =
            IndexRecord { width: 4, is_coded: false, batches: vec![], heads: vec![head; 2] };
        let bases = || [vec![0.5; 8], vec![1.5; 8], vec![2.5; 8], vec![3.5; 4]];
        RecallRecord {
            n_indexed: 4,
            is_submitted: true,
            budgets: Some(vec![6, 7]),
            projection: Some(ProjectionRecord { rank: 2, w_q: vec![1.0; 16], w_k: vec![2.0; 16] }),
            low_rank: Some(LowRankRecord { rank: 2, first: 3, heads: vec![bases(), bases()] }),
            index: index.clone(),
            tokens: Some(index),
            selection: Some(SelectionRecord {
                n_tokens: 5,
                n_indexed: 4,
                heads: vec![vec![[1, 1], [0, 2]], vec![]],
            }),
        }
    }

    #[test]
    fn a_layer_that_recalls_comes_back_with_every_part_or_none() {
        let bare = RecallRecord {
            is_submitted: false,
            budgets: None,
            projection: None,
            low_rank: None,
            tokens: None,
            selection: None,
            index: IndexRecord {
                width: 4,
                is_coded: false,
                batches: vec![],
                heads: vec![Default::default(); 2],
            },
            ..recall()
        };
        for record in [recall(), bare] {
            let state = LayerStateRecord::Recall(Box::new(record));
            let read = round_trip(|out| write_state(&state, out), |f| read_state(f, &dim()));
            assert_eq!(read.unwrap(), state);
        }
    }

    /// As a file that was appended to has them: batch by batch, in one record or in two.
    #[test]
    fn units_of_an_index_come_back_batch_by_batch() {
        let head = |sizes: &[u32]| ClustersRecord {
            sizes: sizes.to_vec(),
            radius: sizes.iter().map(|size| *size as f32).collect(),
            centroids: (0..16 * sizes.len()).map(|i| i as u8).collect(),
            pairs: (0..32 * sizes.len()).map(|i| 100 + i as u8).collect(),
            open: vec![true, false],
        };
        let batches = vec![(3, vec![1, 2]), (5, vec![3, 3])];
        let heads = vec![head(&[2, 1, 1]), head(&[1, 1, 2])];
        let index = IndexRecord { width: 4, is_coded: false, batches, heads };
        let empty = || {
            let heads = index.heads.iter();
            let heads =
                heads.map(|head| ClustersRecord { open: head.open.clone(), ..Default::default() });
            IndexRecord { width: 4, is_coded: false, batches: Vec::new(), heads: heads.collect() }
        };
        let record = |batches: BatchSpan| {
            let mut out = FieldWriter::default();
            index.write_batches(batches, 16, &mut out);
            out.into_bytes()
        };
        for cuts in [&[0, 2][..], &[0, 1, 2]] {
            let records: Vec<Vec<u8>> = cuts.windows(2).map(|c| record(c[0]..c[1])).collect();
            let mut read = empty();
            for record in &records {
                all_of(record, |f| read.read_batches(f, &dim())).unwrap();
            }
            let is_borrowed = matches!(read.heads[0].centroids, Cow::Borrowed(_));
            assert_eq!(
                is_borrowed,
                records.len() == 1,
                "vectors of one record stay where they lie"
            );
            read.check().unwrap();
            assert_eq!(read, index);
        }
        // The second batch alone has units that none before it count.
        let (second, mut late) = (record(1..2), empty());
        assert!(all_of(&second, |f| late.read_batches(f, &dim())).is_err());
        let mut torn = index.clone();
        torn.heads[0].radius.pop();
        assert!(torn.check().is_err());
    }

    #[test]
    fn a_layer_is_in_one_of_the_states_that_there_are() {
        let read = |code: u8| round_trip(|out| out.u8(code), |f| read_state(f, &dim()));
        assert_eq!(read(0).unwrap(), LayerStateRecord::Plain);
        assert!(read(3).is_err());
    }
}
