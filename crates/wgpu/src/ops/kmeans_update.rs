//! Launches `kmeans_update.wgsl`.

use longview_ops::{KmeansUpdate, Op, OpError, OpResult};

use crate::backend::WgpuBackend;

pub(crate) fn run(_: &WgpuBackend, d: KmeansUpdate<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let reason = "not written yet".into();
    Err(OpError::Unsupported { backend: "wgpu", op: Op::KmeansUpdate, reason })
}
