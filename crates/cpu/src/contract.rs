//! The contract's plumbing: memory, copies and queues, and a line for each op.

use std::future::{Future, ready};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longview_core::DType;
use longview_ops::{
    Argmax, AttendBlocks, AttendChunk, AttendList, Backend, BlockReduce, Capabilities,
    CentroidScores, ClusterRest, ClusterRows, ClusterStats, ColumnMass, Embed, ForkSpans, GeluMul,
    Gram, KmeansAssign, KmeansUpdate, KvGather, KvKeys, KvScatter, Linear, LinearGroup, LookUpRows,
    LseMerge, Op, OpError, OpResult, OwnerCounts, PoolScores, ProjectHeads, QuantSource, QueryGate,
    QuerySums, RestLists, RmsNorm, Rope, RotateRows, RowMeans, ScoreBlocks, SearchTokens,
    SelectClusters, SiluMul, SplitSigns, Storage, TopK, View, ViewMut, WeightSource, copy_host,
};

use crate::backend::CpuBackend;
use crate::buffer::CpuBuffer;
use crate::error::NAME;
use crate::team::{Cost, Team};
use crate::weight::CpuWeight;
use crate::{copy, group, ops, search_tokens};

impl CpuBackend {
    fn buffer(&self, dtype: DType, len: usize, label: &str, is_host: bool) -> OpResult<CpuBuffer> {
        self.device.allocations.fetch_add(1, Ordering::Relaxed);
        CpuBuffer::zeroed(dtype, len, is_host).ok_or_else(|| OpError::OutOfMemory {
            backend: NAME,
            label: label.to_owned(),
            bytes: (len as u64).saturating_mul(dtype.size() as u64),
        })
    }
}

impl Storage for CpuBackend {
    type Buffer = CpuBuffer;
    type Weight = CpuWeight;
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> &Capabilities {
        &self.device.capabilities
    }

    fn background(&self) -> Self {
        Self::on(Arc::clone(&self.device), Team::alone(self.device.isa))
    }

    /// Every op is done when it returns.
    fn after(&self, _other: &Self) -> OpResult<()> {
        Ok(())
    }

    fn now(&self) -> Duration {
        self.device.start.elapsed()
    }

    fn allocations(&self) -> u64 {
        self.device.allocations.load(Ordering::Relaxed)
    }

    fn alloc(&self, dtype: DType, len: usize, label: &str) -> OpResult<CpuBuffer> {
        self.buffer(dtype, len, label, false)
    }

    fn alloc_host(&self, dtype: DType, len: usize, label: &str) -> OpResult<Option<CpuBuffer>> {
        self.buffer(dtype, len, label, true).map(Some)
    }

    fn fork_host(
        &self,
        buffer: &mut CpuBuffer,
        spans: ForkSpans<'_>,
        label: &str,
    ) -> OpResult<Option<CpuBuffer>> {
        match buffer.fork(&spans, &self.device.shared_pages) {
            Some(fork) => {
                self.device.allocations.fetch_add(1, Ordering::Relaxed);
                Ok(Some(fork))
            }
            None => copy_host(self, buffer, spans, label),
        }
    }

    fn share_host(&self, buffer: &mut CpuBuffer, spans: ForkSpans<'_>) -> OpResult<bool> {
        Ok(buffer.share(&spans, &self.device.shared_pages))
    }

    fn expect_host(&self, buffer: &mut CpuBuffer, spans: &[Range<usize>]) {
        buffer.expect(spans);
    }

    fn shared_host_bytes(&self, buffer: &CpuBuffer) -> u64 {
        buffer.shared_bytes() as u64
    }

    fn host_bytes<'a>(&self, buffer: &'a CpuBuffer) -> Option<&'a [u8]> {
        buffer.is_host().then(|| buffer.bytes())
    }

    fn host_bytes_mut<'a>(&self, buffer: &'a mut CpuBuffer) -> Option<&'a mut [u8]> {
        if buffer.is_host() { Some(buffer.bytes_mut()) } else { None }
    }

    fn load_weight(&self, source: WeightSource) -> OpResult<CpuWeight> {
        self.device.allocations.fetch_add(1, Ordering::Relaxed);
        CpuWeight::load(source)
    }

    fn load_quantised(&self, source: QuantSource) -> OpResult<CpuWeight> {
        self.device.allocations.fetch_add(1, Ordering::Relaxed);
        CpuWeight::load_quantised(source, &mut self.queue().team)
    }

    fn write(&self, dst: ViewMut<'_, Self>, bytes: &[u8]) -> OpResult<()> {
        copy::write(dst, bytes)
    }

    fn read(&self, src: View<'_, Self>, out: &mut [u8]) -> impl Future<Output = OpResult<()>> {
        self.readbacks.fetch_add(1, Ordering::Relaxed);
        ready(copy::read(src, out))
    }

    fn read_all(
        &self,
        parts: &mut [(View<'_, Self>, &mut [u8])],
    ) -> impl Future<Output = OpResult<()>> {
        self.readbacks.fetch_add(1, Ordering::Relaxed);
        ready(parts.iter_mut().try_for_each(|(src, out)| copy::read(*src, out)))
    }

    fn submit(&self) -> OpResult<()> {
        Ok(())
    }

    fn embed(&self, d: Embed<'_, Self>) -> OpResult<()> {
        ops::embed::run(&mut self.queue(), d)
    }

    fn rms_norm(&self, d: RmsNorm<'_, Self>) -> OpResult<()> {
        ops::rms_norm::run(&mut self.queue(), d)
    }

    fn matmul(&self, d: Linear<'_, Self>) -> OpResult<()> {
        ops::matmul::run(&mut self.queue(), d, Op::Matmul)
    }

    fn matvec(&self, d: Linear<'_, Self>) -> OpResult<()> {
        ops::matvec::run(&mut self.queue(), d, Op::Matvec)
    }

    fn rope(&self, d: Rope<'_, Self>) -> OpResult<()> {
        ops::rope::run(&mut self.queue(), d)
    }

    fn silu_mul(&self, d: SiluMul<'_, Self>) -> OpResult<()> {
        ops::silu_mul::run(&mut self.queue(), d)
    }

    fn gelu_mul(&self, d: GeluMul<'_, Self>) -> OpResult<()> {
        ops::gelu_mul::run(&mut self.queue(), d)
    }

    fn kv_scatter(&self, d: KvScatter<'_, Self>) -> OpResult<()> {
        ops::kv_scatter::run(&mut self.queue(), d)
    }

    fn kv_gather(&self, d: KvGather<'_, Self>) -> OpResult<()> {
        ops::kv_gather::run(&mut self.queue(), d)
    }

    fn kv_keys(&self, d: KvKeys<'_, Self>) -> OpResult<()> {
        ops::kv_keys::run(&mut self.queue(), d)
    }

    fn attend_chunk(&self, d: AttendChunk<'_, Self>) -> OpResult<()> {
        ops::attend_chunk::run(&mut self.queue(), d)
    }

    fn attend_list(&self, d: AttendList<'_, Self>) -> OpResult<()> {
        ops::attend_list::run(&mut self.queue(), d)
    }

    fn lse_merge(&self, d: LseMerge<'_, Self>) -> OpResult<()> {
        ops::lse_merge::run(&mut self.queue(), d)
    }

    fn kmeans_assign(&self, d: KmeansAssign<'_, Self>) -> OpResult<()> {
        ops::kmeans_assign::run(&mut self.queue(), d)
    }

    fn kmeans_update(&self, d: KmeansUpdate<'_, Self>) -> OpResult<()> {
        ops::kmeans_update::run(&mut self.queue(), d)
    }

    fn cluster_stats(&self, d: ClusterStats<'_, Self>) -> OpResult<()> {
        ops::cluster_stats::run(&mut self.queue(), d)
    }

    fn centroid_scores(&self, d: CentroidScores<'_, Self>) -> OpResult<()> {
        ops::centroid_scores::run(&mut self.queue(), d)
    }

    fn select_clusters(&self, d: SelectClusters<'_, Self>) -> OpResult<()> {
        ops::select_clusters::run(&mut self.queue(), d)
    }

    fn host_threads(&self) -> usize {
        self.device.threads
    }

    fn on_host(&self, n: usize, work: &(dyn Fn(usize) + Sync)) {
        self.queue().team.for_each(n, Cost::ENOUGH, |_, i| work(i));
    }

    fn search_tokens(&self, d: SearchTokens<'_, Self>) -> OpResult<()> {
        if !search_tokens::can_run(&d) {
            return d.unfused(self);
        }
        search_tokens::run(&mut self.queue(), d)
    }

    fn argmax(&self, d: Argmax<'_, Self>) -> OpResult<()> {
        ops::argmax::run(&mut self.queue(), d)
    }

    fn top_k(&self, d: TopK<'_, Self>) -> OpResult<()> {
        ops::top_k::run(&mut self.queue(), d)
    }

    fn gram(&self, d: Gram<'_, Self>) -> OpResult<()> {
        ops::gram::run(&mut self.queue(), d)
    }

    fn look_up_rows(&self, d: LookUpRows<'_, Self>) -> OpResult<()> {
        let _turn = self.queue();
        ops::look_up_rows::run(d)
    }

    fn query_gate(&self, d: QueryGate<'_, Self>) -> OpResult<()> {
        ops::query_gate::run(&mut self.queue(), d)
    }

    fn block_reduce(&self, d: BlockReduce<'_, Self>) -> OpResult<()> {
        ops::block_reduce::run(&mut self.queue(), d)
    }

    fn linear_group(&self, d: LinearGroup<'_, '_, Self>) -> OpResult<()> {
        if group::fits(&d) { group::run(&mut self.queue(), d) } else { d.unfused(self) }
    }

    fn project_heads(&self, d: ProjectHeads<'_, Self>) -> OpResult<()> {
        ops::project_heads::run(&mut self.queue(), d)
    }

    fn split_signs(&self, d: SplitSigns<'_, Self>) -> OpResult<()> {
        ops::split_signs::run(&mut self.queue(), d)
    }

    fn column_mass(&self, d: ColumnMass<'_, Self>) -> OpResult<()> {
        ops::column_mass::run(&mut self.queue(), d)
    }

    fn pool_scores(&self, d: PoolScores<'_, Self>) -> OpResult<()> {
        ops::pool_scores::run(&mut self.queue(), d)
    }

    fn cluster_rest(&self, d: ClusterRest<'_, Self>) -> OpResult<()> {
        let _turn = self.queue();
        ops::cluster_rest::run(d)
    }

    fn cluster_rows(&self, d: ClusterRows<'_, Self>) -> OpResult<()> {
        let _turn = self.queue();
        ops::cluster_rows::run(d)
    }

    fn owner_counts(&self, d: OwnerCounts<'_, Self>) -> OpResult<()> {
        let _turn = self.queue();
        ops::owner_counts::run(d)
    }

    fn rest_lists(&self, d: RestLists<'_, Self>) -> OpResult<()> {
        let _turn = self.queue();
        ops::rest_lists::run(d)
    }

    fn rotate_rows(&self, d: RotateRows<'_, Self>) -> OpResult<()> {
        ops::rotate_rows::run(&mut self.queue(), d)
    }

    fn query_sums(&self, d: QuerySums<'_, Self>) -> OpResult<()> {
        ops::query_sums::run(&mut self.queue(), d)
    }

    fn row_means(&self, d: RowMeans<'_, Self>) -> OpResult<()> {
        ops::row_means::run(&mut self.queue(), d)
    }

    fn score_blocks(&self, d: ScoreBlocks<'_, Self>) -> OpResult<()> {
        ops::score_blocks::run(&mut self.queue(), d)
    }

    fn attend_blocks(&self, d: AttendBlocks<'_, Self>) -> OpResult<()> {
        ops::attend_blocks::run(&mut self.queue(), d)
    }
}
