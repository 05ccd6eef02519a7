//! Launches `attend_chunk.wgsl`.

use longview_ops::{AttendChunk, Op, OpError, OpResult};

use crate::backend::WgpuBackend;

pub(crate) fn run(_: &WgpuBackend, d: AttendChunk<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let reason = "not written yet".into();
    Err(OpError::Unsupported { backend: "wgpu", op: Op::AttendChunk, reason })
}
