//! New rows on their way to a host store that kernels do not write.
//!
//! A decoded token's row is written on the device. Where the host store is mapped, a gather carries
//! it there in the same step. Where it is not, a read per layer would stop the device as often; so
//! the step only notes where the rows lie, and one read at its end, together with the token that
//! the caller waits for anyway, brings all of them.

use longview_core::{HeadId, LayerId};
use longview_ops::{Backend, View};
use smallvec::SmallVec;

use super::host_store::HostStore;
use crate::layout::KvShape;

/// Views of the device and where their bytes go.
pub type ReadParts<'a, B> = SmallVec<[(View<'a, B>, &'a mut [u8]); 8]>;

/// Rows of the last step's tokens that the host does not have yet.
#[derive(Debug)]
pub(crate) struct Writeback {
    /// The device rows in each layer, in the order of the layers, and in each of the tokens.
    rows: Vec<usize>,
    /// Tokens of the step.
    n_tokens: usize,
    /// The first token's row in the host store; `None` while its step is not finished.
    token: Option<usize>,
    bytes: Vec<u8>,
}

/// The device rows of one layer, as a writeback reads them.
pub(crate) struct WritebackSource<'a, B: Backend> {
    pub buffer: &'a B::Buffer,
    /// Buffers like it with the rows behind, each with `head_stride` rows of a head.
    pub rest: &'a [B::Buffer],
    pub head_stride: usize,
}

impl<'a, B: Backend> WritebackSource<'a, B> {
    /// The buffer of a row, and the row there.
    fn place_of(&self, row: usize) -> (&'a B::Buffer, usize) {
        match (row / self.head_stride.max(1)).checked_sub(1).and_then(|i| self.rest.get(i)) {
            Some(buffer) => (buffer, row % self.head_stride),
            None => (self.buffer, row),
        }
    }
}

impl Writeback {
    pub fn with_layers(n_layers: usize) -> Self {
        Self { rows: Vec::with_capacity(n_layers), n_tokens: 1, token: None, bytes: Vec::new() }
    }

    /// Notes the row of the next token, or of the first one in the next layer.
    pub fn push(&mut self, row: usize) {
        self.rows.push(row);
    }

    /// The step has ended: the rows are those of `n_tokens` tokens from `token` on.
    pub fn finish_step(&mut self, token: usize, n_tokens: usize) {
        self.token = Some(token);
        self.n_tokens = n_tokens;
    }

    pub fn clear(&mut self) {
        self.rows.clear();
        self.token = None;
        self.n_tokens = 1;
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The row of the first token whose step has ended and whose rows are not on the host.
    pub fn finished_token(&self) -> Option<usize> {
        self.token.filter(|_| !self.is_empty())
    }

    /// What has to be read of the layers' device rows.
    pub fn read_parts<'a, B: Backend>(
        &'a mut self,
        shape: &KvShape,
        layers: impl Iterator<Item = WritebackSource<'a, B>>,
    ) -> ReadParts<'a, B> {
        let (d, row_bytes, heads) = (shape.head_dim, shape.row_bytes(), shape.n_kv_heads);
        self.bytes.resize(self.rows.len() * heads * row_bytes, 0);
        let mut rest = self.bytes.as_mut_slice();
        let mut parts = ReadParts::<B>::new();
        for (layer, rows) in layers.zip(self.rows.chunks(self.n_tokens)) {
            for (row, head) in rows.iter().flat_map(|row| (0..heads).map(move |head| (row, head))) {
                let (out, next) = std::mem::take(&mut rest).split_at_mut(row_bytes);
                let (buffer, row) = layer.place_of(*row);
                let at = (head * layer.head_stride + row) * 2 * d;
                parts.push((View::part(buffer, at, 2 * d), out));
                rest = next;
            }
        }
        parts
    }

    /// Writes what was read to the store, and begins anew.
    pub fn write<B: Backend>(&mut self, shape: &KvShape, store: &mut dyn HostStore<B>) {
        let (row_bytes, heads) = (shape.row_bytes(), shape.n_kv_heads);
        if let Some(row) = self.finished_token() {
            let n = self.n_tokens;
            for (i, bytes) in self.bytes.chunks_exact(row_bytes).enumerate() {
                let (layer, head) = (LayerId::new(i / heads / n), HeadId::new(i % heads));
                store.write_rows(layer, head, row + i / heads % n, bytes);
            }
        }
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use longview_ops::ReferenceBackend;

    use super::super::fixture::{Buffer, empty_stores, floats, row, shape, stored};
    use super::*;

    /// Device rows of a layer: three of head 0, three of head 1.
    fn device(backend: &ReferenceBackend, layer: LayerId) -> Buffer {
        let rows = shape().heads().flat_map(|h| (0..3).flat_map(move |r| row(layer, h, r)));
        floats(backend, &rows.collect::<Vec<_>>())
    }

    fn read(backend: &ReferenceBackend, writeback: &mut Writeback, layers: &[Buffer]) -> usize {
        let sources =
            layers.iter().map(|buffer| WritebackSource { buffer, rest: &[], head_stride: 3 });
        let mut parts = writeback.read_parts(&shape(), sources);
        pollster::block_on(backend.read_all(&mut parts)).unwrap();
        parts.len()
    }

    /// The token lies in device row 2 of layer 0 and in row 1 of layer 1; on the host it is row 6.
    #[test]
    fn a_tokens_rows_come_to_the_host_layer_by_layer_and_head_by_head() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        let layers = [device(&backend, LayerId(0)), device(&backend, LayerId(1))];
        let [_, mut store] = empty_stores(&backend, &shape);
        let mut writeback = Writeback::with_layers(2);
        assert!(writeback.is_empty());
        writeback.push(2);
        writeback.push(1);
        assert_eq!(writeback.finished_token(), None, "the step goes on");
        writeback.finish_step(6, 1);
        assert_eq!(writeback.finished_token(), Some(6));
        assert_eq!(read(&backend, &mut writeback, &layers), 4);
        writeback.write(&shape, &mut *store);
        for (layer, at) in [(LayerId(0), 2), (LayerId(1), 1)] {
            for head in shape.heads() {
                let mut want = vec![0.0; 64];
                want[48..56].copy_from_slice(&row(layer, head, at));
                assert_eq!(stored(&*store, &shape, layer, head), want, "{layer} {head}");
            }
        }
        assert!(writeback.is_empty());
        assert_eq!(writeback.finished_token(), None, "they are there");
        assert_eq!(read(&backend, &mut writeback, &layers), 0, "nothing is read again");
    }

    /// Two tokens lie in device rows 2 and 0 of layer 0, in rows 1 and 2 of layer 1.
    #[test]
    fn tokens_of_a_step_come_one_behind_the_other() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        let layers = [device(&backend, LayerId(0)), device(&backend, LayerId(1))];
        let [_, mut store] = empty_stores(&backend, &shape);
        let mut writeback = Writeback::with_layers(2);
        [2, 0, 1, 2].into_iter().for_each(|row| writeback.push(row));
        writeback.finish_step(5, 2);
        assert_eq!(read(&backend, &mut writeback, &layers), 8);
        writeback.write(&shape, &mut *store);
        for (layer, at) in [(LayerId(0), [2, 0]), (LayerId(1), [1, 2])] {
            for head in shape.heads() {
                let mut want = vec![0.0; 64];
                want[40..48].copy_from_slice(&row(layer, head, at[0]));
                want[48..56].copy_from_slice(&row(layer, head, at[1]));
                assert_eq!(stored(&*store, &shape, layer, head), want, "{layer} {head}");
            }
        }
    }

    #[test]
    fn a_step_that_did_not_end_leaves_nothing_on_the_host() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        let layers = [device(&backend, LayerId(0)), device(&backend, LayerId(1))];
        let [_, mut store] = empty_stores(&backend, &shape);
        let mut writeback = Writeback::with_layers(2);
        writeback.push(0);
        assert_eq!(read(&backend, &mut writeback, &layers), 2, "of the layer that it came to");
        writeback.write(&shape, &mut *store);
        for (layer, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            assert_eq!(stored(&*store, &shape, LayerId(layer), HeadId(head)), [0.0; 64]);
        }
        assert!(writeback.is_empty(), "and is forgotten");
    }

    #[test]
    fn a_token_that_is_taken_back_is_not_the_next_ones() {
        let mut writeback = Writeback::with_layers(2);
        writeback.push(2);
        writeback.finish_step(6, 1);
        writeback.clear();
        assert_eq!(writeback.finished_token(), None);
        // The rows of the next step are there, and its token is not known yet.
        writeback.push(0);
        assert_eq!(writeback.finished_token(), None);
    }
}
