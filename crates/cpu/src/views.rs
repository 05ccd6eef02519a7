//! What a view shows, as a slice.

use longview_ops::{View, ViewMut};

use crate::backend::CpuBackend;

/// The elements of a view.
pub(crate) fn slice<'a, E: bytemuck::Pod>(view: &View<'a, CpuBackend>) -> &'a [E] {
    &view.buffer.elements()[view.offset..view.offset + view.len]
}

/// The elements of a view, writable.
pub(crate) fn slice_mut<E: bytemuck::Pod>(view: ViewMut<'_, CpuBackend>) -> &mut [E] {
    &mut view.buffer.elements_mut()[view.offset..view.offset + view.len]
}
