//! A file into a sequence.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longview_core::{DType, HeadId, LayerId, encode_f32_into, kv8};
use longview_ops::Backend;

use super::directory::{Entry, Kind, covers};
use super::fields::Fields;
use super::file::{Reading, SessionReader};
use super::header::{Q8_CODE, SessionHeader, dtype_code};
use super::record_file::RecordFile;
use super::record_reader::{RecordReader, all_of};
use super::records::{Dimensions, read_state};
use super::token_rows::TokenRows;
use super::v1::Stream;
use crate::error::{SchedulerError, SessionFileError};
use crate::index::IndexRecord;
use crate::layout::KvShape;
use crate::policy::Policy;
use crate::sequence::{
    LayerRecord, LayerStateRecord, LayerToFill, LoadedLayer, PlacesRecord, RecordedRecord,
    Restored, Sequence, SequenceOptions,
};
use crate::store::{LayerStore, RoundedLayer};

/// Bytes of rows that are moved at a time.
const PIECE_BYTES: usize = 1 << 16;

/// The sequence of a file, of which [`SessionReader::content`] has taken its part and
/// [`SessionHeader::check`](super::SessionHeader::check) approved. Under the policy that it was
/// saved under it is as it was, without clustering; under another one, or where the file has an
/// index that this release does not know, its rows are indexed anew, as [`Sequence::set_policy`]
/// does. Speculation begins anew, and so does a selection that is to hold for several steps where
/// the device looks rows up.
///
/// # Errors
/// If the file is damaged or contradicts itself, if the device refuses, for a policy that needs
/// what no prefill recorded, or [`SchedulerError::Stopped`] where [`SessionReader::stop_with`]
/// ended it; and if it was not read exactly where `options` ask for that.
pub async fn restore_sequence<B: Backend>(
    backend: &Arc<B>,
    shape: KvShape,
    policy: Policy,
    options: SequenceOptions,
    file: &mut SessionReader<'_>,
) -> Result<Sequence<B>, SchedulerError> {
    let how = (shape, policy, options);
    restore_sequence_beside(backend, how, file, &mut |coming| Ok(coming)).await
}

/// A sequence of which the first layers are there, and the others not yet.
pub struct ComingSequence<B: Backend> {
    restored: Restored<B>,
    n_layers: usize,
}

impl<B: Backend> ComingSequence<B> {
    /// Layers that are there.
    pub fn n_layers(&self) -> usize {
        self.n_layers
    }

    /// Tokens that a step may give it with which no segment of an index ends.
    pub fn tokens_before_segment(&mut self) -> usize {
        self.restored.sequence().tokens_before_segment(self.n_layers)
    }

    /// The sequence. Steps may run through the layers that are there, and must not end.
    pub fn sequence(&mut self) -> &mut Sequence<B> {
        self.restored.sequence()
    }
}

/// What uses the layers that are there while others are waited for.
pub type WhileComing<'a, B> =
    dyn FnMut(ComingSequence<B>) -> Result<ComingSequence<B>, SchedulerError> + 'a;

/// [`restore_sequence`] of a file that is on its way: `meanwhile` gets the sequence before a layer
/// has to be waited for, where the device reads rows in the host store itself and the file has the
/// indexes of the policy. Nothing of what it made must be used unless this succeeds: what the file
/// is compared with may come later.
///
/// # Errors
/// As there, and what `meanwhile` says.
pub async fn restore_sequence_beside<B: Backend>(
    backend: &Arc<B>,
    (shape, policy, options): (KvShape, Policy, SequenceOptions),
    file: &mut SessionReader<'_>,
    meanwhile: &mut WhileComing<'_, B>,
) -> Result<Sequence<B>, SchedulerError> {
    let header = file.header();
    header.check(&header.fingerprint.clone(), &shape)?;
    let (n_tokens, dim) = (header.n_tokens, Dimensions::of(header));
    let is_same = policy.is_indexed_as(&header.policy) && file.has_all_indexes();
    if options.prefill.is_exact() && !header.prefill.is_exact() {
        let how = header.prefill;
        return Err(SessionFileError::ReadSparsely { how }.into());
    }
    let was_read = header.prefill;
    let mut restored = Restored::new(backend, shape, policy, options, n_tokens, is_same)?;
    restored.stop_with(&file.stop);
    match &mut file.reading {
        Reading::Stream(file) => {
            for layer in restored.shape().layers() {
                restored.check_stop()?;
                let loaded = stream_layer(file, restored.layer(layer), &dim)?;
                restored.note_loaded(layer, loaded);
            }
            file.end()?;
        }
        Reading::Records(records) => {
            let how = How { stop: &file.stop, dim, is_same };
            let (mut next, n_layers) = (0, restored.shape().n_layers);
            while next < n_layers {
                let rest = (next..n_layers).map(LayerId::new);
                let n_here = rest.take_while(|layer| records.is_here(*layer)).count();
                if n_here == 0 && next > 0 && restored.may_be_used() {
                    let coming = ComingSequence { n_layers: next, restored };
                    restored = meanwhile(coming)?.restored;
                }
                // One that is on its way is waited for.
                let end = next + n_here.max(1);
                fill_layers(records, next..end, &how, &mut restored)?;
                next = end;
            }
        }
    }
    restored.set_read(was_read);
    restored.finish().await
}

impl SessionReader<'_> {
    /// Whether every layer has its state, in a form that this release knows.
    fn has_all_indexes(&self) -> bool {
        let Reading::Records(file) = &self.reading else { return true };
        !file.directory.lacks_layer_records && file.has_states()
    }
}

fn stream_layer<B: Backend>(
    file: &mut Stream<'_>,
    (mut place, mut rows): LayerToFill<'_, B>,
    dim: &Dimensions,
) -> Result<LoadedLayer, SchedulerError> {
    let places = file.places(dim)?;
    let row_bytes = place.shape().row_bytes();
    let step = (PIECE_BYTES / row_bytes).max(1);
    let mut bytes = vec![0; step.min(dim.n_tokens) * row_bytes];
    for head in place.shape().heads() {
        for start in (0..dim.n_tokens).step_by(step) {
            let bytes = &mut bytes[..step.min(dim.n_tokens - start) * row_bytes];
            file.take(bytes)?;
            rows.write_rows(head, start, bytes);
        }
    }
    place.set_places(&places);
    place.set(file.layer(dim)?)
}

/// How layers are read.
struct How<'a> {
    stop: &'a AtomicBool,
    dim: Dimensions,
    /// Whether the file has the indexes of the policy in force.
    is_same: bool,
}

/// Fills layers that follow each other, with as many threads as the host has for the backend: to
/// place rows takes longer than to read them.
fn fill_layers<B: Backend>(
    file: &RecordFile<'_>,
    layers: Range<usize>,
    how: &How<'_>,
    restored: &mut Restored<B>,
) -> Result<(), SchedulerError> {
    let n_threads = restored.host_threads();
    let fill = |reader: &mut RecordReader<'_>, (layer, place)| {
        if how.stop.load(Ordering::Relaxed) {
            return Err(SchedulerError::Stopped);
        }
        Ok((layer, record_layer(reader, layer, how, place)?))
    };
    for (layer, loaded) in file.side_by_side(n_threads, restored.layers(layers), fill)? {
        restored.note_loaded(layer, loaded);
    }
    Ok(())
}

fn record_layer<B: Backend>(
    file: &mut RecordReader<'_>,
    layer: LayerId,
    how: &How<'_>,
    (mut place, mut rows): LayerToFill<'_, B>,
) -> Result<LoadedLayer, SchedulerError> {
    let (directory, dim) = (file.directory, &how.dim);
    let (places, rows_of) = read_order(file, layer, how.is_same)?;
    if !covers(directory.of(Kind::Rows, Some(layer)), dim.n_tokens) {
        return Err(SessionFileError::Inconsistent("rows of a layer").into());
    }
    for kind in [Kind::Rows, Kind::ExactRows] {
        for entry in directory.of(kind, Some(layer)) {
            read_rows(file, entry, &rows_of, (place.shape(), &mut *rows))?;
        }
    }
    place.set_places(&places);
    let recorded = read_recorded(file, layer, dim)?;
    let mut memory = std::mem::take(&mut file.indexes);
    let state = if how.is_same {
        read_layer_state(file, layer, dim, &mut memory)?
    } else {
        LayerStateRecord::Plain
    };
    let loaded = place.set(LayerRecord { recorded, state })?;
    file.indexes = memory;
    Ok(loaded)
}

/// What prefill recorded of a layer.
pub(super) fn read_recorded(
    file: &mut RecordReader<'_>,
    layer: LayerId,
    dim: &Dimensions,
) -> Result<RecordedRecord, SessionFileError> {
    let entry = file.directory.only(Kind::Recorded, Some(layer))?;
    let missing = SessionFileError::Inconsistent("what was recorded of queries");
    let entry = entry.ok_or(missing)?;
    file.parsed(entry, |fields| RecordedRecord::read(fields, dim))
}

/// Says which token is in no row.
const PLACES: &str = "the order of rows";

/// Which token each row of a layer is to be, and where rows of the file go: rows of earlier
/// releases lie as they did in the store, others are in the order of tokens. That of an index
/// matters only to whoever takes the index.
fn read_order(
    file: &mut RecordReader<'_>,
    layer: LayerId,
    is_same: bool,
) -> Result<(PlacesRecord, TokenRows), SessionFileError> {
    let places = read_places(Kind::Places, file, layer)?;
    let none = PlacesRecord { permuted_to: 0, positions: vec![Vec::new(); places.positions.len()] };
    let order = if is_same { read_places(Kind::Order, file, layer)? } else { none };
    let rows = TokenRows::of(&order);
    match (places.permuted_to, order.permuted_to) {
        (_, 0) => Ok((places, rows)),
        (0, _) => Ok((order, rows)),
        _ => Err(SessionFileError::Inconsistent(PLACES)),
    }
}

/// Which token each row of a layer is.
pub(super) fn read_places(
    kind: Kind,
    file: &mut RecordReader<'_>,
    layer: LayerId,
) -> Result<PlacesRecord, SessionFileError> {
    let (header, directory) = (file.header, file.directory);
    let entries = || directory.of(kind, Some(layer));
    let permuted_to = entries().last().map_or(0, |entry| entry.key.span.end);
    if !covers(entries(), permuted_to) || permuted_to > header.n_tokens {
        return Err(SessionFileError::Inconsistent(PLACES));
    }
    let mut positions = vec![Vec::new(); header.n_kv_heads];
    for entry in entries() {
        let stored = stored_rows(header, entry, 4)?;
        file.parsed(entry, |fields| {
            for head in &mut positions {
                let tokens = fields.u32s(stored)?;
                head.extend_from_slice(&tokens[..entry.key.span.len()]);
            }
            Ok(())
        })?;
    }
    let places = PlacesRecord { permuted_to, positions };
    places.check()?;
    Ok(places)
}

/// The rows of each head that lie in a record: those that are used, and maybe others behind them
/// that an append has replaced.
fn stored_rows(
    header: &SessionHeader,
    entry: &Entry,
    row_bytes: usize,
) -> Result<usize, SessionFileError> {
    let all = (header.n_kv_heads * row_bytes) as u64;
    let stored = (entry.len / all) as usize;
    if !entry.len.is_multiple_of(all) || stored < entry.key.span.len() {
        return Err(SessionFileError::Inconsistent("the length of a record of rows"));
    }
    Ok(stored)
}

/// How rows of a record get into a store.
enum Way {
    /// As they are.
    Codes,
    Plain,
    Exact,
    /// Codes become numbers.
    Widened(DType),
}

fn read_rows(
    file: &mut RecordReader<'_>,
    entry: &Entry,
    rows_of: &TokenRows,
    (shape, store): (&KvShape, &mut dyn LayerStore),
) -> Result<(), SessionFileError> {
    let (header, is_rounded) = (file.header, store.rounded().is_some());
    let (way, row_bytes) = match (entry.key.format, entry.key.kind, is_rounded) {
        (Q8_CODE, Kind::Rows, true) => (Way::Codes, kv8::row_bytes(shape.head_dim)),
        (Q8_CODE, _, _) => (Way::Widened(shape.kv_dtype), kv8::row_bytes(shape.head_dim)),
        (code, kind, _) if code == dtype_code(shape.kv_dtype) => match (kind, is_rounded) {
            (Kind::ExactRows, true) => (Way::Exact, shape.row_bytes()),
            _ => (Way::Plain, shape.row_bytes()),
        },
        _ => return Err(SessionFileError::Inconsistent("the type of its rows")),
    };
    let (stored, span) = (stored_rows(header, entry, row_bytes)?, &entry.key.span);
    if span.end > header.n_tokens {
        return Err(SessionFileError::Inconsistent("rows of a layer"));
    }
    let mut sink = RowSink { way, head_dim: shape.head_dim, store };
    file.pieces(entry, row_bytes, |at, bytes| {
        for (head, rows, bytes) in runs((at / row_bytes as u64) as usize, bytes, row_bytes, stored)
        {
            let used = rows.start..rows.end.min(span.len());
            if used.is_empty() {
                continue;
            }
            let tokens = span.start + used.start..span.start + used.end;
            let moved = rows_of.rows(head, tokens.clone());
            let (bytes, behind) = bytes[..used.len() * row_bytes].split_at(moved.len() * row_bytes);
            sink.put_moved(HeadId::new(head), moved, bytes);
            if !behind.is_empty() {
                sink.put(HeadId::new(head), tokens.start + moved.len(), behind);
            }
        }
    })?;
    if let (Way::Exact, Some(rounded)) = (&sink.way, sink.store.rounded()) {
        rounded.hold_exact(span.clone());
    }
    Ok(())
}

/// Where rows of a record go.
struct RowSink<'a> {
    way: Way,
    head_dim: usize,
    store: &'a mut dyn LayerStore,
}

impl RowSink<'_> {
    /// Puts rows of a record from row `start` of a head on into the store.
    fn put(&mut self, head: HeadId, start: usize, bytes: &[u8]) {
        match &self.way {
            Way::Plain => self.store.write_rows(head, start, bytes),
            Way::Widened(dtype) => {
                let numbers = widened(bytes, self.head_dim, *dtype);
                self.store.write_rows(head, start, &numbers);
            }
            Way::Codes => self.rounded().write_codes(head, start, bytes),
            Way::Exact => self.rounded().write_exact(head, start, bytes),
        }
    }

    /// Puts rows of a record to where an index has moved them.
    fn put_moved(&mut self, head: HeadId, rows: &[u32], bytes: &[u8]) {
        if rows.is_empty() {
            return;
        }
        if rows.iter().zip(rows[0]..).all(|(row, follows)| *row == follows) {
            return self.put(head, rows[0] as usize, bytes);
        }
        match &self.way {
            Way::Plain => self.store.scatter_rows(head, rows, bytes),
            Way::Widened(dtype) => {
                let numbers = widened(bytes, self.head_dim, *dtype);
                self.store.scatter_rows(head, rows, &numbers);
            }
            Way::Codes => self.rounded().scatter_codes(head, rows, bytes),
            Way::Exact => {
                let row_bytes = bytes.len() / rows.len();
                for (row, bytes) in rows.iter().zip(bytes.chunks_exact(row_bytes)) {
                    self.put(head, *row as usize, bytes);
                }
            }
        }
    }

    fn rounded(&mut self) -> &mut dyn RoundedLayer {
        self.store.rounded().expect("asked before")
    }
}

/// Cuts rows from `first` on, of heads of `per_head` rows that follow each other, where heads end:
/// head, its rows, their bytes.
fn runs(
    first: usize,
    bytes: &[u8],
    row_bytes: usize,
    per_head: usize,
) -> Vec<(usize, Range<usize>, &[u8])> {
    let (mut at, mut left, mut runs) = (first, bytes, Vec::new());
    while !left.is_empty() {
        let (head, row) = (at / per_head, at % per_head);
        let n = (left.len() / row_bytes).min(per_head - row);
        let (now, rest) = left.split_at(n * row_bytes);
        runs.push((head, row..row + n, now));
        (at, left) = (at + n, rest);
    }
    runs
}

fn widened(codes: &[u8], head_dim: usize, dtype: DType) -> Vec<u8> {
    let (mut bytes, mut numbers) = (Vec::new(), vec![0.0; 2 * head_dim]);
    for row in codes.chunks_exact(kv8::row_bytes(head_dim)) {
        kv8::decode(row, &mut numbers);
        encode_f32_into(dtype, &numbers, &mut bytes);
    }
    bytes
}

/// What a layer has of its policy; the vectors of its indexes lie in `memory`.
fn read_layer_state<'a>(
    file: &mut RecordReader<'_>,
    layer: LayerId,
    dim: &Dimensions,
    memory: &'a mut Vec<Vec<u8>>,
) -> Result<LayerStateRecord<'a>, SessionFileError> {
    let directory = file.directory;
    let entry = directory.only(Kind::State, Some(layer))?.expect("has_all_indexes");
    let mut state = file.parsed(entry, |fields| read_state(fields, dim))?;
    let LayerStateRecord::Recall(recall) = &mut state else { return Ok(state) };
    let of = |kind| directory.of(kind, Some(layer));
    let n = of(Kind::Index).count();
    let tokens = recall.tokens.iter().flat_map(|_| of(Kind::TokenIndex));
    let entries: Vec<&Entry> = of(Kind::Index).chain(tokens).collect();
    if memory.len() < entries.len() {
        memory.resize(entries.len(), Vec::new());
    }
    let mut records = Vec::with_capacity(entries.len());
    for (entry, memory) in entries.into_iter().zip(memory) {
        records.push((entry, file.read(entry, memory)?));
    }
    let (units, tokens) = records.split_at(n);
    read_index(units, dim, &mut recall.index)?;
    if let Some(index) = &mut recall.tokens {
        read_index(tokens, dim, index)?;
    }
    Ok(state)
}

fn read_index<'a>(
    records: &[(&Entry, &'a [u8])],
    dim: &Dimensions,
    index: &mut IndexRecord<'a>,
) -> Result<(), SessionFileError> {
    let mut end = 0;
    for (i, (entry, bytes)) in records.iter().enumerate() {
        let is_coded = entry.key.format == 1;
        if i > 0 && is_coded != index.is_coded {
            return Err(SessionFileError::Inconsistent("the type of an index"));
        }
        index.is_coded = is_coded;
        all_of(bytes, |fields| index.read_batches(fields, dim))?;
        let span = &entry.key.span;
        let last = index.batches.last().map_or(0, |(end, _)| *end);
        if span.start != end || span.is_empty() || span.end != last {
            return Err(SessionFileError::Inconsistent("the rows of an index"));
        }
        end = span.end;
    }
    index.check()
}
