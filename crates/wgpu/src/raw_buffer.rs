//! Device memory that is counted as long as somebody has it.

use std::sync::Arc;

use crate::counters::Tally;

/// Memory on the device. Its number is what bind groups are remembered by.
#[derive(Debug)]
pub(crate) struct RawBuffer {
    pub id: u64,
    pub buffer: wgpu::Buffer,
    pub size: u64,
    tally: Arc<Tally>,
}

impl RawBuffer {
    pub fn new(id: u64, buffer: wgpu::Buffer, tally: &Arc<Tally>) -> Self {
        let size = buffer.size();
        tally.take(size);
        Self { id, buffer, size, tally: Arc::clone(tally) }
    }
}

impl Drop for RawBuffer {
    fn drop(&mut self) {
        // Bind groups still hold the memory; recorders let go of theirs.
        self.tally.give_back(self.size);
    }
}
