//! What several ops ask when they choose the variant of a kernel and fill its arguments.

use longview_core::DType;
use longview_ops::{KvView, Linear, NO_KIND, Op, OpResult, kind};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::driver::Driver;

/// Of three variants the one for a type of elements; the last for bf16 and for none.
pub(crate) fn by_type<T: Copy>(dtype: DType, [f32, f16, bf16]: [T; 3]) -> T {
    match dtype {
        DType::F32 => f32,
        DType::F16 => f16,
        DType::BF16 | DType::U32 | DType::Q8 | DType::I8 => bf16,
    }
}

/// Where the bias of a linear layer is, and its kind; its shape is checked.
pub(crate) fn bias_of<D: Driver>(
    op: Op,
    d: &Linear<'_, CudaBackend<D>>,
) -> OpResult<(Address, u32)> {
    let Some(bias) = d.bias else { return Ok((Address::NONE, NO_KIND)) };
    bias.expect(op, 1, d.p.n_out as usize)?;
    Ok((bias.address(), kind(bias.plain(op)?.dtype)))
}

/// Ids that a list may name are below this: rows of a head, or of the whole pool. The largest
/// number is never an id.
pub(crate) fn row_limit<D: Driver>(kv: &KvView<'_, CudaBackend<D>>, head_dim: u32) -> u32 {
    u32::try_from(kv.row_limit(head_dim as usize)).unwrap_or(u32::MAX)
}
