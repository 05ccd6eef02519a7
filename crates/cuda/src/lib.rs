//! The CUDA backend: every op of the contract as a kernel, on NVIDIA GPUs.
//!
//! How a call becomes work: an op checks its descriptor, turns views into addresses, fills the
//! kernel's one struct of arguments and gives it to the queue's stream. No op allocates, waits or
//! reads anything back, so a decode step is a run of commands, the same at every token but for
//! numbers and addresses: the stream hands it over as a graph.
//!
//! What a device is stands behind [`Driver`]: memory, streams, events, launches. [`NvidiaDriver`]
//! is the real one; the tests have another that runs the same kernels, compiled as C++, on the CPU.
//! All above it, down to the bytes of the arguments, is the same code for both.
//!
//! Kernels lie in the workspace's `kernels/`, one stem per op, listed in [`Kernel`]. Their PTX is
//! made by `cargo xtask kernels` and embedded here, compressed: no toolkit is needed, neither to
//! build nor to run.

#[macro_use]
mod args;
mod backend;
mod buffer;
mod commands;
mod contract;
mod counters;
mod device;
mod driver;
mod error;
mod fallback;
mod fused;
mod fused_args;
mod graphs;
mod host_work;
mod kernel_args;
mod kernels;
mod library;
mod library_check;
mod lock;
mod names;
mod norm_rope;
mod nvidia;
mod open;
mod ops;
mod options;
pub mod probe;
mod ptx;
mod quantised;
mod queue;
mod staging;
mod stream;
mod target;
mod tile_args;
mod tile_layers;
mod tile_products;
mod variant;
mod weight;

pub use args::{Address, Field, KernelArgs, Layout};
pub use backend::CudaBackend;
pub use buffer::CudaBuffer;
pub use counters::Counters;
pub use driver::{
    CopyCall, DeviceFacts, Driver, DriverError, DriverResult, Grid, KernelCall, Memory, Place,
    ProductCall, Work,
};
pub use error::StartError;
pub use kernels::{Kernel, KernelFacts, SOURCES, Source};
pub use nvidia::NvidiaDriver;
pub use options::CudaOptions;
pub use target::Target;
pub use weight::CudaWeight;
