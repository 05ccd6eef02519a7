//! Launches `rms_norm.wgsl`.

use longview_ops::{RmsNorm, Op, OpError, OpResult};

use crate::backend::WgpuBackend;

pub(crate) fn run(_: &WgpuBackend, d: RmsNorm<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let reason = "not written yet".into();
    Err(OpError::Unsupported { backend: "wgpu", op: Op::RmsNorm, reason })
}
