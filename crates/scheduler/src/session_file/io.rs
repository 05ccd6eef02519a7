//! A sequence into a file, and a file into a sequence.

use std::io::Write;
use std::sync::Arc;

use longview_core::LayerId;
use longview_ops::Backend;

use super::block::BLOCK_BYTES;
use super::content::{self, SessionContent};
use super::frame::{FrameWriter, SessionReader};
use super::header::{Fingerprint, SessionHeader};
use super::records::Dimensions;
use crate::error::{SchedulerError, SessionFileError};
use crate::layout::KvShape;
use crate::policy::{Policy, PolicyOptions};
use crate::sequence::{
    LayerRecord, LayerStateRecord, PlacesRecord, RecordedRecord, Restored, Sequence,
    SequenceOptions,
};

/// Bytes of rows that are moved at a time.
const ROW_BYTES: usize = 1 << 16;

/// How a session is saved.
#[derive(Clone, Copy, Debug)]
pub struct SaveOptions<'a> {
    /// What its rows depend on.
    pub fingerprint: &'a Fingerprint,
    /// What the user said about the policy in force.
    pub policy: &'a PolicyOptions,
    /// Bytes of a block: a power of two up to [`BLOCK_BYTES`], of at least 512.
    pub block_bytes: usize,
}

impl<'a> SaveOptions<'a> {
    /// With blocks of [`BLOCK_BYTES`].
    pub fn new(fingerprint: &'a Fingerprint, policy: &'a PolicyOptions) -> Self {
        Self { fingerprint, policy, block_bytes: BLOCK_BYTES }
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
    sequence.settle_rows().await?;
    assert_eq!(content.tokens.len(), sequence.n_tokens(), "a token for each row");
    let shape = sequence.shape();
    let header = SessionHeader {
        fingerprint: options.fingerprint.clone(),
        kv_dtype: shape.kv_dtype,
        n_layers: shape.n_layers,
        n_q_heads: shape.n_q_heads,
        n_kv_heads: shape.n_kv_heads,
        head_dim: shape.head_dim,
        context: shape.capacity,
        n_tokens: sequence.n_tokens(),
        options: options.policy.text(),
        policy: sequence.policy().text(),
    };
    let mut file = FrameWriter::new(out, &header, options.block_bytes)?;
    content.write(&mut file)?;
    for layer in shape.layers() {
        file.bytes(b"LAYR")?;
        sequence.places(layer).write(&mut file)?;
        write_rows(sequence, layer, &mut file)?;
        let LayerRecord { recorded, state } = sequence.layer_record(layer).await?;
        recorded.write(&mut file)?;
        state.write(&mut file)?;
    }
    content::write_end(&mut file)?;
    Ok(file.finish()?)
}

fn write_rows<B: Backend>(
    sequence: &Sequence<B>,
    layer: LayerId,
    file: &mut FrameWriter<'_>,
) -> Result<(), SessionFileError> {
    let (row_bytes, n) = (sequence.shape().row_bytes(), sequence.n_tokens());
    let step = (ROW_BYTES / row_bytes).max(1);
    let mut bytes = vec![0; step.min(n) * row_bytes];
    for head in sequence.shape().heads() {
        for start in (0..n).step_by(step) {
            let end = n.min(start + step);
            let bytes = &mut bytes[..(end - start) * row_bytes];
            sequence.store().read_rows(layer, head, start..end, bytes);
            file.bytes(bytes)?;
        }
    }
    Ok(())
}

/// The sequence of a file, of which [`SessionContent::read`] has taken its part and
/// [`SessionHeader::check`] approved. Under the policy that it was saved under it is as it was,
/// without clustering; under another one its rows are indexed anew, as [`Sequence::set_policy`]
/// does. Speculation begins anew, and so does a selection that is to hold for several steps where
/// the device looks rows up.
///
/// # Errors
/// If the file changed since it was verified or contradicts itself, if the device refuses, or for a
/// policy that needs what no prefill recorded.
pub async fn restore_sequence<B: Backend>(
    backend: &Arc<B>,
    shape: KvShape,
    policy: Policy,
    options: SequenceOptions,
    file: &mut SessionReader<'_>,
) -> Result<Sequence<B>, SchedulerError> {
    let header = file.header();
    let (n_tokens, is_same) = (header.n_tokens, header.policy == policy.text());
    header.check(&header.fingerprint.clone(), &shape)?;
    let dim = Dimensions::of(header);
    let row_bytes = shape.row_bytes();
    let mut restored = Restored::new(backend, shape, policy, options, n_tokens, is_same)?;
    for layer in restored.shape().layers() {
        file.section(b"LAYR", "a layer does not begin where it should")?;
        let places = PlacesRecord::read(file, &dim)?;
        for head in restored.shape().heads() {
            each_piece(n_tokens, row_bytes, file, |start, bytes| {
                restored.write_rows(layer, head, start, bytes);
            })?;
        }
        restored.set_places(layer, &places);
        let recorded = RecordedRecord::read(file, &dim)?;
        let state = LayerStateRecord::read(file, &dim)?;
        restored.set_layer(layer, LayerRecord { recorded, state })?;
    }
    content::read_end(file)?;
    restored.finish().await
}

/// Reads the rows of one head, piece by piece; `take` gets the first row of each.
fn each_piece(
    n: usize,
    row_bytes: usize,
    file: &mut SessionReader<'_>,
    mut take: impl FnMut(usize, &[u8]),
) -> Result<(), SessionFileError> {
    let step = (ROW_BYTES / row_bytes).max(1);
    let mut bytes = vec![0; step.min(n) * row_bytes];
    for start in (0..n).step_by(step) {
        let bytes = &mut bytes[..step.min(n - start) * row_bytes];
        file.take(bytes)?;
        take(start, bytes);
    }
    Ok(())
}
