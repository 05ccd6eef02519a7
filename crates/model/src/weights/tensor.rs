//! A tensor as a file has it.

use std::ops::Range;

use longview_core::quant::{Order, QuantType, Tiles};
use longview_core::{DType, HostBytes};

use super::stored::Stored;
use crate::source::SharedSource;

/// A tensor as it lies in a file.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// `None` for a type that Longview does not read.
    pub(super) dtype: Option<DType>,
    /// The type as the file names it, for messages.
    pub(super) stored: String,
    pub(super) shape: Vec<usize>,
    pub(super) stored_at: Stored,
    /// The same values as quantised blocks, if that is how the file has them.
    pub(super) quantised: Option<Quantised>,
    /// What the file calls it, where that is another name than Hugging Face's.
    pub(super) name_in_file: Option<String>,
}

/// A matrix as quantised blocks, its rows in the order of Hugging Face.
#[derive(Clone, Debug)]
pub(super) struct Quantised {
    pub(super) ty: QuantType,
    pub(super) stored_at: Stored,
    /// The file has plain values, and blocks were asked for.
    pub(super) is_made: bool,
}

impl Tensor {
    /// A tensor in memory, of the type that a file calls `stored`.
    pub(crate) fn in_memory(
        dtype: DType,
        stored: &str,
        shape: Vec<usize>,
        bytes: HostBytes,
    ) -> Self {
        let stored_at = Stored::InMemory(bytes);
        Self::of(dtype, stored, shape, stored_at)
    }

    /// A tensor that is all of `source`.
    ///
    /// # Panics
    /// If `source` has more bytes than there are addresses.
    pub(crate) fn in_file(
        dtype: DType,
        stored: &str,
        shape: Vec<usize>,
        source: SharedSource,
    ) -> Self {
        let len = usize::try_from(source.size()).expect("a size that was checked");
        let stored_at = Stored::InFile { source, start: 0, len };
        Self::of(dtype, stored, shape, stored_at)
    }

    fn of(dtype: DType, stored: &str, shape: Vec<usize>, stored_at: Stored) -> Self {
        let stored = stored.to_owned();
        Self { dtype: Some(dtype), stored, shape, stored_at, quantised: None, name_in_file: None }
    }

    /// The same, called `name` in its file.
    pub(crate) fn called(self, name: &str) -> Self {
        Self { name_in_file: Some(name.to_owned()), ..self }
    }

    /// The same with its blocks, in memory.
    pub(crate) fn with_blocks(self, ty: QuantType, blocks: HostBytes) -> Self {
        self.with_quantised(ty, Stored::InMemory(blocks))
    }

    /// The same with its blocks, which are all of `source`.
    ///
    /// # Panics
    /// If `source` has more bytes than there are addresses.
    pub(crate) fn with_blocks_in_file(self, ty: QuantType, source: SharedSource) -> Self {
        let len = usize::try_from(source.size()).expect("a size that was checked");
        self.with_quantised(ty, Stored::InFile { source, start: 0, len })
    }

    /// The same, handed over as blocks although the file has plain values.
    pub(super) fn with_made_blocks(self, ty: QuantType, source: SharedSource) -> Self {
        let mut tensor = self.with_blocks_in_file(ty, source);
        if let Some(quantised) = &mut tensor.quantised {
            quantised.is_made = true;
        }
        tensor
    }

    /// Whether blocks are made of plain values.
    pub(super) fn is_made(&self) -> bool {
        self.quantised.as_ref().is_some_and(|quantised| quantised.is_made)
    }

    fn with_quantised(self, ty: QuantType, stored_at: Stored) -> Self {
        Self { quantised: Some(Quantised { ty, stored_at, is_made: false }), ..self }
    }

    /// How the file quantises the values, if it does.
    pub fn quant_type(&self) -> Option<QuantType> {
        self.quantised.as_ref().map(|quantised| quantised.ty)
    }

    /// Bytes as the file has them.
    pub(super) fn file_bytes(&self) -> usize {
        let blocks = self.quantised.as_ref().filter(|quantised| !quantised.is_made);
        blocks.map_or(&self.stored_at, |quantised| &quantised.stored_at).len()
    }

    /// Bytes of the tiles that kernels read, on a device that reads tiles of these types: in the
    /// order that takes more.
    pub(super) fn tile_bytes(&self, types: &[QuantType]) -> Option<usize> {
        let ty = self.quant_type().filter(|ty| types.contains(ty))?;
        let &[n_rows, n_cols] = &*self.shape else { return None };
        let tiles = Tiles { ty, n_rows, n_cols, order: Order::Together };
        Some(tiles.count() * tiles.tile_bytes())
    }

    /// The same as something that Longview does not read, for the check against the config.
    pub(crate) fn not_read(self) -> Self {
        Self { dtype: None, ..self }
    }

    /// The element type, if Longview reads it.
    pub fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    /// Sizes of the dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements, little-endian, at whatever address the file puts them; `None` where the file
    /// is not in memory.
    pub fn bytes(&self) -> Option<&HostBytes> {
        match &self.stored_at {
            Stored::InMemory(bytes) => Some(bytes),
            Stored::InFile { .. } => None,
        }
    }

    /// The runs of bytes that `rows` of the first dimension take.
    pub(super) fn runs(&self, rows: &[Range<usize>]) -> Vec<Range<usize>> {
        runs_of(self.stored_at.len() / self.shape[0].max(1), rows)
    }
}

/// The runs of bytes that `rows` take, of `row_bytes` each.
pub(super) fn runs_of(row_bytes: usize, rows: &[Range<usize>]) -> Vec<Range<usize>> {
    rows.iter().map(|run| run.start * row_bytes..run.end * row_bytes).collect()
}
