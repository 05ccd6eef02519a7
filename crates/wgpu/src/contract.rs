//! The contract's plumbing: memory, copies and queues, and a line for each op.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use longview_core::DType;
use longview_core::quant::{Order, TILE_ROWS, Tiles};
use longview_ops::*;

use crate::backend::WgpuBackend;
use crate::buffer::WgpuBuffer;
use crate::error::StartError;
use crate::fused;
use crate::launch::Launch;
use crate::lock::lock;
use crate::ops;
use crate::quantised;
use crate::raw_buffer::RawBuffer;
use crate::readback::map;
use crate::recorder::Recorder;
use crate::score_select;
use crate::scratch::Scratch;
use crate::weight::{self, Layout, Shard, Tiled, WgpuWeight};

impl WgpuBackend {
    /// Words of the host into a buffer, in order with the ops.
    fn upload(&self, dst: &RawBuffer, offset: u64, bytes: &[u8]) -> OpResult<()> {
        self.gpu.check()?;
        lock(&self.recorder).upload(&self.gpu, dst, offset, bytes)
    }

    /// Memory for a weight.
    fn place_weight(
        &self,
        name: String,
        [n_rows, n_cols]: [usize; 2],
        layout: Layout,
    ) -> OpResult<WgpuWeight> {
        let is_vector = n_rows == 1 && matches!(layout, Layout::Plain(_));
        let arena = if is_vector { &self.vectors } else { &self.weights };
        let shards = lock(arena).place(&self.gpu, &name, n_rows, &layout)?;
        Ok(WgpuWeight { name, n_rows, n_cols, layout, shards })
    }

    /// Rows of a weight, from `first` of the weight on. Nothing has used their memory yet.
    fn upload_rows(
        &self,
        weight: &WgpuWeight,
        shard: &Shard,
        first: usize,
        rows: &[u8],
    ) -> OpResult<()> {
        let at = weight.byte_of(shard, first);
        if cfg!(not(target_arch = "wasm32")) {
            return self.upload(&shard.raw, at, rows);
        }
        // Staging that is mapped comes back only when the page's thread is free, and a model loads
        // in one go: the browser's own staging does not wait for that.
        self.gpu.check()?;
        self.gpu.queue.write_buffer(&shard.raw.buffer, at, rows);
        Ok(())
    }

    /// Writes bytes that do not begin or end at a word: only halves can.
    fn write_halves(&self, dst: ViewMut<'_, Self>, bytes: &[u8]) -> OpResult<()> {
        let first = dst.offset % 2;
        let n_words = (first + dst.len).div_ceil(2);
        let mut padded = vec![0; n_words * 4];
        padded[first * 2..first * 2 + bytes.len()].copy_from_slice(bytes);
        let words = WgpuBuffer::new(&self.gpu, DType::U32, n_words, "unaligned write")?;
        self.upload(&words.raw, 0, &padded)?;
        Launch::new(self, "shared/write_halves", "write_halves")
            .u32(dst.len)
            .u32(dst.offset)
            .reads(&words.raw)
            .writes(&dst.buffer.raw)
            .run(n_words.div_ceil(64))
    }
}

/// The bytes of a copy must fill its view.
fn same_size(bytes: usize, view_bytes: usize, in_bounds: bool) -> OpResult<()> {
    if bytes == view_bytes && in_bounds {
        return Ok(());
    }
    Err(OpError::Copy { bytes, view_bytes })
}

impl Storage for WgpuBackend {
    type Buffer = WgpuBuffer;
    type Weight = WgpuWeight;
}

impl Backend for WgpuBackend {
    fn name(&self) -> &'static str {
        "wgpu"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn background(&self) -> Self {
        Self {
            #[cfg(not(target_arch = "wasm32"))]
            kernel_list: self.kernel_list.clone(),
            gpu: Arc::clone(&self.gpu),
            options: self.options.clone(),
            capabilities: Arc::clone(&self.capabilities),
            weights: Arc::clone(&self.weights),
            vectors: Arc::clone(&self.vectors),
            recorder: Mutex::new(Recorder::new(&self.gpu)),
            ring: Mutex::default(),
            scratch: Scratch::default(),
            start: self.start,
        }
    }

    /// The device takes what all queues submit in order.
    fn after(&self, other: &Self) -> OpResult<()> {
        other.submit()
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn device_counters(&self) -> Option<DeviceCounters> {
        Some(self.counters().device)
    }

    fn allocations(&self) -> u64 {
        self.counters().allocations
    }

    fn alloc(&self, dtype: DType, len: usize, label: &str) -> OpResult<WgpuBuffer> {
        self.capabilities().holds(self.name(), dtype)?;
        WgpuBuffer::new(&self.gpu, dtype, len, label)
    }

    fn alloc_host(&self, _: DType, _: usize, _: &str) -> OpResult<Option<WgpuBuffer>> {
        Ok(None)
    }

    fn host_bytes<'a>(&self, _: &'a WgpuBuffer) -> Option<&'a [u8]> {
        None
    }

    fn host_bytes_mut<'a>(&self, _: &'a mut WgpuBuffer) -> Option<&'a mut [u8]> {
        None
    }

    fn expect_weights(&self, bytes: u64, n: usize) {
        lock(&self.weights).expect(bytes, n);
    }

    fn load_weight(&self, source: WeightSource) -> OpResult<WgpuWeight> {
        weight::check_size(&source)?;
        let WeightSource { name, dtype, n_rows, n_cols, bytes, activations } = source;
        let plain = weight::plain(&name, dtype, n_cols, activations)?;
        let weight = self.place_weight(name, [n_rows, n_cols], Layout::Plain(plain))?;
        let row_bytes = n_cols * dtype.size();
        let mut padded = Vec::new();
        for (shard, first, n) in weight.runs() {
            let rows = &bytes.as_ref()[first * row_bytes..][..n * row_bytes];
            self.upload_rows(&weight, shard, first, plain.padded(n_cols, rows, &mut padded))?;
        }
        Ok(weight)
    }

    fn stream_weight(&self, stream: WeightStream<'_>) -> OpResult<WgpuWeight> {
        let WeightStream { name, dtype, n_rows, n_cols, activations, read } = stream;
        let plain = weight::plain(&name, dtype, n_cols, activations)?;
        let weight = self.place_weight(name, [n_rows, n_cols], Layout::Plain(plain))?;
        let row_bytes = n_cols * dtype.size();
        let (mut rows, mut padded) = (Vec::new(), Vec::new());
        for (shard, first, n) in weight.runs() {
            rows.resize(n * row_bytes, 0);
            read(first * row_bytes, &mut rows).map_err(|e| OpError::Weight {
                name: weight.name.clone(),
                what: format!("cannot be read ({e})"),
            })?;
            self.upload_rows(&weight, shard, first, plain.padded(n_cols, &rows, &mut padded))?;
        }
        Ok(weight)
    }

    /// Tiles are made a few at a time, so that the host never holds all of them.
    fn load_quantised(&self, source: QuantSource) -> OpResult<WgpuWeight> {
        source.check()?;
        let QuantSource { name, ty, n_rows, n_cols, blocks, activations } = source;
        let tiles = Tiles { ty, n_rows, n_cols, order: Order::Apart };
        let layout = Layout::Tiled(Tiled { tiles, activations });
        let weight = self.place_weight(name, [n_rows, n_cols], layout)?;
        let mut bytes = Vec::new();
        for (shard, first, n) in weight.runs() {
            bytes.resize(n.div_ceil(TILE_ROWS) * tiles.tile_bytes(), 0);
            for (i, tile) in bytes.chunks_exact_mut(tiles.tile_bytes()).enumerate() {
                tiles.pack(blocks.as_ref(), first / TILE_ROWS + i, tile);
            }
            self.upload_rows(&weight, shard, first, &bytes)?;
        }
        Ok(weight)
    }

    fn write(&self, dst: ViewMut<'_, Self>, bytes: &[u8]) -> OpResult<()> {
        let size = dst.buffer.dtype.size();
        same_size(bytes.len(), dst.len * size, dst.in_bounds())?;
        let at = dst.offset * size;
        if dst.len == 0 {
            return Ok(());
        }
        if !at.is_multiple_of(4) || !bytes.len().is_multiple_of(4) {
            return self.write_halves(dst, bytes);
        }
        self.upload(&dst.buffer.raw, at as u64, bytes)
    }

    async fn read(&self, src: View<'_, Self>, out: &mut [u8]) -> OpResult<()> {
        self.read_all(&mut [(src, out)]).await
    }

    async fn read_all(&self, parts: &mut [(View<'_, Self>, &mut [u8])]) -> OpResult<()> {
        let mut size = 0;
        for (src, out) in parts.iter() {
            same_size(out.len(), src.len * src.buffer.dtype.size(), src.in_bounds())?;
            size += out.len() as u64 + 8;
        }
        self.gpu.check()?;
        let staging = lock(&self.ring).take(&self.gpu, size)?;
        {
            let mut recorder = lock(&self.recorder);
            let mut at = 0;
            for (src, out) in parts.iter() {
                let first = (src.offset * src.buffer.dtype.size()) as u64;
                let end = (first + out.len() as u64).next_multiple_of(4);
                let first = first / 4 * 4;
                if end > first {
                    let len = end - first;
                    recorder.copy(&src.buffer.raw.buffer, first, &staging, at, len);
                    at += len;
                }
            }
            recorder.submit(&self.gpu)?;
            if at == 0 {
                drop(recorder);
                lock(&self.ring).put(staging);
                return Ok(());
            }
        }
        let size = size.next_multiple_of(4).min(staging.size());
        map(&self.gpu, &staging, size).await?;
        let lost = |_| OpError::DeviceLost { backend: "wgpu", reason: "unmapped".into() };
        {
            let mapped = staging.slice(..size).get_mapped_range();
            let mapped = mapped.map_err(lost)?;
            let mut at = 0;
            for (src, out) in parts.iter_mut() {
                let first = src.offset * src.buffer.dtype.size();
                let skip = first % 4;
                out.copy_from_slice(&mapped[at + skip..at + skip + out.len()]);
                at += (first + out.len()).next_multiple_of(4) - first / 4 * 4;
            }
        }
        staging.unmap();
        lock(&self.ring).put(staging);
        Ok(())
    }

    async fn reopen(&self) -> OpResult<Self> {
        let lost = |e: StartError| OpError::DeviceLost { backend: "wgpu", reason: e.to_string() };
        let fresh = Self::new(&self.options).await.map_err(lost)?;
        // What was timed before goes on.
        Ok(Self { start: self.start, ..fresh })
    }

    fn is_lost(&self) -> bool {
        self.gpu.check().is_err()
    }

    fn submit(&self) -> OpResult<()> {
        lock(&self.recorder).submit(&self.gpu)
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
        ops::kv_scatter::run(self, d)
    }

    fn kv_gather(&self, d: KvGather<'_, Self>) -> OpResult<()> {
        ops::kv_gather::run(self, d)
    }

    fn kv_keys(&self, d: KvKeys<'_, Self>) -> OpResult<()> {
        ops::kv_keys::run(self, d)
    }

    fn attend_chunk(&self, d: AttendChunk<'_, Self>) -> OpResult<()> {
        ops::attend_chunk::run(self, d)
    }

    fn attend_list(&self, d: AttendList<'_, Self>) -> OpResult<()> {
        ops::attend_list::run(self, d)
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

    fn project(&self, d: Project<'_, Self>) -> OpResult<()> {
        fused::project(self, d)
    }

    fn linear_group(&self, d: LinearGroup<'_, '_, Self>) -> OpResult<()> {
        quantised::group(self, d)
    }

    fn norm_gated(&self, d: NormGated<'_, Self>) -> OpResult<()> {
        fused::gated(self, d)
    }

    fn score_select(&self, d: ScoreSelect<'_, Self>) -> OpResult<()> {
        score_select::run(self, d)
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
        ops::column_mass::run(self, d)
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
        ops::rotate_rows::run(self, d)
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
