//! Launches `kmeans_assign.wgsl`.

use longview_ops::{KmeansAssign, Op, OpError, OpResult};

use crate::backend::WgpuBackend;

pub(crate) fn run(_: &WgpuBackend, d: KmeansAssign<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let reason = "not written yet".into();
    Err(OpError::Unsupported { backend: "wgpu", op: Op::KmeansAssign, reason })
}
