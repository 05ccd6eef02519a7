//! The storage buffers of one dispatch, in the order of their bindings.

use std::sync::Arc;

use crate::raw_buffer::RawBuffer;

/// Most storage buffers of one kernel (WebGPU's guaranteed 8).
pub(crate) const MAX_BINDINGS: usize = 8;

/// Buffers from binding 1 on, and whether the kernel writes them.
pub(crate) struct Bindings {
    buffers: [Option<Arc<RawBuffer>>; MAX_BINDINGS],
    writes: [bool; MAX_BINDINGS],
    n: usize,
}

impl Default for Bindings {
    fn default() -> Self {
        Self { buffers: [const { None }; MAX_BINDINGS], writes: [false; MAX_BINDINGS], n: 0 }
    }
}

impl Bindings {
    /// Gives the next binding to a buffer.
    ///
    /// # Panics
    /// If there are [`MAX_BINDINGS`] already: no shader has more.
    pub fn add(&mut self, buffer: &Arc<RawBuffer>, is_written: bool) {
        self.buffers[self.n] = Some(Arc::clone(buffer));
        self.writes[self.n] = is_written;
        self.n += 1;
    }

    /// For each binding whether it is written: the key of a layout.
    pub fn writes(&self) -> &[bool] {
        &self.writes[..self.n]
    }

    pub fn buffers(&self) -> impl Iterator<Item = &Arc<RawBuffer>> {
        self.buffers.iter().flatten()
    }
}
