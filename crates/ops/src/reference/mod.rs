//! The reference backend: what every op means, written as plainly as its equation.
//!
//! Loops stand in the order of the equation, sums are f64, there is no SIMD, no thread and no
//! unsafe code, so that a reader can check it against the paper. It is slow on purpose; its only
//! use is to be compared with. Every op checks its descriptor first, then every index, and writes
//! only after both.

mod access;
mod attention;
mod buffer;
mod checks;
mod cluster;
mod dense;
mod device;
mod index;
mod kv;
mod mass;
mod residual;
mod sparse;
mod token_rest;

use buffer::Rounding;
pub use buffer::{RefBuffer, RefWeight};
pub(crate) use cluster::assign_score;
pub use device::ReferenceBackend;

use std::future::{Future, ready};
use std::sync::atomic::Ordering;
use std::time::Duration;

use longview_core::{DType, decode_f32};

use crate::backend::Backend;
use crate::buffer::{View, ViewMut};
use crate::capability::Capabilities;
use crate::desc::{
    Argmax, AttendBlocks, AttendChunk, AttendList, BlockReduce, CentroidScores, ClusterRest,
    ClusterRows, ClusterStats, ColumnMass, Embed, GeluMul, Gram, KmeansAssign, KmeansUpdate,
    KvGather, KvKeys, KvScatter, KvScatterTwice, Linear, LookUpRows, LseMerge, OwnerCounts,
    PoolScores, ProjectHeads, QueryGate, QuerySums, RestLists, RmsNorm, Rope, RotateRows, RowMeans,
    ScoreBlocks, SelectClusters, SiluMul, SplitSigns, TopK,
};
use crate::error::{OpError, OpResult};
use crate::op::Op;
use crate::weight::{QuantSource, WeightSource};

impl Backend for ReferenceBackend {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn background(&self) -> Self {
        self.clone()
    }

    /// Counts its own calls: the reference must run where `std` has no clock.
    /// Every op is done when it returns.
    fn after(&self, _other: &Self) -> OpResult<()> {
        Ok(())
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.ticks.fetch_add(1, Ordering::Relaxed))
    }

    fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    fn alloc(&self, dtype: DType, len: usize, _label: &str) -> OpResult<RefBuffer> {
        Ok(self.make(dtype, len, false))
    }

    fn alloc_host(&self, dtype: DType, len: usize, _label: &str) -> OpResult<Option<RefBuffer>> {
        Ok(self.capabilities.reads_host_memory.then(|| self.make(dtype, len, true)))
    }

    fn host_bytes<'a>(&self, buffer: &'a RefBuffer) -> Option<&'a [u8]> {
        buffer.is_host().then(|| buffer.bytes())
    }

    fn host_bytes_mut<'a>(&self, buffer: &'a mut RefBuffer) -> Option<&'a mut [u8]> {
        buffer.is_host().then(|| buffer.bytes_mut())
    }

    fn load_weight(&self, source: WeightSource) -> OpResult<RefWeight> {
        let WeightSource { name, dtype, n_rows, n_cols, bytes, activations } = source;
        let expected = n_rows * n_cols * dtype.size();
        if !dtype.is_float() || bytes.len() != expected {
            let found = bytes.len();
            let what =
                format!("{found} bytes of {dtype}, expected {expected} for [{n_rows}, {n_cols}]");
            return Err(OpError::Weight { name, what });
        }
        let values = decode_f32(dtype, bytes.as_ref()).into_iter().map(f64::from).collect();
        let is_rounding = activations.rounds_to_bf16(dtype);
        let rounding = if is_rounding { Rounding::Bf16 } else { Rounding::Nothing };
        Ok(RefWeight { n_rows, n_cols, values, rounding })
    }

    fn load_quantised(&self, source: QuantSource) -> OpResult<RefWeight> {
        source.check()?;
        let values = source.values().into_iter().map(f64::from).collect();
        let QuantSource { n_rows, n_cols, activations, .. } = source;
        let rounding = activations.largest_code().map_or(Rounding::Nothing, Rounding::Units);
        Ok(RefWeight { n_rows, n_cols, values, rounding })
    }

    fn write(&self, dst: ViewMut<'_, Self>, bytes: &[u8]) -> OpResult<()> {
        let range = access::byte_range(dst.buffer, dst.offset, dst.len, bytes.len())?;
        dst.buffer.bytes_mut()[range].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, src: View<'_, Self>, out: &mut [u8]) -> impl Future<Output = OpResult<()>> {
        let range = access::byte_range(src.buffer, src.offset, src.len, out.len());
        ready(range.map(|range| out.copy_from_slice(&src.buffer.bytes()[range])))
    }

    fn submit(&self) -> OpResult<()> {
        Ok(())
    }

    fn embed(&self, d: Embed<'_, Self>) -> OpResult<()> {
        dense::embed(d)
    }

    fn rms_norm(&self, d: RmsNorm<'_, Self>) -> OpResult<()> {
        dense::rms_norm(d)
    }

    fn matmul(&self, d: Linear<'_, Self>) -> OpResult<()> {
        dense::linear(Op::Matmul, d)
    }

    fn matvec(&self, d: Linear<'_, Self>) -> OpResult<()> {
        dense::linear(Op::Matvec, d)
    }

    fn rope(&self, d: Rope<'_, Self>) -> OpResult<()> {
        dense::rope(d)
    }

    fn silu_mul(&self, d: SiluMul<'_, Self>) -> OpResult<()> {
        dense::silu_mul(d)
    }

    fn gelu_mul(&self, d: GeluMul<'_, Self>) -> OpResult<()> {
        dense::gelu_mul(d)
    }

    fn kv_scatter(&self, d: KvScatter<'_, Self>) -> OpResult<()> {
        kv::kv_scatter(d)
    }

    fn kv_scatter_twice(&self, d: KvScatterTwice<'_, Self>) -> OpResult<()> {
        kv::kv_scatter_twice(d)
    }

    fn kv_gather(&self, d: KvGather<'_, Self>) -> OpResult<()> {
        kv::kv_gather(d)
    }

    fn kv_keys(&self, d: KvKeys<'_, Self>) -> OpResult<()> {
        kv::kv_keys(d)
    }

    fn attend_chunk(&self, d: AttendChunk<'_, Self>) -> OpResult<()> {
        attention::attend_chunk(d)
    }

    fn attend_list(&self, d: AttendList<'_, Self>) -> OpResult<()> {
        attention::attend_list(d)
    }

    fn lse_merge(&self, d: LseMerge<'_, Self>) -> OpResult<()> {
        attention::lse_merge(d)
    }

    fn kmeans_assign(&self, d: KmeansAssign<'_, Self>) -> OpResult<()> {
        cluster::kmeans_assign(d)
    }

    fn kmeans_update(&self, d: KmeansUpdate<'_, Self>) -> OpResult<()> {
        cluster::kmeans_update(d)
    }

    fn cluster_stats(&self, d: ClusterStats<'_, Self>) -> OpResult<()> {
        cluster::cluster_stats(d)
    }

    fn centroid_scores(&self, d: CentroidScores<'_, Self>) -> OpResult<()> {
        cluster::centroid_scores(d)
    }

    fn select_clusters(&self, d: SelectClusters<'_, Self>) -> OpResult<()> {
        cluster::select_clusters(d)
    }

    fn argmax(&self, d: Argmax<'_, Self>) -> OpResult<()> {
        dense::argmax(d)
    }

    fn top_k(&self, d: TopK<'_, Self>) -> OpResult<()> {
        dense::top_k(d)
    }

    fn gram(&self, d: Gram<'_, Self>) -> OpResult<()> {
        dense::gram(d)
    }

    fn look_up_rows(&self, d: LookUpRows<'_, Self>) -> OpResult<()> {
        cluster::look_up_rows(d)
    }

    fn query_gate(&self, d: QueryGate<'_, Self>) -> OpResult<()> {
        cluster::query_gate(d)
    }

    fn block_reduce(&self, d: BlockReduce<'_, Self>) -> OpResult<()> {
        index::block_reduce(d)
    }

    fn project_heads(&self, d: ProjectHeads<'_, Self>) -> OpResult<()> {
        index::project_heads(d)
    }

    fn split_signs(&self, d: SplitSigns<'_, Self>) -> OpResult<()> {
        index::split_signs(d)
    }

    fn column_mass(&self, d: ColumnMass<'_, Self>) -> OpResult<()> {
        mass::column_mass(d)
    }

    fn cluster_rest(&self, d: ClusterRest<'_, Self>) -> OpResult<()> {
        residual::cluster_rest(d)
    }

    fn cluster_rows(&self, d: ClusterRows<'_, Self>) -> OpResult<()> {
        residual::cluster_rows(d)
    }

    fn owner_counts(&self, d: OwnerCounts<'_, Self>) -> OpResult<()> {
        token_rest::owner_counts(d)
    }

    fn rest_lists(&self, d: RestLists<'_, Self>) -> OpResult<()> {
        token_rest::rest_lists(d)
    }

    fn rotate_rows(&self, d: RotateRows<'_, Self>) -> OpResult<()> {
        kv::rotate_rows(d)
    }

    fn query_sums(&self, d: QuerySums<'_, Self>) -> OpResult<()> {
        mass::query_sums(d)
    }

    fn row_means(&self, d: RowMeans<'_, Self>) -> OpResult<()> {
        sparse::row_means(d)
    }

    fn score_blocks(&self, d: ScoreBlocks<'_, Self>) -> OpResult<()> {
        sparse::score_blocks(d)
    }

    fn attend_blocks(&self, d: AttendBlocks<'_, Self>) -> OpResult<()> {
        sparse::attend_blocks(d)
    }

    fn pool_scores(&self, d: PoolScores<'_, Self>) -> OpResult<()> {
        mass::pool_scores(d)
    }
}
