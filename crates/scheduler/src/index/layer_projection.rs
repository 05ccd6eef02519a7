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

#[cfg(test)]
mod tests {
    use longview_ops::View;

    use super::super::testing::{R, floats, shape};
    use super::*;

    #[test]
    fn a_projection_is_the_same_on_the_device_a_fresh_one_and_in_a_record() {
        let backend = R::new();
        let (w_q, w_k) = (vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], vec![9.0; 8]);
        let made = Projections { rank: 2, w_q: w_q.clone(), w_k: w_k.clone() };
        let mut projection = LayerProjection::<R>::new(&backend, made, None).unwrap();
        assert_eq!(floats(&backend, View::all(&projection.w_q)), w_q);
        let fresh = R::new();
        projection.restore(&fresh).unwrap();
        assert_eq!(fresh.allocations(), 1);
        assert_eq!(floats(&fresh, View::all(&projection.w_q)), w_q);
        let record = projection.record(&shape(2, 2, 2));
        assert_eq!(record, ProjectionRecord { rank: 2, w_q, w_k });
    }
}
