//! Launches `row_means.wgsl`.

use longview_ops::{Op, OpResult, RowMeans};

use crate::attention::{check_width, kv_defines, kv_row_bytes};
use crate::backend::WgpuBackend;
use crate::launch::Launch;

/// Invocations of a workgroup, each with an octet of a key or a value.
const GROUP: usize = 64;

pub(crate) fn run(backend: &WgpuBackend, d: RowMeans<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let p = d.p;
    check_width(Op::RowMeans, p.head_dim)?;
    let n_means = p.n_kv_heads as usize * p.n_means as usize;
    let n_octets = 2 * p.head_dim.div_ceil(8) as usize;
    let bytes = n_means * p.n_averaged as usize * kv_row_bytes(&d.kv, p.head_dim);
    kv_defines(Launch::new(backend, "row_means", "row_means"), &d.kv, p.head_dim)
        .params(&p)
        .u32(d.kv.head_stride)
        .reads(&d.kv.buffer.raw)
        .u32(d.kv.offset)
        .view_mut(&d.out)
        .counts(bytes as u64)
        .run((n_means * n_octets).div_ceil(GROUP))
}
