//! Data from the device: a ring of mapped buffers, and the wait for one.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use longview_ops::{OpError, OpResult};

use crate::counters::Tally;
use crate::gpu::Gpu;
use crate::lock::lock;

const SMALLEST: u64 = 4096;
/// Mapped buffers kept for the next read.
const KEPT: usize = 8;

/// Buffers to read through, by size.
#[derive(Default)]
pub(crate) struct ReadRing {
    free: Vec<wgpu::Buffer>,
}

impl ReadRing {
    /// A buffer of at least `size` bytes.
    pub fn take(&mut self, gpu: &Gpu, size: u64) -> OpResult<wgpu::Buffer> {
        if let Some(i) = self.free.iter().position(|b| b.size() >= size) {
            return Ok(self.free.swap_remove(i));
        }
        let size = size.max(SMALLEST).next_power_of_two();
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let no_memory =
            || OpError::OutOfMemory { backend: "wgpu", label: "read staging".into(), bytes: size };
        let raw = gpu.buffer(size, usage, "read staging").ok_or_else(no_memory)?;
        Ok(raw.buffer.clone())
    }

    /// Gives a buffer back, unmapped.
    pub fn put(&mut self, buffer: wgpu::Buffer) {
        if self.free.len() == KEPT {
            self.free.remove(0);
        }
        self.free.push(buffer);
    }
}

#[derive(Default)]
struct State {
    result: Option<Result<(), wgpu::BufferAsyncError>>,
    waker: Option<Waker>,
}

/// The end of a mapping.
struct Mapped(Arc<Mutex<State>>);

impl Future for Mapped {
    type Output = Result<(), wgpu::BufferAsyncError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.0);
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Maps the first `size` bytes of `buffer`, whose copies are submitted. Natively this waits for the
/// device; in a browser the future does.
pub(crate) async fn map(gpu: &Gpu, buffer: &wgpu::Buffer, size: u64) -> OpResult<()> {
    let state = Arc::new(Mutex::new(State::default()));
    let done = Arc::clone(&state);
    buffer.slice(..size).map_async(wgpu::MapMode::Read, move |result| {
        let mut state = lock(&done);
        state.result = Some(result);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    });
    Tally::add(&gpu.tally.readbacks, 1);
    Tally::add(&gpu.tally.bytes_down, size);
    if cfg!(not(target_arch = "wasm32")) {
        // An error shows in the mapping too, with the device's own words in `check`.
        gpu.pace.iter().for_each(|pace| pace.wait(true));
        let _ = gpu.device.poll(wgpu::PollType::wait_indefinitely());
        gpu.pace.iter().for_each(|pace| pace.wait(false));
    }
    let result = Mapped(state).await;
    gpu.save_new_pipelines();
    gpu.check()?;
    result.map_err(|e| OpError::DeviceLost { backend: "wgpu", reason: e.to_string() })
}
