//! Rows of the past, carried from the host to the device piece by piece.

use std::ops::Range;
use std::sync::Arc;

use longview_core::{HeadId, LayerId};
use longview_ops::{Backend, KvView, OpResult};

use super::kv_sequence::Sequence;
use crate::store::{DeviceRows, LayerRows, RowMover, RowReader};

/// Carries pieces of a layer's past, each while the one before it is computed with.
pub(super) struct PastStream<'a, B: Backend> {
    pub backend: &'a Arc<B>,
    /// The queue that copies, where it is another one.
    copies: Option<&'a Arc<B>>,
    pub rows: LayerRows<'a, B>,
    mover: &'a mut RowMover<B>,
    /// Rows of a tile.
    tile: usize,
    tiles: &'a mut [B::Buffer; 2],
}

impl<'a, B: Backend> PastStream<'a, B> {
    /// The past of a layer, through `tiles`.
    pub fn new(
        sequence: &'a mut Sequence<B>,
        layer: LayerId,
        tiles: &'a mut [B::Buffer; 2],
    ) -> Self {
        Self {
            backend: &sequence.backend,
            copies: sequence.copies.queue.as_ref(),
            rows: LayerRows { shape: &sequence.shape, store: &*sequence.store, layer },
            mover: &mut sequence.mover,
            tile: sequence.options.tile,
            tiles,
        }
    }

    /// Calls `take` for each piece of `rows` with the piece and where its rows are: row
    /// `piece.start` is the first one. Pieces have up to `most` rows, and no more than a tile has.
    /// Of a head's rows only those are carried that are `wanted`; a piece without any is left out.
    pub fn each(
        &mut self,
        (rows, most): (Range<usize>, usize),
        wanted: impl Fn(HeadId, usize) -> bool,
        mut take: impl FnMut(&B, KvView<'_, B>, Range<usize>) -> OpResult<()>,
    ) -> OpResult<()> {
        let (backend, side) = (self.backend, self.copies.unwrap_or(self.backend));
        let after = |later: &B, earlier: &B| match self.copies {
            Some(_) => later.after(earlier),
            None => Ok(()),
        };
        let most = most.min(self.tile);
        let heads = || self.rows.shape.heads();
        let pieces: Vec<Range<usize>> = rows
            .clone()
            .step_by(most)
            .map(|start| start..rows.end.min(start + most))
            .filter(|piece| piece.clone().any(|row| heads().any(|head| wanted(head, row))))
            .collect();
        let mut reader =
            RowReader { backend: side, rows: self.rows, mover: self.mover, tile: self.tile };
        let mut load = |piece: &Range<usize>, buffer: &mut B::Buffer| {
            reader.load_some(piece.clone(), &wanted, DeviceRows { buffer, head_stride: self.tile })
        };
        after(side, backend)?;
        if let Some(first) = pieces.first() {
            load(first, &mut self.tiles[0])?;
        }
        for (i, piece) in pieces.iter().enumerate() {
            after(backend, side)?;
            if let Some(next) = pieces.get(i + 1) {
                // The piece before this one, whose place it takes, was computed with.
                after(side, backend)?;
                load(next, &mut self.tiles[(i + 1) % 2])?;
            }
            take(backend, KvView::new(&self.tiles[i % 2], self.tile), piece.clone())?;
        }
        Ok(())
    }
}
