//! A layer's projections on the device, with their copy on the host.

use std::sync::Arc;

use longview_core::{DType, HeadId};
use longview_ops::{Backend, OpResult, ViewMut};

use super::kmeans_job::HeadClusters;
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

    /// Makes the spaces' units such that codes of 8 bits hold the projected keys of `heads`, and
    /// turns these to the new units. Products of queries and keys stay what they are.
    ///
    /// A dimension's unit is its largest number / 127, or 8 times its root mean square / 127 if
    /// that is less: what is beyond is cut off, so that one outlier does not take the digits of all
    /// other tokens.
    pub fn fit_codes(
        &mut self,
        backend: &B,
        shape: &KvShape,
        heads: &mut [HeadClusters],
    ) -> OpResult<()> {
        let per_head = self.host_w_q.len() / shape.n_kv_heads;
        let rank = per_head / shape.head_dim;
        let w_k = Arc::make_mut(&mut self.w_k);
        for (head, own) in shape.heads().map(HeadId::index).zip(heads) {
            let units = units(&own.centroids, rank);
            let matrix = head * per_head..(head + 1) * per_head;
            scale(&mut self.host_w_q[matrix.clone()], units.iter().copied());
            scale(&mut w_k[matrix], units.iter().map(|unit| 1.0 / unit));
            scale(&mut own.centroids, units.iter().map(|unit| 1.0 / unit));
        }
        self.restore(backend)
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

/// Multiplies the columns of a matrix.
fn scale(matrix: &mut [f32], by: impl ExactSizeIterator<Item = f32> + Clone) {
    for row in matrix.chunks_exact_mut(by.len()) {
        row.iter_mut().zip(by.clone()).for_each(|(x, by)| *x *= by);
    }
}

/// What 1 stands for in each dimension of codes of `keys`, `[n, rank]`.
fn units(keys: &[f32], rank: usize) -> Vec<f32> {
    // One pass over the keys, which are many. Sums in f64 hardly depend on their order.
    let (mut most, mut squares) = (vec![0.0f32; rank], vec![0.0f64; rank]);
    let rows = keys.chunks_exact(rank.max(1));
    let n = rows.len().max(1) as f64;
    for row in rows {
        for ((x, most), square) in row.iter().zip(&mut most).zip(&mut squares) {
            *most = most.max(x.abs());
            *square += f64::from(*x) * f64::from(*x);
        }
    }
    let unit = |(most, squares): (&f32, &f64)| {
        let unit = most.min(8.0 * (squares / n).sqrt() as f32) / 127.0;
        // A dimension that no key has.
        if unit > 0.0 && unit.is_finite() { unit } else { 1.0 }
    };
    most.iter().zip(&squares).map(unit).collect()
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

    /// Numbers of a dimension take the codes that there are; scores are what they were but for the
    /// rounding, and an outlier is cut off.
    #[test]
    fn codes_have_the_scores_of_what_they_stand_for() {
        let (backend, shape) = (R::new(), shape(2, 2, 2));
        let w: Vec<f32> = (0..8).map(|i| 0.3 * i as f32 - 1.0).collect();
        let made = Projections { rank: 2, w_q: w.clone(), w_k: w.clone() };
        let mut projection = LayerProjection::<R>::new(&backend, made, None).unwrap();
        // The last key's second number is an outlier.
        let keys: Vec<[f32; 2]> = (0..200).map(|i| [(i % 7) as f32 - 3.0, 0.01]).collect();
        let keys: Vec<_> = keys.into_iter().chain([[1.0, 5.0]]).collect();
        let head = || HeadClusters { centroids: keys.concat(), ..HeadClusters::default() };
        let mut heads = [head(), head()];
        projection.fit_codes(&backend, &shape, &mut heads).unwrap();
        let (w_q, n) = (floats(&backend, View::all(&projection.w_q)), keys.len() as f32);
        for (h, own) in heads.iter().enumerate() {
            let outlier = 8.0 * ((200.0 * 0.01f32.powi(2) + 25.0) / n).sqrt() / 127.0;
            let units = [3.0 / 127.0, outlier];
            for (i, (key, codes)) in keys.iter().zip(own.centroids.chunks(2)).enumerate() {
                for j in 0..2 {
                    assert!((codes[j] * units[j] - key[j]).abs() < 1e-4, "key {i} of head {h}");
                }
            }
            for j in 0..4 {
                let (unit, at) = (units[j % 2], 4 * h + j);
                assert!((w_q[at] - w[at] * unit).abs() < 1e-6);
                assert!((projection.w_k[at] - w[at] / unit).abs() < 1e-3);
            }
        }
        assert_eq!(projection.record(&shape).w_q, w_q);
    }

    #[test]
    fn a_dimension_of_zeros_keeps_its_unit() {
        assert_eq!(units(&[0.0, 254.0, 0.0, -254.0], 2), [1.0, 2.0]);
        assert_eq!(units(&[], 2), [1.0, 1.0]);
    }

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
