//! The contract as a trait: one method for each op.

use std::future::Future;
use std::num::NonZero;
use std::ops::Range;
use std::time::Duration;

use longview_core::DType;

use crate::buffer::{DeviceBuffer, Storage, View, ViewMut};
use crate::capability::{Capabilities, DeviceCounters};
use crate::desc::*;
use crate::error::{OpError, OpResult};
use crate::weight::{QuantSource, WeightSource, WeightStream};

/// A compute device with its memory, its queue and every [`crate::Op`].
///
/// Generic on purpose: buffer types are associated, nothing is boxed per call, and a face picks the
/// backend once. After warm-up no op allocates device or host memory; [`Backend::allocations`]
/// proves it.
pub trait Backend: Storage + Send + Sync {
    /// Short name on command lines and in reports: `cpu`, `wgpu`, `cuda`.
    fn name(&self) -> &'static str;

    /// What this device can do.
    fn capabilities(&self) -> &Capabilities;

    /// A second queue on the same device, for work that overlaps with the caller's (a CUDA stream;
    /// on the CPU a queue that runs on the calling thread alone). Buffers may be used on either
    /// queue.
    fn background(&self) -> Self;

    /// Work that this queue is given from now on happens after all that `other` was given so far.
    /// Both are queues of one device.
    fn after(&self, other: &Self) -> OpResult<()>;

    /// Host time since some start, for statistics only. (A clock is the backend's because a browser
    /// has none in `std`.)
    fn now(&self) -> Duration;

    /// Number of device allocations so far, over all queues of this device.
    fn allocations(&self) -> u64;

    /// What the device was asked to do so far, over all its queues; `None` where nothing is asked
    /// of a device (the CPU).
    fn device_counters(&self) -> Option<DeviceCounters> {
        None
    }

    /// What the device does in a slower way than it was opened for, and why, in words; `None` as a
    /// rule. Results are the same.
    fn fallback(&self) -> Option<String> {
        None
    }

    /// Threads that work of the host's own may use, such as opening a file: as many as the device
    /// computes with where it is the host, else as many as the machine runs at once.
    fn host_threads(&self) -> usize {
        std::thread::available_parallelism().map_or(1, NonZero::get)
    }

    /// Calls `work(i)` for each i below `n` on the host, in any order and perhaps several at once,
    /// and returns when all are done: on the threads that this queue computes with, where it has
    /// some. `work` asks nothing of this queue.
    fn on_host(&self, n: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..n).for_each(work);
    }

    /// Allocates `len` zeroed elements in device memory. `label` names them in errors.
    fn alloc(&self, dtype: DType, len: usize, label: &str) -> OpResult<Self::Buffer>;

    /// Allocates `len` zeroed elements of host memory that kernels can read and the host can
    /// address (CPU: plain memory; CUDA: pinned and mapped). `Ok(None)` where the device has no
    /// such thing (WGSL).
    fn alloc_host(&self, dtype: DType, len: usize, label: &str) -> OpResult<Option<Self::Buffer>>;

    /// The bytes of a buffer made by [`Backend::alloc_host`]; `None` for any other. Work that
    /// writes the buffer must be finished (see [`Backend::read`]).
    fn host_bytes<'a>(&self, buffer: &'a Self::Buffer) -> Option<&'a [u8]>;

    /// As [`Backend::host_bytes`], writable.
    fn host_bytes_mut<'a>(&self, buffer: &'a mut Self::Buffer) -> Option<&'a mut [u8]>;

    /// A second buffer of host memory ([`Backend::alloc_host`]) that holds in `spans.used` what
    /// `buffer` does; each may be written from now on without the other. Where the system allows
    /// it they share memory until one of them writes there, else this is a copy. `Ok(None)` for
    /// any other buffer. Work that writes `buffer` must be finished.
    fn fork_host(
        &self,
        buffer: &mut Self::Buffer,
        spans: ForkSpans<'_>,
        label: &str,
    ) -> OpResult<Option<Self::Buffer>> {
        copy_host(self, buffer, spans, label)
    }

    /// Puts what [`Backend::fork_host`] of these spans would share to where it can be shared: the
    /// fork copies nothing of it then, but for what is written in between. `false` where nothing
    /// can be shared, or the system refuses. Work that writes `buffer` must be finished.
    fn share_host(&self, _buffer: &mut Self::Buffer, _spans: ForkSpans<'_>) -> OpResult<bool> {
        Ok(false)
    }

    /// Says which elements of a buffer of host memory will be written soon, in spans that are in
    /// order and apart. Before the first call all of them are expected. From then on the first
    /// write to an element elsewhere takes as little memory as the system can give. All elements
    /// can be written all the same.
    fn expect_host(&self, _buffer: &mut Self::Buffer, _spans: &[Range<usize>]) {}

    /// Bytes of a buffer in memory that others have too ([`Backend::fork_host`]).
    fn shared_host_bytes(&self, _buffer: &Self::Buffer) -> u64 {
        0
    }

    /// Says that matrices of about `bytes` in `n` weights will be loaded, so that a backend which
    /// keeps them together takes as much memory as they need.
    fn expect_weights(&self, _bytes: u64, _n: usize) {}

    /// Takes a weight over. Errors: a byte count that does not fit the shape, or no memory.
    fn load_weight(&self, source: WeightSource) -> OpResult<Self::Weight>;

    /// As [`Backend::load_weight`], of bytes that are read meanwhile. A device with memory of its
    /// own need not have all of them in host memory at once.
    fn stream_weight(&self, stream: WeightStream<'_>) -> OpResult<Self::Weight> {
        self.load_weight(stream.collect()?)
    }

    /// Takes a quantised matrix over. Errors: as [`Backend::load_weight`]. A backend whose
    /// [`Capabilities::quant_types`] lack the type keeps the values as f16.
    fn load_quantised(&self, source: QuantSource) -> OpResult<Self::Weight> {
        self.load_weight(source.into_f16()?)
    }

    /// Copies little-endian elements from the host into `dst`. `bytes` must fill the view exactly.
    fn write(&self, dst: ViewMut<'_, Self>, bytes: &[u8]) -> OpResult<()>;

    /// Copies `src` into `out` once everything before it on this queue is done. `out` must have the
    /// view's size. Never blocks the thread in a browser: hence a future.
    fn read(&self, src: View<'_, Self>, out: &mut [u8]) -> impl Future<Output = OpResult<()>>;

    /// Reads several views at once: where a wait is expensive, one wait serves all.
    fn read_all(
        &self,
        parts: &mut [(View<'_, Self>, &mut [u8])],
    ) -> impl Future<Output = OpResult<()>> {
        async move {
            for (src, out) in parts.iter_mut() {
                self.read(*src, out).await?;
            }
            Ok(())
        }
    }

    /// Opens the device again, as it was opened the first time, after it was lost. Buffers and
    /// weights of the old one are gone.
    fn reopen(&self) -> impl Future<Output = OpResult<Self>> {
        let backend = self.name();
        async move {
            let reason = "this device cannot be opened again".into();
            Err(OpError::DeviceLost { backend, reason })
        }
    }

    /// Whether the device is gone: every call fails with [`OpError::DeviceLost`].
    fn is_lost(&self) -> bool {
        false
    }

    /// Hands recorded work to the device. Ops may run earlier; they need not run before this or a
    /// read.
    fn submit(&self) -> OpResult<()>;

    /// `out[t] = scale * table[ids[t]]`, widened to f32. Index error: an id that is not below V.
    fn embed(&self, d: Embed<'_, Self>) -> OpResult<()>;

    /// `out = x / sqrt(mean(x^2) + eps) * weight (+ out)` for each row (Zhang and Sennrich 2019).
    fn rms_norm(&self, d: RmsNorm<'_, Self>) -> OpResult<()>;

    /// `out = x W^T (+ bias) (+ out)` for many rows (prefill); W is `[n_out, n_in]`.
    fn matmul(&self, d: Linear<'_, Self>) -> OpResult<()>;

    /// The same equation as [`Backend::matmul`] for up to [`Capabilities::matvec_max_rows`] rows
    /// (decode): bound by the bytes of W, which are read once for all rows.
    fn matvec(&self, d: Linear<'_, Self>) -> OpResult<()>;

    /// Rotates the first `rotary_dim` elements of each head: with `h = rotary_dim / 2`,
    /// `out[i] = x[i] cos[i] - x[i+h] sin[i]`, `out[i+h] = x[i+h] cos[i] + x[i] sin[i]` (Su et al.
    /// 2021, half-split form); the rest is copied. The angles come in a table row per token, made
    /// on the host in f64.
    fn rope(&self, d: Rope<'_, Self>) -> OpResult<()>;

    /// `out = gate / (1 + exp(-gate)) * up`.
    fn silu_mul(&self, d: SiluMul<'_, Self>) -> OpResult<()>;

    /// `out = gate / (1 + exp(-2 u)) * up` with `u = sqrt(2 / pi) (gate + 0.044715 gate^3)`, which
    /// is `gate (1 + tanh(u)) / 2 * up` (Hendrycks and Gimpel 2016).
    fn gelu_mul(&self, d: GeluMul<'_, Self>) -> OpResult<()>;

    /// Writes the keys and values of T tokens into KV rows, rounding to the rows' data type: row
    /// `rows[t]` of every KV head gets `k[t, head]` and `v[t, head]`. Two tokens with one row:
    /// unspecified which wins.
    fn kv_scatter(&self, d: KvScatter<'_, Self>) -> OpResult<()>;

    /// [`Backend::kv_scatter`] of the same keys and values into two buffers: a decoded token's row
    /// on the device and in the host store.
    fn kv_scatter_twice(&self, d: KvScatterTwice<'_, Self>) -> OpResult<()> {
        d.calls().into_iter().try_for_each(|call| self.kv_scatter(call))
    }

    /// Copies KV rows bit for bit, per KV head, from `src` rows to `dst` rows of the same data
    /// type. `src` may be host memory ([`Backend::alloc_host`]): then this is the recall, in one
    /// launch.
    fn kv_gather(&self, d: KvGather<'_, Self>) -> OpResult<()>;

    /// The keys of KV rows, per KV head, widened to f32: what clusters are made of. `src` may be
    /// host memory.
    fn kv_keys(&self, d: KvKeys<'_, Self>) -> OpResult<()>;

    /// Attention of a chunk of queries against a run of KV rows, with log-sum-exp out (online
    /// softmax; GQA). Query i of a span sees row j of its run iff `j <= i + diagonal` and the
    /// span's window does not hide it, `j + window > i + diagonal`. A query that sees nothing gets
    /// `out = 0`, `lse = -inf`. With `accumulate`, the result is merged into what `out` and `lse`
    /// hold. A span may say where the rows of its run lie; a backend without
    /// [`Capabilities::orders_chunk_rows`] refuses that.
    fn attend_chunk(&self, d: AttendChunk<'_, Self>) -> OpResult<()>;

    /// Attention of one query token per sequence against a list of KV rows for each KV head, with
    /// log-sum-exp out. The list is the hook for recall. Rows appear in any order; a row listed
    /// twice counts twice.
    fn attend_list(&self, d: AttendList<'_, Self>) -> OpResult<()>;

    /// Merges two attentions over disjoint keys: `lse = log(e^a + e^b)`, `out` the mean weighted by
    /// `e^(lse_i - lse)`. Both empty: `out = 0`, `lse = -inf`.
    fn lse_merge(&self, d: LseMerge<'_, Self>) -> OpResult<()>;

    /// Labels each point with the nearest centroid under `distance`, per KV head; also how near it
    /// is (the score that was maximised) and how many labels changed.
    fn kmeans_assign(&self, d: KmeansAssign<'_, Self>) -> OpResult<()>;

    /// Replaces each centroid by the mean of its points (summed in f32 or better) and counts them;
    /// a cluster without points keeps its centroid.
    fn kmeans_update(&self, d: KmeansUpdate<'_, Self>) -> OpResult<()>;

    /// For fixed labels: each point's score against its own centroid, and per cluster the radius
    /// `max |k - centroid|` (0 for an empty one).
    fn cluster_stats(&self, d: ClusterStats<'_, Self>) -> OpResult<()>;

    /// Scores every cluster of every KV head for one query token per sequence: softmax over
    /// clusters of `scale * q . centroid` for each query head, pooled over the group as [`Pooling`]
    /// says.
    fn centroid_scores(&self, d: CentroidScores<'_, Self>) -> OpResult<()>;

    /// Ranks clusters by score (ties: lowest id), takes them until the sizes' prefix sum reaches
    /// the head's budget and trims the last one. Clusters of size 0 are never taken. Any number of
    /// clusters; too little room for what may be taken is an [`OpError::Shape`].
    fn select_clusters(&self, d: SelectClusters<'_, Self>) -> OpResult<()>;

    /// One step of a device cache of host rows, per KV head: finds the slots of the selected rows,
    /// lets go of rows that were not used for R steps, gives the others the lowest free slots in
    /// the order of the selection, and lists what to attend and what to fetch. What finds no room
    /// is left out; entries behind those in use stay as they are.
    fn look_up_rows(&self, d: LookUpRows<'_, Self>) -> OpResult<()>;

    /// Index of the largest element of each row; the lowest among equals. A row with not-a-number:
    /// that index.
    fn argmax(&self, d: Argmax<'_, Self>) -> OpResult<()>;

    /// The k largest elements of each row, copied bit for bit, and their indices; the largest
    /// first, the lowest index among equals first. Not-a-number is above all, so that whoever reads
    /// the results sees that there was one; zero and minus zero are equal. A k outside of 1 to
    /// [`TopKParams::MAX_K`], or above the width, is an [`OpError::Shape`].
    fn top_k(&self, d: TopK<'_, Self>) -> OpResult<()>;

    /// `out[h] += sum over t and over the group of x x^T` (f32 sums, `[H/G, Dh, Dh]`): QᵀQ with
    /// G = Hq / Hkv, KᵀK with G = 1.
    fn gram(&self, d: Gram<'_, Self>) -> OpResult<()>;

    /// For one query token: `cosines[h] = mean over the group of cos(q, last)`, and then
    /// `last = q`. A vector of zeros has cosine 0 with every other. Each group reads and replaces
    /// its own part of `last`.
    fn query_gate(&self, d: QueryGate<'_, Self>) -> OpResult<()>;

    /// One landmark for each block of consecutive keys of a KV head, as [`BlockSummary`] says.
    fn block_reduce(&self, d: BlockReduce<'_, Self>) -> OpResult<()>;

    /// `out[t, h] = x[t, h] W[h / group]`: keys or queries in a space of `rank` dimensions.
    fn project_heads(&self, d: ProjectHeads<'_, Self>) -> OpResult<()>;

    /// `out = [max(x, 0); min(x, 0)]` for each vector.
    fn split_signs(&self, d: SplitSigns<'_, Self>) -> OpResult<()>;

    /// `out[h, i] += sum over queries t that see row i of e^(scale q[t, h] . k[i] - lse[t, h])`.
    fn column_mass(&self, d: ColumnMass<'_, Self>) -> OpResult<()>;

    /// Scores of each group's query heads become one for each KV head, every score pooled with its
    /// neighbours.
    fn pool_scores(&self, d: PoolScores<'_, Self>) -> OpResult<()>;

    /// `rest[h, c] = sizes[h, c]` less what a selection took of the cluster.
    fn cluster_rest(&self, d: ClusterRest<'_, Self>) -> OpResult<()>;

    /// The rows that a selection took, as lists.
    fn cluster_rows(&self, d: ClusterRows<'_, Self>) -> OpResult<()>;

    /// `counts[h, c]` = how many of the chosen tokens of head h cluster c owns.
    fn owner_counts(&self, d: OwnerCounts<'_, Self>) -> OpResult<()>;

    /// Lists the clusters that lost tokens, with what is left of them and of groups of the others.
    fn rest_lists(&self, d: RestLists<'_, Self>) -> OpResult<()>;

    /// Keys of the first rows of each head rotated further by one angle a pair, values copied.
    fn rotate_rows(&self, d: RotateRows<'_, Self>) -> OpResult<()>;

    /// `out[h, b] += sum over queries t at positions of block b and over the group of q[t]`.
    fn query_sums(&self, d: QuerySums<'_, Self>) -> OpResult<()>;

    /// Means of neighbouring KV rows, keys and values alike.
    fn row_means(&self, d: RowMeans<'_, Self>) -> OpResult<()>;

    /// The share of each tile's attention that every block of the past has, by means of its parts
    /// (FlashPrefill, arXiv 2603.06199).
    fn score_blocks(&self, d: ScoreBlocks<'_, Self>) -> OpResult<()>;

    /// `softmax(scale * q k^T) v` of each tile over the rows of the blocks that count, or over the
    /// means of those that do not.
    fn attend_blocks(&self, d: AttendBlocks<'_, Self>) -> OpResult<()>;

    /// [`Backend::rms_norm`], q, k and v, and [`Backend::rope`] of q and k (after their norms, if
    /// the model has any), in as few launches as the device can.
    fn project(&self, d: Project<'_, Self>) -> OpResult<()> {
        d.unfused(self)
    }

    /// Linear layers that read the same rows: as [`Backend::matvec`] or [`Backend::matmul`] of
    /// each.
    fn linear_group(&self, d: LinearGroup<'_, '_, Self>) -> OpResult<()> {
        d.unfused(self)
    }

    /// [`Backend::rms_norm`], gate and up projection and [`Backend::silu_mul`] or
    /// [`Backend::gelu_mul`].
    fn norm_gated(&self, d: NormGated<'_, Self>) -> OpResult<()> {
        d.unfused(self)
    }

    /// [`Backend::centroid_scores`] and [`Backend::select_clusters`].
    fn score_select(&self, d: ScoreSelect<'_, Self>) -> OpResult<()> {
        d.unfused(self)
    }

    /// [`Backend::score_select`] of both levels of a search and [`Backend::cluster_rows`] of what
    /// it opens, with [`Backend::project_heads`] of the queries before the last.
    fn search_tokens(&self, d: SearchTokens<'_, Self>) -> OpResult<()> {
        d.unfused(self)
    }
}

/// What a fork of a buffer takes over, in elements.
#[derive(Clone, Copy, Debug)]
pub struct ForkSpans<'a> {
    /// Elements in use; what the fork has outside of them is not said.
    pub used: &'a [Range<usize>],
    /// Elements among them that may have changed since a fork made the buffer, or was made of it.
    pub written: &'a [Range<usize>],
}

/// [`Backend::fork_host`] as a copy.
pub fn copy_host<B: Backend>(
    backend: &B,
    buffer: &B::Buffer,
    spans: ForkSpans<'_>,
    label: &str,
) -> OpResult<Option<B::Buffer>> {
    let (dtype, len) = (buffer.dtype(), buffer.len());
    let Some(from) = backend.host_bytes(buffer) else { return Ok(None) };
    let Some(mut fork) = backend.alloc_host(dtype, len, label)? else { return Ok(None) };
    let to = backend.host_bytes_mut(&mut fork).expect("made by alloc_host");
    for span in spans.used {
        let bytes = span.start * dtype.size()..span.end * dtype.size();
        to[bytes.clone()].copy_from_slice(&from[bytes]);
    }
    Ok(Some(fork))
}
