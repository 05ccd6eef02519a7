//! A sequence into a file, or behind what a file has of it.

use std::io::Write;
use std::ops::Range;

use longview_core::{DType, LayerId, kv8};
use longview_ops::Backend;

use super::content::SessionContent;
use super::digest::digest;
use super::directory::{Entry, Key, Kind};
use super::fields::FieldWriter;
use super::file::SessionFile;
use super::header::{Fingerprint, SessionHeader, dtype_code, rows_code};
use super::open::{read_places, read_recorded};
use super::record_file::{RecordFile, RecordWriter};
use super::records::{Dimensions, write_places, write_state};
use super::token_rows::TokenRows;
use crate::error::{SchedulerError, SessionFileError};
use crate::index::IndexRecord;
use crate::layout::HostRows;
use crate::policy::PolicyOptions;
use crate::sequence::{LayerRecord, LayerStateRecord, PlacesRecord, Sequence};

/// Rows of a head in one record, so that parts can be read and proved alone.
const SEGMENT_ROWS: usize = 1 << 14;
/// Bytes of rows that are moved at a time.
const PIECE_BYTES: usize = 1 << 16;
/// Bytes of records that are no longer used that are never worth a new file.
const SMALL_WASTE: u64 = 1 << 20;
/// Records that a layer may have in a file that is appended to, beside those of whole segments of
/// rows: more are slow to open.
const MAX_LAYER_RECORDS: usize = 256;

/// How a session is saved.
#[derive(Clone, Copy, Debug)]
pub struct SaveOptions<'a> {
    /// What its rows depend on.
    pub fingerprint: &'a Fingerprint,
    /// What the user said about the policy in force.
    pub policy: &'a PolicyOptions,
    /// Rows of a head in one record.
    pub segment_rows: usize,
    /// Whether what layers have of their policy is left out: who opens the file indexes its rows
    /// anew. For a prompt that is being read, whose index is made at its end.
    pub rows_alone: bool,
}

impl<'a> SaveOptions<'a> {
    /// With records of 16,384 rows.
    pub fn new(fingerprint: &'a Fingerprint, policy: &'a PolicyOptions) -> Self {
        Self { fingerprint, policy, segment_rows: SEGMENT_ROWS, rows_alone: false }
    }
}

/// Writes a sequence, in order and without seeking. The sequence goes on as if it had not been
/// saved.
///
/// # Errors
/// If `out` or the device refuses, and after a step whose verdict was not read.
///
/// # Panics
/// If `content` has another number of tokens than the sequence.
pub async fn save_sequence<B: Backend>(
    sequence: &mut Sequence<B>,
    options: &SaveOptions<'_>,
    content: &SessionContent,
    out: &mut dyn Write,
) -> Result<(), SchedulerError> {
    let header = settled_header(sequence, options, content).await?;
    let writer = RecordWriter::new(out, header.encode()?)?;
    let mut saving = Saving { writer, before: None, options: *options };
    saving.session(sequence, &header, content).await?;
    Ok(saving.writer.finish()?)
}

/// Writes what a sequence has and `file` has not, to `out`, which stands at
/// [`SessionFile::append_at`]. What is there stays: should the write end half way, the file opens
/// as it did before. `Ok(false)`, with nothing written, where the file has to be written as a
/// whole: it is of an older version, or its rows are in another order than that of tokens; it is of
/// another model or type of rows; less than half of its tokens, or of its bytes, would be used; or
/// it was appended to hundreds of times.
///
/// Rows of the same tokens are taken for the same: those of the file stay, but for rows of an
/// answer that have become those of a prompt.
///
/// # Errors
/// As [`save_sequence`]; and if the file cannot be read.
///
/// # Panics
/// As [`save_sequence`].
pub async fn append_sequence<B: Backend>(
    sequence: &mut Sequence<B>,
    options: &SaveOptions<'_>,
    content: &SessionContent,
    file: &SessionFile<'_>,
    out: &mut dyn Write,
) -> Result<bool, SchedulerError> {
    let header = settled_header(sequence, options, content).await?;
    let Some(file) = file.records() else { return Ok(false) };
    let Some(before) = Before::new(sequence, &header, content, file)? else { return Ok(false) };
    let writer = RecordWriter::behind(out, file);
    let mut saving = Saving { writer, before: Some(before), options: *options };
    saving.session(sequence, &header, content).await?;
    saving.writer.finish()?;
    Ok(true)
}

async fn settled_header<B: Backend>(
    sequence: &mut Sequence<B>,
    options: &SaveOptions<'_>,
    content: &SessionContent,
) -> Result<SessionHeader, SchedulerError> {
    sequence.settle_rows().await?;
    assert_eq!(content.tokens.len(), sequence.n_tokens(), "a token for each row");
    let shape = sequence.shape();
    Ok(SessionHeader {
        fingerprint: options.fingerprint.clone(),
        kv_dtype: shape.kv_dtype,
        // A store of another kind may hold them, of a sequence that was made for 8 bits.
        host_rows: match sequence.store().rounded() {
            Some(_) => HostRows::EightBits,
            None => HostRows::Plain,
        },
        n_layers: shape.n_layers,
        n_q_heads: shape.n_q_heads,
        n_kv_heads: shape.n_kv_heads,
        head_dim: shape.head_dim,
        context: shape.capacity,
        n_tokens: sequence.n_tokens(),
        prefill: sequence.was_read(),
        options: options.policy.text(),
        policy: sequence.policy().text(),
    })
}

/// What a file has of a sequence.
struct Before<'a> {
    file: &'a RecordFile<'a>,
    /// First tokens that both have, with the same rows.
    n_common: usize,
    /// Of each layer: first rows that are the same tokens in both.
    orders: Vec<usize>,
}

impl<'a> Before<'a> {
    /// `None` if the file is better written as a whole.
    fn new<B: Backend>(
        sequence: &Sequence<B>,
        header: &SessionHeader,
        content: &SessionContent,
        file: &'a RecordFile<'a>,
    ) -> Result<Option<Self>, SessionFileError> {
        let is_alike = header.encode()? == file.header.encode()?;
        if !is_alike || file.has_moved_rows() {
            return Ok(None);
        }
        let tokens = file.tokens()?;
        let pairs = tokens.iter().zip(&content.tokens);
        let n_common = pairs.take_while(|(file, here)| file == here).count();
        let n_common = n_common.min(n_read_alike(sequence, file, tokens.len())?);
        let mut orders = Vec::new();
        for layer in sequence.shape().layers() {
            let there = read_places(Kind::Order, &mut file.reader(), layer)?;
            orders.push(n_alike(&there, &sequence.places(layer)));
            let of_layer = |entry: &&Entry| entry.key.layer == Some(layer);
            let n_records = file.directory.entries.iter().filter(of_layer).count();
            if n_records > MAX_LAYER_RECORDS + tokens.len() / SEGMENT_ROWS {
                return Ok(None);
            }
        }
        // Else most of the file would be bytes that nothing refers to.
        let is_used = file.end <= 2 * file.n_used_bytes() + SMALL_WASTE;
        let is_worth = is_used && n_common > 0 && 2 * n_common >= tokens.len();
        Ok(is_worth.then_some(Self { file, n_common, orders }))
    }

    /// Records of the file that hold the first `end` of a kind, the last one cut there.
    fn clipped(&self, kind: Kind, layer: Option<LayerId>, end: usize) -> Vec<Entry> {
        let entries =
            self.file.directory.of(kind, layer).filter(|entry| entry.key.span.start < end);
        let clip = |entry: &Entry| {
            let mut entry = entry.clone();
            entry.key.span.end = entry.key.span.end.min(end);
            entry
        };
        entries.map(clip).collect()
    }
}

/// First tokens of the file's whose rows may be those that the sequence has: an answer of the file
/// that the sequence has read as a part of a prompt has other ones.
fn n_read_alike<B: Backend>(
    sequence: &Sequence<B>,
    file: &RecordFile<'_>,
    n_tokens: usize,
) -> Result<usize, SessionFileError> {
    let source = &mut file.reader();
    let there = match sequence.shape().layers().next() {
        Some(layer) => read_recorded(source, layer, &Dimensions::of(&file.header))?.last_end,
        None => 0,
    };
    // Without a prompt rows came from elsewhere.
    let is_older = there > 0 && sequence.n_read() > there;
    Ok(if is_older { there } else { n_tokens })
}

/// First rows that are the same tokens in both orders, in every head.
fn n_alike(there: &PlacesRecord, here: &PlacesRecord) -> usize {
    let alike = |(there, here): (&Vec<u32>, &Vec<u32>)| {
        there.iter().zip(here).take_while(|(there, here)| there == here).count()
    };
    there.positions.iter().zip(&here.positions).map(alike).min().unwrap_or(0)
}

struct Saving<'a, 'f, 'o> {
    writer: RecordWriter<'a>,
    before: Option<Before<'f>>,
    options: SaveOptions<'o>,
}

impl Saving<'_, '_, '_> {
    /// Writes a record, or lists the one that the file has of the same bytes.
    fn put(&mut self, key: Key, bytes: &[u8]) -> Result<(), SessionFileError> {
        let before = self.before.as_ref().and_then(|before| {
            let mut same = before.file.directory.of(key.kind, key.layer);
            same.find(|e| e.key == key && e.len == bytes.len() as u64 && e.digest == digest(bytes))
        });
        match before.cloned() {
            Some(entry) => self.writer.keep(entry),
            None => self.writer.record(key, bytes)?,
        }
        Ok(())
    }

    async fn session<B: Backend>(
        &mut self,
        sequence: &Sequence<B>,
        header: &SessionHeader,
        content: &SessionContent,
    ) -> Result<(), SchedulerError> {
        self.put(Key::whole(Kind::Session), &header.encode_session())?;
        self.put(Key::whole(Kind::Note), &content.note)?;
        self.tokens(&content.tokens)?;
        self.put(Key::whole(Kind::Last), &content.encode_last())?;
        // Whoever opens the file then indexes its rows, if and when that is of use there.
        let rows_alone = self.options.rows_alone || sequence.has_waiting_index();
        for layer in sequence.shape().layers() {
            let order = sequence.places(layer);
            if !rows_alone && sequence.layers()[layer].recall().is_some() {
                self.order(layer, &order)?;
            }
            let rows = TokenRows::of(&order);
            self.rows(sequence, layer, &rows)?;
            self.exact_rows(sequence, layer, &rows)?;
            let (recorded, state) = if rows_alone {
                (sequence.recorded_so_far(layer).await?, None)
            } else {
                let LayerRecord { recorded, state } = sequence.layer_record(layer).await?;
                (recorded, Some(state))
            };
            let mut fields = FieldWriter::default();
            recorded.write(&mut fields);
            self.put(Key::of(Kind::Recorded, layer, 0..0), &fields.into_bytes())?;
            if let Some(state) = state {
                self.state(layer, &state, header.kv_dtype)?;
            }
        }
        Ok(())
    }

    fn tokens(&mut self, tokens: &[u32]) -> Result<(), SessionFileError> {
        let kept = self.keep(Kind::Tokens, None, |before| before.n_common);
        if kept == tokens.len() {
            return Ok(());
        }
        let mut fields = FieldWriter::default();
        fields.u32s(&tokens[kept..]);
        let key = Key { span: kept..tokens.len(), ..Key::whole(Kind::Tokens) };
        self.writer.record(key, &fields.into_bytes())
    }

    /// Lists what the file has up to an end, and says up to where that is.
    fn keep(
        &mut self,
        kind: Kind,
        layer: Option<LayerId>,
        end: impl FnOnce(&Before<'_>) -> usize,
    ) -> usize {
        let Some(before) = &self.before else { return 0 };
        let entries = before.clipped(kind, layer, end(before));
        let kept = entries.last().map_or(0, |entry| entry.key.span.end);
        entries.into_iter().for_each(|entry| self.writer.keep(entry));
        kept
    }

    /// Which token each row of the index is.
    fn order(&mut self, layer: LayerId, order: &PlacesRecord) -> Result<(), SessionFileError> {
        let kept = self.keep(Kind::Order, Some(layer), |before| before.orders[layer.index()]);
        if kept == order.permuted_to {
            return Ok(());
        }
        let (mut fields, span) = (FieldWriter::default(), kept..order.permuted_to);
        write_places(order, span.clone(), &mut fields);
        self.writer.record(Key::of(Kind::Order, layer, span), &fields.into_bytes())
    }

    fn rows<B: Backend>(
        &mut self,
        sequence: &Sequence<B>,
        layer: LayerId,
        rows: &TokenRows,
    ) -> Result<(), SessionFileError> {
        let kept = self.keep(Kind::Rows, Some(layer), |before| before.n_common);
        let n = sequence.n_tokens();
        for start in (kept..n).step_by(self.options.segment_rows) {
            let span = start..n.min(start + self.options.segment_rows);
            write_rows(sequence, layer, (span, rows), &mut self.writer)?;
        }
        Ok(())
    }

    /// First and recent rows in full, where others are rounded: those before and behind the ones
    /// that an index has moved.
    fn exact_rows<B: Backend>(
        &mut self,
        sequence: &Sequence<B>,
        layer: LayerId,
        rows: &TokenRows,
    ) -> Result<(), SessionFileError> {
        let Some(rounded) = sequence.store().rounded() else { return Ok(()) };
        let (shape, n) = (sequence.shape(), sequence.n_tokens());
        let format = dtype_code(shape.kv_dtype);
        let [first, recent] = rounded.exact_rows(layer);
        let first = first.start..first.end.min(rows.n_in_order());
        let recent = recent.start.max(sequence.n_moved(layer))..recent.end;
        for span in [first, recent] {
            let span = span.start.min(n)..span.end.min(n);
            if span.is_empty() {
                continue;
            }
            let mut bytes = vec![0; shape.n_kv_heads * span.len() * shape.row_bytes()];
            let parts = bytes.chunks_exact_mut(span.len() * shape.row_bytes());
            for (head, part) in shape.heads().zip(parts) {
                sequence.store().read_rows(layer, head, span.clone(), part);
            }
            self.put(Key { format, ..Key::of(Kind::ExactRows, layer, span) }, &bytes)?;
        }
        Ok(())
    }

    fn state(
        &mut self,
        layer: LayerId,
        state: &LayerStateRecord<'_>,
        dtype: DType,
    ) -> Result<(), SessionFileError> {
        let mut fields = FieldWriter::default();
        write_state(state, &mut fields);
        self.put(Key::of(Kind::State, layer, 0..0), &fields.into_bytes())?;
        let LayerStateRecord::Recall(recall) = state else { return Ok(()) };
        self.index(Kind::Index, layer, &recall.index, dtype)?;
        match &recall.tokens {
            Some(tokens) => self.index(Kind::TokenIndex, layer, tokens, dtype),
            None => Ok(()),
        }
    }

    /// Batches that the file has as they are stay; the others become one record.
    fn index(
        &mut self,
        kind: Kind,
        layer: LayerId,
        index: &IndexRecord<'_>,
        dtype: DType,
    ) -> Result<(), SessionFileError> {
        let (format, element) = if index.is_coded { (1, DType::I8) } else { (0, dtype) };
        let row_bytes = index.width * element.size();
        let encoded = |batches: Range<usize>| {
            let mut fields = FieldWriter::default();
            index.write_batches(batches, row_bytes, &mut fields);
            fields.into_bytes()
        };
        let end_before = |batch: usize| batch.checked_sub(1).map_or(0, |last| index.end_of(last));
        let mut first = 0;
        let before = self.before.as_ref().map(|before| before.file.directory.of(kind, Some(layer)));
        for entry in before.into_iter().flatten().cloned().collect::<Vec<_>>() {
            let ends = index.batches.iter().position(|(end, _)| *end == entry.key.span.end);
            let Some(last) = ends.filter(|last| *last >= first) else { break };
            let is_there = end_before(first) == entry.key.span.start
                && entry.key.format == format
                && digest(&encoded(first..last + 1)) == entry.digest;
            if !is_there {
                break;
            }
            self.writer.keep(entry);
            first = last + 1;
        }
        let n = index.batches.len();
        if first == n {
            return Ok(());
        }
        let key = Key::of(kind, layer, end_before(first)..index.end_of(n - 1));
        let key = Key { format, ..key };
        self.writer.record(key, &encoded(first..n))
    }
}

/// Writes rows of some tokens of all heads, as the store keeps them.
fn write_rows<B: Backend>(
    sequence: &Sequence<B>,
    layer: LayerId,
    (span, rows): (Range<usize>, &TokenRows),
    file: &mut RecordWriter<'_>,
) -> Result<(), SessionFileError> {
    let (shape, store) = (sequence.shape(), sequence.store());
    let rounded = store.rounded();
    let (row_bytes, host_rows) = match rounded {
        Some(_) => (kv8::row_bytes(shape.head_dim), HostRows::EightBits),
        None => (shape.row_bytes(), HostRows::Plain),
    };
    let format = rows_code(host_rows, shape.kv_dtype);
    let mut record = file.begin(Key { format, ..Key::of(Kind::Rows, layer, span.clone()) });
    let step = (PIECE_BYTES / row_bytes).max(1);
    let mut bytes = vec![0; step.min(span.len()) * row_bytes];
    for head in shape.heads() {
        for start in span.clone().step_by(step) {
            let tokens = start..span.end.min(start + step);
            let bytes = &mut bytes[..tokens.len() * row_bytes];
            let mut rest = &mut *bytes;
            for run in rows.runs(head.index(), tokens) {
                let (part, behind) = rest.split_at_mut(run.len() * row_bytes);
                match rounded {
                    Some(rounded) => rounded.read_codes(layer, head, run, part),
                    None => store.read_rows(layer, head, run, part),
                }
                rest = behind;
            }
            record.bytes(bytes)?;
        }
    }
    record.end();
    Ok(())
}
