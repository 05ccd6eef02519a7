//! A layer's projections on the device, with their copy on the host.

use std::sync::Arc;

use longview_core::DType;
use longview_ops::{Backend, OpResult, ViewMut};

use super::low_rank_decode::LowRankDecode;
use super::projection::Projections;
use super::records::ProjectionRecord;
use crate::layout::KvShape;

/// The space in which a layer's tokens are compared with queries.
pub(crate) struct LayerProjection<B: Backend> {
    /// F32 `[Hkv, Dh, r]`.
    pub w_q: B::Buffer,
    /// `[Hkv, Dh, r]`, on the host: whoever projects keys takes it up.
    pub w_k: Arc<Vec<f32>>,
    /// The bases, where every step fits them.
    pub low_rank: Option<LowRankDecode>,
    host_w_q: Vec<f32>,
}

impl<B: Backend> LayerProjection<B> {
    pub fn new(backend: &B, made: Projections, low_rank: Option<LowRankDecode>) -> OpResult<Self> {
        let w_q = upload(backend, &made.w_q)?;
        Ok(Self { w_q, w_k: Arc::new(made.w_k), low_rank, host_w_q: made.w_q })
    }

    /// Makes the device's copy again on a fresh device.
    pub fn restore(&mut self, backend: &B) -> OpResult<()> {
        self.w_q = upload(backend, &self.host_w_q)?;
        Ok(())
    }

    /// As a session file has it.
    pub fn record(&self, shape: &KvShape) -> ProjectionRecord {
        let rank = self.host_w_q.len() / (shape.n_kv_heads * shape.head_dim);
        ProjectionRecord { rank, w_q: self.host_w_q.clone(), w_k: self.w_k.to_vec() }
    }
}

fn upload<B: Backend>(backend: &B, host: &[f32]) -> OpResult<B::Buffer> {
    let mut w_q = backend.alloc(DType::F32, host.len(), "projection")?;
    backend.write(ViewMut::all(&mut w_q), bytemuck::cast_slice(host))?;
    Ok(w_q)
}
