//! Launches `attend_list.cu`: few query rows over a list of KV rows, or over a run of them.

use longview_core::DType;
use longview_ops::{
    AttendList, AttendParams, ChunkEdges, KvView, ListSpan, Op, OpError, OpResult, View, ViewMut,
};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::AttendListArgs;
use crate::kernels::Kernel;
use crate::variant::{by_type, row_limit};

/// Widest head that the kernels of attention hold in registers.
const MAX_HEAD_DIM: u32 = 256;
/// Query rows of a block.
const ROWS: usize = 8;
/// KV rows of a split, at least.
const SPLIT_UNIT: usize = 64;
/// Splits that the merge can weigh.
const MAX_SPLITS: usize = 256;
/// Blocks that a multiprocessor has room for.
const BLOCKS_PER_MULTIPROCESSOR: usize = 4;

/// Kernels by the width of heads: up to 64, 128 and 256, or up to 128 and 256 and by type.
struct Kernels {
    f16: [Kernel; 3],
    bf16: [Kernel; 3],
    plain: [[Kernel; 3]; 2],
    q8: [Kernel; 3],
    plain_q8: [Kernel; 2],
}

const UNWEIGHTED: Kernels = Kernels {
    f16: [Kernel::attend_list_f16_64, Kernel::attend_list_f16_128, Kernel::attend_list_f16_256],
    bf16: [Kernel::attend_list_bf16_64, Kernel::attend_list_bf16_128, Kernel::attend_list_bf16_256],
    plain: [
        [
            Kernel::attend_list_plain_f32_128,
            Kernel::attend_list_plain_f16_128,
            Kernel::attend_list_plain_bf16_128,
        ],
        [
            Kernel::attend_list_plain_f32_256,
            Kernel::attend_list_plain_f16_256,
            Kernel::attend_list_plain_bf16_256,
        ],
    ],
    q8: [Kernel::attend_list_q8_64, Kernel::attend_list_q8_128, Kernel::attend_list_q8_256],
    plain_q8: [Kernel::attend_list_plain_q8_128, Kernel::attend_list_plain_q8_256],
};

const WEIGHTED: Kernels = Kernels {
    f16: [
        Kernel::attend_list_weighted_f16_64,
        Kernel::attend_list_weighted_f16_128,
        Kernel::attend_list_weighted_f16_256,
    ],
    bf16: [
        Kernel::attend_list_weighted_bf16_64,
        Kernel::attend_list_weighted_bf16_128,
        Kernel::attend_list_weighted_bf16_256,
    ],
    plain: [
        [
            Kernel::attend_list_weighted_plain_f32_128,
            Kernel::attend_list_weighted_plain_f16_128,
            Kernel::attend_list_weighted_plain_bf16_128,
        ],
        [
            Kernel::attend_list_weighted_plain_f32_256,
            Kernel::attend_list_weighted_plain_f16_256,
            Kernel::attend_list_weighted_plain_bf16_256,
        ],
    ],
    q8: [
        Kernel::attend_list_weighted_q8_64,
        Kernel::attend_list_weighted_q8_128,
        Kernel::attend_list_weighted_q8_256,
    ],
    plain_q8: [
        Kernel::attend_list_weighted_plain_q8_128,
        Kernel::attend_list_weighted_plain_q8_256,
    ],
};

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: AttendList<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    check_width::<D>(Op::AttendList, d.p.head_dim)?;
    d.spans.iter().try_for_each(|span| one(backend, &d, span))
}

/// Widths that the kernels can do.
pub(crate) fn check_width<D: Driver>(op: Op, head_dim: u32) -> OpResult<()> {
    if head_dim <= MAX_HEAD_DIM {
        return Ok(());
    }
    let reason = format!("heads of width {head_dim}, of at most {MAX_HEAD_DIM}");
    Err(OpError::Unsupported { backend: D::NAME, op, reason })
}

fn one<D: Driver>(
    backend: &CudaBackend<D>,
    d: &AttendList<'_, CudaBackend<D>>,
    span: &ListSpan<'_, CudaBackend<D>>,
) -> OpResult<()> {
    let launch = ListLaunch {
        p: d.p,
        q: d.q,
        first_token: span.q_index,
        n_tokens: 1,
        kv: span.kv,
        room: span.list_stride,
        rows: ListRows::Listed {
            rows: span.rows.at(),
            n_rows: span.n_rows.at(),
            weights: span.weights.as_ref().map_or(Address::NONE, At::at),
        },
    };
    launch.run(backend, &d.out, &d.lse)
}

/// Where the KV rows come from.
pub(crate) enum ListRows {
    /// Lists of ids, with their lengths on the device.
    /// `weights` is [`Address::NONE`] where each row stands for itself.
    Listed { rows: Address, n_rows: Address, weights: Address },
    /// Rows from `first`; token i sees those that its edges, moved by i, enclose.
    Run { first: u32, edges: ChunkEdges },
}

/// One span: few tokens over many rows.
pub(crate) struct ListLaunch<'a, D: Driver> {
    pub p: AttendParams,
    pub q: View<'a, CudaBackend<D>>,
    pub first_token: u32,
    pub n_tokens: u32,
    pub kv: KvView<'a, CudaBackend<D>>,
    /// Entries from one list to the next, or rows of the run.
    pub room: u32,
    pub rows: ListRows,
}

impl<D: Driver> ListLaunch<'_, D> {
    /// Attends, with a merge where rows are split.
    pub fn run(
        self,
        backend: &CudaBackend<D>,
        out: &ViewMut<'_, CudaBackend<D>>,
        lse: &ViewMut<'_, CudaBackend<D>>,
    ) -> OpResult<()> {
        let p = self.p;
        let n_entries = self.n_tokens as usize * p.n_q_heads as usize;
        let n_kv_heads = p.n_kv_heads as usize;
        let n_parts = (n_entries / n_kv_heads).div_ceil(ROWS);
        let n_groups = n_kv_heads * n_parts;
        let n_multiprocessors = backend.driver().facts().n_multiprocessors as usize;
        let blocks = n_multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
        let most = (blocks / n_groups.max(1)).clamp(1, MAX_SPLITS);
        let n_splits = (self.room as usize).div_ceil(SPLIT_UNIT).clamp(1, most);
        let all = ChunkEdges { seen: i32::MAX, hidden: 0 };
        let ([rows, n_rows, weights], first_row, edges) = match self.rows {
            ListRows::Listed { rows, n_rows, weights } => ([rows, n_rows, weights], 0, all),
            ListRows::Run { first, edges } => ([Address::NONE; 3], first, edges),
        };
        let dtype = self.kv.buffer.dtype;
        let half_bytes = p.head_dim as usize * dtype.size();
        // What a kernel loads at once.
        let unit = if dtype == DType::Q8 { 4 } else { 16 };
        let is_aligned = self.kv.at().is_aligned(unit) && half_bytes.is_multiple_of(unit as usize);
        let kernel = choose(dtype, p.head_dim, is_aligned, weights != Address::NONE);
        // As much as they may ever take, so that a growing context allocates nothing.
        let n_states = if most == 1 { 0 } else { n_entries * most };
        let state_bytes = (n_states * 8) as u64;
        let sum_bytes = (n_states * p.head_dim as usize * 4) as u64;
        backend.queue.with_scratch(state_bytes + sum_bytes, |states| {
            let args = AttendListArgs {
                q: self.q.at(),
                kv: self.kv.at(),
                rows,
                n_rows,
                weights,
                out: out.at(),
                lse: lse.at(),
                states,
                sums: Address(states.0 + state_bytes),
                first_token: self.first_token,
                n_tokens: self.n_tokens,
                n_q_heads: p.n_q_heads,
                n_kv_heads: p.n_kv_heads,
                head_dim: p.head_dim,
                head_stride: self.kv.head_stride as u32,
                row_limit: row_limit(&self.kv, p.head_dim),
                room: self.room,
                first_row,
                lead: edges.seen,
                hidden: edges.hidden,
                n_parts: n_parts as u32,
                n_splits: n_splits as u32,
                accumulate: p.accumulate,
                scale: p.scale,
                is_aligned: is_aligned.into(),
            };
            backend.launch(kernel, Grid::new([n_groups, n_splits, 1]), &args)?;
            if n_splits == 1 {
                return Ok(());
            }
            backend.launch(Kernel::attend_list_merge, Grid::over(n_entries, 1), &args)
        })
    }
}

/// The kernel for rows of this type and width, by whether they are whole units of 16 bytes, and
/// whether they have weights.
fn choose(dtype: DType, head_dim: u32, is_aligned: bool, is_weighted: bool) -> Kernel {
    let width = usize::from(head_dim > 64) + usize::from(head_dim > 128);
    let kernels = if is_weighted { &WEIGHTED } else { &UNWEIGHTED };
    match dtype {
        DType::F16 if is_aligned => kernels.f16[width],
        DType::BF16 if is_aligned => kernels.bf16[width],
        DType::Q8 if is_aligned && head_dim.is_multiple_of(8) => kernels.q8[width],
        DType::Q8 => kernels.plain_q8[usize::from(head_dim > 128)],
        _ => by_type(dtype, kernels.plain[usize::from(head_dim > 128)]),
    }
}

#[cfg(test)]
mod tests {
    use super::{DType, Kernel, choose};

    #[test]
    fn tensor_cores_take_rows_of_whole_units() {
        let kernel = |dtype, head_dim, is_aligned| choose(dtype, head_dim, is_aligned, false);
        assert_eq!(kernel(DType::F16, 64, true), Kernel::attend_list_f16_64);
        assert_eq!(kernel(DType::F16, 80, true), Kernel::attend_list_f16_128);
        assert_eq!(kernel(DType::BF16, 256, true), Kernel::attend_list_bf16_256);
        assert_eq!(kernel(DType::BF16, 64, false), Kernel::attend_list_plain_bf16_128);
        assert_eq!(kernel(DType::F32, 64, true), Kernel::attend_list_plain_f32_128);
        assert_eq!(kernel(DType::F32, 160, false), Kernel::attend_list_plain_f32_256);
        assert_eq!(kernel(DType::Q8, 64, true), Kernel::attend_list_q8_64);
        assert_eq!(kernel(DType::Q8, 160, true), Kernel::attend_list_q8_256);
        assert_eq!(kernel(DType::Q8, 64, false), Kernel::attend_list_plain_q8_128);
        assert_eq!(kernel(DType::Q8, 20, true), Kernel::attend_list_plain_q8_128);
    }

    #[test]
    fn a_kernel_with_weights_is_the_same_without_but_for_them() {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8] {
            for head_dim in [20, 64, 128, 256] {
                for is_aligned in [false, true] {
                    let [without, with] = [false, true].map(|is_weighted| {
                        choose(dtype, head_dim, is_aligned, is_weighted).facts().name
                    });
                    assert_eq!(with, without.replace("list_", "list_weighted_"));
                }
            }
        }
    }
}
