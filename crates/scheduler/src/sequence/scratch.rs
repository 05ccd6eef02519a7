//! Buffers that steps share.

use longview_core::DType;
use longview_ops::{Backend, OpResult, View};

use super::options::Placement;
use super::token_order::TokenOrder;
use crate::layout::KvShape;
use crate::store::UploadCache;

/// Places of a decoded token's row: on the device, in the host store, and there as it was written.
pub(super) const IDS_OF_TOKEN: usize = 3;

/// Buffers that steps share, made once per model and device.
pub struct StepScratch<B: Backend> {
    pub(super) tokens: TokenScratch<B>,
    /// Only where rows are not attended in place.
    pub(super) stream: Option<StreamBuffers<B>>,
}

/// Buffers that every token of a step needs.
pub(super) struct TokenScratch<B: Backend> {
    pub(super) max_tokens: usize,
    pub(super) lse: B::Buffer,
    row_ids: UploadCache<B>,
    host_row_ids: Vec<u32>,
    /// Only where a prompt goes on behind rows that clusters put out of token order.
    pub(super) order: Option<TokenOrder<B>>,
}

/// Buffers of a prefill whose past is streamed from the host.
pub(super) struct StreamBuffers<B: Backend> {
    /// `[Hkv, chunk, 2, Dh]`: the rows of the chunk being prefilled.
    pub chunk: B::Buffer,
    /// Two tiles `[Hkv, tile, 2, Dh]` of the past.
    pub tiles: [B::Buffer; 2],
}

impl<B: Backend> StepScratch<B> {
    /// Buffers for steps of up to `max_tokens` tokens of sequences of this shape.
    pub fn new(
        backend: &B,
        shape: &KvShape,
        max_tokens: usize,
        tile: usize,
        placement: Placement,
    ) -> OpResult<Self> {
        let rows = |n: usize| shape.n_kv_heads * n * 2 * shape.head_dim;
        let tile_buffer = || backend.alloc(shape.kv_dtype, rows(tile), "prefill tile");
        let stream = match placement {
            Placement::InPlace => None,
            Placement::Device => Some(StreamBuffers {
                chunk: backend.alloc(shape.kv_dtype, rows(max_tokens), "prefill chunk")?,
                tiles: [tile_buffer()?, tile_buffer()?],
            }),
        };
        // Where rows have two forms they have two places, and a third on the device.
        let n_ids = IDS_OF_TOKEN * max_tokens.max(1);
        let tokens = TokenScratch {
            max_tokens,
            lse: backend.alloc(DType::F32, max_tokens * shape.n_q_heads, "log-sum-exp")?,
            row_ids: UploadCache::new(backend, 1, n_ids, "row ids")?,
            host_row_ids: Vec::with_capacity(n_ids),
            order: None,
        };
        Ok(Self { tokens, stream })
    }
}

impl<B: Backend> TokenScratch<B> {
    /// Row numbers of new rows, up to [`IDS_OF_TOKEN`] for each token.
    pub(super) fn set_rows(
        &mut self,
        backend: &B,
        rows: impl Iterator<Item = usize>,
    ) -> OpResult<()> {
        self.host_row_ids.clear();
        self.host_row_ids.extend(rows.map(|row| row as u32));
        self.row_ids.put(backend, 0, &self.host_row_ids)
    }

    /// Some of them.
    pub(super) fn rows(&self, first: usize, n: usize) -> View<'_, B> {
        self.row_ids.part(first, n)
    }
}
