//! Launches `matmul.wgsl`.

use longview_ops::{Linear, Op, OpError, OpResult};

use crate::backend::WgpuBackend;

pub(crate) fn run(_: &WgpuBackend, d: Linear<'_, WgpuBackend>) -> OpResult<()> {
    d.check(Op::Matmul)?;
    let reason = "not written yet".into();
    Err(OpError::Unsupported { backend: "wgpu", op: Op::Matmul, reason })
}
