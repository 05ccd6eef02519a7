//! A buffer that a queue's ops share for what one dispatch leaves for the next.

use std::sync::{Arc, Mutex};

use longview_ops::OpResult;

use crate::gpu::Gpu;
use crate::lock::lock;
use crate::raw_buffer::RawBuffer;

/// Memory whose content lasts from one dispatch of an op to the op's next. The queue plays its
/// dispatches in order, so ops that follow each other may all have it.
#[derive(Default)]
pub(crate) struct Scratch(Mutex<Option<Arc<RawBuffer>>>);

impl Scratch {
    /// At least `bytes`. Who asks for the most that it may ever need allocates once. Recorded
    /// dispatches keep the buffer that they were recorded with.
    pub fn take(&self, gpu: &Gpu, bytes: u64) -> OpResult<Arc<RawBuffer>> {
        let mut held = lock(&self.0);
        if let Some(buffer) = held.as_ref().filter(|buffer| buffer.size >= bytes) {
            return Ok(Arc::clone(buffer));
        }
        let buffer = Arc::new(gpu.storage(bytes, "splits of attention")?);
        *held = Some(Arc::clone(&buffer));
        Ok(buffer)
    }
}
