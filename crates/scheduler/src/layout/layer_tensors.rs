//! The tensors of one layer in a step, and the parameters that attention over them needs.

use longview_ops::{AttendParams, Backend, View, ViewMut};

use super::kv_shape::KvShape;

/// Queries, keys and values of one layer after RoPE, and where the output goes.
pub struct LayerTensors<'a, B: Backend> {
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// F32 `[T, Hkv, Dh]`.
    pub k: View<'a, B>,
    /// F32 `[T, Hkv, Dh]`.
    pub v: View<'a, B>,
    /// F32 `[T, Hq, Dh]`.
    pub out: ViewMut<'a, B>,
}

impl<B: Backend> LayerTensors<'_, B> {
    /// Tokens of the step, T.
    pub(crate) fn n_tokens(&self, shape: &KvShape) -> usize {
        self.q.len / (shape.n_q_heads * shape.head_dim)
    }

    /// The output, for one call on the backend.
    pub(crate) fn out_mut(&mut self) -> ViewMut<'_, B> {
        reborrow(&mut self.out)
    }
}

/// Which of a sequence's selections: 0 for that of its first layer that recalls. Speculative recall
/// keeps one for every such layer, because each waits for the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SelectionId(pub usize);

impl SelectionId {
    /// The selection that this one's layer attends where `layer_step` layers share that of the
    /// first of them.
    pub fn shared(self, layer_step: usize) -> Self {
        Self(self.0 - self.0 % layer_step)
    }
}

/// The query of one token of a step, which selects what a layer recalls.
pub(crate) struct Query<'a, B: Backend> {
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// Tokens of the step, T.
    pub n_tokens: usize,
    /// The token.
    pub index: usize,
    /// Where the selection goes.
    pub selection: SelectionId,
}

impl<'a, B: Backend> Query<'a, B> {
    /// The token's own part, F32 `[Hq, Dh]`.
    pub fn own(&self, shape: &KvShape) -> View<'a, B> {
        let token = shape.n_q_heads * shape.head_dim;
        View::part(self.q.buffer, self.q.offset + self.index * token, token)
    }
}

fn reborrow<'a, B: Backend>(view: &'a mut ViewMut<'_, B>) -> ViewMut<'a, B> {
    ViewMut { buffer: view.buffer, offset: view.offset, len: view.len }
}

/// Parameters of attention of `n_tokens` queries; `accumulate` merges with what the output has.
pub(crate) fn attend_params(shape: &KvShape, n_tokens: usize, accumulate: bool) -> AttendParams {
    AttendParams {
        n_tokens: n_tokens as u32,
        n_q_heads: shape.n_q_heads as u32,
        n_kv_heads: shape.n_kv_heads as u32,
        head_dim: shape.head_dim as u32,
        scale: shape.scale,
        accumulate: accumulate.into(),
    }
}

#[cfg(test)]
mod tests {
    use longview_core::DType;
    use longview_ops::reference::ReferenceBackend;

    use super::super::kv_shape::HostRows;
    use super::*;

    fn shape() -> KvShape {
        KvShape {
            n_layers: 1,
            n_q_heads: 4,
            n_kv_heads: 2,
            head_dim: 3,
            kv_dtype: DType::F32,
            host_rows: HostRows::default(),
            capacity: 8,
            scale: 0.25,
            inv_freq: Vec::new().into(),
            windows: [].into(),
        }
    }

    #[test]
    fn layers_that_share_a_selection_have_that_of_the_first() {
        let shared = |step| [0, 1, 2, 3, 4].map(|id| SelectionId(id).shared(step).0);
        assert_eq!(shared(1), [0, 1, 2, 3, 4]);
        assert_eq!(shared(2), [0, 0, 2, 2, 4]);
        assert_eq!(shared(3), [0, 0, 0, 3, 3]);
    }

    #[test]
    fn a_token_has_the_queries_of_all_heads() {
        let backend = ReferenceBackend::new();
        let buffer = backend.alloc(DType::F32, 50, "queries").unwrap();
        let q = View::<ReferenceBackend>::part(&buffer, 5, 36);
        let selection = SelectionId(0);
        let own = Query { q, n_tokens: 3, index: 2, selection }.own(&shape());
        assert_eq!((own.offset, own.len), (5 + 2 * 12, 12));
        let mut out = buffer.clone();
        let out = ViewMut::part(&mut out, 7, 36);
        let mut tensors = LayerTensors { q, k: q, v: q, out };
        assert_eq!(tensors.n_tokens(&shape()), 3);
        let again = tensors.out_mut();
        assert_eq!((again.offset, again.len), (7, 36));
    }

    #[test]
    fn attention_has_the_dimensions_of_the_shape() {
        let p = attend_params(&shape(), 5, true);
        assert_eq!([p.n_tokens, p.n_q_heads, p.n_kv_heads, p.head_dim], [5, 4, 2, 3]);
        assert_eq!((p.scale, p.accumulate), (0.25, 1));
        assert_eq!(attend_params(&shape(), 5, false).accumulate, 0);
    }
}
