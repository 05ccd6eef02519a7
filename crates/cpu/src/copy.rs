//! Copies between the host and buffers.

use longview_ops::{DeviceBuffer, OpError, OpResult, View, ViewMut};

use crate::backend::CpuBackend;

/// Host to buffer.
pub(crate) fn write(dst: ViewMut<'_, CpuBackend>, bytes: &[u8]) -> OpResult<()> {
    let size = dst.buffer.dtype().size();
    check(bytes.len(), dst.len * size, dst.in_bounds())?;
    let start = dst.offset * size;
    dst.buffer.bytes_mut()[start..start + bytes.len()].copy_from_slice(bytes);
    Ok(())
}

/// Buffer to host.
pub(crate) fn read(src: View<'_, CpuBackend>, out: &mut [u8]) -> OpResult<()> {
    let size = src.buffer.dtype().size();
    check(out.len(), src.len * size, src.in_bounds())?;
    let start = src.offset * size;
    out.copy_from_slice(&src.buffer.bytes()[start..start + out.len()]);
    Ok(())
}

fn check(bytes: usize, view_bytes: usize, in_bounds: bool) -> OpResult<()> {
    if bytes == view_bytes && in_bounds {
        return Ok(());
    }
    Err(OpError::Copy { bytes, view_bytes })
}
