//! Launches `rope.wgsl`.

use longview_ops::{Rope, Op, OpError, OpResult};

use crate::backend::WgpuBackend;

pub(crate) fn run(_: &WgpuBackend, d: Rope<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let reason = "not written yet".into();
    Err(OpError::Unsupported { backend: "wgpu", op: Op::Rope, reason })
}
