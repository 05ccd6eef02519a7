//! The contract's plumbing: memory, copies and queues, and a line for each op.

use std::sync::Arc;
use std::time::Duration;

use longview_core::DType;
use longview_ops::*;

use crate::backend::CudaBackend;
use crate::buffer::{CudaBuffer, Home, HostMemory};
use crate::counters::Tally;
use crate::driver::{Driver, Memory, Place};
use crate::error::StartError;
use crate::fused;
use crate::ops;
use crate::quantised;
use crate::staging::Part;
use crate::weight::CudaWeight;

impl<D: Driver> CudaBackend<D> {
    /// Waits for work that uses the bytes of host memory.
    fn finish_host_work(&self, host: &HostMemory<D>) {
        let n_waits = self.host_work.finish(host.take_used_anywhere());
        Tally::add(&self.device.tally.host_waits, n_waits);
    }
}

/// The bytes of a copy must fill its view.
fn same_size(bytes: usize, view_bytes: usize, in_bounds: bool) -> OpResult<()> {
    if bytes == view_bytes && in_bounds {
        return Ok(());
    }
    Err(OpError::Copy { bytes, view_bytes })
}

impl<D: Driver> Storage for CudaBackend<D> {
    type Buffer = CudaBuffer<D>;
    type Weight = CudaWeight<D>;
}

impl<D: Driver> Backend for CudaBackend<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn capabilities(&self) -> &Capabilities {
        &self.device.capabilities
    }

    fn background(&self) -> Self {
        let queue = Arc::new(self.queue.fork());
        let host_work = self.host_work.fork(&queue);
        Self { device: Arc::clone(&self.device), queue, host_work, start: self.start }
    }

    fn after(&self, other: &Self) -> OpResult<()> {
        self.queue.after(&other.queue)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn device_counters(&self) -> Option<DeviceCounters> {
        Some(self.counters().device)
    }

    fn fallback(&self) -> Option<String> {
        let (n_runs, reason) = self.device.graph_fallback.read()?;
        Some(format!(
            "no CUDA graphs for {n_runs} runs of commands, so each kernel of them is a launch of \
             its own, until another try works: {reason}"
        ))
    }

    fn allocations(&self) -> u64 {
        self.counters().allocations
    }

    fn alloc(&self, dtype: DType, len: usize, label: &str) -> OpResult<CudaBuffer<D>> {
        self.capabilities().holds(self.name(), dtype)?;
        let bytes = len.saturating_mul(dtype.size()) as u64;
        Ok(CudaBuffer { home: Home::Device(self.device.alloc(bytes, label)?), dtype, len })
    }

    fn alloc_host(&self, dtype: DType, len: usize, label: &str) -> OpResult<Option<CudaBuffer<D>>> {
        self.capabilities().holds(self.name(), dtype)?;
        let bytes = len.saturating_mul(dtype.size()) as u64;
        let home = Home::Host(HostMemory::new(self.device.alloc_host(bytes, label)?));
        Ok(Some(CudaBuffer { home, dtype, len }))
    }

    /// Waits for the work of all queues that may write the bytes. If that fails the device is lost,
    /// and the bytes are what they are.
    fn host_bytes<'a>(&self, buffer: &'a CudaBuffer<D>) -> Option<&'a [u8]> {
        let n = buffer.size_bytes() as usize;
        let Home::Host(host) = &buffer.home else { return None };
        self.finish_host_work(host);
        host.counted.memory.host_bytes().map(|bytes| &bytes[..n])
    }

    fn host_bytes_mut<'a>(&self, buffer: &'a mut CudaBuffer<D>) -> Option<&'a mut [u8]> {
        let n = buffer.size_bytes() as usize;
        let Home::Host(host) = &mut buffer.home else { return None };
        self.finish_host_work(host);
        host.counted.memory.host_bytes_mut().map(|bytes| &mut bytes[..n])
    }

    fn load_weight(&self, source: WeightSource) -> OpResult<CudaWeight<D>> {
        CudaWeight::load(&self.device, &self.queue, source)
    }

    fn load_quantised(&self, source: QuantSource) -> OpResult<CudaWeight<D>> {
        CudaWeight::load_quantised(&self.device, &self.queue, source)
    }

    fn write(&self, dst: ViewMut<'_, Self>, bytes: &[u8]) -> OpResult<()> {
        let size = dst.buffer.dtype.size();
        same_size(bytes.len(), dst.len * size, dst.in_bounds())?;
        let to = Place::new(dst.buffer.memory(), (dst.offset * size) as u64);
        self.with_rows(dst.buffer.is_host(), || {
            self.queue.upload(to, bytes.len(), |range, out| out.copy_from_slice(&bytes[range]))
        })
    }

    async fn read(&self, src: View<'_, Self>, out: &mut [u8]) -> OpResult<()> {
        self.read_all(&mut [(src, out)]).await
    }

    async fn read_all(&self, parts: &mut [(View<'_, Self>, &mut [u8])]) -> OpResult<()> {
        for (src, out) in parts.iter() {
            same_size(out.len(), src.len * src.buffer.dtype.size(), src.in_bounds())?;
        }
        let mut wanted = Vec::with_capacity(parts.len());
        for (src, out) in parts {
            let offset = (src.offset * src.buffer.dtype.size()) as u64;
            let from = Place::new(src.buffer.memory(), offset);
            wanted.push(Part::<D> { from, out });
        }
        self.host_work.across(|| self.queue.download(&mut wanted))
    }

    async fn reopen(&self) -> OpResult<Self> {
        let lost = |e: StartError| OpError::DeviceLost { backend: D::NAME, reason: e.to_string() };
        let fresh = Self::on(self.device.driver.reopen().map_err(lost)?).map_err(lost)?;
        if self.has_library() {
            let _ = fresh.try_library().await;
        }
        Ok(fresh)
    }

    fn is_lost(&self) -> bool {
        self.device.check().is_err()
    }

    fn submit(&self) -> OpResult<()> {
        self.queue.submit()
    }

    fn embed(&self, d: Embed<'_, Self>) -> OpResult<()> {
        ops::embed::run(self, d)
    }

    fn rms_norm(&self, d: RmsNorm<'_, Self>) -> OpResult<()> {
        ops::rms_norm::run(self, d)
    }

    fn matmul(&self, d: Linear<'_, Self>) -> OpResult<()> {
        ops::matmul::run(self, d)
    }

    fn matvec(&self, d: Linear<'_, Self>) -> OpResult<()> {
        ops::matvec::run(self, d)
    }

    fn linear_group(&self, d: LinearGroup<'_, '_, Self>) -> OpResult<()> {
        quantised::group(self, d)
    }

    fn project(&self, d: Project<'_, Self>) -> OpResult<()> {
        if self.is_fused() { fused::project(self, d) } else { d.unfused(self) }
    }

    fn norm_gated(&self, d: NormGated<'_, Self>) -> OpResult<()> {
        if self.is_fused() { fused::gated(self, d) } else { d.unfused(self) }
    }

    fn rope(&self, d: Rope<'_, Self>) -> OpResult<()> {
        ops::rope::run(self, d)
    }

    fn silu_mul(&self, d: SiluMul<'_, Self>) -> OpResult<()> {
        ops::silu_mul::run(self, d)
    }

    fn gelu_mul(&self, d: GeluMul<'_, Self>) -> OpResult<()> {
        ops::gelu_mul::run(self, d)
    }

    fn kv_scatter(&self, d: KvScatter<'_, Self>) -> OpResult<()> {
        self.with_rows(d.dst.is_host(), || ops::kv_scatter::run(self, d))
    }

    fn kv_scatter_twice(&self, d: KvScatterTwice<'_, Self>) -> OpResult<()> {
        let is_host = d.first.dst.is_host() || d.second.dst.is_host();
        if self.is_fused() {
            return self.with_rows(is_host, || ops::kv_scatter::run_twice(self, d));
        }
        d.calls().into_iter().try_for_each(|call| self.kv_scatter(call))
    }

    fn kv_gather(&self, d: KvGather<'_, Self>) -> OpResult<()> {
        let is_host = d.src.buffer.is_host() || d.dst.is_host();
        self.with_rows(is_host, || ops::kv_gather::run(self, d))
    }

    fn kv_keys(&self, d: KvKeys<'_, Self>) -> OpResult<()> {
        let is_host = d.src.buffer.is_host();
        self.with_rows(is_host, || ops::kv_keys::run(self, d))
    }

    fn attend_chunk(&self, d: AttendChunk<'_, Self>) -> OpResult<()> {
        let is_host = d.spans.iter().any(|span| span.kv.buffer.is_host());
        self.with_rows(is_host, || ops::attend_chunk::run(self, d))
    }

    fn attend_list(&self, d: AttendList<'_, Self>) -> OpResult<()> {
        let is_host = d.spans.iter().any(|span| span.kv.buffer.is_host());
        self.with_rows(is_host, || ops::attend_list::run(self, d))
    }

    fn lse_merge(&self, d: LseMerge<'_, Self>) -> OpResult<()> {
        ops::lse_merge::run(self, d)
    }

    fn kmeans_assign(&self, d: KmeansAssign<'_, Self>) -> OpResult<()> {
        ops::kmeans_assign::run(self, d)
    }

    fn kmeans_update(&self, d: KmeansUpdate<'_, Self>) -> OpResult<()> {
        ops::kmeans_update::run(self, d)
    }

    fn cluster_stats(&self, d: ClusterStats<'_, Self>) -> OpResult<()> {
        ops::cluster_stats::run(self, d)
    }

    fn centroid_scores(&self, d: CentroidScores<'_, Self>) -> OpResult<()> {
        ops::centroid_scores::run(self, d)
    }

    fn select_clusters(&self, d: SelectClusters<'_, Self>) -> OpResult<()> {
        ops::select_clusters::run(self, d)
    }

    fn argmax(&self, d: Argmax<'_, Self>) -> OpResult<()> {
        ops::argmax::run(self, d)
    }

    fn top_k(&self, d: TopK<'_, Self>) -> OpResult<()> {
        ops::top_k::run(self, d)
    }

    fn gram(&self, d: Gram<'_, Self>) -> OpResult<()> {
        ops::gram::run(self, d)
    }

    fn look_up_rows(&self, d: LookUpRows<'_, Self>) -> OpResult<()> {
        ops::look_up_rows::run(self, d)
    }

    fn query_gate(&self, d: QueryGate<'_, Self>) -> OpResult<()> {
        ops::query_gate::run(self, d)
    }

    fn block_reduce(&self, d: BlockReduce<'_, Self>) -> OpResult<()> {
        ops::block_reduce::run(self, d)
    }

    fn project_heads(&self, d: ProjectHeads<'_, Self>) -> OpResult<()> {
        ops::project_heads::run(self, d)
    }

    fn split_signs(&self, d: SplitSigns<'_, Self>) -> OpResult<()> {
        ops::split_signs::run(self, d)
    }

    fn column_mass(&self, d: ColumnMass<'_, Self>) -> OpResult<()> {
        let is_host = d.kv.buffer.is_host();
        self.with_rows(is_host, || ops::column_mass::run(self, d))
    }

    fn pool_scores(&self, d: PoolScores<'_, Self>) -> OpResult<()> {
        ops::pool_scores::run(self, d)
    }

    fn cluster_rest(&self, d: ClusterRest<'_, Self>) -> OpResult<()> {
        ops::cluster_rest::run(self, d)
    }

    fn cluster_rows(&self, d: ClusterRows<'_, Self>) -> OpResult<()> {
        ops::cluster_rows::run(self, d)
    }

    fn owner_counts(&self, d: OwnerCounts<'_, Self>) -> OpResult<()> {
        ops::owner_counts::run(self, d)
    }

    fn rest_lists(&self, d: RestLists<'_, Self>) -> OpResult<()> {
        ops::rest_lists::run(self, d)
    }

    fn rotate_rows(&self, d: RotateRows<'_, Self>) -> OpResult<()> {
        let is_host = d.src.buffer.is_host() || d.dst.is_host();
        self.with_rows(is_host, || ops::rotate_rows::run(self, d))
    }

    fn query_sums(&self, d: QuerySums<'_, Self>) -> OpResult<()> {
        ops::query_sums::run(self, d)
    }

    fn row_means(&self, d: RowMeans<'_, Self>) -> OpResult<()> {
        ops::row_means::run(self, d)
    }

    fn score_blocks(&self, d: ScoreBlocks<'_, Self>) -> OpResult<()> {
        ops::score_blocks::run(self, d)
    }

    fn attend_blocks(&self, d: AttendBlocks<'_, Self>) -> OpResult<()> {
        ops::attend_blocks::run(self, d)
    }
}
