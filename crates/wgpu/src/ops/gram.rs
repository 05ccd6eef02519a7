//! Launches `gram.wgsl`.

use longview_ops::{Gram, Op, OpError, OpResult};

use crate::backend::WgpuBackend;

pub(crate) fn run(_: &WgpuBackend, d: Gram<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let reason = "not written yet".into();
    Err(OpError::Unsupported { backend: "wgpu", op: Op::Gram, reason })
}
