//! [`CpuBackend`]: start-up, memory and the dispatch of ops.

use std::future::{Future, ready};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longview_core::DType;
use longview_ops::{
    Argmax, AttendChunk, AttendList, Backend, BlockReduce, Capabilities, CentroidScores,
    ClusterRest, ClusterRows, ClusterStats, ColumnMass, Embed, Gram, KmeansAssign, KmeansUpdate,
    KvGather, KvKeys, KvScatter, Linear, LseMerge, Op, OpError, OpResult, PoolScores, ProjectHeads,
    QueryGate, QuerySums, ResolveRows, RmsNorm, Rope, RotateRows, SelectClusters, SiluMul,
    SplitSigns, TopK, View, ViewMut, WeightSource,
};

use crate::buffer::CpuBuffer;
use crate::isa::{Isa, Tier};
use crate::limits::Limits;
use crate::scratch::Scratch;
use crate::team::Team;
use crate::weight::CpuWeight;
use crate::{CpuError, NAME, kernels, machine, ops};

/// How to start the backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Threads for one op, the calling one included; 0: one for each physical core.
    pub threads: usize,
    /// Force a tier of kernels; `None`: the best that the processor has.
    pub isa: Option<Isa>,
}

/// The CPU as a device. Ops on one value happen one after the other; a second thread that calls
/// waits.
pub struct CpuBackend {
    device: Arc<Device>,
    queue: Mutex<Queue>,
    readbacks: AtomicU64,
}

/// What all queues share.
struct Device {
    tier: Tier,
    capabilities: Capabilities,
    allocations: AtomicU64,
    start: Instant,
}

/// The workers and scratch of one queue.
pub(crate) struct Queue {
    /// Who works.
    pub(crate) team: Team,
    /// Scratch of the op as a whole, read by all workers.
    pub(crate) shared: Scratch,
}

impl CpuBackend {
    /// Starts the backend and its threads. Errors: a forced tier that the processor lacks, no
    /// threads.
    pub fn new(options: CpuOptions) -> Result<Self, CpuError> {
        let tier = Tier::choose(options.isa)?;
        let threads = match options.threads {
            0 => machine::physical_cores(),
            n => n,
        };
        let device = Arc::new(Device {
            tier,
            capabilities: capabilities(tier, threads),
            allocations: AtomicU64::new(0),
            start: Instant::now(),
        });
        let team = Team::with_threads(tier, threads)
            .map_err(|source| CpuError::Threads { threads, source })?;
        Ok(Self::on(device, team))
    }

    /// A queue of `device`.
    fn on(device: Arc<Device>, team: Team) -> Self {
        let queue = Mutex::new(Queue { team, shared: Scratch::default() });
        Self { device, queue, readbacks: AtomicU64::new(0) }
    }

    /// The tier of kernels in use.
    pub fn isa(&self) -> Isa {
        self.device.tier.isa()
    }

    /// Measures bandwidth and arithmetic peak with this backend's threads and tier; takes about a
    /// second.
    pub fn measure_limits(&self) -> Limits {
        Limits::measure(&mut self.queue())
    }

    /// Calls of [`Backend::read`] and [`Backend::read_all`] on this queue so far: what would be
    /// waits for a device with memory of its own.
    pub fn readbacks(&self) -> u64 {
        self.readbacks.load(Ordering::Relaxed)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // An op that panicked left outputs half written, but nothing of the queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn buffer(&self, dtype: DType, len: usize, label: &str, is_host: bool) -> OpResult<CpuBuffer> {
        self.device.allocations.fetch_add(1, Ordering::Relaxed);
        CpuBuffer::zeroed(dtype, len, is_host).ok_or_else(|| OpError::OutOfMemory {
            backend: NAME,
            label: label.to_owned(),
            bytes: (len as u64).saturating_mul(dtype.size() as u64),
        })
    }
}

fn capabilities(tier: Tier, threads: usize) -> Capabilities {
    let floats = vec![DType::F32, DType::F16, DType::BF16];
    let threads_text = if threads == 1 { "1 thread".into() } else { format!("{threads} threads") };
    Capabilities {
        device: format!("{}, {}, {threads_text}", machine::model_name(), tier.isa()),
        reads_host_memory: true,
        unified_memory: true,
        overlaps: false,
        matvec_max_rows: kernels::matvec::MAX_ROWS,
        kv_dtypes: floats.clone(),
        weight_dtypes: floats,
        missing_ops: Vec::new(),
        memory_bytes: machine::available_memory(),
    }
}

impl Backend for CpuBackend {
    type Buffer = CpuBuffer;
    type Weight = CpuWeight;

    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> &Capabilities {
        &self.device.capabilities
    }

    fn background(&self) -> Self {
        Self::on(Arc::clone(&self.device), Team::alone(self.device.tier))
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

    fn write(&self, dst: ViewMut<'_, Self>, bytes: &[u8]) -> OpResult<()> {
        ops::copy::write(dst, bytes)
    }

    fn read(&self, src: View<'_, Self>, out: &mut [u8]) -> impl Future<Output = OpResult<()>> {
        self.readbacks.fetch_add(1, Ordering::Relaxed);
        ready(ops::copy::read(src, out))
    }

    fn read_all(
        &self,
        parts: &mut [(View<'_, Self>, &mut [u8])],
    ) -> impl Future<Output = OpResult<()>> {
        self.readbacks.fetch_add(1, Ordering::Relaxed);
        ready(parts.iter_mut().try_for_each(|(src, out)| ops::copy::read(*src, out)))
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

    fn argmax(&self, d: Argmax<'_, Self>) -> OpResult<()> {
        ops::argmax::run(&mut self.queue(), d)
    }

    fn top_k(&self, d: TopK<'_, Self>) -> OpResult<()> {
        ops::top_k::run(&mut self.queue(), d)
    }

    fn gram(&self, d: Gram<'_, Self>) -> OpResult<()> {
        ops::gram::run(&mut self.queue(), d)
    }

    fn resolve_rows(&self, d: ResolveRows<'_, Self>) -> OpResult<()> {
        let _turn = self.queue();
        ops::resolve_rows::run(d)
    }

    fn query_gate(&self, d: QueryGate<'_, Self>) -> OpResult<()> {
        ops::query_gate::run(&mut self.queue(), d)
    }

    fn block_reduce(&self, d: BlockReduce<'_, Self>) -> OpResult<()> {
        ops::block_reduce::run(&mut self.queue(), d)
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

    fn rotate_rows(&self, d: RotateRows<'_, Self>) -> OpResult<()> {
        ops::rotate_rows::run(&mut self.queue(), d)
    }

    fn query_sums(&self, d: QuerySums<'_, Self>) -> OpResult<()> {
        ops::query_sums::run(&mut self.queue(), d)
    }
}
