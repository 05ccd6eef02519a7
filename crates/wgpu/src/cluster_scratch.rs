//! Memory that the ops on clusters need between two of their dispatches.
//!
//! One buffer per queue: dispatches of a queue run in the order in which they are recorded, so each
//! op may use all of it.

use std::sync::{Arc, Mutex};

use longview_ops::OpResult;

use crate::buffer::RawBuffer;
use crate::gpu::{Gpu, lock};

/// The smallest buffer: most sequences never need more.
const SMALLEST: u64 = 1 << 20;

/// A buffer that grows rarely.
#[derive(Default)]
pub(crate) struct ClusterScratch(Mutex<Option<Arc<RawBuffer>>>);

impl ClusterScratch {
    /// At least `n_words` words of anything.
    pub fn words(&self, gpu: &Gpu, n_words: usize) -> OpResult<Arc<RawBuffer>> {
        let bytes = (n_words * 4) as u64;
        let mut held = lock(&self.0);
        if let Some(buffer) = held.as_ref().filter(|buffer| buffer.size >= bytes) {
            return Ok(Arc::clone(buffer));
        }
        let most = gpu.limits.max_storage_buffer_binding_size;
        let size = bytes.next_power_of_two().clamp(SMALLEST, most.max(SMALLEST)).max(bytes);
        let buffer = Arc::new(gpu.storage(size, "scratch of clusters")?);
        *held = Some(Arc::clone(&buffer));
        Ok(buffer)
    }
}
